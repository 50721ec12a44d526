//! `nearfs cache`: the cache on disk, looked at and changed.

mod clear;
mod evict;
mod files;
mod pin;
mod set_limit;
mod status;
mod verify;

use std::sync::Arc;

use clap::{Args, Subcommand};
use nearfs::cache::DiskTier;
use nearfs::{DirEntry, Error, ErrorKind, Identity};

use super::context::Context;
use super::diagnostics::{DONE, FAILED, Failure, Outcome, PARTIAL};
use super::place::Place;

/// Look at the cache on disk, check it, and change what is in it
///
/// The directory is that of `--cache-dir`, `NEARFS_CACHE_DIR` or nearfs.toml, else the default one. All commands work
/// while mounts and programs use it.
#[derive(Debug, Args)]
pub(crate) struct CacheArgs {
    #[command(subcommand)]
    command: CacheCommand,
}

#[derive(Debug, Subcommand)]
enum CacheCommand {
    Status(status::StatusArgs),
    Verify(verify::VerifyArgs),
    Clear(clear::ClearArgs),
    Evict(evict::EvictArgs),
    Pin(pin::PinArgs),
    SetLimit(set_limit::SetLimitArgs),
}

pub(crate) async fn run(ctx: &Context, args: CacheArgs) -> Outcome {
    match args.command {
        CacheCommand::Status(args) => status::run(ctx, args).await,
        CacheCommand::Verify(args) => verify::run(ctx, args).await,
        CacheCommand::Clear(args) => clear::run(ctx, args).await,
        CacheCommand::Evict(args) => evict::run(ctx, args).await,
        CacheCommand::Pin(args) => pin::run(ctx, args).await,
        CacheCommand::SetLimit(args) => set_limit::run(ctx, args).await,
    }
}

/// The cache that the settings name, made if it is missing.
async fn tier(ctx: &Context) -> Outcome<Arc<DiskTier>> {
    match ctx.client.disk_tier().await? {
        Some(tier) => Ok(tier),
        None => Err(off(ctx)?),
    }
}

/// The cache that the settings name, if a directory of it exists.
async fn existing(ctx: &Context) -> Outcome<Option<Arc<DiskTier>>> {
    let Some(config) = ctx.client.disk_config()? else { return Err(off(ctx)?) };
    let dirs = config.directories();
    let exists = tokio::task::spawn_blocking(move || dirs.iter().any(|dir| dir.exists())).await;
    if matches!(exists, Ok(true)) { tier(ctx).await.map(Some) } else { Ok(None) }
}

/// Why there is no cache.
fn off(ctx: &Context) -> Outcome<Failure> {
    let config = ctx.client.config();
    let origin = config.entries(None).into_iter().find(|e| e.key == "cache_size").map(|e| e.origin);
    Ok(match (ctx.client.disk_config()?, origin) {
        (None, Some(origin)) => Failure::new(
            format!("nothing is kept on disk: `cache_size` is 0 ({origin})"),
            "name a size above 0 with `--cache-size`",
        ),
        _ => Failure::new(
            "there is no cache directory that can be used",
            "name one with `--cache-dir`; `nearfs doctor` says what is wrong with the default",
        ),
    })
}

/// Runs what waits for the disk on a thread for that.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Outcome<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|e| Failure::plain(format!("a part of nearfs panicked; this is a bug: {e}")))
}

/// Asks the tier about a file, on a thread that may wait for the disk.
async fn ask<T: Send + 'static>(
    tier: &Arc<DiskTier>,
    place: &Place,
    file: &DirEntry,
    question: impl FnOnce(&DiskTier, &Identity, &DirEntry) -> T + Send + 'static,
) -> nearfs::Result<T> {
    let (tier, store, file) = (tier.clone(), place.fs.identity(), file.clone());
    let asked = tokio::task::spawn_blocking(move || question(&tier, &store, &file));
    asked
        .await
        .map_err(|e| Error::new(ErrorKind::Other, "a part of nearfs panicked; this is a bug").with_source(e))
}

/// The exit code if `failed` things failed and `done` did not.
fn code(failed: u64, done: u64) -> u8 {
    match (failed, done) {
        (0, _) => DONE,
        (_, 0) => FAILED,
        _ => PARTIAL,
    }
}
