//! [`Engine`]: what all files of one cache share.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use dashmap::DashMap;
use nearfs_backends::{FileSystem, FsPath, Identity, Metadata, Spawner};
use parking_lot::Mutex;

use crate::cached_file::CachedFile;
use crate::clock::{Clock, Tick};
use crate::config::CacheConfig;
use crate::disk::backlog::Backlog;
use crate::disk::refill::Refill;
use crate::disk::tier::DiskTier;
use crate::disk::writer::Quota;
use crate::key::FileKey;
use crate::memory::Memory;
use crate::memory::blocks::FileBlocks;
use crate::memory::extent::Extent;
use crate::metadata::Names;
use crate::prefetch::connections::Connections;
use crate::prefetch::siblings::Siblings;
use crate::prefetch::window::{DISK_WINDOW, MAX_PART, MAX_WINDOW, WHOLE};
use crate::stats::{CacheStats, Counters};

/// How often requests and idle data are looked after.
const WATCH_EVERY: Duration = Duration::from_secs(1);
/// A file whose store sends nothing for this long gives connections back to others.
const STALLED: Duration = Duration::from_secs(1);
/// A request that nobody waits for and that brings nothing is given up after this time.
const UNWANTED: Duration = Duration::from_secs(5);
/// Bytes that may wait for the cache's disk, at most; also at most an eighth of the memory, of which it is a part.
const MAX_QUEUED: u64 = 64 << 20;
/// Data in memory that the disk tier has too and that nobody asked for this long is given back.
const BACKED_IDLE: Duration = Duration::from_secs(2);
/// How long another process, alive, may take for bytes before they are fetched here as well.
const PATIENT: Duration = Duration::from_secs(10);
/// The same after that happened, for the time of [`GRUDGE`].
const IMPATIENT: Duration = Duration::from_millis(200);
const GRUDGE: Duration = Duration::from_secs(30);
/// A file counts as being streamed this long after its last read.
const ACTIVE: Duration = Duration::from_secs(2);
/// How often a file that is being streamed says so.
const ACTIVE_STEP: Duration = Duration::from_millis(200);

/// The data side of a cache.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) fs: Arc<dyn FileSystem>,
    pub(crate) spawner: Spawner,
    pub(crate) clock: Clock,
    pub(crate) stats: Arc<Counters>,
    pub(crate) names: Arc<Names>,
    pub(crate) memory: Memory,
    pub(crate) connections: Connections,
    pub(crate) siblings: Siblings,
    pub(crate) prefetch: bool,
    /// Data is held here at all; otherwise reads go straight to the wrapped filesystem.
    pub(crate) holds_data: bool,
    /// Where data is kept besides the memory.
    pub(crate) disk: Option<Arc<DiskTier>>,
    pub(crate) identity: Identity,
    /// Bytes of the memory that may wait for the disk.
    pub(crate) quota: Arc<Quota>,
    pub(crate) backlog: Backlog,
    pub(crate) refill: Refill,
    /// Other processes have kept this one waiting for nothing: until then they are not waited for that long.
    impatient_until: AtomicU64,
    idle: Duration,
    files: DashMap<FileKey, Arc<FileBlocks>>,
    /// Files with requests in flight, by address.
    running: Mutex<HashMap<usize, Weak<FileBlocks>>>,
    active: Mutex<HashMap<usize, Weak<FileBlocks>>>,
    active_count: AtomicUsize,
    next_unknown: AtomicU64,
    watched: AtomicBool,
    /// When requests were last seen in flight.
    busy_at: AtomicU64,
}

impl Engine {
    pub(crate) fn new(
        fs: Arc<dyn FileSystem>,
        config: &CacheConfig,
        disk: Option<Arc<DiskTier>>,
        spawner: Spawner,
        clock: Clock,
        stats: Arc<Counters>,
        names: Arc<Names>,
    ) -> Arc<Self> {
        let holds_data = fs.capabilities().remote || config.cache_local;
        let disk = disk.filter(|_| holds_data);
        let queued = disk.as_ref().map_or(0, |_| MAX_QUEUED.min(config.memory / 8));
        Arc::new(Engine {
            memory: Memory::new(config.memory, queued, config.idle, stats.clone()),
            connections: Connections::new(config.max_connections, &clock, stats.clone()),
            siblings: Siblings::default(),
            prefetch: config.prefetch,
            holds_data,
            disk,
            identity: fs.identity(),
            quota: Quota::new(queued),
            backlog: Backlog::default(),
            refill: Refill::default(),
            impatient_until: AtomicU64::new(0),
            idle: config.idle,
            files: DashMap::new(),
            running: Mutex::default(),
            active: Mutex::default(),
            active_count: AtomicUsize::new(0),
            next_unknown: AtomicU64::new(0),
            watched: AtomicBool::new(false),
            busy_at: AtomicU64::new(0),
            fs,
            spawner,
            clock,
            stats,
            names,
        })
    }

