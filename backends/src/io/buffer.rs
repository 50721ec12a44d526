//! [`Buffer`]: an owned, aligned piece of memory that an operation fills and gives back.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::fmt;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use bytes::Bytes;

use super::pool::{Home, Mapping};

/// Alignment of every [`Buffer`], in bytes: what O_DIRECT, io_uring and cuFile ask for at most.
pub const ALIGNMENT: usize = 4096;

/// Fixed-capacity memory, aligned to [`ALIGNMENT`], of which the first `len` bytes are initialised.
///
/// It moves into an operation and back, so that the kernel or a device may write into it while nobody else can
/// touch it; [`Buffer::freeze`] turns it into shared [`Bytes`] without a copy.
pub struct Buffer {
    ptr: NonNull<u8>,
    capacity: usize,
    len: usize,
    memory: Memory,
}

/// Where the memory came from and goes back to.
enum Memory {
    /// The allocator; nothing at all for a capacity of 0.
    Heap,
    /// A mapping of a pool, at least `capacity` bytes. `None` only while the buffer is being dropped.
    Pooled { mapping: Option<Mapping>, home: Home },
}

// SAFETY: the memory is owned by this value alone and reachable only through it, like a `Vec<u8>`.
unsafe impl Send for Buffer {}
// SAFETY: `&Buffer` gives only `&[u8]` of initialised bytes.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// An empty buffer that can hold exactly `capacity` bytes (0 is allowed). Aborts when memory is out, as `Vec`.
    pub fn with_capacity(capacity: usize) -> Self {
        if capacity == 0 {
            return Buffer { ptr: NonNull::dangling(), capacity, len: 0, memory: Memory::Heap };
        }
        let layout = layout(capacity);
        // SAFETY: `layout` has a size above zero.
        let ptr = unsafe { alloc(layout) };
        let Some(ptr) = NonNull::new(ptr) else { handle_alloc_error(layout) };
        Buffer { ptr, capacity, len: 0, memory: Memory::Heap }
    }

    /// An empty buffer of `capacity` bytes in `mapping`, which goes back to `home` afterwards.
    pub(super) fn from_pool(mapping: Mapping, capacity: usize, home: Home) -> Self {
        assert!(capacity <= mapping.size(), "a mapping holds the buffer made of it");
        let ptr = mapping.ptr();
        Buffer { ptr, capacity, len: 0, memory: Memory::Pooled { mapping: Some(mapping), home } }
    }

    /// A new buffer of the same capacity, content and origin.
    pub(crate) fn twin(&self) -> Self {
        let mut twin = match &self.memory {
            Memory::Heap => Buffer::with_capacity(self.capacity),
            Memory::Pooled { home, .. } => home.get(self.capacity),
        };
        twin.append(self);
        twin
    }

    /// Bytes it can hold.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Bytes it can still take.
    pub fn remaining(&self) -> usize {
        self.capacity - self.len
    }

    /// Forgets the content.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Keeps the first `len` bytes; no effect if there are fewer.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Appends as much of `data` as fits and returns how much that was.
    pub fn append(&mut self, data: &[u8]) -> usize {
        let n = data.len().min(self.remaining());
        self.spare_mut()[..n].write_copy_of_slice(&data[..n]);
        self.len += n;
        n
    }

    /// The part that is not initialised yet.
    pub fn spare_mut(&mut self) -> &mut [MaybeUninit<u8>] {
        // SAFETY: `len <= capacity`, the memory is ours, and `MaybeUninit` promises nothing about its content.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr().add(self.len).cast(), self.remaining()) }
    }

    /// Declares `n` more bytes initialised.
    ///
    /// # Safety
    /// The first `n` bytes of [`Buffer::spare_mut`] have been written.
    ///
    /// # Panics
    /// If `n` is more than [`Buffer::remaining`].
    pub unsafe fn advance(&mut self, n: usize) {
        assert!(n <= self.remaining(), "a buffer cannot hold more than its capacity");
        self.len += n;
    }

    /// The content as shared bytes, without a copy; the memory goes when the last of them does.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

fn layout(capacity: usize) -> Layout {
    Layout::from_size_align(capacity, ALIGNMENT).expect("a buffer is smaller than the address space")
}

impl std::ops::Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the first `len` bytes are initialised and owned by `self`.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} of {} bytes)", self.len, self.capacity)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        match &mut self.memory {
            // SAFETY: allocated in `with_capacity` with this very layout, freed once.
            Memory::Heap if self.capacity > 0 => unsafe { dealloc(self.ptr.as_ptr(), layout(self.capacity)) },
            Memory::Heap => {}
            Memory::Pooled { mapping, home } => home.put(mapping.take()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffer_is_aligned_and_takes_no_more_than_it_holds() {
        let mut buf = Buffer::with_capacity(5);
        assert_eq!(buf.as_ptr() as usize % ALIGNMENT, 0);
        assert_eq!((buf.append(b"abc"), buf.append(b"defg")), (3, 2));
        assert_eq!((&buf[..], buf.remaining()), (&b"abcde"[..], 0));
        buf.truncate(2);
        assert_eq!(buf.freeze(), "ab");
        assert!(Buffer::with_capacity(0).freeze().is_empty());
    }
}
