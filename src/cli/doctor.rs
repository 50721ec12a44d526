//! `nearfs doctor`: what this machine and a store allow, and what to do about what they do not.

mod cache;
mod store;
mod system;

use std::ffi::OsString;

use clap::Args;
use serde::Serialize;

use super::context::Context;
use super::diagnostics::{DONE, Outcome, PARTIAL};

/// Check this machine, and a store if one is named
///
/// Each line says what was found; where something needs attention, what it means and what to do. Exits with 1 then.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Stores to check: credentials, connection, rights
    #[arg(value_name = "URL")]
    urls: Vec<OsString>,
}

/// How a check went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Ok,
    /// Not as it could be, and fine for many uses.
    Note,
    /// Something will not work.
    Attention,
}

/// One line of the report.
#[derive(Debug, Serialize)]
struct Finding {
    check: String,
    state: State,
    found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    meaning: Option<String>,
    #[serde(rename = "do", skip_serializing_if = "Option::is_none")]
    action: Option<String>,
}

impl Finding {
    fn ok(check: impl Into<String>, found: impl Into<String>) -> Self {
        Finding { check: check.into(), state: State::Ok, found: found.into(), meaning: None, action: None }
    }

    fn note(check: impl Into<String>, found: impl Into<String>) -> Self {
        Finding { state: State::Note, ..Finding::ok(check, found) }
    }

    fn attention(check: impl Into<String>, found: impl Into<String>) -> Self {
        Finding { state: State::Attention, ..Finding::ok(check, found) }
    }

    fn means(mut self, meaning: impl Into<String>) -> Self {
        self.meaning = Some(meaning.into());
        self
    }

    fn advise(mut self, action: impl Into<String>) -> Self {
        self.action = Some(action.into());
        self
    }
}

pub(crate) async fn run(ctx: &Context, args: DoctorArgs) -> Outcome {
    let config = ctx.client.config().settings(None)?;
    let disk = ctx.client.disk_config()?;
    let local = tokio::task::spawn_blocking(move || {
        let mut findings = system::check(&config);
        findings.extend(cache::check(disk.as_ref()));
        findings
    });
    let local = local.await;
    let mut findings =
        local.unwrap_or_else(|e| vec![Finding::attention("doctor", format!("checking panicked: {e}"))]);
    findings.extend(configuration(ctx));
    let mut attention = false;
    for finding in findings {
        attention |= print(ctx, &finding).await?;
    }
    for url in &args.urls {
        // One after the other, printed as they come: a store that does not answer takes its time.
        let mut checks = store::Checks::new(ctx, url);
        while let Some(finding) = checks.next().await {
            attention |= print(ctx, &finding).await?;
        }
    }
    Ok(if attention { PARTIAL } else { DONE })
}

/// Prints a finding; true if it needs attention.
async fn print(ctx: &Context, finding: &Finding) -> Outcome<bool> {
    let attention = finding.state == State::Attention;
    if ctx.json {
        ctx.out.json(finding).await?;
        return Ok(attention);
    }
    let mark = match finding.state {
        State::Ok => "ok  ",
        State::Note => "note",
        State::Attention => "FIX ",
    };
    let mut text = format!("{mark} {:<16} {}", finding.check, finding.found);
    for (label, more) in [("means", &finding.meaning), ("do", &finding.action)] {
        if let Some(more) = more {
            text.push_str(&format!("\n     {:<16} {label}: {more}", ""));
        }
    }
    ctx.out.line(text).await?;
    Ok(attention)
}

fn configuration(ctx: &Context) -> Vec<Finding> {
    let config = ctx.client.config();
    let files: Vec<_> = config.files().map(|p| p.display().to_string()).collect();
    let mut findings = vec![if files.is_empty() {
        let searched: Vec<_> = config.searched().iter().map(|p| p.display().to_string()).collect();
        Finding::ok("configuration", format!("no file, defaults hold (looked for {})", searched.join(", ")))
    } else {
        Finding::ok("configuration", format!("read {}", files.join(", ")))
    }];
    for (name, near) in config.unknown_variables() {
        let finding = Finding::attention("environment", format!("{name} is set"))
            .means("no setting has this name; it changes nothing");
        findings.push(finding.advise(match near {
            Some(near) => format!("write {near}, or unset it"),
            None => "unset it; `nearfs config show` lists the settings".to_owned(),
        }));
    }
    findings
}
