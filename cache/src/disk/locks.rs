//! Locks on open file descriptions: held by a descriptor and its copies in forked children, across processes.
//!
//! `fcntl(2)`, "Open file description locks". They do not conflict with those of the same open file, so whoever wants
//! to exclude the rest of its own process too opens the file anew.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// What others may hold at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lock {
    /// Other shared ones. The descriptor can read.
    Shared,
    /// Nothing. The descriptor can write.
    Exclusive,
}

/// Takes the lock on the whole file if nobody is in the way, and says whether it did.
///
/// # Errors
/// What the filesystem says: some have no locks.
pub(crate) fn try_lock(file: impl AsFd, lock: Lock) -> io::Result<bool> {
    match change(file, libc::F_OFD_SETLK, kind(lock)) {
        Ok(()) => Ok(true),
        Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Takes the lock on the whole file, however long that takes.
///
/// # Errors
/// What the filesystem says: some have no locks.
pub(crate) fn lock(file: impl AsFd, lock: Lock) -> io::Result<()> {
    loop {
        match change(file.as_fd(), libc::F_OFD_SETLKW, kind(lock)) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// Gives the lock up, also for copies of the descriptor in other processes.
pub(crate) fn unlock(file: impl AsFd) {
    // Fails only for what is not an open file.
    let _ = change(file, libc::F_OFD_SETLK, libc::F_UNLCK);
}

fn kind(lock: Lock) -> libc::c_int {
    match lock {
        Lock::Shared => libc::F_RDLCK,
        Lock::Exclusive => libc::F_WRLCK,
    }
}

fn change(file: impl AsFd, command: libc::c_int, kind: libc::c_int) -> io::Result<()> {
    // SAFETY: `flock` is plain integers, for which zero is a value; these locks demand a pid of 0.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    // SAFETY: the descriptor is open for the whole call, and the kernel only reads `lock` for these commands.
    match unsafe { libc::fcntl(file.as_fd().as_raw_fd(), command, &lock) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn exclusive_excludes_and_shared_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let open = || {
            let mut options = std::fs::File::options();
            options.read(true).write(true).create(true).truncate(false).open(dir.path().join("file")).unwrap()
        };
        let [a, b, c] = [open(), open(), open()];
        assert!(try_lock(&a, Lock::Shared).unwrap() && try_lock(&b, Lock::Shared).unwrap());
        assert!(!try_lock(&c, Lock::Exclusive).unwrap());
        // A copy keeps the lock that its original was closed with.
        let copy = a.try_clone().unwrap();
        drop((a, b));
        assert!(!try_lock(&c, Lock::Exclusive).unwrap());
        drop(copy);
        lock(&c, Lock::Exclusive).unwrap();
        let d = open();
        assert!(!try_lock(&d, Lock::Shared).unwrap());
        unlock(&c);
        assert!(try_lock(&d, Lock::Shared).unwrap());
    }
}
