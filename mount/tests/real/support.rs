//! A mount of a memory filesystem whose store can be made to fail, with everything cleaned up whatever happens.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::StreamExt;
use nearfs_backends::layer::{Fault, FaultAction, FaultLayer, Operation};
use nearfs_backends::{FileSystem, FileSystemExt, FsPath, MemoryFileSystem, Metadata, Spawner};
use nearfs_cache::{CacheConfig, CachedFileSystem, DiskConfig, DiskSize, DiskTier, Lifetime};
use nearfs_mount::{Mount, MountOptions, MountSession, OpenMode, UnmountOptions};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// What a test wants to be different.
pub(crate) struct Setup {
    pub(crate) ttl: Lifetime,
    pub(crate) negative: Lifetime,
    pub(crate) options: MountOptions,
    /// The cache treats the store as a remote one: data and listings are held.
    pub(crate) remote: bool,
    /// Bytes of a cache on disk; 0 = none.
    pub(crate) disk: u64,
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            ttl: seconds(60.0),
            negative: seconds(2.0),
            options: MountOptions::default(),
            remote: true,
            disk: 0,
        }
    }
}

impl Setup {
    /// Entries and attributes live this long, in seconds.
    pub(crate) fn ttl(ttl: f64) -> Self {
        Setup { ttl: seconds(ttl), ..Default::default() }
    }

    /// Calls may take this long, in seconds.
    pub(crate) fn deadline(deadline: f64) -> Self {
        let deadline = Duration::from_secs_f64(deadline);
        Setup { options: MountOptions { deadline, ..Default::default() }, ..Default::default() }
    }

    /// Files are opened in this mode, and there is a cache on disk.
    pub(crate) fn opening(open: OpenMode) -> Self {
        Setup { options: MountOptions { open, ..Default::default() }, disk: 1 << 30, ..Default::default() }
    }
}

pub(crate) fn seconds(n: f64) -> Lifetime {
    Lifetime::For(Duration::from_secs_f64(n))
}

/// A mounted filesystem.
pub(crate) struct Rig {
    session: Option<MountSession>,
    pub(crate) memory: MemoryFileSystem,
    pub(crate) faults: FaultLayer,
    pub(crate) fs: Arc<CachedFileSystem>,
    pub(crate) runtime: Runtime,
    tmp: TempDir,
    disk: Option<(Arc<DiskTier>, TempDir)>,
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
        let faults = FaultLayer::new(Arc::new(memory.clone()));
        let config = CacheConfig {
            metadata_ttl: setup.ttl,
            negative_ttl: setup.negative,
            cache_local: setup.remote,
            ..Default::default()
        };
        let spawner = Spawner::new(runtime.handle().clone());
        let disk = (setup.disk > 0).then(|| disk_tier(setup.disk));
        let tier = disk.as_ref().map(|(tier, _)| Arc::clone(tier));
        let fs = CachedFileSystem::with_disk(Arc::new(faults.clone()), config, tier, spawner.clone());
        let tmp = tempfile::tempdir().unwrap();
        let session = Mount::start(Arc::clone(&fs), tmp.path(), setup.options, spawner).unwrap();
        Rig { session: Some(session), memory, faults, fs, runtime, tmp, disk }
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

    pub(crate) fn disk(&self) -> &DiskTier {
        &self.disk.as_ref().unwrap().0
    }

    /// Waits until what was fetched is on disk.
    pub(crate) fn flush(&self) {
        self.runtime.block_on(self.disk().flush());
    }

    pub(crate) fn take_session(&mut self) -> MountSession {
        self.session.take().unwrap()
    }

    /// Writes to the store, behind the mount's back.
    pub(crate) fn put(&self, name: &str, data: impl Into<Bytes>) -> Metadata {
        self.runtime.block_on(self.memory.write(&path(name), data.into())).unwrap()
    }

    /// Deletes from the store, behind the mount's back.
    pub(crate) fn delete(&self, name: &str) {
        let paths = futures::stream::iter([path(name)]).boxed();
        let results: Vec<_> = self.runtime.block_on(self.memory.delete(paths).collect());
        results.into_iter().for_each(|(_, r)| r.unwrap());
    }

    /// From now on nothing comes of `operation`, on `name` or below it (everywhere, if empty).
    pub(crate) fn stall(&self, operation: Operation, name: &str) {
        self.faults.inject(Fault::on(operation, FaultAction::Stall(0)).at(&path(name)));
    }

    /// What a file holds now, all of one version; `None` if the one that was opened is gone ("changed").
    pub(crate) fn read(&self, name: &str) -> Option<Vec<u8>> {
        let file = std::fs::File::open(self.at(name)).unwrap();
        let size = file.metadata().unwrap().len();
        let mut all = Vec::new();
        match (&file).read_to_end(&mut all) {
            Ok(n) => {
                assert_eq!(n as u64, size, "as long as it says");
                Some(all)
            }
            Err(e) => {
                assert_eq!(e.raw_os_error(), Some(libc::ESTALE));
                None
            }
        }
    }

    /// What the mount counted: `count`, `inline` or `errors` of an operation.
    pub(crate) fn operations(&self, op: &str, what: &str) -> u64 {
        self.session().stats()["mount"]["operations"][op][what].as_u64().unwrap()
    }

    /// A number of the mount's statistics.
    pub(crate) fn number(&self, name: &str) -> u64 {
        self.session().stats()["mount"][name].as_u64().unwrap()
    }

    /// The names that a directory shows, sorted.
    pub(crate) fn names(&self, dir: &str) -> Vec<String> {
        names(&self.at(dir))
    }
}

/// The names that a directory shows, sorted.
pub(crate) fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.faults.heal();
        if let Some(session) = self.session.take() {
            let _ = session.unmount(UnmountOptions { force: true, ..Default::default() });
        }
    }
}

/// A cache on the disk that this program was built on.
fn disk_tier(size: u64) -> (Arc<DiskTier>, TempDir) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let config = DiskConfig {
        dirs: vec![dir.path().join("cache")],
        size: Some(DiskSize::Bytes(size)),
        free: 0.0,
        ..Default::default()
    };
    (DiskTier::open(&config).unwrap(), dir)
}

/// Waits until `done`; panics after `limit`.
pub(crate) fn eventually(limit: Duration, what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + limit;
    while !done() {
        assert!(Instant::now() < end, "not within {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub(crate) const SOON: Duration = Duration::from_secs(10);

/// The errno of a failed call.
pub(crate) fn errno<T>(result: std::io::Result<T>) -> i32 {
    result.err().expect("the call fails").raw_os_error().expect("with an errno")
}