    /// Objects up to this size are fetched as a whole.
    pub(crate) fn whole(&self) -> u64 {
        WHOLE.min(self.memory.limit() / 4)
    }

    /// The longest range that is held at once; longer reads go in steps.
    pub(crate) fn longest_read(&self) -> u64 {
        (4 << 20).min(self.memory.limit() / 4)
    }

    /// How far behind a stream its data goes: enough for requests out of order and readers in step.
    pub(crate) fn lag(&self) -> u64 {
        if self.memory.used() < self.memory.limit() / 2 { 8 << 20 } else { 1 << 20 }
    }

    /// The handle of a file; made if there is none.
    pub(crate) fn file(self: &Arc<Self>, path: &FsPath, metadata: &Metadata) -> Arc<CachedFile> {
        let Some(key) = FileKey::new(path, metadata) else {
            return CachedFile::new(FileBlocks::new(self, path, metadata, None));
        };
        let make = || FileBlocks::new(self, path, metadata, Some(key.clone()));
        // The guard is held until the handle is there, so that the entry is not taken for unused meanwhile.
        let blocks = self.files.entry(key.clone()).or_insert_with(make);
        let mut handle = blocks.handle.lock();
        if let Some(file) = handle.upgrade() {
            return file;
        }
        let file = CachedFile::new(Arc::clone(&blocks));
        *handle = Arc::downgrade(&file);
        file
    }

    /// The data of a file that is about to be fetched ahead; `None` if it was read or fetched before.
    pub(crate) fn untouched(self: &Arc<Self>, path: &FsPath, metadata: &Metadata) -> Option<Arc<FileBlocks>> {
        let blocks = self.blocks(path, metadata)?;
        (blocks.is_untouched() && !blocks.seen.load(Ordering::Acquire)).then_some(blocks)
    }

    /// The data of a file, for work that no reader asked for.
    pub(crate) fn blocks(self: &Arc<Self>, path: &FsPath, metadata: &Metadata) -> Option<Arc<FileBlocks>> {
        let key = FileKey::new(path, metadata)?;
        let make = || FileBlocks::new(self, path, metadata, Some(key.clone()));
        Some(Arc::clone(&self.files.entry(key.clone()).or_insert_with(make)))
    }

    /// Bytes of the file that are in memory.
    pub(crate) fn cached_bytes(&self, path: &FsPath, metadata: &Metadata) -> u64 {
        let blocks =
            FileKey::new(path, metadata).and_then(|key| self.files.get(&key).map(|b| Arc::clone(&b)));
        blocks.map_or(0, |blocks| blocks.held())
    }

    pub(crate) fn file_id(&self, key: Option<&FileKey>) -> u64 {
        let mut hasher = std::hash::DefaultHasher::new();
        match key {
            Some(key) => key.hash(&mut hasher),
            None => self.next_unknown.fetch_add(1, Ordering::Relaxed).hash(&mut hasher),
        }
        hasher.finish()
    }

    pub(crate) fn forget_if_unused(&self, blocks: &FileBlocks) {
        if let Some(key) = blocks.key.as_ref().filter(|_| blocks.is_unused()) {
            self.files.remove_if(key, |_, b| std::ptr::eq(&**b, blocks) && b.is_unused());
        }
    }

    /// A file of which there was no request in flight has one.
    pub(crate) fn started(self: &Arc<Self>, blocks: &Arc<FileBlocks>) {
        self.running.lock().insert(address(blocks), Arc::downgrade(blocks));
        self.watch();
    }

    /// Has requests and idle data looked after from now on.
    pub(crate) fn watch(self: &Arc<Self>) {
        if self.watched.load(Ordering::Acquire) {
            return;
        }
        if !self.watched.swap(true, Ordering::AcqRel) {
            self.spawner.spawn(watch(Arc::downgrade(self)));
        }
    }

    /// It has none any more.
    pub(crate) fn stopped(&self, blocks: &Arc<FileBlocks>) {
        let mut running = self.running.lock();
        if blocks.requests().load(Ordering::Acquire) == 0 {
            running.remove(&address(blocks));
        }
    }

