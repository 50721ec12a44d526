//! [`Directory`]: what is known of one directory as a whole, and [`Directories`], all of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use nearfs_backends::FsPath;
use parking_lot::Mutex;

use super::listing::Listing;
use crate::clock::Tick;

/// One directory.
#[derive(Debug)]
pub(crate) struct Directory {
    pub(crate) path: FsPath,
    pub(crate) state: Mutex<State>,
    /// Somebody looked something up in it since it was listed.
    used: AtomicBool,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    /// The last complete listing, perhaps expired.
    pub(crate) listing: Option<Arc<Listing>>,
    /// The listing that is being made.
    pub(crate) running: Option<Arc<Listing>>,
    /// Lookups since the last listing (or since it expired) that had to ask the store for one name.
    pub(crate) asks: u32,
    /// Listing is refused here; not tried again before.
    pub(crate) refused_until: Option<Tick>,
}

impl Directory {
    pub(crate) fn listing(&self) -> Option<Arc<Listing>> {
        self.state.lock().listing.clone()
    }

    /// Returns true the first time since [`Directory::was_used`].
    pub(crate) fn mark_used(&self) -> bool {
        !self.used.load(Ordering::Relaxed) && !self.used.swap(true, Ordering::Relaxed)
    }

    /// Whether it was used since this was last asked.
    pub(crate) fn was_used(&self) -> bool {
        self.used.swap(false, Ordering::Relaxed)
    }
}

/// The directories that something is known of, bounded by the number of their entries; those unused for longest go.
#[derive(Debug)]
pub(crate) struct Directories(Cache<FsPath, Arc<Directory>>);

/// What a directory counts besides its entries.
const OVERHEAD: usize = 4;

impl Directories {
    pub(crate) fn new(max_entries: usize) -> Self {
        let weigh = |_: &FsPath, directory: &Arc<Directory>| {
            let entries = directory.listing().map_or(0, |listing| listing.len());
            u32::try_from(entries + OVERHEAD).unwrap_or(u32::MAX)
        };
        let capacity = max_entries.saturating_add(64 * OVERHEAD) as u64;
        let policy = EvictionPolicy::lru();
        Directories(Cache::builder().max_capacity(capacity).weigher(weigh).eviction_policy(policy).build())
    }

    pub(crate) fn get(&self, path: &FsPath) -> Option<Arc<Directory>> {
        self.0.get(path)
    }

    pub(crate) fn get_or_insert(&self, path: &FsPath) -> Arc<Directory> {
        if let Some(directory) = self.0.get(path) {
            return directory;
        }
        let make = || {
            Arc::new(Directory { path: path.clone(), state: Mutex::default(), used: AtomicBool::new(false) })
        };
        self.0.entry_by_ref(path).or_insert_with(make).into_value()
    }

    /// Counts the entries of `directory` anew.
    pub(crate) fn weigh(&self, directory: &Arc<Directory>) {
        self.0.insert(directory.path.clone(), directory.clone());
    }

    /// Directories and their entries.
    pub(crate) fn count(&self) -> (u64, u64) {
        self.0.run_pending_tasks();
        let directories = self.0.entry_count();
        (directories, self.0.weighted_size().saturating_sub(directories * OVERHEAD as u64))
    }
}
