//! `nearfs cache status`: what is in the cache, and how much room there is.

use clap::Args;

use super::super::context::Context;
use super::super::diagnostics::{DONE, Outcome};
use super::super::output::human_bytes;

/// Show what the cache holds, its limit and its users
///
/// Sizes are those on disk. With --json one object for each directory, sizes in bytes.
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {}

pub(super) async fn run(ctx: &Context, _args: StatusArgs) -> Outcome {
    let Some(tier) = super::existing(ctx).await? else {
        if !ctx.json {
            let dirs = ctx.client.disk_config()?.map(|c| c.directories()).unwrap_or_default();
            for dir in dirs {
                ctx.out.line(format!("{}: not there yet, nothing is cached", dir.display())).await?;
            }
        }
        return Ok(DONE);
    };
    for status in super::blocking(move || tier.status()).await? {
        if ctx.json {
            ctx.out.json(&status).await?;
            continue;
        }
        ctx.out.line(format!("{}:", status.path.display())).await?;
        let lines = [
            ("used", format!("{} of {}", human_bytes(status.used), human_bytes(status.limit))),
            ("objects", status.objects.to_string()),
            ("pinned", format!("{} objects, {}", status.pinned, human_bytes(status.pinned_bytes))),
            ("lent", human_bytes(status.lent)),
            ("filesystem", format!("{} of {} free", human_bytes(status.free), human_bytes(status.total))),
            ("processes", status.processes.to_string()),
            (
                "writing",
                if status.writable {
                    "yes".to_owned()
                } else {
                    "paused after a failure of the disk".to_owned()
                },
            ),
        ];
        for (name, value) in lines {
            ctx.out.line(format!("  {name:<10}  {value}")).await?;
        }
    }
    Ok(DONE)
}
