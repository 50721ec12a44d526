//! `nearfs config`: the settings in force.

use clap::{Args, Subcommand};
use nearfs::StoreUrl;
use nearfs::config::Entry;
use serde::Serialize;

use super::context::Context;
use super::diagnostics::{DONE, Outcome, note};

/// Show settings
#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Print every setting in force, as it would stand in nearfs.toml
    Show {
        /// Say where each value comes from
        #[arg(long)]
        origin: bool,
        /// For this store, with its `[store…]` sections
        #[arg(value_name = "URL")]
        url: Option<String>,
    },
}

#[derive(Serialize)]
struct JsonSetting {
    key: &'static str,
    /// `null` if unset.
    value: Option<String>,
    origin: String,
}

pub(crate) async fn run(ctx: &Context, args: ConfigArgs) -> Outcome {
    let ConfigCommand::Show { origin, url } = args.command;
    let config = ctx.client.config();
    // Checked, so that a slip is an error here too.
    let url = url.map(|u| StoreUrl::parse(&u)).transpose()?.map(|u| u.to_string());
    config.settings(url.as_deref())?;
    for (name, near) in config.unknown_variables() {
        let near = near.map(|n| format!("; did you mean {n}?")).unwrap_or_default();
        note(format_args!("warning: the environment variable {name} means nothing{near}"));
    }
    for entry in config.entries(url.as_deref()) {
        if ctx.json {
            let value = (!entry.value.is_empty()).then_some(entry.value);
            ctx.out.json(&JsonSetting { key: entry.key, value, origin: entry.origin.to_string() }).await?;
            continue;
        }
        let mut line = match entry.value.is_empty() {
            true => format!("# {} is unset", entry.key),
            false => format!("{} = {}", entry.key, in_toml(&entry)),
        };
        if origin {
            line = format!("{line:<40} # {}", entry.origin);
        }
        ctx.out.line(line).await?;
    }
    Ok(DONE)
}

/// The value as it is written in nearfs.toml.
fn in_toml(entry: &Entry) -> String {
    let string = |text: &String| toml::Value::String(text.clone());
    match &entry.list {
        Some(items) => toml::Value::Array(items.iter().map(string).collect()).to_string(),
        None => string(&entry.value).to_string(),
    }
}
