//! [`Handle`]: the place of one large file of the cache.

use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use nearfs_backends::io::Buffer;
use parking_lot::Mutex;

use crate::disk::key::Key;
use crate::disk::object::Large;
use crate::disk::volume::Volume;

/// Reads of one object, from anywhere, that count as one use of it.
const PASS: Duration = Duration::from_secs(60);

/// The place of one large object, or of one part of a very large one.
#[derive(Debug)]
pub(super) struct Handle {
    pub(super) volume: Arc<Volume>,
    pub(super) key: Key,
    pub(super) size: u64,
    /// Its files, as long as they are open.
    large: Mutex<Weak<Large>>,
    pub(super) opening: tokio::sync::Mutex<()>,
    /// When its use was last noted.
    noted: Mutex<Option<Instant>>,
    /// When it was last refused a place, if that was the last answer.
    refused: Mutex<Option<Instant>>,
}

impl Handle {
    pub(super) fn new(volume: &Arc<Volume>, key: Key, size: u64) -> Arc<Self> {
        Arc::new(Handle {
            volume: volume.clone(),
            key,
            size,
            large: Mutex::default(),
            opening: tokio::sync::Mutex::default(),
            noted: Mutex::new(None),
            refused: Mutex::new(None),
        })
    }

    /// Its files, if they are open and in force.
    pub(super) fn current(&self) -> Option<Arc<Large>> {
        let kept = self.large.lock().upgrade().filter(|large| !large.is_dead());
        kept.or_else(|| self.keep(self.volume.find_large(&self.key)))
    }

    /// Opens its files, or makes them with `create`. Blocks.
    pub(super) fn open(&self, create: bool) -> Option<Arc<Large>> {
        let large = self.volume.open_large(&self.key, self.size, create);
        if create {
            *self.refused.lock() = large.is_none().then(Instant::now);
        }
        self.keep(large)
    }

    fn keep(&self, large: Option<Arc<Large>>) -> Option<Arc<Large>> {
        if let Some(large) = &large {
            *self.large.lock() = Arc::downgrade(large);
        }
        large
    }

    /// Notes a read of `range` as a use of the object, if it begins a pass or the last one was a while ago.
    pub(super) fn used(&self, large: &Large, range: &Range<u64>) {
        let mut noted = self.noted.lock();
        if range.start == 0 || noted.is_none_or(|at| at.elapsed() >= PASS) {
            *noted = Some(Instant::now());
            self.volume.accessed(large);
        }
    }

    /// Whether a read from `start` on may ask for a place in the cache: not again in a pass that was refused one. Asking
    /// counts as an access, so a refused object would look like the most popular of all if each of its parts asked.
    pub(super) fn may_ask(&self, start: u64) -> bool {
        start == 0 || self.refused.lock().is_none_or(|at| at.elapsed() >= PASS)
    }

    /// True if the index has it.
    pub(super) fn is_listed(&self) -> bool {
        self.volume.has(&self.key)
    }

    /// The first stretch of `range` that is there, or is not; none if that is not known without input or output.
    pub(super) fn peek(&self, range: &Range<u64>) -> Option<(bool, Range<u64>)> {
        match self.current() {
            Some(large) => Some(large.resident(range.clone())),
            None if self.is_listed() => None,
            None => Some((false, range.clone())),
        }
    }

    /// Appends the bytes of `range` to `buf` if they are there, believed, and in the kernel's memory.
    pub(super) fn read_now(&self, range: &Range<u64>, buf: &mut Buffer) -> bool {
        let Some(large) = self.current() else { return false };
        let Some(token) = large.begin(range) else { return false };
        let (before, len) = (buf.len(), (range.end - range.start) as usize);
        let read = large.source().read_cached(range.start, buf, len);
        if read == len && large.finish(token) {
            self.used(&large, range);
            return true;
        }
        buf.truncate(before);
        false
    }
}
