//! `nearfs stat`: what is known of files and directories.

use clap::Args;

use super::args::Urls;
use super::context::Context;
use super::diagnostics::{DONE, FAILED, Outcome, PARTIAL};
use super::output::{JsonEntry, human_bytes, kind_word, time};
use super::place::Place;

/// Show what is known of files and directories
#[derive(Debug, Args)]
pub(crate) struct StatArgs {
    #[command(flatten)]
    urls: Urls,
}

pub(crate) async fn run(ctx: &Context, args: StatArgs) -> Outcome {
    let mut failed = 0;
    for (i, operand) in args.urls.urls.iter().enumerate() {
        let asked = async {
            let place = Place::open(ctx, operand).await?;
            let metadata = place.stat().await?;
            nearfs::Result::Ok((place, metadata))
        };
        let (place, metadata) = match asked.await {
            Ok(found) => found,
            Err(error) => {
                ctx.report(super::place::shown(operand), &error);
                failed += 1;
                continue;
            }
        };
        if ctx.json {
            ctx.out.json(&JsonEntry::new(&place.typed, &metadata)).await?;
            continue;
        }
        let mut text = if i > failed { b"\n".to_vec() } else { Vec::new() };
        text.extend_from_slice(b"path:     ");
        text.extend(ctx.out.name(&place.typed));
        text.extend(format!("\nkind:     {}", kind_word(metadata.kind)).into_bytes());
        if metadata.is_file() {
            text.extend(
                format!("\nsize:     {} ({})", metadata.size, human_bytes(metadata.size)).into_bytes(),
            );
        }
        if let Some(modified) = metadata.modified {
            text.extend(format!("\nmodified: {}", time(modified)).into_bytes());
        }
        if metadata.version.is_known() {
            text.extend(format!("\nversion:  {}", metadata.version).into_bytes());
        }
        if let Some(mode) = metadata.mode {
            text.extend(format!("\nmode:     {mode:04o}").into_bytes());
        }
        if metadata.archived {
            text.extend_from_slice(b"\narchived: yes, restore it before reading");
        }
        ctx.out.line(text).await?;
    }
    Ok(if failed == 0 {
        DONE
    } else if failed < args.urls.urls.len() {
        PARTIAL
    } else {
        FAILED
    })
}