    pub(crate) fn mark_active(&self, blocks: &Arc<FileBlocks>) {
        let now = self.clock.now();
        let before = Tick(blocks.active_at.load(Ordering::Relaxed));
        if before.0 == 0 || now.since(before) >= ACTIVE_STEP {
            blocks.active_at.store(now.0.max(1), Ordering::Relaxed);
            let mut active = self.active.lock();
            active.insert(address(blocks), Arc::downgrade(blocks));
            self.active_count.store(active.len(), Ordering::Relaxed);
        }
    }

    /// Bytes that one streamed file may have ahead of its readers: its share of the memory, but no more than the
    /// connections that help can fetch twice over. What lies about longer only falls out of the processor's caches.
    pub(crate) fn memory_share(&self) -> u64 {
        let files = self.active_count.load(Ordering::Relaxed).max(1) as u64;
        let useful = 2 * self.connections.target() as u64 * MAX_PART;
        (self.memory.limit() / 4 * 3 / files).min(MAX_WINDOW).min(useful)
    }

    /// The same for bytes that come from the disk tier, whose speed has nothing to do with the network's.
    pub(crate) fn disk_share(&self) -> u64 {
        let files = self.active_count.load(Ordering::Relaxed).max(1) as u64;
        (self.memory.limit() / 4 * 3 / files).min(DISK_WINDOW)
    }

    /// How long to wait for bytes that another process is fetching.
    pub(crate) fn patience(&self) -> Duration {
        let impatient = self.clock.now().0 < self.impatient_until.load(Ordering::Relaxed);
        if impatient { IMPATIENT } else { PATIENT }
    }

    /// Another process, alive, did not bring what was waited for: it may have been stopped, or its network may be worse.
    pub(crate) fn waited_in_vain(&self) {
        self.impatient_until.store(self.clock.now().after(GRUDGE).0, Ordering::Relaxed);
    }

    /// Requests that one streamed file may have in flight.
    pub(crate) fn connection_share(&self) -> usize {
        (self.connections.target() / self.active_count.load(Ordering::Relaxed).max(1)).max(2)
    }

    /// A small file was read, perhaps for the first time.
    pub(crate) fn small_read(self: &Arc<Self>, blocks: &FileBlocks) {
        if !blocks.seen.swap(true, Ordering::AcqRel) && self.prefetch {
            self.siblings.read(self, &blocks.path);
        }
    }

    pub(crate) fn stats(&self) -> CacheStats {
        let queued = self.quota.used();
        self.stats.disk_queued.set(queued);
        self.stats.memory_used.set(self.memory.used() + queued);
        if let Some(disk) = &self.disk {
            disk.count(&self.stats);
        }
        self.stats.files.set(self.files.len() as u64);
        self.names.count();
        self.stats.snapshot()
    }

    /// Forgets all files, so that the last handle to go takes its data along.
    pub(crate) fn close(&self) {
        let files: Vec<_> = self.files.iter().map(|entry| Arc::clone(&entry)).collect();
        self.files.clear();
        files.iter().for_each(|blocks| blocks.clear());
    }

    /// No request is in flight.
    pub(crate) fn is_quiet(&self) -> bool {
        self.running.lock().is_empty()
    }

    fn look_after(self: &Arc<Self>) {
        let now = self.clock.now();
        let before = |d: Duration| Tick(now.0.saturating_sub(d.as_nanos() as u64));
        self.memory.evict_unused(before(self.idle), |extent| extent.tag.large);
        if self.disk.is_some() {
            self.memory.evict_unused(before(self.idle.min(BACKED_IDLE)), Extent::is_backed);
        }
        let running: Vec<_> = self.running.lock().values().filter_map(Weak::upgrade).collect();
        if running.is_empty() {
            self.refill.start(self);
        }
        if !running.is_empty() {
            self.busy_at.store(now.0, Ordering::Relaxed);
        } else if Tick(self.busy_at.load(Ordering::Relaxed)) < before(self.idle) {
            self.memory.trim();
        }
        for blocks in running {
            blocks.watch(before(UNWANTED), before(STALLED));
        }
        let mut active = self.active.lock();
        active.retain(|_, weak| {
            weak.upgrade().is_some_and(|b| Tick(b.active_at.load(Ordering::Relaxed)) >= before(ACTIVE))
        });
        self.active_count.store(active.len(), Ordering::Relaxed);
    }
}

async fn watch(engine: Weak<Engine>) {
    loop {
        let Some(every) = engine.upgrade().map(|e| WATCH_EVERY.min(e.idle / 2)) else { return };
        tokio::time::sleep(every.max(Duration::from_millis(20))).await;
        let Some(engine) = engine.upgrade() else { return };
        engine.look_after();
    }
}

fn address(blocks: &Arc<FileBlocks>) -> usize {
    Arc::as_ptr(blocks) as usize
}
