//! [`FileBlocks`]: the data of one version of one file, as far as it is in memory or on its way.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use bytes::Bytes;
use nearfs_backends::{Error, ErrorKind, File, FsPath, Metadata, OpenOptions, Result, range};
use parking_lot::Mutex;
use tokio::sync::{Notify, OnceCell};

use super::disk::OnDisk;
use super::extent::{Extent, Home, Purpose, Tag};
use super::map::{ExtentMap, Piece};
use crate::cached_file::CachedFile;
use crate::clock::Tick;
use crate::engine::Engine;
use crate::key::FileKey;
use crate::prefetch::detector::{Detector, Direction, Pattern};
use crate::prefetch::window;

/// Requests of one file that may be in flight before the first bytes of it have arrived, and again while nothing
/// arrives: what a stalled object can take away from the others.
const UNPROVEN: usize = 8;

/// One version of one file. Shared by all its handles and by the registry of [`Engine`].
#[derive(Debug)]
pub(crate) struct FileBlocks {
    pub(crate) engine: Arc<Engine>,
    pub(crate) path: FsPath,
    pub(crate) metadata: Metadata,
    /// `None` for unknown versions, which are never shared.
    pub(crate) key: Option<FileKey>,
    id: u64,
    pub(super) map: Mutex<ExtentMap>,
    pub(crate) reader: Mutex<Detector>,
    inner: OnceCell<Arc<dyn File>>,
    stale: OnceLock<Error>,
    pub(super) in_flight: AtomicUsize,
    pub(super) proven: AtomicBool,
    pub(super) progress_at: AtomicU64,
    pub(super) slot_freed: Notify,
    /// When a request of this file last timed out, and how.
    pub(super) timed_out: Mutex<Option<(Tick, Error)>>,
    pub(crate) handle: Mutex<Weak<CachedFile>>,
    users: AtomicUsize,
    pub(crate) active_at: AtomicU64,
    /// It is small and was read.
    pub(crate) seen: AtomicBool,
    pub(super) on_disk: OnDisk,
}

impl FileBlocks {
    pub(crate) fn new(
        engine: &Arc<Engine>,
        path: &FsPath,
        metadata: &Metadata,
        key: Option<FileKey>,
    ) -> Arc<Self> {
        Arc::new(FileBlocks {
            id: engine.file_id(key.as_ref()),
            engine: engine.clone(),
            path: path.clone(),
            metadata: metadata.clone(),
            key,
            map: Mutex::default(),
            reader: Mutex::default(),
            inner: OnceCell::new(),
            stale: OnceLock::new(),
            in_flight: AtomicUsize::new(0),
            proven: AtomicBool::new(false),
            progress_at: AtomicU64::new(0),
            slot_freed: Notify::new(),
            timed_out: Mutex::new(None),
            handle: Mutex::default(),
            users: AtomicUsize::new(0),
            active_at: AtomicU64::new(0),
            seen: AtomicBool::new(false),
            on_disk: OnDisk::default(),
        })
    }

    pub(crate) fn size(&self) -> u64 {
        self.metadata.size
    }

    /// Too large to be fetched in one request.
    pub(crate) fn is_large(&self) -> bool {
        self.size() > self.engine.whole()
    }

    pub(super) fn tag(&self, purpose: Purpose) -> Tag {
        Tag { file: self.id, large: self.is_large(), purpose }
    }

    /// The file of the wrapped filesystem, opened at this version when it is first needed.
    pub(crate) async fn inner(&self) -> Result<&Arc<dyn File>> {
        self.inner
            .get_or_try_init(|| async {
                let options = OpenOptions { metadata: Some(self.metadata.clone()) };
                self.engine.fs.open(&self.path, options).await
            })
            .await
            .map_err(|e| match e.kind() {
                // The version this handle is pinned to was there, so now it is gone.
                ErrorKind::NotFound | ErrorKind::IsADirectory => {
                    Error::new(ErrorKind::Stale, "the object is gone").at(&self.path).with_source(e)
                }
                _ => e,
            })
    }

