//! What the disk tier has of a file: served from there at once, or known so that requests are cut accordingly.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use nearfs_backends::io::Buffer;
use nearfs_backends::{Metadata, Result, range};

use super::blocks::FileBlocks;
use super::cost;
use crate::disk::UNIT;
use crate::disk::lent::LentFile;
use crate::disk::tier::DiskObject;

/// A file that is read beyond the lifetime of what is known of it is asked for at most this often.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// Longest stretch that a read into somebody's buffer takes from disk at a time.
const STRETCH: u64 = 8 << 20;

/// What one file knows of the disk tier.
#[derive(Debug, Default)]
pub(crate) struct OnDisk {
    object: OnceLock<Option<Arc<DiskObject>>>,
    /// The last read of it was answered out of the kernel's page cache.
    warm: AtomicBool,
    /// The store has shown this version to this process.
    shown: AtomicBool,
    /// Until then that is good.
    shown_until: AtomicU64,
}

impl FileBlocks {
    /// Where the disk tier keeps this file; none without a tier, or if its version is unknown.
    pub(crate) fn disk(&self) -> Option<&Arc<DiskObject>> {
        let tier = self.engine.disk.as_ref()?;
        let find = || tier.object(&self.engine.identity, &self.path, &self.metadata);
        self.on_disk.object.get_or_init(find).as_ref()
    }

    /// What ranges are aligned to.
    pub(crate) fn unit(&self) -> u64 {
        if self.disk().is_some() { UNIT } else { 1 }
    }

    /// `offset` down to a whole unit of the disk tier, if there is one.
    pub(crate) fn whole_units(&self, offset: u64) -> u64 {
        offset / self.unit() * self.unit()
    }

    /// `range` in whole units of the disk tier, if there is one.
    pub(crate) fn aligned(&self, range: Range<u64>) -> Range<u64> {
        range::align(range, self.unit(), self.size())
    }

    /// The end of the stretch from `from` on, at most up to `to`, that the disk has; none if it lacks `from`, or if
    /// that is not known without input or output.
    pub(crate) fn stretch_on_disk(&self, from: u64, to: u64) -> Option<u64> {
        if from >= to {
            return None;
        }
        match self.disk()?.peek(&(from..to))? {
            (true, stretch) => Some(stretch.end),
            (false, _) => None,
        }
    }

    /// `wide` up to where the disk begins or ceases to have it, but at least beyond the start of `gap`.
    pub(super) fn cut_on_disk(&self, gap: &Range<u64>, wide: Range<u64>) -> Range<u64> {
        match self.disk().and_then(|disk| disk.peek(&wide)) {
            Some((_, stretch)) if stretch.end > gap.start => wide.start..stretch.end.min(wide.end),
            _ => wide,
        }
    }

    /// True if all of it is known to be on disk.
    pub(crate) fn is_on_disk(&self) -> bool {
        self.stretch_on_disk(0, self.size()) == Some(self.size())
    }

    pub(crate) fn is_warm(&self) -> bool {
        self.on_disk.warm.load(Ordering::Relaxed)
    }

    /// The bytes of `range` out of the page cache, if all are there: no waiting for any disk.
    pub(super) fn hit_on_disk(self: &Arc<Self>, range: &Range<u64>) -> Option<Bytes> {
        let disk = self.disk()?;
        let len = range.end - range.start;
        if len > self.engine.longest_read() || !self.is_shown() {
            return None;
        }
        let mut buffer = self.engine.memory.buffer(len as usize);
        if !disk.read_now(range, &mut buffer) {
            return None;
        }
        self.engine.stats.disk_hits.inc();
        self.engine.stats.disk_read.add(len);
        self.engine.stats.bytes_served.add(len);
        if self.is_large() {
            self.on_disk.warm.store(true, Ordering::Relaxed);
            let pattern = self.reader.lock().record(range);
            // What the disk lacks farther on is fetched ahead.
            self.read_on(range, &pattern);
        }
        Some(buffer.freeze())
    }

    /// The bytes of `range` from disk, if that is all of a small object and the memory has none of it: the one who asks
    /// reads it, without a request that others could share.
    pub(crate) async fn small_on_disk(&self, range: &Range<u64>) -> Option<Bytes> {
        let disk = self.disk()?;
        let len = range.end - range.start;
        let here =
            *range == (0..self.size()) && disk.is_small() && disk.peek(range)?.0 && self.is_untouched();
        let may = here && self.is_shown() && self.check().is_ok();
        if !may || self.engine.names.rights.check(&self.path).is_err() {
            return None;
        }
        let engine = &self.engine;
        let _charge = engine.memory.reserve(cost(len), engine.clock.now()).await;
        let (there, buffer) = disk.read(range.clone(), engine.memory.buffer(len as usize)).await;
        if !there || self.engine.names.rights.check(&self.path).is_err() {
            return None;
        }
        engine.stats.read_misses.inc();
        engine.stats.disk_read.add(len);
        engine.stats.bytes_served.add(len);
        Some(buffer.freeze())
    }

