//! [`Extent`]: one contiguous piece of one file in memory, readable while it is still being filled.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use bytes::Bytes;
use nearfs_backends::io::Buffer;
use parking_lot::Mutex;

use crate::budget::Charge;
use crate::clock::Tick;

/// Largest extent, in bytes: the largest request of the kernel, so that one is answered from one slice.
pub(crate) const MAX_EXTENT: u64 = 1 << 20;

/// Why something is fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A reader waits for it.
    Demand,
    /// A stream of the same file comes this way.
    Ahead,
    /// Its neighbours in the directory were read.
    Sibling,
}

/// What is known of an extent for life.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tag {
    /// Names the file's version, also after it was forgotten and came back.
    pub(crate) file: u64,
    /// Part of an object that is too large to be held as a whole.
    pub(crate) large: bool,
    pub(crate) purpose: Purpose,
}

/// Where extents live: told when the budget takes one away.
pub(crate) trait Home: Send + Sync + 'static {
    /// Forgets `extent`, if it still has it.
    fn remove(&self, extent: &Arc<Extent>);
}

/// A piece of a file: `len` bytes from `start`, of which the first [`Extent::filled`] are here.
///
/// It is filled front to back by its one [`Filler`]; what is filled never changes, so readers take slices of it
/// without a lock while the rest arrives. The memory goes when the last slice does.
pub(crate) struct Extent {
    pub(crate) start: u64,
    pub(crate) len: u32,
    memory: OnceLock<Filled>,
    filled: AtomicU32,
    charge: Mutex<Option<Charge>>,
    home: Weak<dyn Home>,
    /// What it was made for.
    pub(crate) tag: Tag,
    /// Fetched ahead, and nobody has read it yet.
    unread: AtomicBool,
    /// The disk tier has its bytes too.
    backed: AtomicBool,
    /// It waits for its turn to be written there.
    waiting: AtomicBool,
    /// How often it was read again after having been read, up to 3.
    heat: AtomicU8,
    /// Bytes from the start up to which it was read.
    read_to: AtomicU32,
    used_at: AtomicU64,
}

/// The memory of an extent. The buffer is kept only to be freed; its bytes are reached through `ptr`.
struct Filled {
    ptr: NonNull<u8>,
    _buffer: Buffer,
}

// SAFETY: the buffer is owned, `ptr` points into it, and access is governed by `Extent::filled` as described there.
unsafe impl Send for Filled {}
// SAFETY: as above; `&Filled` alone gives no access to the bytes.
unsafe impl Sync for Filled {}

impl Extent {
    /// An extent without memory and the one filler of it. `len` is 1 to [`MAX_EXTENT`].
    pub(crate) fn new(
        home: Weak<dyn Home>,
        tag: Tag,
        start: u64,
        len: u32,
        now: Tick,
    ) -> (Arc<Self>, Filler) {
        debug_assert!(len > 0 && u64::from(len) <= MAX_EXTENT);
        let extent = Arc::new(Extent {
            start,
            len,
            memory: OnceLock::new(),
            filled: AtomicU32::new(0),
            charge: Mutex::new(None),
            home,
            tag,
            unread: AtomicBool::new(tag.purpose != Purpose::Demand),
            backed: AtomicBool::new(false),
            waiting: AtomicBool::new(false),
            heat: AtomicU8::new(0),
            read_to: AtomicU32::new(0),
            used_at: AtomicU64::new(now.0),
        });
        (extent.clone(), Filler { extent, at: 0 })
    }

    /// Offset after the last byte it is meant to have.
    pub(crate) fn end(&self) -> u64 {
        self.start + u64::from(self.len)
    }

    /// Bytes here, from the start on.
    pub(crate) fn filled(&self) -> u32 {
        self.filled.load(Ordering::Acquire)
    }

    /// Offset up to which bytes are here.
    pub(crate) fn filled_end(&self) -> u64 {
        self.start + u64::from(self.filled())
    }

    /// The bytes from `from` to `to` (offsets in the file), which must be filled.
    pub(crate) fn slice(self: &Arc<Self>, from: u64, to: u64) -> Bytes {
        let (from, to) = ((from - self.start) as u32, (to - self.start) as u32);
        assert!(from <= to && to <= self.filled(), "only filled bytes are shown");
        if from == to {
            return Bytes::new();
        }
        Bytes::from_owner(Slice { extent: self.clone(), from, to })
    }

    /// Copies the filled bytes from `from` to `to` to the end of `into`.
    pub(crate) fn copy(self: &Arc<Self>, from: u64, to: u64, into: &mut Buffer) {
        let slice =
            Slice { extent: self.clone(), from: (from - self.start) as u32, to: (to - self.start) as u32 };
        assert!(slice.from <= slice.to && slice.to <= self.filled(), "only filled bytes are shown");
        into.append(slice.as_ref());
    }

    /// Notes a read of `from..to` (offsets in the file). Returns true if it was fetched ahead and is used for the
    /// first time.
    pub(crate) fn touch(&self, from: u64, to: u64, now: Tick) -> bool {
        self.used_at.store(now.0, Ordering::Relaxed);
        let (from, to) = ((from - self.start) as u32, (to - self.start) as u32);
        // Reading on is not reading again: a pass over an extent in small pieces does not make it hot.
        if self.read_to.fetch_max(to, Ordering::Relaxed) > from {
            let heat = self.heat.load(Ordering::Relaxed);
            self.heat.store((heat + 1).min(3), Ordering::Relaxed);
        }
        self.unread.load(Ordering::Relaxed) && self.unread.swap(false, Ordering::Relaxed)
    }

    /// True once somebody has read up to its end.
    pub(crate) fn is_consumed(&self) -> bool {
        self.read_to.load(Ordering::Relaxed) >= self.len
    }

