//! `nearfs cp`: copies between stores, local disks and pipes.

mod plan;
mod transfer;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use clap::Args;
use futures::{StreamExt, stream};
use tokio::sync::Semaphore;

use super::context::Context;
use super::diagnostics::{DONE, FAILED, Failure, INTERRUPTED, Outcome, PARTIAL, complain};
use super::place::shown;
use super::progress::Progress;
use plan::{Job, Plan};

/// Places for files under way: a small file takes one, a large one [`LARGE_PLACES`].
const PLACES: usize = 64;
/// A large file is moved in parallel parts by itself, and holds that many in memory.
const LARGE_PLACES: u32 = 16;
/// What is larger, in bytes, is a large file.
const LARGE: u64 = 8 << 20;
/// What is given up in the background gets this long before the process ends.
const CLEAN_UP: Duration = Duration::from_millis(500);
/// Failed files named at the end.
const NAMED: usize = 20;

/// Copy files and directories: up, down and across stores
///
/// `nearfs cp SOURCE… TARGET`. The target names a directory if it ends in `/` or if one is there; then sources keep
/// their last component. `-` is standard input or output. A file appears whole or not at all; what fails does not keep
/// the others from being copied. Times and permissions are not copied.
#[derive(Debug, Args)]
pub(crate) struct CpArgs {
    /// Sources, then the target
    #[arg(required = true, num_args = 2.., value_name = "URL")]
    operands: Vec<OsString>,
    /// Copy directories with everything below them
    #[arg(short, long)]
    recursive: bool,
}

/// What happened so far.
#[derive(Debug, Default)]
struct Tally {
    copied: u64,
    /// Names, the first [`NAMED`] of them.
    failed: Vec<String>,
    failures: u64,
}

impl Tally {
    fn fail(&mut self, ctx: &Context, name: &[u8], error: &nearfs::Error) {
        // What was stopped on purpose is not reported one by one.
        if ctx.interrupt.is_cancelled() {
            return;
        }
        let name = shown(OsStr::from_bytes(name));
        ctx.report(&name, error);
        self.failures += 1;
        if self.failed.len() < NAMED {
            self.failed.push(name);
        }
    }
}

pub(crate) async fn run(ctx: &Context, args: CpArgs) -> Outcome {
    let progress = Progress::new(ctx.quiet, "copied", "files");
    let mut tally = Tally::default();
    let places = Semaphore::new(PLACES);
    let interrupted = || Err(Failure::Silent(INTERRUPTED));
    let plan = tokio::select! {
        plan = Plan::of(ctx, &args, &mut tally) => plan?,
        () = ctx.interrupt.cancelled() => return interrupted(),
    };
    match plan {
        Plan::FromStdin(target) => {
            let name = target.typed.clone();
            match transfer::from_stdin(ctx, &target, &progress).await {
                Ok(()) => tally.copied += 1,
                Err(error) => tally.fail(ctx, &name, &error),
            }
        }
        Plan::ToStdout(source) => {
            match transfer::to_stdout(ctx, &source, &progress).await? {
                Ok(()) => tally.copied += 1,
                Err(error) => tally.fail(ctx, &source.typed, &error),
            };
        }
        Plan::Copies(copies) => {
            for copy in copies {
                let jobs = copy.jobs();
                let mut done = jobs
                    .map(|job| async {
                        match job {
                            Ok(Job { name, work }) => {
                                (name, transfer::one(ctx, &copy, &work, &progress, &places).await)
                            }
                            Err(error) => (copy.source.typed.clone(), Err(error)),
                        }
                    })
                    .buffer_unordered(PLACES);
                while let Some((name, result)) = done.next().await {
                    match result {
                        Ok(true) => tally.copied += 1,
                        Ok(false) => {}
                        Err(error) => tally.fail(ctx, &name, &error),
                    }
                }
                if ctx.interrupt.is_cancelled() {
                    break;
                }
            }
        }
    }
    progress.finish();
    if ctx.interrupt.is_cancelled() {
        // An upload that was just about to begin is given up in the background, once its answer is there.
        tokio::time::sleep(CLEAN_UP).await;
        return interrupted();
    }
    Ok(summary(&tally))
}

fn summary(tally: &Tally) -> u8 {
    if tally.failures == 0 {
        return DONE;
    }
    if tally.failures + tally.copied > 1 {
        let mut message = format!("{} not copied, {} copied", tally.failures, tally.copied);
        for name in &tally.failed {
            message.push_str("\n  ");
            message.push_str(name);
        }
        if tally.failures > tally.failed.len() as u64 {
            message.push_str(&format!("\n  and {} more", tally.failures - tally.failed.len() as u64));
        }
        complain(&message, None);
    }
    if tally.copied > 0 { PARTIAL } else { FAILED }
}

/// An empty stream of jobs, or one with a single item.
fn single(job: nearfs::Result<Job>) -> stream::BoxStream<'static, nearfs::Result<Job>> {
    stream::once(std::future::ready(job)).boxed()
}
