//! [`CacheStats`]: what the cache did and holds.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::{Deserialize, Serialize};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters since the cache was made, and gauges (their text says "now").
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[non_exhaustive]
        pub struct CacheStats {
            $($(#[$doc])* pub $name: u64,)*
        }

        /// The live counters behind [`CacheStats`].
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: Counter,)*
        }

        impl Counters {
            pub(crate) fn snapshot(&self) -> CacheStats {
                CacheStats { $($name: self.$name.get(),)* }
            }
        }
    };
}

counters! {
    /// Lookups answered from memory.
    lookup_hits,
    /// Lookups that had to ask the store or wait for a listing.
    lookup_misses,
    /// Names looked up one by one in the store (one HEAD and one LIST side by side on an object store).
    stats,
    /// Listings begun because a reader listed a directory.
    lists_read,
    /// Listings begun because remembered entries had expired.
    lists_renewed,
    /// Listings begun because several names of an unlisted directory were looked up.
    lists_lookup,
    /// Listings begun ahead of a walk.
    lists_ahead,
    /// Listings begun ahead of expiry, for directories in use.
    lists_refreshed,
    /// Directories remembered now.
    directories,
    /// Directory entries remembered now.
    entries,
    /// Single attributes remembered now.
    attributes,
    /// Absent names remembered now.
    negatives,
    /// Reads answered from memory at once.
    read_hits,
    /// Reads that waited for the store.
    read_misses,
    /// Bytes given to readers.
    bytes_served,
    /// Bytes received from the store.
    bytes_fetched,
    /// Data requests made.
    fetches,
    /// Data requests that failed.
    fetch_errors,
    /// Data requests given up because nobody wanted them any more.
    fetches_cancelled,
    /// Bytes asked for ahead of readers.
    prefetch_bytes,
    /// Bytes fetched ahead that a reader then used.
    prefetch_used,
    /// Bytes fetched ahead and dropped unused.
    prefetch_wasted,
    /// Small files fetched because their neighbours were read.
    siblings_fetched,
    /// Of those, files that were then read.
    siblings_used,
    /// Of those, files dropped unread.
    siblings_wasted,
    /// Data requests in flight now.
    in_flight,
    /// Connections that measurement allows prefetch to use now.
    connections,
    /// Bytes of the budget in use now.
    memory_used,
    /// The budget in bytes.
    memory_limit,
    /// Reads that waited for the budget.
    memory_waits,
    /// Files with data in memory now.
    files,
    /// Reads answered from the disk tier's files at once, out of the page cache.
    disk_hits,
    /// Bytes read from the disk tier.
    disk_read,
    /// Bytes written to the disk tier.
    disk_written,
    /// Bytes that came from the store and were not written, because the disk was slower than the network or refused
    /// them. Those of files in use are fetched again when nothing else is going on.
    disk_dropped,
    /// Bytes fetched again in idle time because they had been dropped.
    disk_refetched,
    /// Bytes that wait for the disk now. Part of `memory_used`.
    disk_queued,
    /// Times that bytes were left to another process which was fetching them already.
    disk_waits,
    /// Bytes on disk now, over all directories and all processes that share them.
    disk_used,
    /// The limit of that.
    disk_limit,
    /// Of the bytes on disk, those lent out now: passed through, mapped or linked, and never evicted meanwhile.
    disk_lent,
    /// Bytes that this process has evicted from disk.
    disk_evicted,
    /// Entries and units that were dropped because their bytes were not what they should have been.
    disk_corrupt,
}

/// A number that many threads count up.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    pub(crate) fn inc(&self) {
        self.add(1);
    }

    pub(crate) fn sub(&self, n: u64) {
        self.0.fetch_sub(n, Relaxed);
    }

    pub(crate) fn set(&self, n: u64) {
        self.0.store(n, Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}
