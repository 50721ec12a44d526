//! The cache of nearfs: [`CachedFileSystem`] wraps any [`FileSystem`](nearfs_backends::FileSystem) and remembers
//! what the store said and sent.
//!
//! * **Metadata**: attributes, directory entries and absence, each with its own lifetime; renewal is one listing per
//!   directory, never one request per file (`metadata`).
//! * **Data**: bytes of one version of one file, kept in memory under one budget for all files; every byte is
//!   fetched once however many readers ask for it (`memory`, `single_flight`).
//! * **Disk**: bytes kept as plain files over restarts, shared live by every process of the machine (`disk`).
//! * **Prefetch**: streams are recognised per file and fetched ahead over as many connections as measurement shows
//!   to be useful (`prefetch`).
//!
//! Programs use the root crate `nearfs`, which puts this over a store and its layers.

mod budget;
mod cached;
mod cached_file;
mod clock;
mod config;
mod disk;
mod engine;
mod key;
mod memory;
mod metadata;
mod prefetch;
mod rights;
#[cfg(all(test, feature = "shuttle"))]
mod schedules;
mod single_flight;
mod stats;
mod sync;
#[cfg(all(test, not(feature = "shuttle")))]
mod tests;

pub use cached::{CachedFileSystem, Lookup};
pub use cached_file::CachedFile;
pub use config::{CacheConfig, DiskConfig, DiskSize, Lifetime, PolicyKind, memory_limit};
pub use disk::lent::LentFile;
#[doc(hidden)] // For the eviction bench, which runs the very rules of the disk tier.
pub use disk::policy;
pub use disk::tier::{Checked, DirectoryStatus, DiskStats, DiskTier, Pinned, Removed};
pub use metadata::{ListedEntries, ListedEntry, Listing, ListingPage};
pub use stats::CacheStats;
