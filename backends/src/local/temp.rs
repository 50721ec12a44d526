//! [`Temp`]: a file being written, without a name or with a hidden one, that gets its name in one step.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::attr;
use crate::error::Result;

/// Begin of the names of files in progress, where the filesystem has no unnamed files.
pub(super) const TEMP_PREFIX: &[u8] = b".nearfs-tmp-";

/// How many bytes may be written before the disk is asked to begin with them: bounds what a final sync must wait for.
const SYNC_WINDOW: u64 = 32 << 20;

/// Dropping it before [`Temp::publish`] removes the file.
pub(super) struct Temp {
    dir: OwnedFd,
    file: OwnedFd,
    /// Its hidden name in `dir`, while it has one.
    name: Option<Vec<u8>>,
    written: u64,
}

impl Temp {
    /// A new empty file for `dir`, with permission bits `mode` less the umask.
    pub(super) fn new(dir: OwnedFd, mode: u32) -> Result<Self> {
        let mode = Mode::from_raw_mode(mode);
        match rustix::fs::openat(&dir, ".", OFlags::WRONLY | OFlags::CLOEXEC | OFlags::TMPFILE, mode) {
            Ok(file) => Ok(Temp::locked(dir, file, None)),
            // Filesystems without unnamed files say so in different ways, some by trying to open the directory.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT | Errno::NOSYS) => {
                Temp::with_name(dir, mode)
            }
            Err(e) => Err(attr::error(e)),
        }
    }

    fn with_name(dir: OwnedFd, mode: Mode) -> Result<Self> {
        let name = new_name();
        let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::CREATE | OFlags::EXCL;
        let file = rustix::fs::openat(&dir, &name[..], flags, mode).map_err(attr::error)?;
        Ok(Temp::locked(dir, file, Some(name)))
    }

    fn locked(dir: OwnedFd, file: OwnedFd, name: Option<Vec<u8>>) -> Self {
        // Tells a write in progress from what a crash left. Where locks do not work, nothing is ever cleaned up.
        let _ = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
        Temp { dir, file, name, written: 0 }
    }

    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The directory that it will be in.
    pub(super) fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// Appends all of `data`; `step` is called now and then.
    pub(super) fn append(&mut self, mut data: &[u8], step: impl Fn()) -> Result<()> {
        while !data.is_empty() {
            match rustix::io::pwrite(&self.file, &data[..data.len().min(1 << 20)], self.written) {
                Ok(n) => {
                    data = &data[n..];
                    self.wrote(n as u64)?;
                    step();
                }
                Err(Errno::INTR) => {}
                Err(e) => return Err(attr::error(e)),
            }
        }
        Ok(())
    }

    /// Notes that `n` bytes were written behind the others, and keeps the disk busy with them.
    ///
    /// # Errors
    /// Those of earlier write-back.
    pub(super) fn wrote(&mut self, n: u64) -> Result<()> {
        let before = self.written / SYNC_WINDOW;
        self.written += n;
        let after = self.written / SYNC_WINDOW;
        for window in before..after {
            self.sync_range(window, libc::SYNC_FILE_RANGE_WRITE)?;
            if let Some(previous) = window.checked_sub(1) {
                let wait = libc::SYNC_FILE_RANGE_WAIT_BEFORE
                    | libc::SYNC_FILE_RANGE_WRITE
                    | libc::SYNC_FILE_RANGE_WAIT_AFTER;
                self.sync_range(previous, wait)?;
            }
        }
        Ok(())
    }

    fn sync_range(&self, window: u64, flags: libc::c_uint) -> Result<()> {
        let (start, length) = ((window * SYNC_WINDOW) as i64, SYNC_WINDOW as i64);
        // SAFETY: the call takes no pointers, and the descriptor is open.
        let done = unsafe { libc::sync_file_range(self.file.as_raw_fd(), start, length, flags) };
        let error = std::io::Error::last_os_error();
        match error.raw_os_error() {
            _ if done == 0 => Ok(()),
            // Only advice; but an error of the disk is told once and must not get lost.
            Some(libc::EIO | libc::ENOSPC | libc::EDQUOT) => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Gives the file the name `to` in its directory, in one step.
    ///
    /// # Errors
    /// `AlreadyExists` with `no_replace`, `IsADirectory`; the file is then removed.
    pub(super) fn publish(mut self, to: &[u8], no_replace: bool) -> Result<()> {
        if self.name.is_none() {
            match self.link(to) {
                Err(Errno::EXIST) if !no_replace => {
                    let name = new_name();
                    self.link(&name).map_err(attr::error)?;
                    self.name = Some(name);
                }
                done => return done.map_err(attr::error),
            }
        }
        let Some(name) = self.name.clone() else { return Ok(()) };
        rename(self.dir.as_fd(), &name, self.dir.as_fd(), to, no_replace)?;
        self.name = None;
        Ok(())
    }

    fn link(&self, to: &[u8]) -> rustix::io::Result<()> {
        // Needs a capability on older kernels, and says "no such file" without it.
        match rustix::fs::linkat(&self.file, "", &self.dir, to, AtFlags::EMPTY_PATH) {
            Err(Errno::NOENT | Errno::PERM | Errno::INVAL) => {
                let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
                rustix::fs::linkat(rustix::fs::CWD, path, &self.dir, to, AtFlags::SYMLINK_FOLLOW)
            }
            done => done,
        }
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            // Nothing to be done on failure: it stays hidden, and goes with its directory.
            let _ = rustix::fs::unlinkat(&self.dir, &name[..], AtFlags::empty());
        }
    }
}

