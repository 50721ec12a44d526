//! The directories of files, as far as they are open; those that somebody removed meanwhile are made anew.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use super::Directory;

impl Directory {
    /// One of the 256 directories below `objects`, if it was needed before. Never waits.
    pub(crate) fn opened_fan(&self, number: u8) -> Option<BorrowedFd<'_>> {
        self.fans[usize::from(number)].get().map(File::as_fd)
    }

    /// Makes every directory of files that was removed since it was opened anew, and returns how many those were.
    /// Descriptors handed out before stay good: they mean the new directory. Cheap if nothing is missing.
    ///
    /// # Errors
    /// What the filesystem says; `NotFound` if all of the cache directory is gone.
    pub(crate) fn renew(&self) -> io::Result<usize> {
        let mut renewed = 0;
        if is_removed(&self.objects)? {
            let (new, _) = self.rights.make_dir(self.dir.as_fd(), "objects")?;
            replace(&self.objects, &new)?;
            renewed += 1;
        }
        for (number, fan) in self.fans.iter().enumerate() {
            let Some(fan) = fan.get() else { continue };
            if is_removed(fan)? {
                let (new, _) = self.rights.make_dir(self.objects.as_fd(), &format!("{number:02x}"))?;
                replace(fan, &new)?;
                renewed += 1;
            }
        }
        Ok(renewed)
    }
}

fn is_removed(dir: &File) -> io::Result<bool> {
    Ok(rustix::fs::fstat(dir)?.st_nlink == 0)
}

/// Lets the descriptor of `old` mean what `new` is, in one step.
fn replace(old: &File, new: &File) -> io::Result<()> {
    // SAFETY: both are open, and `old` stays the owner of its number. Nothing but the directory's name is ever asked
    // of it, so it is no surprise to anybody who uses it at this moment.
    match unsafe { libc::dup3(new.as_raw_fd(), old.as_raw_fd(), libc::O_CLOEXEC) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
