//! `nearfs stats`: what mounts have done so far.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use nearfs::mount::list_mounts;
use serde_json::Value;

use super::context::Context;
use super::diagnostics::{DONE, FAILED, Failure, Outcome, PARTIAL, complain};

/// How long a mount may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Show the counters of a mount, or of all mounts
#[derive(Debug, Args)]
pub(crate) struct StatsArgs {
    /// A mounted directory; without it all nearfs mounts
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub(crate) async fn run(ctx: &Context, args: StatsArgs) -> Outcome {
    let dirs = match args.dir {
        Some(dir) => vec![dir],
        None => list_mounts()?.into_iter().map(|m| m.dir).collect(),
    };
    let mut failed = 0;
    for dir in &dirs {
        match read(dir).await {
            Ok(stats) => print(ctx, dir, stats).await?,
            Err((message, hint)) => {
                complain(&format!("{}: {message}", dir.display()), hint);
                failed += 1;
            }
        }
    }
    Ok(if failed == 0 {
        DONE
    } else if failed < dirs.len() {
        PARTIAL
    } else {
        FAILED
    })
}

type Problem = (String, Option<&'static str>);

async fn read(dir: &Path) -> Result<Value, Problem> {
    let file = dir.join(".nearfs/stats");
    // A thread that waits for a hung mount is left behind; the process ends without it.
    let reading = tokio::task::spawn_blocking(move || std::fs::read(file));
    let text = match tokio::time::timeout(PATIENCE, reading).await {
        Err(_) => {
            return Err(("the mount does not answer".to_owned(), Some("end it with `nearfs unmount -f`")));
        }
        Ok(Err(_)) => return Err(("reading panicked; this is a bug".to_owned(), None)),
        Ok(Ok(Err(e))) if e.kind() == std::io::ErrorKind::NotFound => {
            return Err(("no nearfs mount is here".to_owned(), Some("`nearfs mounts` lists them")));
        }
        Ok(Ok(Err(e))) => return Err((e.to_string(), None)),
        Ok(Ok(Ok(text))) => text,
    };
    serde_json::from_slice(&text)
        .map_err(|e| (format!("expected statistics, found something else: {e}"), None))
}

async fn print(ctx: &Context, dir: &Path, stats: Value) -> Outcome<()> {
    if ctx.json {
        let Value::Object(mut object) = stats else {
            return Err(Failure::plain(format!("{}: expected an object of statistics", dir.display())));
        };
        object.insert("dir".to_owned(), Value::String(dir.display().to_string()));
        return ctx.out.json(&object).await;
    }
    ctx.out.line(format!("{}:", dir.display())).await?;
    let mut lines = Vec::new();
    flatten("", &stats, &mut lines);
    let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, value) in lines {
        ctx.out.line(format!("  {name:<width$}  {value}")).await?;
    }
    Ok(())
}

/// `{"a": {"b": 1}}` as `a.b` and `1`.
fn flatten(prefix: &str, value: &Value, lines: &mut Vec<(String, String)>) {
    match value {
        Value::Object(object) => {
            for (key, value) in object {
                let name = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
                flatten(&name, value, lines);
            }
        }
        Value::String(text) => lines.push((prefix.to_owned(), text.clone())),
        other => lines.push((prefix.to_owned(), other.to_string())),
    }
}