    /// Before a read that has to wait: finds out what the disk has, and if it is the disk that is waited for, has
    /// the bytes behind read ahead from there too.
    ///
    /// # Errors
    /// Why the store does not show this file to this process.
    pub(super) async fn open_on_disk(&self, range: &Range<u64>) -> Result<()> {
        let Some(disk) = self.disk() else { return Ok(()) };
        if !self.is_shown() {
            let known = self.engine.names.lookup(&self.path).await?;
            if known.metadata.is_none_or(|m| !self.is_this(&m)) {
                // Another version by now: this one can only come from the store.
                return Ok(());
            }
            self.on_disk.shown.store(true, Ordering::Release);
        }
        disk.open().await;
        if self.is_warm() && disk.peek(range).is_some_and(|(here, _)| here) {
            self.on_disk.warm.store(false, Ordering::Relaxed);
            for stream in self.reader.lock().streams() {
                stream.planned = stream.planned.min(stream.high);
            }
        }
        Ok(())
    }

    fn is_this(&self, metadata: &Metadata) -> bool {
        (metadata.size, &metadata.version) == (self.size(), &self.metadata.version)
    }

    /// Whether the store has shown this very version to this process: only then is it served from disk, whoever put it
    /// there.
    pub(super) fn is_shown(&self) -> bool {
        let shown = &self.on_disk.shown;
        if shown.load(Ordering::Acquire) {
            return true;
        }
        let known = self.engine.names.known(&self.path).and_then(|known| known.metadata);
        let is_shown = known.is_some_and(|m| self.is_this(&m));
        if is_shown {
            shown.store(true, Ordering::Release);
        }
        is_shown
    }

    /// Reads from the start of `range` on to the end of `buf`, straight from disk, as far as the bytes are there and
    /// not in memory. Returns how many bytes that was.
    pub(crate) async fn read_on_disk(&self, range: &Range<u64>, buf: Buffer) -> (u64, Buffer) {
        let Some(disk) = self.disk().filter(|_| self.is_shown()) else { return (0, buf) };
        disk.open().await;
        let Some(end) = self.stretch_on_disk(range.start, range.end.min(range.start + STRETCH)) else {
            return (0, buf);
        };
        let end = match self.gap(range.start..end) {
            Some(gap) if gap.start == range.start => gap.end,
            _ => return (0, buf),
        };
        let (there, buf) = disk.read(range.start..end, buf).await;
        let n = if there { end - range.start } else { 0 };
        self.engine.stats.disk_read.add(n);
        self.engine.stats.bytes_served.add(n);
        (n, buf)
    }

    /// Where in `range` the disk may begin to have what the memory has not; its end if that is not known.
    pub(crate) fn end_of_fetch(&self, range: &Range<u64>) -> u64 {
        let mut at = range.start;
        while at < range.end {
            let Some((here, stretch)) = self.disk().and_then(|disk| disk.peek(&(at..range.end))) else {
                break;
            };
            if here && at > range.start && self.gap(stretch.clone()).is_some() {
                return at;
            }
            at = stretch.end.max(at + 1);
        }
        range.end
    }

    /// A version that the store no longer has is of no use to anybody unless it is complete.
    pub(super) fn forget_on_disk(&self) {
        if let Some(Some(disk)) = self.on_disk.object.get() {
            disk.forget_incomplete();
        }
    }

    /// The file itself, if all of it is on disk and believed.
    pub(crate) fn lend(&self) -> Option<LentFile> {
        self.check().and_then(|()| self.engine.names.rights.check(&self.path)).ok()?;
        self.disk().filter(|_| self.is_shown())?.lend()
    }

    /// # Errors
    /// The store's refusal, if its last word on this file is one. It is asked again first.
    pub(super) async fn check_rights(&self) -> Result<()> {
        let names = &self.engine.names;
        if names.rights.check(&self.path).is_ok() {
            return Ok(());
        }
        names.lookup(&self.path).await?;
        names.rights.check(&self.path)
    }

    /// Sees to it that the store is asked whether it still shows this file, once what it said is too old: blocks on
    /// disk outlive rights.
    pub(super) fn stay_shown(&self) {
        if self.engine.disk.is_none() {
            return;
        }
        let until = &self.on_disk.shown_until;
        let now = self.engine.clock.now();
        let before = until.load(Ordering::Relaxed);
        let again = now.after(ASK_EVERY).0;
        if now.0 < before
            || until.compare_exchange(before, again, Ordering::Relaxed, Ordering::Relaxed).is_err()
        {
            return;
        }
        let names = self.engine.names.clone();
        if let Some(known) = names.known(&self.path) {
            until.store(known.expires.0.max(again), Ordering::Relaxed);
            return;
        }
        let path = self.path.clone();
        // A refusal is noted there; whatever else goes wrong says nothing of rights.
        self.engine.spawner.spawn(async move {
            let _ = names.lookup(&path).await;
        });
    }
}
