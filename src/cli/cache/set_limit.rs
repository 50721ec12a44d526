//! `nearfs cache set-limit`: how much the cache may hold.

use clap::Args;
use nearfs::cache::{DiskConfig, DiskSize, DiskTier};
use nearfs::config::Size;

use super::super::context::Context;
use super::super::diagnostics::{DONE, Failure, Outcome, note};
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
    let Some(config) = ctx.client.disk_config()? else { return Err(super::off(ctx)?) };
    // A new directory is made for this limit.
    let config = DiskConfig { size: Some(size), ..config };
    let changed = super::blocking(move || {
        let tier = DiskTier::open(&config)?;
        tier.set_limit(size);
        Ok::<_, nearfs::Error>(tier.status())
    });
    for status in changed.await?? {
        let (limit, used) = (human_bytes(status.limit), human_bytes(status.used));
        if status.used > status.limit {
            note(format_args!(
                "warning: {}: {used} are used: by files in use, pinned ones, or an index for a larger limit, which \
                 is made anew if the directory is removed while nobody uses it",
                status.path.display()
            ));
        }
        if !ctx.quiet {
            ctx.out.line(format!("{}: at most {limit}, {used} used", status.path.display())).await?;
        }
    }
    Ok(DONE)
}
