//! Open directories. A handle pins one listing, so that offsets mean the same entries from open to close.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use dashmap::DashMap;
use nearfs_backends::{Error, ErrorKind, Result};
use nearfs_cache::Listing;
use parking_lot::Mutex;

use crate::inode::{DirNode, Inode, Node};

/// Low bits of an offset: the position in the directory. Above them: a tag of the listing.
const POSITION_BITS: u32 = 40;
const TAG_BITS: u32 = 22;

/// One open directory.
#[derive(Debug)]
pub(crate) struct DirHandle {
    /// The directory itself.
    pub(crate) inode: Arc<Inode>,
    /// The pinned listing; `None` for directories that no store holds.
    listing: Mutex<Option<Arc<Listing>>>,
    started: AtomicBool,
}

impl DirHandle {
    /// The pinned listing; `None` for directories that no store holds.
    pub(crate) fn listing(&self) -> Option<Arc<Listing>> {
        self.listing.lock().clone()
    }

    /// Pins another listing: the directory is read from its start again.
    pub(crate) fn pin(&self, listing: Arc<Listing>) {
        *self.listing.lock() = Some(listing);
    }

    /// Called when reading starts at the beginning: true from the second time on (`rewinddir`).
    pub(crate) fn rewinds(&self) -> bool {
        self.started.swap(true, Ordering::Relaxed)
    }
}

/// The open directories of a mount, by handle number.
#[derive(Debug, Default)]
pub(crate) struct DirHandles {
    map: DashMap<u64, Arc<DirHandle>>,
    next: AtomicU64,
}

impl DirHandles {
    /// Opens `inode`, pinned to `listing`, and gives the handle's number.
    pub(crate) fn open(&self, inode: Arc<Inode>, listing: Option<Arc<Listing>>) -> u64 {
        let handle = DirHandle { inode, listing: Mutex::new(listing), started: AtomicBool::new(false) };
        let number = 1 + self.next.fetch_add(1, Ordering::Relaxed);
        self.map.insert(number, Arc::new(handle));
        number
    }

    /// # Errors
    /// `InvalidInput` if no such handle is open.
    pub(crate) fn get(&self, number: u64) -> Result<Arc<DirHandle>> {
        let found = self.map.get(&number).map(|h| Arc::clone(&h));
        found.ok_or_else(|| Error::new(ErrorKind::InvalidInput, "the directory handle is not open"))
    }

    /// Closes a handle.
    pub(crate) fn close(&self, number: u64) {
        self.map.remove(&number);
    }

    /// Number of open directories.
    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }
}

/// Whether the kernel may go on using the copy of the directory that it made at an earlier open, now that the
/// directory is opened with `listing` (its id) whose lifetime ends at `expires`. Notes what it will hold from now on.
///
/// The kernel drops its copy only when told so at an open; it keeps it for ever otherwise. So it may keep it only if
/// it was made from this very listing, and only while that listing's lifetime lasts.
pub(crate) fn keep_kernel_copy(dir: &DirNode, listing: u64, expires: Instant, now: Instant) -> bool {
    let held = dir.kernel_listing.swap(listing, Ordering::AcqRel);
    held == listing && listing != 0 && expires > now
}

/// Notes that a handle is read from its start with `listing`: the kernel may be making its copy from it.
///
/// If that is not the listing of the latest open (two handles, opened before and after a change), nothing is known
/// of the copy any more and the next open drops it.
pub(crate) fn note_read_from_start(inode: &Inode, listing: u64) {
    if let Node::Dir(dir) = &inode.node
        && dir.kernel_listing.load(Ordering::Acquire) != listing
    {
        dir.kernel_listing.store(0, Ordering::Release);
    }
}

/// The offset that stands for `position` in the listing `id`.
///
/// The tag keeps two listings apart in the kernel's copy, to which it adds only what continues at its last offset.
pub(crate) fn offset(id: u64, position: u64) -> u64 {
    (id & ((1 << TAG_BITS) - 1)) << POSITION_BITS | position
}

/// The position that an offset stands for; 0 is the start.
pub(crate) fn position(offset: u64) -> u64 {
    offset & ((1 << POSITION_BITS) - 1)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nearfs_backends::{FsPath, Metadata};

    use super::*;
    use crate::inode::Attrs;
    use crate::tree::Place;

    fn dir() -> DirNode {
        let place = Place { fs: 0, path: FsPath::root() };
        DirNode::new(place, Attrs { metadata: Metadata::dir(), expires: Instant::now() })
    }

    #[test]
    fn offsets_are_positive_and_give_the_position_back() {
        for (id, at) in [(0, 1), (u64::MAX, 1), (7, (1 << 40) - 1)] {
            assert_eq!(position(offset(id, at)), at);
            assert!(i64::try_from(offset(id, at)).is_ok());
        }
        assert_ne!(offset(1, 5), offset(2, 5));
    }

    #[test]
    fn the_kernel_keeps_its_copy_only_of_this_listing_and_while_it_lives() {
        let (d, now) = (dir(), Instant::now());
        let later = now + Duration::from_secs(5);
        assert!(!keep_kernel_copy(&d, 7, later, now), "nothing was copied before");
        assert!(keep_kernel_copy(&d, 7, later, now));
        assert!(!keep_kernel_copy(&d, 7, now, now), "its lifetime is over");
        assert!(!keep_kernel_copy(&d, 8, later, now), "the directory changed");
        assert!(keep_kernel_copy(&d, 8, later, now));
    }

    #[test]
    fn a_late_reader_of_an_older_listing_makes_the_copy_unknown() {
        let (now, later) = (Instant::now(), Instant::now() + Duration::from_secs(5));
        let inode = crate::inode::InodeTable::new(Node::Dir(dir())).get(crate::inode::ROOT).unwrap();
        let Node::Dir(d) = &inode.node else { panic!("a directory") };
        keep_kernel_copy(d, 1, later, now);
        keep_kernel_copy(d, 2, later, now);
        note_read_from_start(&inode, 2);
        assert!(keep_kernel_copy(d, 2, later, now));
        note_read_from_start(&inode, 1);
        assert!(!keep_kernel_copy(d, 2, later, now));
    }
}
