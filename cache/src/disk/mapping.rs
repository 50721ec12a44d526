//! [`Mapping`]: a file of fixed size, shared between processes as memory.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

/// Zeros are written this many bytes at a time where the filesystem cannot allocate.
const CHUNK: usize = 1 << 20;

/// A file of fixed size, mapped shared and writable. All access is through atomics, since other processes change it
/// at any time.
///
/// Every page has its place on disk before it is mapped: storing into a page that has none kills the process with
/// SIGBUS when the disk is full. For the same reason nobody may truncate the file or rewrite it in place.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory belongs to the mapping until it is dropped, and is only ever reached through atomics.
unsafe impl Send for Mapping {}
// SAFETY: as for `Send`.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Gives the empty `file`, open for reading and writing, `len` bytes of zeros with a place on disk, and maps it.
    ///
    /// # Errors
    /// `StorageFull` and whatever else the filesystem says; the caller removes the file then. `Unsupported` or
    /// `ENODEV` where files cannot be mapped shared.
    pub(crate) fn create(file: &File, len: u64) -> io::Result<Self> {
        allocate(file, len)?;
        Self::open(file, len)
    }

    /// Maps `file`, which must be `len` bytes long. Holes in it, as a copy may have left them, are given a place on
    /// disk first.
    ///
    /// # Errors
    /// `InvalidData` if the file has another length, `StorageFull` if it had holes and the disk has no room for them.
    pub(crate) fn open(file: &File, len: u64) -> io::Result<Self> {
        let metadata = file.metadata()?;
        if metadata.len() != len || len == 0 {
            return Err(io::Error::new(
                ErrorKind::InvalidData,
                format!("expected a file of {len} bytes, found {}", metadata.len()),
            ));
        }
        if metadata.blocks() * 512 < len {
            match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, len) {
                // Filesystems that compress count fewer blocks. They were written whole, and do not fault.
                Ok(()) | Err(Errno::OPNOTSUPP) => {}
                Err(e) => return Err(e.into()),
            }
        }
        let len = usize::try_from(len).map_err(|_| io::Error::from(ErrorKind::FileTooLarge))?;
        // SAFETY: a new mapping at an address of the kernel's choice; no memory of this program is touched.
        let start = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file.as_fd(),
                0,
            )?
        };
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::from(ErrorKind::OutOfMemory))?;
        Ok(Mapping { start, len })
    }

    /// Bytes mapped.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// `n` 64-bit words from byte `at`, a multiple of 8.
    ///
    /// # Panics
    /// If that is not inside the mapping.
    pub(crate) fn u64s(&self, at: usize, n: usize) -> &[AtomicU64] {
        let start = self.check(at, n, size_of::<u64>());
        // SAFETY: inside the mapping and aligned, by `check`; the memory lives as long as `self`, and an `AtomicU64`
        // may be shared with anybody who uses atomic operations, other processes included.
        unsafe { std::slice::from_raw_parts(start.cast().as_ptr(), n) }
    }

    /// `n` 32-bit words from byte `at`, a multiple of 4.
    ///
    /// # Panics
    /// If that is not inside the mapping.
    pub(crate) fn u32s(&self, at: usize, n: usize) -> &[AtomicU32] {
        let start = self.check(at, n, size_of::<u32>());
        // SAFETY: as for `u64s`.
        unsafe { std::slice::from_raw_parts(start.cast().as_ptr(), n) }
    }

    fn check(&self, at: usize, n: usize, size: usize) -> NonNull<u8> {
        let end = n.checked_mul(size).and_then(|bytes| bytes.checked_add(at));
        assert!(
            at.is_multiple_of(size) && end.is_some_and(|end| end <= self.len),
            "{n} words from {at} of {}",
            self.len
        );
        // SAFETY: `at` is at most the mapping's length.
        unsafe { self.start.add(at) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `open` with this length; every slice handed out borrows from `self`.
        if let Err(e) = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) } {
            tracing::error!(error = %e, "unmapping failed");
        }
    }
}

/// Gives `len` bytes of the empty `file` a place on disk, by writing zeros where the filesystem offers no other way.
fn allocate(file: &File, len: u64) -> io::Result<()> {
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, len) {
        Ok(()) => return Ok(()),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
        Err(e) => return Err(e.into()),
    }
    write_zeros(file, len)
}

fn write_zeros(file: &File, len: u64) -> io::Result<()> {
    let zeros = vec![0; CHUNK];
    let mut at = 0;
    while at < len {
        let n = usize::try_from(len - at).map_or(CHUNK, |left| left.min(CHUNK));
        file.write_all_at(&zeros[..n], at)?;
        at += n as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::SeqCst;

    use super::*;

    #[test]
    fn what_one_mapping_stores_another_sees() {
        let file = tempfile::tempfile().unwrap();
        let a = Mapping::create(&file, 12_288).unwrap();
        let b = Mapping::open(&file, 12_288).unwrap();
        assert_eq!(a.len(), 12_288);
        a.u64s(8, 1)[0].store(7 << 32 | 5, SeqCst);
        assert_eq!(b.u64s(0, 1536)[1].load(SeqCst), 7 << 32 | 5);
        let low = usize::from(cfg!(target_endian = "big"));
        assert_eq!(b.u32s(8, 2)[low].load(SeqCst), 5);
        assert!(file.metadata().unwrap().blocks() * 512 >= 12_288, "no page without a place on disk");
    }

    #[test]
    fn zeros_are_written_where_nothing_can_be_allocated() {
        let file = tempfile::tempfile().unwrap();
        write_zeros(&file, CHUNK as u64 + 4096).unwrap();
        let metadata = file.metadata().unwrap();
        assert_eq!(metadata.len(), CHUNK as u64 + 4096);
        assert!(metadata.blocks() * 512 >= metadata.len());
        assert_eq!(Mapping::open(&file, metadata.len()).unwrap().u64s(CHUNK, 1)[0].load(SeqCst), 0);
    }

    #[test]
    fn a_file_of_another_length_is_refused_and_holes_are_filled() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        assert_eq!(Mapping::open(&file, 4096).unwrap_err().kind(), ErrorKind::InvalidData);
        assert_eq!(Mapping::open(&file, 12_288).unwrap_err().kind(), ErrorKind::InvalidData);
        assert_eq!(file.metadata().unwrap().blocks(), 0);
        Mapping::open(&file, 8192).unwrap();
        assert!(file.metadata().unwrap().blocks() * 512 >= 8192);
    }

    #[test]
    #[should_panic(expected = "words from")]
    fn nothing_outside_the_mapping_is_reached() {
        let file = tempfile::tempfile().unwrap();
        Mapping::create(&file, 4096).unwrap().u64s(4088, 2);
    }
}