    /// True once, if it was fetched ahead and never read.
    pub(crate) fn take_unread(&self) -> bool {
        self.unread.swap(false, Ordering::Relaxed)
    }

    pub(crate) fn is_unread(&self) -> bool {
        self.unread.load(Ordering::Relaxed)
    }

    /// Notes that the disk tier has its bytes, so that they are easily had again.
    pub(crate) fn set_backed(&self) {
        self.backed.store(true, Ordering::Relaxed);
    }

    /// Notes whether it waits for its turn to be written to disk.
    pub(crate) fn set_waiting(&self, waiting: bool) {
        self.waiting.store(waiting, Ordering::Relaxed);
    }

    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed)
    }

    pub(crate) fn is_backed(&self) -> bool {
        self.backed.load(Ordering::Relaxed)
    }

    /// Whether it was read again; each time this is asked it cools down.
    pub(crate) fn cool(&self) -> bool {
        let heat = self.heat.load(Ordering::Relaxed);
        self.heat.store(heat.saturating_sub(1), Ordering::Relaxed);
        heat > 0
    }

    pub(crate) fn used_at(&self) -> Tick {
        Tick(self.used_at.load(Ordering::Relaxed))
    }

    /// Takes it out of its file and gives its bytes back to the budget. Slices that readers hold stay good; their
    /// memory is then the readers' own.
    pub(crate) fn evict(self: &Arc<Self>) {
        if let Some(home) = self.home.upgrade() {
            home.remove(self);
        }
        self.discharge();
    }

    /// Gives its bytes back to the budget.
    pub(crate) fn discharge(&self) {
        let charge = self.charge.lock().take();
        drop(charge);
    }

    /// True until [`Extent::discharge`].
    pub(crate) fn is_charged(&self) -> bool {
        self.charge.lock().is_some()
    }
}

impl std::fmt::Debug for Extent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Extent({}..{}, {} filled)", self.start, self.end(), self.filled())
    }
}

/// The one writer of an extent.
#[derive(Debug)]
pub(crate) struct Filler {
    extent: Arc<Extent>,
    at: u32,
}

impl Filler {
    pub(crate) fn extent(&self) -> &Arc<Extent> {
        &self.extent
    }

    /// Gives the extent its memory, charged to the budget.
    pub(crate) fn attach(&mut self, mut buffer: Buffer, charge: Charge) {
        assert!(
            buffer.is_empty() && buffer.capacity() >= self.extent.len as usize,
            "an empty buffer of the length"
        );
        let ptr = NonNull::from(buffer.spare_mut()).cast();
        let fresh = self.extent.memory.set(Filled { ptr, _buffer: buffer }).is_ok();
        assert!(fresh, "an extent gets its memory once");
        *self.extent.charge.lock() = Some(charge);
    }

    /// Gives the extent memory that is filled already, with exactly its bytes. Not visible before
    /// [`Filler::publish`].
    pub(crate) fn attach_full(&mut self, buffer: Buffer, charge: Charge) {
        assert!(
            buffer.len() == self.extent.len as usize && self.at == 0,
            "the buffer has what the extent needs"
        );
        let ptr = NonNull::from(&buffer[..]).cast();
        let fresh = self.extent.memory.set(Filled { ptr, _buffer: buffer }).is_ok();
        assert!(fresh, "an extent gets its memory once");
        *self.extent.charge.lock() = Some(charge);
        self.at = self.extent.len;
    }

    /// True once it has memory.
    pub(crate) fn is_attached(&self) -> bool {
        self.extent.memory.get().is_some()
    }

    /// Copies as much of `data` as fits behind what was written before and returns how much that was. Not visible
    /// before [`Filler::publish`].
    pub(crate) fn write(&mut self, data: &[u8]) -> usize {
        let n = data.len().min((self.extent.len - self.at) as usize);
        let memory = self.extent.memory.get().expect("memory is attached before it is written");
        // SAFETY: `at + n <= len <= capacity`, so the target lies in the buffer. `at >= filled`, and readers touch
        // only the first `filled` bytes; there is one filler per extent (made in `Extent::new`, not `Clone`) and it
        // is borrowed mutably here, so nobody else reads or writes these bytes. `data` cannot overlap them, as no
        // slice of unpublished bytes exists.
        unsafe {
            std::ptr::copy_nonoverlapping(data.as_ptr(), memory.ptr.as_ptr().add(self.at as usize), n);
        }
        self.at += n as u32;
        n
    }

    /// Forgets what was written, of which nothing may be visible yet.
    pub(crate) fn restart(&mut self) {
        assert_eq!(self.extent.filled(), 0, "what is visible never changes");
        self.at = 0;
    }

    /// Makes everything written visible.
    pub(crate) fn publish(&self) {
        // Release: the bytes are in memory before a reader can see their number.
        self.extent.filled.store(self.at, Ordering::Release);
    }

    pub(crate) fn is_full(&self) -> bool {
        self.at == self.extent.len
    }
}

/// What `Bytes` of an extent hold on to.
struct Slice {
    extent: Arc<Extent>,
    from: u32,
    to: u32,
}

impl AsRef<[u8]> for Slice {
    fn as_ref(&self) -> &[u8] {
        let memory = self.extent.memory.get().expect("filled bytes have memory");
        // SAFETY: whoever made this slice checked `from <= to <= filled` with an acquire load, so these bytes were
        // initialised before, are never written again, and live as long as the extent that `self` holds.
        unsafe {
            let start = memory.ptr.as_ptr().add(self.from as usize);
            std::slice::from_raw_parts(start, (self.to - self.from) as usize)
        }
    }
}
