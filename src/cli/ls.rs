//! `nearfs ls`: the entries of directories.

use clap::Args;
use futures::StreamExt;
use nearfs::{DirEntry, ListOptions, Metadata};

use super::args::Urls;
use super::context::Context;
use super::diagnostics::{DONE, FAILED, Outcome, PARTIAL};
use super::output::{JsonEntry, human_bytes, time};
use super::place::Place;

/// List directories, one level
///
/// Prints one name a line; directories end in `/`. A URL that names a file prints that file.
#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    #[command(flatten)]
    urls: Urls,
    /// Print size and modification time too
    #[arg(short, long)]
    long: bool,
    /// Print sizes for people (`1.2 MiB`) instead of bytes
    #[arg(long)]
    human: bool,
    /// Everything below, not one level
    #[arg(short, long)]
    recursive: bool,
}

pub(crate) async fn run(ctx: &Context, args: LsArgs) -> Outcome {
    let several = args.urls.urls.len() > 1;
    let mut failed = 0;
    for (i, operand) in args.urls.urls.iter().enumerate() {
        if several && !ctx.json {
            let mut heading = if i > 0 { b"\n".to_vec() } else { Vec::new() };
            heading.extend(ctx.out.name(operand.as_encoded_bytes()));
            heading.push(b':');
            ctx.out.line(heading).await?;
        }
        if let Err(error) = list(ctx, &args, operand).await? {
            ctx.report(super::place::shown(operand), &error);
            failed += 1;
        }
    }
    Ok(if failed == 0 {
        DONE
    } else if failed < args.urls.urls.len() {
        PARTIAL
    } else {
        FAILED
    })
}

async fn list(ctx: &Context, args: &LsArgs, operand: &std::ffi::OsStr) -> Outcome<nearfs::Result<()>> {
    let place = match Place::open(ctx, operand).await {
        Ok(place) => place,
        Err(error) => return Ok(Err(error)),
    };
    let options = ListOptions { recursive: args.recursive, start_after: None };
    let mut entries = place.fs.list(&place.path, options);
    while let Some(entry) = entries.next().await {
        match entry {
            Ok(entry) => print(ctx, args, &place, &entry).await?,
            // Asked only now, so that listing a directory costs one request.
            Err(error) if error.kind() == nearfs::ErrorKind::NotADirectory && !place.directory => {
                let metadata = match place.stat().await {
                    Ok(metadata) => metadata,
                    Err(error) => return Ok(Err(error)),
                };
                print(ctx, args, &place, &DirEntry { path: place.path.clone(), metadata }).await?;
                break;
            }
            Err(error) => return Ok(Err(error)),
        }
    }
    Ok(Ok(()))
}

async fn print(ctx: &Context, args: &LsArgs, place: &Place, entry: &DirEntry) -> Outcome<()> {
    if ctx.json {
        return ctx.out.json(&JsonEntry::new(&place.name_of(&entry.path), &entry.metadata)).await;
    }
    let mut line = if args.long { columns(&entry.metadata, args.human).into_bytes() } else { Vec::new() };
    let tail = entry.path.strip_prefix(&place.path).filter(|t| !t.is_root());
    match tail {
        Some(tail) => line.extend(ctx.out.name(tail.as_bytes())),
        None => line.extend(ctx.out.name(&place.typed)),
    }
    if entry.metadata.is_dir() {
        line.push(b'/');
    }
    ctx.out.line(line).await
}

/// Size and time in columns of fixed width, so that names stand below each other while the listing still runs.
fn columns(metadata: &Metadata, human: bool) -> String {
    let size = match (metadata.is_file(), human) {
        (false, _) => "-".to_owned(),
        (true, false) => metadata.size.to_string(),
        (true, true) => human_bytes(metadata.size),
    };
    let modified = metadata.modified.map_or_else(|| "-".to_owned(), time);
    let mark = if metadata.archived { " (archived)" } else { "" };
    format!("{size:>15} {modified:<20}{mark} ")
}