    /// The file of the wrapped filesystem, if it has been opened.
    pub(crate) fn opened(&self) -> Option<&Arc<dyn File>> {
        self.inner.get()
    }

    /// # Errors
    /// `Stale` once it was.
    pub(crate) fn check(&self) -> Result<()> {
        self.stale.get().map_or(Ok(()), |e| Err(e.duplicate()))
    }

    /// Notes that the store no longer has this version: every later read fails, the data goes, and the name is
    /// asked for anew.
    pub(crate) fn set_stale(&self, error: &Error) {
        if self.stale.set(error.duplicate()).is_ok() {
            self.engine.names.distrust(&self.path);
            let held: Vec<_> = self.map.lock().landed(0..u64::MAX).cloned().collect();
            held.iter().for_each(|extent| self.engine.memory.evict(extent));
            self.forget_on_disk();
        }
    }

    /// The bytes of `range` (clamped, not empty) if all are here; takes note of the read.
    pub(crate) fn hit(self: &Arc<Self>, range: &Range<u64>) -> Option<Bytes> {
        if self.stale.get().is_some() || self.engine.names.rights.check(&self.path).is_err() {
            return None;
        }
        self.stay_shown();
        let one = self.map.lock().hit(range).cloned();
        let bytes = match one {
            Some(extent) => {
                let bytes = extent.slice(range.start, range.end);
                self.touch(&extent, range);
                bytes
            }
            None => {
                let pieces = self.map.lock().pieces(range.clone());
                let here = |p: &Piece| matches!(p, Piece::Held { flight: None, .. });
                if pieces.len() > 4 || !pieces.iter().all(here) {
                    return self.hit_on_disk(range);
                }
                self.join(range, &pieces)
            }
        };
        self.engine.stats.read_hits.inc();
        self.engine.stats.bytes_served.add(bytes.len() as u64);
        if self.is_large() {
            let pattern = self.reader.lock().record(range);
            self.read_on(range, &pattern);
        } else {
            self.engine.small_read(self);
        }
        Some(bytes)
    }

    /// Waits for all of `range` (clamped, not empty, at most `Engine::longest_read`), fetching what is missing.
    pub(crate) async fn hold(self: &Arc<Self>, range: &Range<u64>) -> Result<Held> {
        self.check()?;
        self.check_rights().await?;
        self.stay_shown();
        self.open_on_disk(range).await?;
        let large = self.is_large();
        let (mut front, pattern) = if large {
            let mut reader = self.reader.lock();
            (reader.is_new() && range.start == 0, reader.record(range))
        } else {
            (false, Pattern::Random)
        };
        let mut pieces = self.want(range, front);
        let here = pieces.iter().all(|p| matches!(p, Piece::Held { flight: None, .. }));
        if here {
            self.engine.stats.read_hits.inc()
        } else {
            self.engine.stats.read_misses.inc()
        }
        if large {
            self.read_on(range, &pattern);
        } else {
            self.engine.small_read(self);
        }
        while let Err(e) = wait(&pieces).await {
            // A request that nobody waited for was given up just when this reader came to want it.
            let given_up = |p: &Piece| matches!(p, Piece::Held { flight: Some(f), .. } if f.is_aborted());
            if e.kind() != ErrorKind::Interrupted || !pieces.iter().any(given_up) {
                return Err(e);
            }
            front = false;
            pieces = self.want(range, front);
        }
        // The wait may have ended because another range of this file turned out to be stale.
        self.check()?;
        self.engine.stats.bytes_served.add(range.end - range.start);
        Ok(Held { blocks: self.clone(), range: range.clone(), pieces })
    }

