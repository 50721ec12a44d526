//! OPEN, for mounts that pass files through: whether a file can be.

use std::sync::Arc;

use nearfs_backends::Result;
use nearfs_cache::{CachedFile, LentFile};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::inode::Node;
use crate::passthrough::LEAST;
use crate::vfs::Vfs;

impl Vfs {
    /// The file behind `ino`, if it is one that may be passed through once the cache has all of it.
    ///
    /// # Errors
    /// `Stale` if the inode is not known.
    pub(crate) fn passable(&self, ino: u64) -> Result<Option<Arc<CachedFile>>> {
        let inode = self.table.get(ino)?;
        let Node::File(node) = &inode.node else { return Ok(None) };
        if !self.status.passthrough.is_on() || inode.attrs().is_none_or(|a| a.metadata.size < LEAST) {
            return Ok(None);
        }
        Ok(Some(self.files.get(&self.roots, &inode, node)))
    }
}

/// The cache's file with all bytes of `file`, if there is one that the kernel can read in every way that a program
/// may ask for. Blocks while the filesystem of the cache looks it up. The reason, if it cannot be used.
pub(crate) fn lend(file: &CachedFile) -> std::result::Result<Option<LentFile>, String> {
    let Some(lent) = file.lend() else { return Ok(None) };
    // Handles opened for direct reads must share the inode with others: where the filesystem has no such reads, their
    // opens would fail.
    let flags = fcntl_getfl(&lent).unwrap_or(OFlags::empty());
    if fcntl_setfl(&lent, flags | OFlags::DIRECT).is_err() {
        return Err("the filesystem of the cache has no direct reads (O_DIRECT)".to_owned());
    }
    match fcntl_setfl(&lent, flags) {
        Ok(()) => Ok(Some(lent)),
        Err(e) => Err(format!("the file of the cache cannot be set up: {e}")),
    }
}
