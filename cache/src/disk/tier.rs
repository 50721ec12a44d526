//! [`DiskTier`]: the cache directories of a process, and [`DiskObject`]: where one file is in them.

mod handle;
mod manage;
mod plan;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use nearfs_backends::io::{Buffer, Engine, EngineConfig};
use nearfs_backends::{Error, ErrorKind, FsPath, Identity, Metadata, Result};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use self::handle::Handle;
pub(crate) use self::plan::{Claim, Segment, Written};
use super::cleaning;
use super::dir::Directory;
use super::key::Key;
use super::lent::LentFile;
use super::object::Large;
use super::parts::Parts;
use super::small::SMALL;
use super::volume::Volume;
use super::writer::Writer;
use crate::config::DiskConfig;
use crate::stats::Counters;

pub use manage::{Checked, DirectoryStatus, Pinned, Removed};

/// Reads of one range that are tried again because something was evicted meanwhile.
const ATTEMPTS: usize = 3;

/// The cache directories of a process, shared by all its [`CachedFileSystem`](crate::CachedFileSystem)s and, live, by
/// all processes that use the same directories. An object is in one of them, chosen by hash.
///
/// Trouble with a directory never reaches a reader: what cannot be read there is fetched from the store, and a
/// directory that cannot be written to is left alone for half a minute at a time.
#[derive(Debug)]
pub struct DiskTier {
    volumes: Vec<Arc<Volume>>,
    io: Engine,
    writer: Writer,
}

/// What the directories of a [`DiskTier`] hold now, all processes that share them included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DiskStats {
    /// Bytes on disk, and reserved for what is being written.
    pub used: u64,
    /// Limit of `used`.
    pub limit: u64,
    /// Of these, bytes that are lent out and so not evicted: passed through, mapped or linked.
    pub lent: u64,
    /// Directories.
    pub directories: u64,
    /// Of these, directories that are not written to at present.
    pub off: u64,
    /// Bytes that this process has evicted.
    pub evicted: u64,
    /// Entries and units that this process has dropped because their bytes were not what they should have been.
    pub corrupt: u64,
}

impl DiskTier {
    /// Opens the directories of `config`, creating what is missing. Blocks for as long as the filesystem takes to make
    /// a few files; what has to be cleaned up there is done in the background.
    ///
    /// # Errors
    /// `InvalidInput` if there is no directory or a setting makes no sense; `PermissionDenied` if a directory belongs
    /// to somebody else or could be changed by others; what the filesystem says.
    pub fn open(config: &DiskConfig) -> Result<Arc<Self>> {
        let io = Engine::new(EngineConfig::default())?;
        let directories = Directory::open_all(config)?;
        if directories.is_empty() {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "expected at least one cache directory, found none",
            ));
        }
        let volume = |dir| Arc::new(Volume::new(dir, config, io.clone()));
        let volumes: Vec<_> = directories.into_iter().map(volume).collect();
        volumes.iter().for_each(cleaning::start);
        Ok(Arc::new(DiskTier { volumes, io, writer: Writer::new() }))
    }

    /// What the directories hold now.
    pub fn stats(&self) -> DiskStats {
        let mut stats = DiskStats { directories: self.volumes.len() as u64, ..DiskStats::default() };
        for volume in &self.volumes {
            let (cat, dir) = (volume.cat(), volume.dir());
            stats.used += dir.used();
            stats.limit += dir.limit();
            stats.lent += dir.lent();
            stats.off += u64::from(!dir.writable());
            stats.evicted += cat.evicted();
            stats.corrupt += cat.wrong();
        }
        stats
    }

    /// Waits until everything that is being fetched is on disk, or was given up: what is fetched ahead of readers that
    /// have gone is given up. Call it before a process ends, or what was read last is fetched again by the next one.
    ///
    /// # Cancellation
    /// Dropping the call changes nothing.
    pub async fn flush(&self) {
        self.writer.flush().await;
    }

    /// Brings the gauges up to date.
    pub(crate) fn count(&self, counters: &Counters) {
        let stats = self.stats();
        counters.disk_used.set(stats.used);
        counters.disk_limit.set(stats.limit);
        counters.disk_lent.set(stats.lent);
        counters.disk_evicted.set(stats.evicted);
        counters.disk_corrupt.set(stats.corrupt);
    }

    /// Where the file `path` of the store `identity` is, at the version that `metadata` names. None for unknown
    /// versions. No input or output.
    pub(crate) fn object(
        self: &Arc<Self>,
        identity: &Identity,
        path: &FsPath,
        metadata: &Metadata,
    ) -> Option<Arc<DiskObject>> {
        let size = metadata.size;
        let key = Key::new(identity, path, &metadata.version, size)?;
        let volume = &self.volumes[choose(&key, self.volumes.len())];
        let shape = match Parts::of(size, volume.dir().limit()) {
            _ if size <= SMALL => Shape::Small(key),
            None => Shape::Whole(Handle::new(volume, key, size)),
            Some(parts) => Shape::Parts(parts, key, Mutex::default()),
        };
        Some(Arc::new(DiskObject { tier: self.clone(), volume: volume.clone(), size, shape }))
    }

    /// The open files of `handle`. If there are none, they are made for a reader at the offset `create`, unless this
    /// pass was refused a place for them. Blocks only on threads made for that.
    async fn large(&self, handle: &Arc<Handle>, create: Option<u64>) -> Option<Arc<Large>> {
        if let Some(large) = handle.current() {
            return Some(large);
        }
        if create.is_none() && !handle.is_listed() {
            return None;
        }
        // One at a time: whoever comes meanwhile has what the first one opens.
        let _opening = handle.opening.lock().await;
        if let Some(large) = handle.current() {
            return Some(large);
        }
        let create = !handle.is_listed() && create.is_some_and(|start| handle.may_ask(start));
        if !create && !handle.is_listed() {
            return None;
        }
        let opened = handle.clone();
        self.io.pool().run("open", move |_| Ok(opened.open(create))).await.ok().flatten()
    }
}

