//! `nearfs cache evict`: some files out.

use std::ffi::OsStr;
use std::sync::Arc;

use clap::Args;
use futures::StreamExt;
use nearfs::cache::DiskTier;

use super::super::args::Urls;
use super::super::context::Context;
use super::super::diagnostics::{DONE, Outcome, PARTIAL};
use super::super::output::human_bytes;
use super::super::place::shown;
use super::super::progress::Progress;

/// Remove files from the cache
///
/// A directory means everything below it. The store is asked for the versions of today, and those are removed; older
/// versions go by themselves. What is pinned or in use stays (exit code 1). What a running mount or the kernel has in
/// memory is not touched.
#[derive(Debug, Args)]
pub(crate) struct EvictArgs {
    #[command(flatten)]
    urls: Urls,
}

pub(super) async fn run(ctx: &Context, args: EvictArgs) -> Outcome {
    let tier = super::tier(ctx).await?;
    let progress = Progress::new(ctx.quiet, "looked for", "files");
    let mut all = Sum::default();
    let (mut failed, mut looked) = (0, 0);
    for operand in &args.urls.urls {
        match evict(ctx, operand, &tier, &progress, &mut all).await {
            Ok(()) => looked += 1,
            Err(error) => {
                ctx.report(shown(operand), &error);
                failed += 1;
            }
        }
    }
    progress.finish();
    if !ctx.quiet {
        let mut text = format!("{} objects removed, {} freed", all.objects, human_bytes(all.bytes));
        if all.kept > 0 {
            text.push_str(&format!("; {} pinned or in use stay", all.kept));
        }
        ctx.out.line(text).await?;
    }
    match super::code(failed, looked) {
        DONE if all.kept > 0 => Ok(PARTIAL),
        code => Ok(code),
    }
}

#[derive(Default)]
struct Sum {
    objects: u64,
    bytes: u64,
    kept: u64,
}

async fn evict(
    ctx: &Context,
    operand: &OsStr,
    tier: &Arc<DiskTier>,
    progress: &Progress,
    all: &mut Sum,
) -> nearfs::Result<()> {
    let (place, mut files) = super::files::at(ctx, operand).await?;
    while let Some(entry) = files.next().await {
        let entry = entry?;
        let evicted = super::ask(tier, &place, &entry, |tier, store, file| {
            tier.evict(store, &file.path, &file.metadata)
        });
        let evicted = evicted.await?;
        all.objects += evicted.objects;
        all.bytes += evicted.bytes;
        all.kept += evicted.kept;
        progress.files(1);
    }
    Ok(())
}
