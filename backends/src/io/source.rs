//! [`Source`]: an open file that an [`Engine`](super::Engine) reads.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use super::buffer::Buffer;
use super::psync;
use super::threads::BlockingPool;

/// What lies under an open file, by how much a system call on it can be trusted to return.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Medium {
    /// A disk filesystem of this machine: reads may take a while, attributes are in memory.
    Disk,
    /// A network or FUSE filesystem, or one unknown to nearfs: any call may hang for ever.
    Network,
}

impl Medium {
    /// The medium of `fd`, by its filesystem's magic number; [`Medium::Network`] if it cannot be told.
    pub fn of(fd: impl AsFd) -> Medium {
        rustix::fs::fstatfs(fd).map_or(Medium::Network, |s| Medium::from_magic(s.f_type as u64))
    }

    /// Magic numbers from `linux/magic.h` and the filesystems' own headers.
    fn from_magic(magic: u64) -> Medium {
        match magic & 0xffff_ffff {
            0xef53 // ext2, ext3, ext4
            | 0x5846_5342 // xfs
            | 0x9123_683e // btrfs
            | 0xca45_1a4e // bcachefs
            | 0xf2f5_2010 // f2fs
            | 0x2fc1_2fc1 // zfs
            | 0x0102_1994 // tmpfs
            | 0x8584_58f6 // ramfs
            | 0x794c_7630 // overlayfs
            | 0x7371_7368 // squashfs
            | 0xe0f5_e1e2 // erofs
            | 0x9660 // iso9660
            | 0x4d44 // vfat
            | 0x2011_bab0 // exfat
            | 0x7366_746e // ntfs3
            => Medium::Disk,
            _ => Medium::Network,
        }
    }
}

/// An open regular file, shared by its handle and the reads in flight. Clones are reference counts; the last one
/// closes it, on a thread of the pool where closing may hang.
#[derive(Clone)]
pub struct Source(Arc<Open>);

struct Open {
    /// `None` only while it is being closed.
    fd: Option<OwnedFd>,
    medium: Medium,
    pool: BlockingPool,
}

impl Source {
    pub(super) fn new(fd: OwnedFd, medium: Medium, pool: BlockingPool) -> Self {
        Source(Arc::new(Open { fd: Some(fd), medium, pool }))
    }

    /// What lies under it.
    pub fn medium(&self) -> Medium {
        self.0.medium
    }

    /// Appends to `buf` what the page cache holds of the `want` bytes at `offset`, up to the first byte that it does
    /// not hold, and returns how many bytes that was. Never waits for a disk; 0 where the filesystem cannot do this.
    pub fn read_cached(&self, offset: u64, buf: &mut Buffer, want: usize) -> usize {
        match self.medium() {
            Medium::Disk => psync::read_cached(self, offset, buf, want),
            Medium::Network => 0,
        }
    }
}

impl AsFd for Source {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_ref().expect("the descriptor is there until the last clone is dropped").as_fd()
    }
}

impl AsRawFd for Source {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Source({}, {:?})", self.as_raw_fd(), self.0.medium)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if self.medium == Medium::Network {
            // FUSE answers a close, NFS may flush: neither may hold up whoever drops the file.
            let fd = self.fd.take();
            self.pool.detach("close", move || drop(fd));
        }
    }
}
