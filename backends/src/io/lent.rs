//! [`Lent`]: a [`Buffer`] that the kernel may write into, whoever has stopped waiting for it.

use std::sync::Arc;

use parking_lot::Mutex;

use super::buffer::Buffer;

/// A buffer on loan to a read. The operation and its caller hold an `Arc` each, so the memory lives until both are
/// done, in whatever order.
pub(crate) struct Lent {
    buf: Mutex<Option<Buffer>>,
    ptr: *mut u8,
    len: usize,
}

// SAFETY: `ptr` points into the buffer owned by this value. The operation alone writes there, between lending and
// its own completion; the caller touches those bytes only after it (`take`), and before it only the bytes in front
// of them (`replace`).
unsafe impl Send for Lent {}
// SAFETY: as above; the buffer itself is behind a mutex.
unsafe impl Sync for Lent {}

impl Lent {
    /// Lends the first `want` spare bytes of `buf` (fewer if it has fewer).
    pub(crate) fn new(mut buf: Buffer, want: usize) -> Arc<Self> {
        let spare = buf.spare_mut();
        let (ptr, len) = (spare.as_mut_ptr().cast(), want.min(spare.len()));
        Arc::new(Lent { buf: Mutex::new(Some(buf)), ptr, len })
    }

    /// Where the operation writes. Valid for [`Lent::len`] bytes as long as this value lives and is not taken.
    pub(crate) fn ptr(&self) -> *mut u8 {
        self.ptr
    }

    /// How many bytes the operation may write.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The buffer back, `n` bytes longer.
    ///
    /// # Safety
    /// The operation is over and has written the first `n` bytes.
    ///
    /// # Panics
    /// When it was taken before.
    pub(crate) unsafe fn take(&self, n: usize) -> Buffer {
        let mut buf = self.buf.lock().take().expect("a lent buffer is taken back once");
        // SAFETY: by the contract of this function.
        unsafe { buf.advance(n) };
        buf
    }

    /// Another buffer that looks as the lent one did, while the operation may still be writing into that.
    ///
    /// # Panics
    /// When the buffer was taken before.
    pub(crate) fn replace(&self) -> Buffer {
        self.buf.lock().as_ref().expect("a lent buffer was not taken yet").twin()
    }
}
