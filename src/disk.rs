//! The cache on disk of a client: one for all its stores, opened when the first remote store is.

use std::sync::Arc;

use nearfs_backends::{Error, ErrorKind, Result};
use nearfs_cache::{DiskConfig, DiskSize, DiskTier};
use tokio::sync::OnceCell;

use crate::config::{Config, Size};
use crate::runtime::spawner;

/// The disk tier of one client.
#[derive(Debug, Default)]
pub(crate) struct Disk(OnceCell<Option<Arc<DiskTier>>>);

impl Disk {
    /// The tier, opened by whoever comes first; `None` if nothing is to be kept on disk, or nothing can be.
    ///
    /// # Errors
    /// Those of opening, if somebody named the directory: the next call tries again. Where nobody did, a failure is
    /// one warning.
    ///
    /// # Cancellation
    /// Dropping the future leaves the opening to the next caller.
    pub(crate) async fn get(&self, config: &Config) -> Result<Option<Arc<DiskTier>>> {
        let opened = self.0.get_or_try_init(|| async {
            let Some(plan) = disk_config(config)? else { return Ok(None) };
            let named = !plan.dirs.is_empty();
            if plan.directories().is_empty() {
                tracing::warn!(
                    hint = "set `cache_dir`, or `cache_size` to 0",
                    "nothing is kept on disk: neither XDG_CACHE_HOME nor HOME says where"
                );
                return Ok(None);
            }
            let opening = spawner()?.handle().spawn_blocking(move || DiskTier::open(&plan));
            let opened = opening.await.unwrap_or_else(|e| {
                Err(Error::new(ErrorKind::Other, "opening the cache panicked; this is a bug").with_source(e))
            });
            match opened {
                Ok(tier) => Ok(Some(tier)),
                Err(error) if named => Err(refused(error)),
                Err(error) => {
                    let hint = error.context("hint").unwrap_or("`nearfs doctor` checks the directory");
                    tracing::warn!(error = %error.chain(), hint, "the cache cannot be used: nothing is kept on disk");
                    Ok(None)
                }
            }
        });
        opened.await.cloned()
    }

    /// The tier, if it has been opened.
    pub(crate) fn opened(&self) -> Option<&Arc<DiskTier>> {
        self.0.get()?.as_ref()
    }
}

/// `error` with what can be done about it.
fn refused(error: Error) -> Error {
    match error.context("hint") {
        Some(_) => error,
        None => error.with_context(
            "hint",
            "name another directory (`--cache-dir`), or keep nothing on disk (`--cache-size 0`)",
        ),
    }
}

/// What the settings say of the cache on disk; `None` if nothing is to be kept there.
///
/// # Errors
/// As [`Config::settings`].
pub(crate) fn disk_config(config: &Config) -> Result<Option<DiskConfig>> {
    let settings = config.settings(None)?;
    let size = match settings.cache_size {
        Some(Size::Bytes(0)) => return Ok(None),
        Some(Size::Bytes(bytes)) => Some(DiskSize::Bytes(bytes)),
        Some(Size::Percent(percent)) => Some(DiskSize::Share(percent / 100.0)),
        None => None,
    };
    let own = config.environment().cache_directory(nix::unistd::geteuid().is_root());
    Ok(Some(DiskConfig {
        dirs: settings.cache_dir,
        default_dir: own.clone(),
        fallback: own,
        size,
        free: settings.cache_free,
        group: settings.cache_group,
        policy: settings.cache_policy,
    }))
}
