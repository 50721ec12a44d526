//! `nearfs cache pin`: files that stay.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use clap::Args;
use futures::StreamExt;
use nearfs::cache::{DiskTier, Pinned};
use nearfs::{DirEntry, Error, ErrorKind, OpenOptions, Result};

use super::super::args::Urls;
use super::super::context::Context;
use super::super::diagnostics::Outcome;
use super::super::place::{Place, shown};
use super::super::progress::Progress;

/// Keep files in the cache whatever else is read
///
/// A directory means everything below it. The store is asked for the versions of today; what is not in the cache is
/// fetched, and then stays until it is unpinned or the cache is cleared. At most half of the limit can be pinned. A
/// version that is replaced in the store stays pinned: unpin before, or clear.
#[derive(Debug, Args)]
pub(crate) struct PinArgs {
    #[command(flatten)]
    urls: Urls,
    /// Let them go again when room is needed
    #[arg(long)]
    unpin: bool,
}

pub(super) async fn run(ctx: &Context, args: PinArgs) -> Outcome {
    let tier = super::tier(ctx).await?;
    let verb = if args.unpin { "unpinned" } else { "pinned" };
    let progress = Progress::new(ctx.quiet, verb, "files");
    let mut count = Count::default();
    for operand in &args.urls.urls {
        if let Err(error) = all(ctx, operand, &tier, args.unpin, &progress, &mut count).await {
            ctx.report(shown(operand), &error);
            count.failed += 1;
        }
    }
    progress.finish();
    if !ctx.quiet {
        ctx.out.line(format!("{} files {verb}", count.done)).await?;
    }
    Ok(super::code(count.failed, count.done))
}

#[derive(Default)]
struct Count {
    done: u64,
    failed: u64,
}

/// Every file at or below `operand`; one that fails does not keep the others from it.
async fn all(
    ctx: &Context,
    operand: &OsStr,
    tier: &Arc<DiskTier>,
    unpin: bool,
    progress: &Progress,
    count: &mut Count,
) -> Result<()> {
    let (place, mut files) = super::files::at(ctx, operand).await?;
    while let Some(entry) = files.next().await {
        let entry = entry?;
        let done = match unpin {
            true => let_go(tier, &place, &entry).await,
            false => keep(tier, &place, &entry, progress).await,
        };
        match done {
            Ok(()) => {
                count.done += 1;
                progress.files(1);
            }
            Err(error) => {
                ctx.report(shown(OsStr::from_bytes(&place.name_of(&entry.path))), &error);
                count.failed += 1;
            }
        }
    }
    Ok(())
}

/// Pins a file and fetches what is missing of it.
async fn keep(tier: &Arc<DiskTier>, place: &Place, entry: &DirEntry, progress: &Progress) -> Result<()> {
    progress.expect(entry.metadata.size);
    if pin(tier, place, entry).await? == Pinned::Whole {
        progress.bytes(entry.metadata.size);
        return Ok(());
    }
    let kept = async {
        let options = OpenOptions { metadata: Some(entry.metadata.clone()) };
        let file = place.fs.open(&entry.path, options).await?;
        let mut bytes = file.read_stream(0..entry.metadata.size);
        while let Some(chunk) = bytes.next().await {
            progress.bytes(chunk?.len() as u64);
        }
        tier.flush().await;
        match pin(tier, place, entry).await? {
            Pinned::Whole => Ok(()),
            _ => Err(Error::new(ErrorKind::NoSpace, "the disk did not take all of it").with_context(
                "hint",
                "`nearfs cache status` shows limit and disk; try again when less is going on",
            )),
        }
    };
    let kept = kept.await;
    if kept.is_err() {
        // A part of it is of no use to whoever wants all of it.
        let_go(tier, place, entry).await?;
    }
    kept
}

async fn pin(tier: &Arc<DiskTier>, place: &Place, entry: &DirEntry) -> Result<Pinned> {
    super::ask(tier, place, entry, |tier, store, file| tier.pin(store, &file.path, &file.metadata)).await?
}

async fn let_go(tier: &Arc<DiskTier>, place: &Place, entry: &DirEntry) -> Result<()> {
    super::ask(tier, place, entry, |tier, store, file| tier.unpin(store, &file.path, &file.metadata)).await?;
    Ok(())
}
