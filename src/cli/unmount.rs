//! `nearfs unmount`: ends mounts.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use nearfs::config::parse_span;
use nearfs::mount::{UnmountOptions, Unmounted, unmount};

use super::context::Context;
use super::diagnostics::{DONE, FAILED, Failure, Outcome, PARTIAL, note};

/// Unmount directories
///
/// Fails if somebody still uses the mount, unless told how to go on.
#[derive(Debug, Args)]
pub(crate) struct UnmountArgs {
    /// Mounted directories
    #[arg(required = true, value_name = "DIR")]
    dirs: Vec<PathBuf>,
    /// End the connection at once: whoever uses the mount gets errors, and nobody stays stuck
    #[arg(short, long)]
    force: bool,
    /// Take it out of sight now; those who use it go on until they are done
    #[arg(short, long, conflicts_with = "force")]
    lazy: bool,
    /// Wait this long for those who use it
    #[arg(long, value_name = "SPAN", default_value = "0")]
    drain: String,
}

pub(crate) async fn run(ctx: &Context, args: UnmountArgs) -> Outcome {
    let drain: Duration = parse_span(&args.drain).map_err(|e| Failure::about("--drain", &e))?;
    let options = UnmountOptions { force: args.force, lazy: args.lazy, drain };
    let mut failed = 0;
    for dir in &args.dirs {
        let path = dir.clone();
        let done = tokio::task::spawn_blocking(move || unmount(&path, options)).await;
        let done = done.map_err(|_| Failure::plain("unmounting panicked; this is a bug"))?;
        let how = match done {
            Ok(Unmounted::Clean) => "unmounted",
            Ok(Unmounted::Lazily) => "out of sight; it ends when nobody uses it any more",
            Ok(Unmounted::Forced) => "unmounted; whoever used it got errors",
            Err(error) => {
                ctx.report(dir.display(), &error);
                failed += 1;
                continue;
            }
        };
        if !ctx.quiet {
            note(format_args!("{}: {how}", dir.display()));
        }
    }
    Ok(if failed == 0 {
        DONE
    } else if failed < args.dirs.len() {
        PARTIAL
    } else {
        FAILED
    })
}
