//! The only place where layers are composed.
//!
//! ```text
//!   programs and commands, on any executor         the mount, on our runtime
//!      |                                              |
//!   SpawnedLayer         runs calls on our runtime    |
//!      |  .-------------------------------------------'
//!   CachedFileSystem     remote: lifetimes, memory, disk, single flight, prefetch (for programs, local and memory
//!      |                 stores are not cached: the system does that; nobody keeps them on disk a second time)
//!   TracingLayer         a span for every call, a warning for slow ones: what callers see of the store
//!   MetricsLayer         counts, bytes and times of what callers get, retries included
//!   TimeoutLayer         the deadline: whatever happens below, a call ends by then
//!   RetryLayer           remote: repeats what may succeed later; resumes bodies where they broke off
//!   HedgeLayer           remote: a second request for a slow read; the better one counts. Below the retry, so that the
//!      |                 two are one attempt, which fails only if both do and is repeated once; above the limits, so that
//!      |                 second requests hold places and have time-outs of their own
//!   ConcurrencyLimit     remote: bounds requests in flight; below the retry, so that pauses hold no place
//!   TimeoutLayer         remote: ends attempts that make no progress, so that the retry gets its turn; below the
//!      |                 limit, so that waiting for a place costs an attempt none of its time
//!   the store            connections, credentials, prefix (gaps between bytes are its own to watch, too)
//! ```
//!
//! Local and memory stores are not retried: a disk that fails once is not asked again behind the caller's back.

use std::sync::Arc;
use std::time::Duration;

use nearfs_backends::layer::{
    ConcurrencyLimitConfig, ConcurrencyLimitLayer, HedgeConfig, HedgeLayer, MetricsLayer, RetryLayer,
    SpawnedLayer, TimeoutConfig, TimeoutLayer, TracingConfig, TracingLayer,
};
use nearfs_backends::{FileSystem, Result};
use nearfs_cache::{CacheConfig, CachedFileSystem, DiskTier, Lifetime, memory_limit};

use crate::config::{Settings, StorePlan};

/// Least memory of one cache, in bytes, however small its share.
const LEAST_MEMORY: u64 = 8 << 20;

/// A bare store with everything that makes it dependable; not cached yet.
///
/// # Errors
/// `InvalidInput` for settings that contradict one another.
pub(crate) fn dependable(store: Arc<dyn FileSystem>, plan: &StorePlan) -> Result<Arc<dyn FileSystem>> {
    let settings = &plan.settings;
    let mut fs = store;
    if fs.capabilities().remote {
        fs = Arc::new(TimeoutLayer::new(fs, attempt(settings)));
        fs = Arc::new(ConcurrencyLimitLayer::new(fs, limit(settings)));
        if settings.hedge {
            fs = Arc::new(HedgeLayer::new(fs, HedgeConfig::default()));
        }
        fs = Arc::new(RetryLayer::new(fs, plan.retry.clone())?);
    }
    fs = Arc::new(TimeoutLayer::new(fs, deadline(settings)));
    fs = Arc::new(MetricsLayer::new(fs));
    Ok(Arc::new(TracingLayer::new(fs, TracingConfig::default())))
}

/// The cache over `fs`, with `share` of the memory budget, and `disk` for what memory does not hold.
pub(crate) fn cached(
    fs: Arc<dyn FileSystem>,
    plan: &StorePlan,
    share: f64,
    disk: Option<Arc<DiskTier>>,
) -> Result<Arc<CachedFileSystem>> {
    let settings = &plan.settings;
    let mut config = CacheConfig {
        metadata_ttl: lifetime(settings.metadata_ttl),
        negative_ttl: lifetime(settings.negative_ttl),
        prefetch: settings.prefetch,
        max_connections: settings.max_connections,
        ..Default::default()
    };
    if let Some(size) = settings.memory {
        config.memory = size.of(memory_limit());
    }
    config.memory = ((config.memory as f64 * share) as u64).max(LEAST_MEMORY);
    Ok(CachedFileSystem::with_disk(fs, config, disk, plan.options.spawner.clone()))
}

/// What programs and commands use, from any executor: remote stores cached, local and memory stores as they are.
///
/// # Errors
/// As [`dependable`].
pub(crate) fn for_programs(
    store: Arc<dyn FileSystem>,
    plan: &StorePlan,
    disk: Option<Arc<DiskTier>>,
) -> Result<Arc<dyn FileSystem>> {
    let remote = store.capabilities().remote;
    let mut fs = dependable(store, plan)?;
    if remote {
        fs = cached(fs, plan, 1.0, disk)?;
    }
    Ok(Arc::new(SpawnedLayer::new(fs, plan.options.spawner.clone())))
}

fn lifetime(span: Option<Duration>) -> Lifetime {
    span.map_or(Lifetime::Forever, Lifetime::For)
}

/// Limits of one attempt: a little more than the store's own, which say more precisely what was missing; and at most
/// half of the deadline, so that whoever meets a silent request still sees the next one answered.
fn attempt(settings: &Settings) -> TimeoutConfig {
    let slack = Duration::from_secs(1);
    let most = settings.deadline / 2;
    // A first call may be redirected to another region once.
    let first = (settings.connect_timeout + settings.first_byte_timeout) * 2 + slack;
    TimeoutConfig {
        operation: first.min(most),
        first_item: first.min(most),
        gap: (settings.read_gap_timeout + slack).min(most),
        ..Default::default()
    }
}

fn deadline(settings: &Settings) -> TimeoutConfig {
    let deadline = settings.deadline;
    TimeoutConfig {
        operation: deadline,
        first_item: deadline,
        gap: deadline,
        relocate: TimeoutConfig::default().relocate.max(deadline),
    }
}

fn limit(settings: &Settings) -> ConcurrencyLimitConfig {
    ConcurrencyLimitConfig {
        data: settings.max_connections,
        max_wait: settings.deadline,
        ..Default::default()
    }
}