/// Where one version of one file is in the cache directories.
#[derive(Debug)]
pub(crate) struct DiskObject {
    tier: Arc<DiskTier>,
    volume: Arc<Volume>,
    size: u64,
    shape: Shape,
}

/// How it is kept.
#[derive(Debug)]
enum Shape {
    /// Wholly or not at all.
    Small(Key),
    /// In units, in one file.
    Whole(Arc<Handle>),
    /// In units, in several files: it is nearly as large as the limit, or larger.
    Parts(Parts, Key, Mutex<VecDeque<(u64, Arc<Handle>)>>),
}

/// Parts of one object that are remembered.
const MAX_PARTS: usize = 16;

/// A stretch of one file: its bytes in a file of the cache, and where that begins in the object.
struct Stretch {
    handle: Arc<Handle>,
    own: Range<u64>,
    base: u64,
}

impl Stretch {
    fn of(&self, own: &Range<u64>) -> Range<u64> {
        self.base + own.start..self.base + own.end
    }
}

impl DiskObject {
    /// The files that have `range`, in order. None for small objects.
    fn stretches(&self, range: &Range<u64>) -> Vec<Stretch> {
        match &self.shape {
            Shape::Small(_) => Vec::new(),
            Shape::Whole(handle) => {
                vec![Stretch { handle: handle.clone(), own: range.clone(), base: 0 }]
            }
            Shape::Parts(parts, key, known) => {
                let mut known = known.lock();
                let stretch = |(number, own)| {
                    let handle = match known.iter().find(|(n, _)| *n == number) {
                        Some((_, handle)) => handle.clone(),
                        None => {
                            let part = parts.range_of(number);
                            let key = key.part(parts.part_size(), number);
                            let handle = Handle::new(&self.volume, key, part.end - part.start);
                            if known.len() == MAX_PARTS {
                                known.pop_front();
                            }
                            known.push_back((number, handle.clone()));
                            handle
                        }
                    };
                    Stretch { handle, own, base: parts.range_of(number).start }
                };
                parts.split(range.clone()).map(stretch).collect()
            }
        }
    }

    /// The first stretch of `range` that the disk has, or has not, as far as that is known without input or output.
    /// Perhaps only the first part of it.
    pub(crate) fn peek(&self, range: &Range<u64>) -> Option<(bool, Range<u64>)> {
        let range = &match &self.shape {
            Shape::Parts(parts, ..) => range.start..range.end.min(range.start + parts.part_size()),
            Shape::Small(_) | Shape::Whole(_) => range.clone(),
        };
        if let Shape::Small(key) = &self.shape {
            return Some((self.volume.has(key), range.clone()));
        }
        let mut found: Option<(bool, Range<u64>)> = None;
        for stretch in self.stretches(range) {
            let Some((here, own)) = stretch.handle.peek(&stretch.own) else { break };
            let (of, whole) = (stretch.of(&own), own.end == stretch.own.end);
            match &mut found {
                None => found = Some((here, of)),
                Some((before, range)) if *before == here => range.end = of.end,
                Some(_) => break,
            }
            if !whole {
                break;
            }
        }
        found
    }

    /// Whether it is kept wholly or not at all.
    pub(crate) fn is_small(&self) -> bool {
        matches!(self.shape, Shape::Small(_))
    }

    /// Opens the files that exist, so that [`DiskObject::peek`] knows what they have.
    pub(crate) async fn open(&self) {
        if let Shape::Whole(handle) = &self.shape {
            self.tier.large(handle, None).await;
        }
    }

