//! Writing of pieces that came from the store, and their checksums: no copy, whatever their boundaries.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use rustix::io::{Errno, ReadWriteFlags};

use super::state::UNIT;
use crate::config::memory_limit;

/// Most pieces one system call takes: `IOV_MAX` of Linux.
const PIECES: usize = 1024;
/// `RWF_DONTCACHE` of `linux/fs.h` (6.14): written back at once and not kept in the page cache.
const DONTCACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);

/// How files of one cache directory are written. What may well stay in the page cache until it is read again, by this
/// process or by others that wait for it, goes through it; what is larger than a quarter of the memory goes past it, until
/// the filesystem says that it cannot.
#[derive(Debug)]
pub(crate) struct Writing {
    buffered: AtomicBool,
    /// Objects up to this size stay in the page cache.
    keep: u64,
}

impl Default for Writing {
    fn default() -> Self {
        Writing { buffered: AtomicBool::new(false), keep: memory_limit() / 4 }
    }
}

impl Writing {
    /// Writes all of `data`, one piece behind the other, at byte `offset` of an object of `size` bytes.
    ///
    /// # Errors
    /// What the filesystem says; anything may have been written then.
    pub(crate) fn write(&self, file: impl AsFd, offset: u64, size: u64, data: &[Bytes]) -> io::Result<()> {
        let past = size > self.keep;
        let mut slices: Vec<_> = data.iter().filter(|d| !d.is_empty()).map(|d| IoSlice::new(d)).collect();
        let (mut rest, mut at) = (&mut slices[..], offset);
        while !rest.is_empty() {
            match self.write_some(file.as_fd(), &rest[..rest.len().min(PIECES)], at, past) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    at += n as u64;
                    IoSlice::advance_slices(&mut rest, n);
                }
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    fn write_some(
        &self,
        file: BorrowedFd<'_>,
        data: &[IoSlice<'_>],
        at: u64,
        past: bool,
    ) -> rustix::io::Result<usize> {
        if past && !self.buffered.load(Ordering::Relaxed) {
            match rustix::io::pwritev2(file, data, at, DONTCACHE) {
                // Kernels before 6.14, filesystems without it, and sandboxes that do not know the call.
                Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS | Errno::PERM) => {
                    self.buffered.store(true, Ordering::Relaxed);
                }
                other => return other,
            }
        }
        rustix::io::pwritev(file, data, at)
    }
}

/// The CRC32C of each unit of `data`, which starts at the beginning of a unit.
pub(crate) fn checksums(data: &[Bytes]) -> Vec<u32> {
    let total: usize = data.iter().map(Bytes::len).sum();
    let mut sums = Vec::with_capacity(total.div_ceil(UNIT as usize));
    let (mut crc, mut room) = (0, UNIT as usize);
    for piece in data {
        let mut rest = &piece[..];
        while !rest.is_empty() {
            let (part, behind) = rest.split_at(rest.len().min(room));
            crc = crc32c::crc32c_append(crc, part);
            room -= part.len();
            rest = behind;
            if room == 0 {
                sums.push(crc);
                (crc, room) = (0, UNIT as usize);
            }
        }
    }
    if room < UNIT as usize {
        sums.push(crc);
    }
    sums
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use std::io::Read;

    use super::*;

    fn pieces(lengths: &[usize]) -> Vec<Bytes> {
        let mut byte = 0u8;
        let piece = |&n: &usize| {
            (0..n)
                .map(|_| {
                    byte = byte.wrapping_mul(31).wrapping_add(7);
                    byte
                })
                .collect::<Vec<_>>()
                .into()
        };
        lengths.iter().map(piece).collect()
    }

    #[test]
    fn checksums_are_of_units_whatever_the_pieces() {
        for lengths in [
            &[][..],
            &[1],
            &[UNIT as usize],
            &[UNIT as usize + 1],
            &[1, UNIT as usize - 1, 5],
            &[0, 3 * UNIT as usize + 7, 0, 100_000, 1, 2],
        ] {
            let data = pieces(lengths);
            let whole = data.concat();
            let expected: Vec<_> = whole.chunks(UNIT as usize).map(crc32c::crc32c).collect();
            assert_eq!(checksums(&data), expected, "{lengths:?}");
        }
    }

    #[test]
    fn thousands_of_pieces_are_written_in_order() {
        for buffered in [false, true] {
            let mut file = tempfile::tempfile().unwrap();
            let data = pieces(&(0..3000).map(|i| i % 97).collect::<Vec<_>>());
            let writing = Writing { buffered: buffered.into(), keep: 10 };
            writing.write(&file, 5, 11, &data).unwrap();
            let mut found = Vec::new();
            file.read_to_end(&mut found).unwrap();
            assert_eq!(found[..5], [0; 5]);
            assert!(found[5..] == data.concat());
        }
    }

    #[test]
    fn a_refused_write_is_an_error() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(Writing::default().write(&file, 0, 10, &pieces(&[10])).is_err());
    }
}
