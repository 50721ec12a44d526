//! `nearfs cache clear`: everything out.

use clap::Args;

use super::super::context::Context;
use super::super::diagnostics::{DONE, Outcome, PARTIAL};
use super::super::output::human_bytes;

/// Remove everything from the cache
///
/// Also what is pinned. What a program has mapped or opened through the cache file itself stays until it lets go; the
/// command exits with 1 then. Readers notice nothing but that bytes are fetched again.
#[derive(Debug, Args)]
pub(crate) struct ClearArgs {}

pub(super) async fn run(ctx: &Context, _args: ClearArgs) -> Outcome {
    let Some(tier) = super::existing(ctx).await? else { return Ok(DONE) };
    let removed = super::blocking(move || tier.clear()).await?;
    if !ctx.quiet {
        let mut text = format!("{} objects removed, {} freed", removed.objects, human_bytes(removed.bytes));
        if removed.kept > 0 {
            text.push_str(&format!("; {} in use stay", removed.kept));
        }
        ctx.out.line(text).await?;
    }
    Ok(if removed.kept == 0 { DONE } else { PARTIAL })
}
