//! `nearfs cache verify`: every byte in the cache against its checksum.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;
use nearfs::cache::Checked;

use super::super::context::Context;
use super::super::diagnostics::{DONE, Outcome, PARTIAL};
use super::super::output::human_bytes;
use super::super::progress::Progress;

/// Read everything in the cache and compare it with its checksums
///
/// What is damaged is removed, and fetched again when it is next read. Exits with 1 if anything was
/// damaged or could not be read.
#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {}

/// Ends the work when the command does.
struct Stop(Arc<AtomicBool>);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

pub(super) async fn run(ctx: &Context, _args: VerifyArgs) -> Outcome {
    let mut found = Checked::default();
    if let Some(tier) = super::existing(ctx).await? {
        let progress = Progress::new(ctx.quiet, "verified", "objects");
        progress.expect(tier.stats().used);
        let stop = Stop(Arc::default());
        let (shown, stopped) = (progress.clone(), stop.0.clone());
        let verified = super::blocking(move || {
            let last = Cell::new(Checked::default());
            tier.verify(&|all| {
                let before = last.replace(*all);
                shown.files(all.objects - before.objects);
                shown.bytes(all.bytes - before.bytes);
                !stopped.load(Ordering::Relaxed)
            })
        });
        found = verified.await?;
        progress.finish();
    }
    if ctx.json {
        ctx.out.json(&found).await?;
    } else {
        let mut text = format!("{} objects, {} right", found.objects, human_bytes(found.bytes));
        for (n, what) in [
            (found.damaged, "damaged: removed, and fetched again when they are read"),
            (found.unread, "could not be read now"),
            (found.leftovers, "files that belonged to nothing: removed"),
            (found.foreign, "files that are not of nearfs: left alone"),
        ] {
            if n > 0 {
                text.push_str(&format!("\n{n} {what}"));
            }
        }
        ctx.out.line(text).await?;
    }
    Ok(if found.damaged + found.unread == 0 { DONE } else { PARTIAL })
}
