//! `nearfs find`: everything below directories.

use clap::{Args, ValueEnum};
use futures::StreamExt;
use globset::{GlobBuilder, GlobMatcher};
use nearfs::{DirEntry, FileSystemExt, Metadata};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::args::Urls;
use super::context::Context;
use super::diagnostics::{DONE, FAILED, Failure, Outcome, PARTIAL};
use super::output::JsonEntry;
use super::place::Place;
use super::progress::Progress;

/// List everything below directories, with its URL
///
/// Directories come before what is in them. Names are printed raw into pipes; use `-0` where they may hold newlines.
#[derive(Debug, Args)]
pub(crate) struct FindArgs {
    #[command(flatten)]
    urls: Urls,
    /// Only files (`f`) or only directories (`d`)
    #[arg(long = "type", value_name = "KIND")]
    kind: Option<Kind>,
    /// Only entries whose last component matches this pattern (`*`, `?`, `[…]`, `{a,b}`)
    #[arg(long, value_name = "GLOB")]
    name: Option<String>,
    /// End each name with a NUL byte instead of a newline
    #[arg(short = '0', long, conflicts_with = "json")]
    print0: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    #[value(name = "f", alias = "file")]
    File,
    #[value(name = "d", alias = "dir")]
    Dir,
}

/// What is wanted.
struct Wanted {
    kind: Option<Kind>,
    name: Option<GlobMatcher>,
}

impl Wanted {
    fn of(args: &FindArgs) -> Outcome<Self> {
        let compile = |pattern: &String| {
            // `*` of a name never meets a `/`, so `literal_separator` makes no difference.
            GlobBuilder::new(pattern).build().map(|g| g.compile_matcher()).map_err(|e| {
                Failure::new(
                    format!("`{pattern}` is not a pattern: {}", e.kind()),
                    "put a literal `[` or `*` in brackets: `[[]`, `[*]`",
                )
            })
        };
        Ok(Wanted { kind: args.kind, name: args.name.as_ref().map(compile).transpose()? })
    }

    fn takes(&self, name: &[u8], metadata: &Metadata) -> bool {
        self.kind.is_none_or(|k| (k == Kind::Dir) == metadata.is_dir())
            && self.name.as_ref().is_none_or(|glob| glob.is_match(OsStr::from_bytes(name)))
    }
}

pub(crate) async fn run(ctx: &Context, args: FindArgs) -> Outcome {
    let wanted = Wanted::of(&args)?;
    // On a terminal the names themselves are the progress.
    let progress = Progress::new(ctx.quiet || ctx.out.terminal(), "listed", "names");
    let mut failed = 0;
    for operand in &args.urls.urls {
        if let Err(error) = walk(ctx, operand, &wanted, args.print0, &progress).await? {
            ctx.report(super::place::shown(operand), &error);
            failed += 1;
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

async fn walk(
    ctx: &Context,
    operand: &OsStr,
    wanted: &Wanted,
    print0: bool,
    progress: &Progress,
) -> Outcome<nearfs::Result<()>> {
    let place = match Place::open(ctx, operand).await {
        Ok(place) => place,
        Err(error) => return Ok(Err(error)),
    };
    let mut entries = place.fs.walk(&place.path);
    let mut first = entries.next().await;
    // Like find(1): the place itself comes first. A file is only itself.
    match &first {
        Some(Err(error)) if error.kind() == nearfs::ErrorKind::NotADirectory && !place.directory => {
            let metadata = match place.stat().await {
                Ok(metadata) => metadata,
                Err(error) => return Ok(Err(error)),
            };
            first = None;
            entries = futures::stream::empty().boxed();
            print(ctx, &place, &DirEntry { path: place.path.clone(), metadata }, wanted, print0).await?;
        }
        Some(Err(_)) => {}
        _ => {
            let itself = DirEntry { path: place.path.clone(), metadata: Metadata::dir() };
            print(ctx, &place, &itself, wanted, print0).await?;
        }
    }
    let mut next = first;
    while let Some(entry) = next {
        match entry {
            Ok(entry) => print(ctx, &place, &entry, wanted, print0).await?,
            Err(error) => return Ok(Err(error)),
        }
        progress.files(1);
        next = entries.next().await;
    }
    Ok(Ok(()))
}

async fn print(ctx: &Context, place: &Place, entry: &DirEntry, wanted: &Wanted, print0: bool) -> Outcome<()> {
    if !wanted.takes(entry.path.name(), &entry.metadata) {
        return Ok(());
    }
    let name = place.name_of(&entry.path);
    if ctx.json {
        return ctx.out.json(&JsonEntry::new(&name, &entry.metadata)).await;
    }
    if print0 {
        let mut name = name;
        name.push(0);
        return ctx.out.bytes(name.into()).await;
    }
    ctx.out.line(ctx.out.name(&name)).await
}
