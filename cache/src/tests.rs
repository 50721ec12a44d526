//! Tests of the whole cache over a filesystem in memory with faults.

mod data;
mod disk;
mod metadata;
mod model;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use nearfs_backends::layer::{FaultLayer, Operation};
use nearfs_backends::{FileSystem, FileSystemExt, FsPath, MemoryFileSystem, Spawner};

use crate::clock::Clock;
use crate::{CacheConfig, CachedFileSystem, Lifetime};

/// A cache over a store that can be changed behind its back, with a clock that only tests move.
struct World {
    store: Arc<MemoryFileSystem>,
    faults: Arc<FaultLayer>,
    clock: Clock,
    cache: Arc<CachedFileSystem>,
}

impl World {
    fn new(change: impl FnOnce(&mut CacheConfig)) -> Self {
        let store = Arc::new(MemoryFileSystem::new());
        let faults = Arc::new(FaultLayer::new(store.clone()));
        let mut config = CacheConfig { memory: 64 << 20, cache_local: true, ..CacheConfig::default() };
        change(&mut config);
        let clock = Clock::manual();
        let spawner = Spawner::current().unwrap();
        let cache = CachedFileSystem::with_clock(faults.clone(), &config, None, spawner, clock.clone());
        World { store, faults, clock, cache }
    }

    async fn put(&self, name: &str, data: impl Into<Bytes>) {
        self.store.write(&path(name), data.into()).await.unwrap();
    }

    async fn remove(&self, name: &str) {
        let mut results = self.store.delete(futures::stream::iter([path(name)]).boxed());
        while let Some((_, result)) = results.next().await {
            result.unwrap();
        }
    }

    /// What a lookup says: the size, or that the name is absent.
    async fn size(&self, name: &str) -> Option<u64> {
        self.cache.lookup(&path(name)).await.unwrap().metadata.map(|m| m.size)
    }

    async fn names(&self, dir: &str) -> Vec<String> {
        let listing = self.cache.read_dir(&path(dir)).await.unwrap();
        let mut names = Vec::new();
        loop {
            let page = listing.entries(names.len(), 7).await.unwrap();
            names.extend(page.entries.iter().map(|e| String::from_utf8_lossy(&e.name).into_owned()));
            if page.end {
                return names;
            }
        }
    }

    fn calls(&self) -> (u64, u64) {
        (self.faults.calls(Operation::Stat), self.faults.calls(Operation::List))
    }
}

fn path(text: &str) -> FsPath {
    FsPath::parse(text).unwrap()
}

fn seconds(n: u64) -> Lifetime {
    Lifetime::For(Duration::from_secs(n))
}
