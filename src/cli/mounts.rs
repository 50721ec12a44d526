//! `nearfs mounts`: what is mounted here.

use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use clap::Args;
use nearfs::mount::{Liveness, list_mounts, probe};
use serde::Serialize;

use super::context::Context;
use super::diagnostics::{DONE, Outcome};
use super::output::json_path;

/// How long a mount may take to answer before it counts as silent.
const PATIENCE: Duration = Duration::from_secs(2);

/// List the nearfs mounts of this machine, and whether they answer
///
/// Prints URL, directory, access and state, separated by tabs.
#[derive(Debug, Args)]
pub(crate) struct MountsArgs {}

#[derive(Serialize)]
struct JsonMount {
    source: String,
    dir: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    dir_base64: Option<String>,
    read_only: bool,
    allow_other: bool,
    state: &'static str,
}

pub(crate) async fn run(ctx: &Context, _: MountsArgs) -> Outcome {
    for mount in list_mounts()? {
        let dir = mount.dir.clone();
        let asked = tokio::task::spawn_blocking(move || probe(&dir, PATIENCE)).await;
        let state = match asked {
            Ok(Ok(Liveness::Alive)) => "alive",
            Ok(Ok(Liveness::Dead)) => "dead",
            Ok(Ok(Liveness::Silent)) => "silent",
            _ => "failing",
        };
        if ctx.json {
            let (dir, dir_base64) = json_path(mount.dir.as_os_str().as_bytes());
            let entry = JsonMount {
                source: mount.source,
                dir,
                dir_base64,
                read_only: mount.read_only,
                allow_other: mount.allow_other,
                state,
            };
            ctx.out.json(&entry).await?;
            continue;
        }
        let access = if mount.read_only { "read-only" } else { "read-write" };
        let mut line = ctx.out.name(mount.source.as_bytes());
        line.push(b'\t');
        line.extend(ctx.out.name(mount.dir.as_os_str().as_bytes()));
        line.extend(format!("\t{access}\t{state}").into_bytes());
        ctx.out.line(line).await?;
    }
    Ok(DONE)
}
