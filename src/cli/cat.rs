//! `nearfs cat`: files on standard output.

use clap::Args;
use futures::StreamExt;
use nearfs::{OpenOptions, Result};

use super::args::Urls;
use super::context::Context;
use super::diagnostics::{DONE, FAILED, Outcome, PARTIAL};
use super::place::Place;
use super::progress::Progress;

/// Write files to standard output, one after the other
///
/// Large files are fetched in parallel ranges; memory stays within `--memory`.
#[derive(Debug, Args)]
pub(crate) struct CatArgs {
    #[command(flatten)]
    urls: Urls,
}

pub(crate) async fn run(ctx: &Context, args: CatArgs) -> Outcome {
    // A bar would be drawn over the data.
    let progress = Progress::new(ctx.quiet || ctx.out.terminal(), "reading", "files");
    let mut failed = 0;
    for operand in &args.urls.urls {
        let file = match open(ctx, operand).await {
            Ok(file) => file,
            Err(error) => {
                ctx.report(super::place::shown(operand), &error);
                failed += 1;
                continue;
            }
        };
        let size = file.metadata().size;
        progress.expect(size);
        let mut stream = file.read_stream(0..size);
        while let Some(chunk) = stream.next().await {
            match chunk {
                Ok(chunk) => {
                    progress.bytes(chunk.len() as u64);
                    ctx.out.bytes(chunk).await?;
                }
                Err(error) => {
                    ctx.report(super::place::shown(operand), &error);
                    failed += 1;
                    break;
                }
            }
        }
    }
    progress.finish();
    Ok(if failed == 0 {
        DONE
    } else if failed < args.urls.urls.len() {
        PARTIAL
    } else {
        FAILED
    })
}

/// The file at `operand`, pinned to its current version.
pub(crate) async fn open(
    ctx: &Context,
    operand: &std::ffi::OsStr,
) -> Result<std::sync::Arc<dyn nearfs::File>> {
    let place = Place::open(ctx, operand).await?;
    if place.directory {
        // Says whether nothing, a file or a directory is there.
        place.stat().await?;
    }
    place.fs.open(&place.path, OpenOptions::default()).await
}