    /// The pieces of `range`, with requests begun for what nobody had.
    fn want(self: &Arc<Self>, range: &Range<u64>, front: bool) -> Vec<Piece> {
        let size = self.size();
        let mut map = self.map.lock();
        let mut launches = Vec::new();
        if !self.is_large() && map.is_empty() {
            launches.push(self.claim(&mut map, 0..size, Purpose::Demand, 0));
        } else if front && map.is_empty() && self.stretch_on_disk(range.start, range.end).is_none() {
            let (first, rest) = window::front(range, size, self.unit());
            launches.push(self.claim(&mut map, first, Purpose::Demand, 0));
            if !rest.is_empty() && self.engine.prefetch {
                launches.push(self.claim(&mut map, rest, Purpose::Ahead, 0));
            }
        } else {
            while let Some(gap) = map.first_gap(range.clone()) {
                let wide = window::demand(range, gap.clone(), size);
                let wide = self.cut_on_disk(&gap, map.gap_around(&gap, self.aligned(wide)));
                launches.push(self.claim(&mut map, wide, Purpose::Demand, 0));
            }
        }
        let pieces = map.pieces(range.clone());
        drop(map);
        for (flight, fillers) in launches {
            self.launch(flight, fillers, None);
        }
        pieces
    }

    fn touch(&self, extent: &Arc<Extent>, range: &Range<u64>) {
        if extent.touch(range.start, range.end, self.engine.clock.now()) {
            self.engine.memory.used_ahead(extent);
        }
    }

    fn join(&self, range: &Range<u64>, pieces: &[Piece]) -> Bytes {
        if let [Piece::Held { extent, range, .. }] = pieces {
            self.touch(extent, range);
            return extent.slice(range.start, range.end);
        }
        let mut buffer = self.engine.memory.buffer((range.end - range.start) as usize);
        for piece in pieces {
            if let Piece::Held { extent, range, .. } = piece {
                extent.copy(range.start, range.end, &mut buffer);
                self.touch(extent, range);
            }
        }
        buffer.freeze()
    }

    /// Takes the reader's word that it will read `range` from front to back.
    pub(crate) fn expect(&self, range: &Range<u64>) {
        if self.is_large() {
            self.reader.lock().expect(range);
        }
    }

    /// What a read of a large file brings about: more is fetched ahead, what lies behind goes.
    pub(super) fn read_on(self: &Arc<Self>, range: &Range<u64>, pattern: &Pattern) {
        match pattern {
            Pattern::Stream(i) => {
                self.pump();
                self.trim(*i);
            }
            Pattern::Strided { stride, steps } => self.stride(range, *stride, *steps),
            Pattern::Random => {}
        }
    }

    /// Gives back what stream `i` has passed, unless another stream is about to come by.
    fn trim(&self, i: usize) {
        let gone: Vec<_> = {
            let mut reader = self.reader.lock();
            let streams = reader.streams();
            let Some(stream) = streams.get(i).filter(|s| s.direction == Direction::Forward) else { return };
            let passed = stream.dropped..stream.high.saturating_sub(self.engine.lag());
            if passed.start + (1 << 20) > passed.end {
                return;
            }
            let others = |e: &Extent| {
                streams.iter().enumerate().any(|(j, s)| {
                    j != i && s.high <= e.start && e.start < s.high + window::ahead(s, window::MAX_WINDOW)
                })
            };
            let map = self.map.lock();
            // While there is room, what is not on disk yet may wait for it.
            let roomy = self.engine.memory.used() < self.engine.memory.limit() / 2;
            let waits = |e: &Extent| roomy && e.is_waiting();
            let behind =
                |e: &&Arc<Extent>| e.end() <= passed.end && e.is_consumed() && !others(e) && !waits(e);
            let gone = map.landed(passed.clone()).filter(behind).cloned().collect();
            // What was read while the rest of its request was still on its way is looked at again.
            streams[i].dropped = map.first_flying(passed.clone()).unwrap_or(passed.end);
            drop(map);
            gone
        };
        gone.iter().for_each(|extent| self.engine.memory.evict(extent));
    }

    /// How many requests of this file may be in flight.
    pub(super) fn slots(&self) -> usize {
        let max = self.engine.connections.max();
        if self.proven.load(Ordering::Acquire) {
            return (max - max / 4).max(1);
        }
        // Nor may it hold much of the memory, at a MiB for most requests.
        let memory = usize::try_from(self.engine.memory.limit() >> 24).unwrap_or(UNPROVEN);
        UNPROVEN.min(max).min(memory.max(1))
    }

