//! IOCTL: orders to the mount go to `.nearfs/control`. None is defined yet.

use nearfs_backends::Result;

use crate::vfs::Vfs;

impl Vfs {
    /// The errno for an ioctl: `ENOTTY`, "no such order here".
    ///
    /// # Errors
    /// `Stale` if the inode is not known.
    pub(crate) fn ioctl(&self, ino: u64) -> Result<i32> {
        self.table.get(ino)?;
        Ok(libc::ENOTTY)
    }
}
