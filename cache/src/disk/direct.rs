//! Reads of large objects: through the page cache, or past it.
//!
//! Reading past the page cache saves a copy and leaves memory to others. But what was just written is still being
//! written back, and a read past the page cache would have to wait for that: young ranges go through it.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nearfs_backends::io::{Buffer, Source};
use nearfs_backends::{ErrorKind, Result};
use rustix::fs::{AtFlags, OFlags, StatxFlags};
use rustix::time::ClockId;

use super::object::Large;

/// How long after the last fill of an object all of it counts as young: the kernel writes dirty pages back after 30 s
/// (`vm.dirty_expire_centisecs`).
const YOUNG: Duration = Duration::from_secs(30);
/// `STATX_DIOALIGN` of `linux/stat.h` (6.1).
const DIOALIGN: StatxFlags = StatxFlags::from_bits_retain(0x2000);
/// What is asked of a read where the kernel does not say: no disk of today has larger sectors.
const USUAL: Alignment = Alignment { memory: 4096, offset: 4096 };

/// Longest read that is tried from the page cache before going past it, in bytes, as an engine does.
const INLINE: usize = 1 << 20;

/// How to read a range of an object.
#[derive(Debug, Clone, Copy)]
pub(super) enum Way<'a> {
    /// Through the page cache.
    Cached,
    /// Past the page cache. By the queue of an engine only: there is no trying without waiting.
    Direct(&'a Source),
}

/// An open file whose reads go past the page cache.
#[derive(Debug)]
pub(crate) struct Direct {
    source: Source,
    alignment: Alignment,
    refused: AtomicBool,
}

/// What memory and offsets of direct reads must be multiples of, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Alignment {
    memory: u64,
    offset: u64,
}

impl Large {
    /// Reads `len` bytes at `offset` behind the content of `buf`, and gives `buf` back with the number of bytes added:
    /// from the page cache what is there, past it where that is possible and the object is not young, else through
    /// it. To be done between [`Large::begin`] and [`Large::finish`]. Units that the disk does not give are dropped.
    ///
    /// The first read of an object that is not young opens a second descriptor.
    ///
    /// # Errors
    /// Those of the disk, and `TimedOut`; `buf` then has what it had.
    ///
    /// # Cancellation
    /// Dropping the future gives the read up; the memory lives until the kernel has finished with it.
    pub(crate) async fn read_into(&self, offset: u64, buf: Buffer, len: usize) -> (Result<usize>, Buffer) {
        let (result, buf) = self.read_either(offset, buf, len).await;
        let lost = match &result {
            Ok(n) => *n < len,
            // A disk that hangs may go on.
            Err(e) => !matches!(e.kind(), ErrorKind::TimedOut | ErrorKind::Interrupted),
        };
        if lost {
            self.drop_units(&(offset..offset + len as u64), "units cannot be read");
        }
        (result, buf)
    }

    async fn read_either(&self, offset: u64, mut buf: Buffer, len: usize) -> (Result<usize>, Buffer) {
        let engine = &self.ground.engine;
        if let Way::Direct(source) = self.way(offset, len as u64, &buf) {
            let before = buf.len();
            if len <= INLINE && self.data.read_cached(offset, &mut buf, len) == len {
                return (Ok(len), buf);
            }
            buf.truncate(before);
            let (result, same) = engine.read_queued(source, offset, buf, len).await;
            match result {
                Err(e) if e.kind() == ErrorKind::InvalidInput => {
                    self.refuse_direct();
                    buf = same;
                }
                result => return (result, same),
            }
        }
        engine.read(&self.data, offset, buf, len).await
    }

    /// Which descriptor to read `len` bytes at `offset` with, behind the content of `buf`.
    pub(super) fn way(&self, offset: u64, len: u64, buf: &Buffer) -> Way<'_> {
        if self.is_young() {
            return Way::Cached;
        }
        let direct = self.direct.get_or_init(|| self.open_direct());
        match direct.as_ref().filter(|d| !d.refused.load(Ordering::Relaxed)) {
            Some(d) if d.alignment.fits(buf.as_ptr() as u64 + buf.len() as u64, offset, len) => {
                Way::Direct(&d.source)
            }
            _ => Way::Cached,
        }
    }

    /// Has the object read through the page cache from now on: a direct read was refused.
    pub(super) fn refuse_direct(&self) {
        if let Some(direct) = self.direct.get().and_then(Option::as_ref) {
            direct.refused.store(true, Ordering::Relaxed);
        }
    }

    /// Whether a unit of the object was filled within the last 30 seconds, by anybody.
    pub(crate) fn is_young(&self) -> bool {
        let filled = self.state().filled_at();
        filled != 0 && now().saturating_sub(filled) < YOUNG.as_millis() as u64
    }

    fn open_direct(&self) -> Option<Direct> {
        let file = match self.open_again(OFlags::RDONLY | OFlags::DIRECT) {
            Ok(file) => file?,
            // EINVAL: not on this filesystem.
            Err(e) => {
                tracing::debug!(object = ?self.key, error = %e, "no direct reads");
                return None;
            }
        };
        rustix::fs::fcntl_setfl(&file, OFlags::DIRECT).ok()?;
        let alignment = alignment(file.as_fd())?;
        Some(Direct { source: self.ground.engine.adopt(file), alignment, refused: false.into() })
    }
}

impl Alignment {
    fn fits(self, memory: u64, offset: u64, len: u64) -> bool {
        memory.is_multiple_of(self.memory)
            && offset.is_multiple_of(self.offset)
            && len.is_multiple_of(self.offset)
    }
}

/// What direct reads of `file` must be aligned to; nothing if they are not supported.
fn alignment(file: BorrowedFd<'_>) -> Option<Alignment> {
    let Ok(statx) = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, DIOALIGN) else { return Some(USUAL) };
    if statx.stx_mask & DIOALIGN.bits() == 0 {
        return Some(USUAL);
    }
    let (memory, offset) = (u64::from(statx.stx_dio_mem_align), u64::from(statx.stx_dio_offset_align));
    (memory != 0 && offset != 0).then_some(Alignment { memory, offset })
}

/// Milliseconds of this boot, the same in every process; never 0.
pub(super) fn now() -> u64 {
    let time = rustix::time::clock_gettime(ClockId::Boottime);
    (time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000).max(1)
}