    /// How many are.
    pub(crate) fn requests(&self) -> &AtomicUsize {
        &self.in_flight
    }

    /// Looks after running requests: gives up those that nobody waits for and that have brought nothing since
    /// `unwanted`, and takes connections away from a file whose store has sent nothing since `stalled`.
    pub(crate) fn watch(&self, unwanted: Tick, stalled: Tick) {
        if Tick(self.progress_at.load(Ordering::Relaxed)) < stalled {
            self.proven.store(false, Ordering::Release);
        }
        let flights = self.map.lock().flights();
        flights.iter().filter(|f| f.progress_at() < unwanted && !f.is_awaited()).for_each(|f| f.abort());
    }

    /// Gives everything up that nobody waits for, for good.
    pub(crate) fn clear(&self) {
        let (flights, held): (_, Vec<_>) = {
            let map = self.map.lock();
            (map.flights(), map.landed(0..u64::MAX).cloned().collect())
        };
        flights.iter().filter(|f| !f.is_awaited()).for_each(|f| f.abort());
        held.iter().for_each(|extent| self.engine.memory.evict(extent));
    }

    /// One more who reads it.
    pub(crate) fn enter(&self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }

    /// One less. After the last one nothing is fetched ahead any more.
    pub(crate) fn leave(self: &Arc<Self>) {
        if self.users.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        let flights = self.map.lock().flights();
        // What has brought everything still has to be checked and handed to the disk, and costs nobody anything.
        let coming = |f: &&Arc<super::flight::Flight>| f.arrived() < f.range.end;
        flights.iter().filter(|f| f.ahead && !f.is_awaited()).filter(coming).for_each(|f| f.abort());
        *self.reader.lock() = Detector::default();
        self.engine.forget_if_unused(self);
    }

    /// Nobody reads it and nothing of it is held.
    pub(crate) fn is_unused(&self) -> bool {
        self.users.load(Ordering::Acquire) == 0 && self.map.lock().is_empty()
    }

    /// True if nothing of it is held or on its way.
    pub(crate) fn is_untouched(&self) -> bool {
        self.map.lock().is_empty()
    }

    /// Bytes of it that are in memory.
    pub(crate) fn held(&self) -> u64 {
        self.map.lock().held()
    }

    /// The first part of `range` that nobody has.
    pub(crate) fn gap(&self, range: Range<u64>) -> Option<Range<u64>> {
        self.map.lock().first_gap(range::clamp(range, self.size()))
    }
}

impl Home for FileBlocks {
    fn remove(&self, extent: &Arc<Extent>) {
        let empty = {
            let mut map = self.map.lock();
            map.remove(extent);
            map.is_empty()
        };
        if empty {
            self.engine.forget_if_unused(self);
        }
    }
}

async fn wait(pieces: &[Piece]) -> Result<()> {
    for piece in pieces {
        if let Piece::Held { flight: Some(flight), range, .. } = piece {
            flight.wait(range.end).await?;
        }
    }
    Ok(())
}

/// A range of a file that is all here, whatever is evicted meanwhile.
#[derive(Debug)]
pub(crate) struct Held {
    blocks: Arc<FileBlocks>,
    range: Range<u64>,
    pieces: Vec<Piece>,
}

impl Held {
    /// Its bytes in one piece; copied only if they lie in several extents.
    pub(crate) fn bytes(&self) -> Bytes {
        self.blocks.join(&self.range, &self.pieces)
    }

    /// Copies its bytes to the end of `buf`.
    pub(crate) fn copy_to(&self, buf: &mut nearfs_backends::io::Buffer) {
        for piece in &self.pieces {
            if let Piece::Held { extent, range, .. } = piece {
                extent.copy(range.start, range.end, buf);
                self.blocks.touch(extent, range);
            }
        }
    }
}
