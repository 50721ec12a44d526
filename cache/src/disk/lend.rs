//! [`Lent`]: the data file of a whole object in somebody else's hands: the kernel's for passthrough, or a program's
//! as a descriptor, a mapping or a link. Nothing is taken away from it meanwhile.
//!
//! **Who knows.** A shared lock on an open file of its own marks the object as lent for every process. It is the
//! kernel's, so it goes with its last holder however that ends, and children that were forked while it was held hold it
//! too: they may have the mapping.
//!
//! **What it counts.** The bytes are counted as lent once per process that lends them, and taken off the count once:
//! when the last [`Lent`] of the object in that process goes, or when the process is found dead. So an object lent by
//! two processes counts twice, which keeps the bound on the safe side; what only a forked child of a dead process
//! still holds counts no more, but cannot be evicted either.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::OFlags;

use super::files;
use super::locks::{self, Lock};
use super::object::{Large, blocks};

/// A whole, proven object, readable without asking anybody, for as long as this lives.
pub(crate) struct Lent {
    file: OwnedFd,
    _large: Arc<Large>,
    _count: Arc<dyn Send + Sync>,
}

impl AsFd for Lent {
    /// The data file, open for reading only: exactly the bytes of the object.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lent").field("file", &self.file).field("large", &self._large).finish_non_exhaustive()
    }
}

impl Large {
    /// Lends the object, if all of it is there and proven, it lives, nobody is taking units away, and not too much
    /// is lent already. Blocks, but not for long.
    ///
    /// # Errors
    /// What the filesystem says; some have no locks.
    pub(crate) fn lend(self: &Arc<Self>) -> io::Result<Option<Lent>> {
        if self.is_dead() || !self.is_whole() {
            return Ok(None);
        }
        let Some(file) = self.open_again(OFlags::RDONLY)? else { return Ok(None) };
        if !locks::try_lock(&file, Lock::Shared)? {
            return Ok(None);
        }
        // Under the lock nothing goes any more, so what is seen now stays.
        if self.is_dead() || !self.is_whole() {
            return Ok(None);
        }
        if !files::agrees(&self.ground, &self.state(), &self.data)? {
            // Somebody else changed the file. It can be lent again when all of it has been proven anew.
            files::distrust(&self.state(), &self.data)?;
            return Ok(None);
        }
        rustix::fs::fcntl_setfl(&file, OFlags::empty())?;
        let Some(count) = self.count() else { return Ok(None) };
        Ok(Some(Lent { file, _large: self.clone(), _count: count }))
    }

    /// The count of this object's bytes as lent by this process: the one there is, or a new one.
    fn count(&self) -> Option<Arc<dyn Send + Sync>> {
        let mut lending = self.lending.lock();
        if let Some(count) = lending.upgrade() {
            return Some(count);
        }
        let count: Arc<dyn Send + Sync> = Arc::new(self.ground.host.lend(blocks(&(0..self.size())))?);
        *lending = Arc::downgrade(&count);
        Some(count)
    }

    /// Whether anybody has the object lent, in any process, or takes units away right now. False if its names are
    /// gone. Blocks, but not for long.
    ///
    /// # Errors
    /// What the filesystem says.
    pub(crate) fn is_lent(&self) -> io::Result<bool> {
        let Some(file) = self.open_again(OFlags::RDWR)? else { return Ok(false) };
        let free = locks::try_lock(&file, Lock::Exclusive)?;
        if free {
            locks::unlock(&file);
        }
        Ok(!free)
    }
}
