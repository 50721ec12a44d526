//! A mount of a memory filesystem whose store can be made to fail, with everything cleaned up whatever happens.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use nearfs_backends::{FileSystemExt, FsPath, MemoryFileSystem, Metadata, Spawner};
use nearfs_cache::{CacheConfig, CachedFileSystem, Lifetime};
use nearfs_mount::{Mount, MountOptions, MountSession, UnmountOptions};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// What a test wants to be different.
pub(crate) struct Setup {
    pub(crate) ttl: Lifetime,
    pub(crate) negative: Lifetime,
    pub(crate) options: MountOptions,
}

impl Default for Setup {
    fn default() -> Self {
        let seconds = |n| Lifetime::For(Duration::from_secs(n));
        Setup { ttl: seconds(60), negative: seconds(2), options: MountOptions::default() }
    }
}

/// A mounted filesystem.
pub(crate) struct Rig {
    session: Option<MountSession>,
    pub(crate) memory: MemoryFileSystem,
    pub(crate) fs: Arc<CachedFileSystem>,
    pub(crate) runtime: Runtime,
    tmp: TempDir,
}

pub(crate) fn path(text: &str) -> FsPath {
    FsPath::parse(text).unwrap()
}

/// Bytes in which every place tells where it is.
pub(crate) fn content(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u64).wrapping_mul(2_654_435_761).to_le_bytes()[2] ^ seed).collect()
}

pub(crate) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

impl Rig {
    pub(crate) fn new(setup: Setup) -> Self {
        let runtime = runtime();
        let memory = MemoryFileSystem::new();
        let config =
            CacheConfig { metadata_ttl: setup.ttl, negative_ttl: setup.negative, ..Default::default() };
        let spawner = Spawner::new(runtime.handle().clone());
        let fs = CachedFileSystem::new(Arc::new(memory.clone()), config, spawner.clone());
        let tmp = tempfile::tempdir().unwrap();
        let session = Mount::start(Arc::clone(&fs), tmp.path(), setup.options, spawner).unwrap();
        Rig { session: Some(session), memory, fs, runtime, tmp }
    }

    pub(crate) fn dir(&self) -> &Path {
        self.tmp.path()
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.tmp.path().join(name)
    }

    pub(crate) fn session(&self) -> &MountSession {
        self.session.as_ref().unwrap()
    }

    /// Writes to the store, behind the mount's back.
    pub(crate) fn put(&self, name: &str, data: impl Into<Bytes>) -> Metadata {
        self.runtime.block_on(self.memory.write(&path(name), data.into())).unwrap()
    }

    pub(crate) fn operations(&self, op: &str, what: &str) -> u64 {
        self.session().stats()["mount"]["operations"][op][what].as_u64().unwrap()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            let _ = session.unmount(UnmountOptions { force: true, ..Default::default() });
        }
    }
}

/// Waits until `done`; panics after `limit`.
pub(crate) fn eventually(limit: Duration, what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + limit;
    while !done() {
        assert!(Instant::now() < end, "not within {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
