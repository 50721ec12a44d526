//! `nearfs du`: how much is stored below places.

use std::collections::BTreeMap;
use std::ffi::OsStr;

use clap::Args;
use futures::StreamExt;
use nearfs::{FileSystemExt, FsPath};
use serde::Serialize;

use super::args::Urls;
use super::context::Context;
use super::diagnostics::{DONE, FAILED, Outcome, PARTIAL};
use super::output::{human_bytes, json_path};
use super::place::Place;
use super::progress::Progress;

/// Most directories that are summed up one by one.
const MAX_DIRECTORIES: usize = 100_000;

/// Sum up sizes below places
///
/// Prints bytes, files and place, separated by tabs. Sizes are those of the data, not of disk blocks.
#[derive(Debug, Args)]
pub(crate) struct DuArgs {
    #[command(flatten)]
    urls: Urls,
    /// Print directories down to this depth too; 0 prints the places alone
    #[arg(short = 'd', long, value_name = "N", default_value_t = 0)]
    max_depth: usize,
    /// Print sizes for people (`1.2 MiB`) instead of bytes
    #[arg(long)]
    human: bool,
}

#[derive(Debug, Default, Clone, Copy)]
struct Sum {
    bytes: u64,
    files: u64,
}

#[derive(Serialize)]
struct JsonSum {
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_base64: Option<String>,
    bytes: u64,
    files: u64,
}

pub(crate) async fn run(ctx: &Context, args: DuArgs) -> Outcome {
    let progress = Progress::new(ctx.quiet, "counted", "files");
    let mut failed = 0;
    for operand in &args.urls.urls {
        match sum_up(ctx, operand, args.max_depth, &progress).await {
            Ok((place, sums)) => {
                for (path, sum) in sums {
                    print(ctx, &args, &place.name_of(&path), sum).await?;
                }
            }
            Err(error) => {
                ctx.report(super::place::shown(operand), &error);
                failed += 1;
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

/// Sums by directory, the place itself last.
async fn sum_up(
    ctx: &Context,
    operand: &OsStr,
    depth: usize,
    progress: &Progress,
) -> nearfs::Result<(Place, Vec<(FsPath, Sum)>)> {
    let place = Place::open(ctx, operand).await?;
    let mut total = Sum::default();
    let mut below: BTreeMap<FsPath, Sum> = BTreeMap::new();
    let mut entries = place.fs.walk(&place.path);
    while let Some(entry) = entries.next().await {
        let entry = match entry {
            Err(error) if error.kind() == nearfs::ErrorKind::NotADirectory && !place.directory => {
                total = Sum { bytes: place.stat().await?.size, files: 1 };
                break;
            }
            entry => entry?,
        };
        let level = entry.path.depth() - place.path.depth();
        let one = if entry.metadata.is_file() {
            Sum { bytes: entry.metadata.size, files: 1 }
        } else {
            Sum::default()
        };
        total.bytes += one.bytes;
        total.files += one.files;
        progress.files(one.files);
        let mut dir = if entry.metadata.is_dir() { Some(entry.path.clone()) } else { entry.path.parent() };
        let mut level = if entry.metadata.is_dir() { level } else { level - 1 };
        while let Some(path) = dir.filter(|_| level > 0) {
            if level <= depth {
                if below.len() >= MAX_DIRECTORIES && !below.contains_key(&path) {
                    return Err(nearfs::Error::new(
                        nearfs::ErrorKind::InvalidInput,
                        format!("more than {MAX_DIRECTORIES} directories down to depth {depth}"),
                    )
                    .with_context("hint", "use a smaller `--max-depth`"));
                }
                let sum = below.entry(path.clone()).or_default();
                sum.bytes += one.bytes;
                sum.files += one.files;
            }
            level -= 1;
            dir = path.parent();
        }
    }
    let mut sums: Vec<_> = below.into_iter().collect();
    sums.sort_by(|a, b| a.0.cmp_listing(&b.0));
    sums.push((place.path.clone(), total));
    Ok((place, sums))
}

async fn print(ctx: &Context, args: &DuArgs, name: &[u8], sum: Sum) -> Outcome<()> {
    if ctx.json {
        let (path, path_base64) = json_path(name);
        return ctx.out.json(&JsonSum { path, path_base64, bytes: sum.bytes, files: sum.files }).await;
    }
    let bytes = if args.human { human_bytes(sum.bytes) } else { sum.bytes.to_string() };
    let mut line = format!("{bytes}\t{}\t", sum.files).into_bytes();
    line.extend(ctx.out.name(name));
    ctx.out.line(line).await
}