    /// Appends the bytes of `range` to `buf` if the kernel has all of them in memory. Does not wait for any disk.
    pub(crate) fn read_now(&self, range: &Range<u64>, buf: &mut Buffer) -> bool {
        match &self.shape {
            Shape::Small(key) => {
                // Part of it is not worth reading all: the reader will want the rest, and then it is in memory.
                *range == (0..self.size) && self.volume.try_read_small(key, self.size, buf)
            }
            _ => self.stretches(range).iter().all(|stretch| stretch.handle.read_now(&stretch.own, buf)),
        }
    }

    /// Appends the bytes of `range` to `buf`. False, and `buf` as it was, if they are not to be had from disk.
    pub(crate) async fn read(&self, range: Range<u64>, mut buf: Buffer) -> (bool, Buffer) {
        let before = buf.len();
        if let Shape::Small(key) = &self.shape {
            return self.read_small(*key, range, buf).await;
        }
        for stretch in self.stretches(&range) {
            let (read, same) = self.read_large(&stretch.handle, &stretch.own, buf).await;
            buf = same;
            if !read {
                buf.truncate(before);
                return (false, buf);
            }
        }
        (true, buf)
    }

    async fn read_small(&self, key: Key, range: Range<u64>, buf: Buffer) -> (bool, Buffer) {
        let (volume, size) = (self.volume.clone(), self.size);
        let whole = range == (0..size);
        // The buffer belongs to the call while that runs; one that hangs and is given up keeps it.
        let (capacity, content) = (buf.capacity(), buf.to_vec());
        let lent = Arc::new(Mutex::new(Some(buf)));
        let theirs = lent.clone();
        let read = self.tier.io.pool().run("read", move |_| {
            let Some(mut buf) = theirs.lock().take() else { return Ok(false) };
            let hit = if whole {
                volume.read_small(&key, size, &mut buf)
            } else {
                let mut all = Buffer::with_capacity(size as usize);
                let hit = volume.read_small(&key, size, &mut all);
                if hit {
                    buf.append(&all[range.start as usize..range.end as usize]);
                }
                hit
            };
            *theirs.lock() = Some(buf);
            Ok(hit)
        });
        let hit = read.await.unwrap_or(false);
        let buf = lent.lock().take();
        match buf {
            Some(mut buf) => {
                if !hit {
                    // A call that was given up may have ended just now.
                    buf.truncate(content.len());
                }
                (hit, buf)
            }
            None => {
                let mut buf = Buffer::with_capacity(capacity);
                buf.append(&content);
                (false, buf)
            }
        }
    }

    async fn read_large(&self, handle: &Arc<Handle>, own: &Range<u64>, mut buf: Buffer) -> (bool, Buffer) {
        let (before, len) = (buf.len(), (own.end - own.start) as usize);
        for _ in 0..ATTEMPTS {
            let Some(large) = self.tier.large(handle, None).await else { break };
            let Some(token) = large.begin(own) else {
                let (unproven, range) = (large.clone(), own.clone());
                let prove = move |_: &_| Ok(unproven.prove(&range).unwrap_or(false));
                if !self.tier.io.pool().run("verify", prove).await.unwrap_or(false) {
                    break;
                }
                continue;
            };
            let (read, same) = large.read_into(own.start, buf, len).await;
            buf = same;
            match read {
                Ok(n) if n == len && large.finish(token) => {
                    handle.used(&large, own);
                    return (true, buf);
                }
                Ok(_) => buf.truncate(before),
                Err(e) => {
                    tracing::debug!(error = %e, "a read of the cache directory failed");
                    break;
                }
            }
        }
        buf.truncate(before);
        (false, buf)
    }

    /// The file itself, if all of it is here, in one file, and believed.
    pub(crate) fn lend(&self) -> Option<LentFile> {
        match &self.shape {
            Shape::Small(key) => self.volume.lend_small(key, self.size).map(LentFile::small),
            Shape::Whole(handle) => self.volume.lend_large(&handle.key, self.size).map(LentFile::large),
            Shape::Parts(..) => None,
        }
    }

    /// Removes it if it is not complete: its version is gone, so the rest will never come.
    pub(crate) fn forget_incomplete(self: &Arc<Self>) {
        if let Shape::Whole(handle) = &self.shape {
            let handle = handle.clone();
            let forget = move || handle.volume.forget_incomplete(&handle.key, handle.size);
            self.tier.io.pool().detach("forget", forget);
        }
    }
}

/// Which of `volumes` directories keeps `key`.
fn choose(key: &Key, volumes: usize) -> usize {
    // Other bits than those that the index and the names of directories use.
    (key.words()[3] % volumes.max(1) as u64) as usize
}
