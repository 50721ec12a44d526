//! Which descriptor to read a range with: through the page cache, or past it.
//!
//! Reading past the page cache saves a copy and leaves memory to others. But what was just written is still being
//! written back, and a read past the page cache would have to wait for that: young ranges go through it.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nearfs_backends::io::{Buffer, Source};
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

/// How to read a range of an object.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Way<'a> {
    /// Through the page cache: what is there may be copied at once.
    Cached(&'a Source),
    /// Past the page cache. Always by the queue of an engine: trying without waiting does not work here. If it is
    /// refused as invalid, say so by [`Large::refuse_direct`] and ask again.
    Direct(&'a Source),
}

/// An open file whose reads go past the page cache.
#[derive(Debug)]
pub(crate) struct Direct {
    source: Source,
    alignment: Alignment,
    refused: std::sync::atomic::AtomicBool,
}

/// What memory and offsets of direct reads must be multiples of, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Alignment {
    memory: u64,
    offset: u64,
}

impl Large {
    /// Which descriptor to read `len` bytes at `offset` with, behind the content of `buf`. The first call for an object
    /// that is not young opens a second descriptor.
    pub(crate) fn way(&self, offset: u64, len: u64, buf: &Buffer) -> Way<'_> {
        if self.is_young() {
            return Way::Cached(&self.data);
        }
        let direct = self.direct.get_or_init(|| self.open_direct());
        let usable = |d: &&Direct| !d.refused.load(std::sync::atomic::Ordering::Relaxed);
        match direct.as_ref().filter(usable) {
            Some(d) if d.alignment.fits(buf.as_ptr() as u64 + buf.len() as u64, offset, len) => {
                Way::Direct(&d.source)
            }
            _ => Way::Cached(&self.data),
        }
    }

    /// Notes that a direct read was refused, so that the object is read through the page cache from now on.
    pub(crate) fn refuse_direct(&self) {
        if let Some(direct) = self.direct.get().and_then(Option::as_ref) {
            direct.refused.store(true, std::sync::atomic::Ordering::Relaxed);
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
