//! The cache's handles of files in use.
//!
//! With stateless opens no close is ever seen, so a handle is kept while its file is being read and given back when
//! it has been idle for a while or too many are held.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nearfs_cache::CachedFile;
use parking_lot::Mutex;

use crate::inode::{FileNode, Inode, Node};
use crate::tree::Roots;

/// Handles held at most; beyond it those not used lately go first.
const LIMIT: usize = 16 * 1024;

/// Keeps the handles of files in use: a clock (each gets a second chance if it was used since the hand passed).
#[derive(Debug, Default)]
pub(crate) struct FileHandles {
    ring: Mutex<VecDeque<Arc<Inode>>>,
}

impl FileHandles {
    /// The handle of `node`, which is `inode`'s.
    pub(crate) fn get(&self, roots: &Roots, inode: &Arc<Inode>, node: &FileNode) -> Arc<CachedFile> {
        node.used.store(true, Ordering::Relaxed);
        let mut slot = node.file.lock();
        if let Some(file) = &*slot {
            return Arc::clone(file);
        }
        let metadata = inode.attrs().map(|a| a.metadata).unwrap_or_else(nearfs_backends::Metadata::dir);
        let file = roots.fs(&node.place).file(&node.place.path, &metadata);
        *slot = Some(Arc::clone(&file));
        drop(slot);
        let mut ring = self.ring.lock();
        ring.push_back(Arc::clone(inode));
        if ring.len() > LIMIT {
            evict_one(&mut ring);
        }
        file
    }

    /// Gives back the handles that were not used since the last sweep.
    pub(crate) fn sweep(&self) {
        let mut ring = self.ring.lock();
        ring.retain(|inode| !release_if_idle(inode));
        let excess = ring.capacity() / 4;
        if ring.len() < excess {
            ring.shrink_to(excess);
        }
    }

    /// Gives back the handle of an inode that the kernel has forgotten.
    pub(crate) fn release(&self, inode: &Inode) {
        if let Node::File(node) = &inode.node {
            node.used.store(false, Ordering::Relaxed);
            *node.file.lock() = None;
        }
    }

    /// Number of handles held.
    pub(crate) fn len(&self) -> usize {
        self.ring.lock().len()
    }
}

fn evict_one(ring: &mut VecDeque<Arc<Inode>>) {
    for _ in 0..ring.len() {
        match ring.pop_front() {
            Some(inode) if !release_if_idle(&inode) => ring.push_back(inode),
            _ => return,
        }
    }
    // Everything was used since: the oldest goes after all.
    if let Some(inode) = ring.pop_front() {
        release_if_idle(&inode);
    }
}

/// Clears the mark of use; gives the handle back, and says so, if there was none.
fn release_if_idle(inode: &Inode) -> bool {
    let Node::File(node) = &inode.node else { return true };
    if node.used.swap(false, Ordering::Relaxed) {
        return false;
    }
    *node.file.lock() = None;
    true
}
