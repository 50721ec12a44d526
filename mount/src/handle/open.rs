//! Handles of files that are open, by inode.
//!
//! The kernel reads a file either through its own pages or straight from a file of the cache, and that belongs to the
//! inode: while any handle is open, every other one must be opened in the same way, and with the very same file of the
//! cache. A handle opened in another way would be an error for its program. So the first open decides, and what it
//! decided is kept until the last handle is gone. A file of the cache is kept longer, until the kernel forgets the inode:
//! mappings go on after their handles, and nobody tells of their end.

use std::sync::Arc;

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;

/// How the handles of an inode are open.
#[derive(Debug)]
pub(crate) enum Way<B> {
    /// Through the kernel's pages, which this process fills.
    Kept,
    /// Straight from a file of the cache.
    Passed(Arc<B>),
}

impl<B> Clone for Way<B> {
    fn clone(&self) -> Self {
        match self {
            Way::Kept => Way::Kept,
            Way::Passed(file) => Way::Passed(Arc::clone(file)),
        }
    }
}

/// The inodes of a mount that have handles open. `B` is what lets the kernel read a file of the cache.
#[derive(Debug)]
pub(crate) struct OpenFiles<B> {
    map: DashMap<u64, Open<B>>,
}

#[derive(Debug)]
struct Open<B> {
    handles: u64,
    way: Way<B>,
}

impl<B> Default for OpenFiles<B> {
    fn default() -> Self {
        OpenFiles { map: DashMap::new() }
    }
}

impl<B> OpenFiles<B> {
    /// One more handle of `ino`, if there are any, and how it must be opened. `None`: this may become the first.
    pub(crate) fn join(&self, ino: u64) -> Option<Way<B>> {
        let mut open = self.map.get_mut(&ino)?;
        open.handles += 1;
        Some(open.way.clone())
    }

    /// One more handle of `ino`, and how it must be opened: `wanted` if it is the first.
    pub(crate) fn open(&self, ino: u64, wanted: Way<B>) -> Way<B> {
        match self.map.entry(ino) {
            Entry::Occupied(mut open) => {
                open.get_mut().handles += 1;
                open.get().way.clone()
            }
            Entry::Vacant(place) => place.insert(Open { handles: 1, way: wanted }).way.clone(),
        }
    }

    /// One handle less of `ino`. True if it was the last one of a file that is kept until the inode is forgotten.
    pub(crate) fn close(&self, ino: u64) -> bool {
        let mut lingers = false;
        self.map.remove_if_mut(&ino, |_, open| {
            open.handles -= 1;
            lingers = open.handles == 0 && matches!(open.way, Way::Passed(_));
            open.handles == 0 && !lingers
        });
        lingers
    }

    /// True if `ino` has a file of the cache but no handle.
    pub(crate) fn lingers(&self, ino: u64) -> bool {
        self.map.get(&ino).is_some_and(|open| open.handles == 0)
    }

    /// The kernel has forgotten `ino`: nothing uses it any more.
    pub(crate) fn forget(&self, ino: u64) {
        let last = self.map.remove_if(&ino, |_, open| open.handles == 0);
        // Here, where no lock is held: letting a file go takes system calls.
        drop(last);
    }

    /// Everything, given to `take`, and forgotten.
    pub(crate) fn take_all(&self, mut take: impl FnMut(Arc<B>)) {
        let all: Vec<u64> = self.map.iter().map(|open| *open.key()).collect();
        for ino in all {
            if let Some((_, Open { way: Way::Passed(file), .. })) = self.map.remove(&ino) {
                take(file);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(way: &Way<u32>) -> Option<u32> {
        match way {
            Way::Kept => None,
            Way::Passed(file) => Some(**file),
        }
    }

    #[test]
    fn the_first_handle_decides_until_the_last_is_gone() {
        let files = OpenFiles::default();
        assert!(files.join(1).is_none());
        assert_eq!(passed(&files.open(1, Way::Passed(Arc::new(7)))), Some(7));
        assert_eq!(passed(&files.open(1, Way::Kept)), Some(7));
        assert_eq!(passed(&files.open(1, Way::Passed(Arc::new(8)))), Some(7), "and with the same file");
        assert_eq!(passed(&files.join(1).unwrap()), Some(7));
        assert_eq!(passed(&files.open(2, Way::Kept)), None);
        assert_eq!(passed(&files.open(2, Way::Passed(Arc::new(9)))), None);
        assert!((0..3).all(|_| !files.close(1)));
        assert_eq!(passed(&files.open(1, Way::Kept)), Some(7));
        assert!(!files.close(1) && !files.lingers(1));
        files.forget(1);
        assert!(files.close(1) && files.lingers(1), "a mapping may be left");
        assert_eq!(passed(&files.join(1).unwrap()), Some(7));
        assert!(files.close(1));
        files.forget(1);
        assert!(!files.lingers(1) && files.join(1).is_none());
        assert_eq!(passed(&files.open(1, Way::Kept)), None);
        assert!(!files.close(1) && files.join(1).is_none(), "nothing is kept of these");
        assert!(!files.close(3));
    }

    #[test]
    fn what_the_handles_share_goes_with_the_inode() {
        let (files, file) = (OpenFiles::default(), Arc::new(1));
        drop(files.open(1, Way::Passed(Arc::clone(&file))));
        drop(files.join(1));
        files.close(1);
        files.close(1);
        assert_eq!(Arc::strong_count(&file), 2);
        files.forget(1);
        assert_eq!(Arc::strong_count(&file), 1);
        files.open(1, Way::Passed(Arc::clone(&file)));
        let mut taken = Vec::new();
        files.take_all(|file| taken.push(file));
        assert_eq!((taken.len(), files.map.len()), (1, 0));
    }

    #[test]
    fn handles_that_come_and_go_at_the_same_time_agree() {
        let files = Arc::new(OpenFiles::default());
        let workers: Vec<_> = (0..4u32)
            .map(|worker| {
                let files = Arc::clone(&files);
                std::thread::spawn(move || {
                    for i in 0..3000 {
                        let ino = i % 3;
                        let wanted = if i % 2 == 0 { Way::Kept } else { Way::Passed(Arc::new(worker)) };
                        let first = files.join(ino).unwrap_or_else(|| files.open(ino, wanted));
                        let second = files.join(ino).expect("it is open");
                        assert_eq!(passed(&first), passed(&second));
                        files.close(ino);
                        files.close(ino);
                        files.forget(ino);
                    }
                })
            })
            .collect();
        workers.into_iter().for_each(|w| w.join().unwrap());
        assert!(files.map.is_empty());
    }
}
