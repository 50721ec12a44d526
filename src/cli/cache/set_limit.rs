//! `nearfs cache set-limit`: how much the cache may hold.

use clap::Args;
use nearfs::cache::DiskSize;
use nearfs::config::Size;

use super::super::context::Context;
use super::super::diagnostics::{DONE, Failure, Outcome};
use super::super::output::human_bytes;

/// Set how much disk space the cache may use
///
/// The limit is kept in the directory and holds for every process that uses it, also for those that run now. What is
/// above it is removed at once. A process that is started with `--cache-size` sets it again.
#[derive(Debug, Args)]
pub(crate) struct SetLimitArgs {
    /// As `20GiB`, or `80%` of the filesystem; at least 16MiB
    #[arg(value_name = "SIZE")]
    size: String,
}

pub(super) async fn run(ctx: &Context, args: SetLimitArgs) -> Outcome {
    // The same rules as for the setting, without changing it.
    let size = match args.size.parse::<Size>()? {
        Size::Bytes(0) => {
            return Err(Failure::new(
                "a limit of 0 keeps nothing",
                "`nearfs cache clear` empties the cache; `--cache-size 0` does without",
            ));
        }
        Size::Bytes(n) if n < nearfs::config::LEAST_CACHE => {
            let least = Size::Bytes(nearfs::config::LEAST_CACHE);
            return Err(Failure::plain(format!(
                "expected a limit of at least {least}, found `{}`",
                args.size
            )));
        }
        Size::Bytes(n) => DiskSize::Bytes(n),
        Size::Percent(p) => DiskSize::Share(p / 100.0),
    };
    let tier = super::tier(ctx).await?;
    let changed = super::blocking(move || tier.set_limit(size)).await?;
    if !ctx.quiet {
        for (path, limit) in changed {
            ctx.out.line(format!("{}: at most {}", path.display(), human_bytes(limit))).await?;
        }
    }
    Ok(DONE)
}