/// Renames in one step.
///
/// # Errors
/// `AlreadyExists` with `no_replace`, also on filesystems that know no such rename (then only for files).
pub(super) fn rename(
    from_dir: BorrowedFd<'_>,
    from: &[u8],
    to_dir: BorrowedFd<'_>,
    to: &[u8],
    no_replace: bool,
) -> Result<()> {
    if !no_replace {
        return rustix::fs::renameat(from_dir, from, to_dir, to).map_err(attr::error);
    }
    match rustix::fs::renameat_with(from_dir, from, to_dir, to, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            rustix::fs::linkat(from_dir, from, to_dir, to, AtFlags::empty()).map_err(attr::error)?;
            rustix::fs::unlinkat(from_dir, from, AtFlags::empty()).map_err(attr::error)
        }
        done => done.map_err(attr::error),
    }
}

/// Removes what crashed writers left in `dir`. True if anything was removed.
pub(super) fn clean(dir: BorrowedFd<'_>) -> bool {
    let mut space = Vec::with_capacity(16 << 10);
    let Ok(own) = rustix::fs::openat(dir, ".", attr::DIRECTORY, Mode::empty()) else { return false };
    let mut entries = rustix::fs::RawDir::new(own, space.spare_capacity_mut());
    let mut left = Vec::new();
    while let Some(Ok(entry)) = entries.next() {
        if entry.file_name().to_bytes().starts_with(TEMP_PREFIX) {
            left.push(entry.file_name().to_owned());
        }
    }
    left.into_iter().filter(|name| remove_left(dir, name)).count() > 0
}

fn remove_left(dir: BorrowedFd<'_>, name: &std::ffi::CStr) -> bool {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOFOLLOW;
    rustix::fs::openat(dir, name, flags, Mode::empty()).is_ok_and(|file| {
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
            && rustix::fs::unlinkat(dir, name, AtFlags::empty()).is_ok()
    })
}

fn new_name() -> Vec<u8> {
    [TEMP_PREFIX, format!("{:016x}", rand::random::<u64>()).as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn names(dir: &std::path::Path) -> Vec<String> {
        let names = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }

    /// With and without a hidden name: the second is how filesystems without unnamed files are written to.
    #[test]
    fn both_ways_end_the_same() {
        for hidden in [false, true] {
            let root = tempfile::tempdir().unwrap();
            let new = || {
                let dir = rustix::fs::open(root.path(), attr::DIRECTORY, Mode::empty()).unwrap();
                let mode = Mode::from_raw_mode(0o600);
                let mut temp =
                    if hidden { Temp::with_name(dir, mode) } else { Temp::new(dir, 0o600) }.unwrap();
                temp.append(b"content", || {}).unwrap();
                temp
            };
            let temp = new();
            assert_eq!(names(root.path()).len(), usize::from(hidden));
            assert!(names(root.path()).iter().all(|n| n.as_bytes().starts_with(TEMP_PREFIX)));
            assert!(!clean(temp.dir()), "what is being written is not cleaned up");
            drop(temp);
            assert_eq!(names(root.path()), Vec::<String>::new());

            new().publish(b"f", true).unwrap();
            assert_eq!(new().publish(b"f", true).unwrap_err().kind(), ErrorKind::AlreadyExists);
            std::fs::write(root.path().join("f"), b"old").unwrap();
            new().publish(b"f", false).unwrap();
            assert_eq!(std::fs::read(root.path().join("f")).unwrap(), b"content");
            std::fs::create_dir(root.path().join("d")).unwrap();
            assert_eq!(new().publish(b"d", false).unwrap_err().kind(), ErrorKind::IsADirectory);
            assert_eq!(names(root.path()), ["d", "f"], "hidden: {hidden}");
        }
    }
}
