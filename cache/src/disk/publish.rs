//! [`Unnamed`]: files that get their name only when they are complete.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::rights::Rights;

/// What temporary names begin with, where files without a name are not supported.
pub(crate) const TEMPORARY: &str = ".tmp-";

/// A new file in a directory of the cache that has no name yet. Dropped, it leaves nothing behind; a process that is
/// killed leaves nothing behind either, except on filesystems without such files (overlayfs, network filesystems),
/// where a name beginning with [`TEMPORARY`] stays.
#[derive(Debug)]
pub(crate) struct Unnamed<'d> {
    dir: BorrowedFd<'d>,
    file: Option<File>,
    temporary: Option<String>,
}

impl<'d> Unnamed<'d> {
    /// A new empty file in `dir`, open for reading and writing, with the mode that `rights` want.
    ///
    /// # Errors
    /// What the filesystem says.
    pub(crate) fn create(dir: BorrowedFd<'d>, rights: Rights) -> io::Result<Self> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        match rustix::fs::openat(dir, ".", flags, Mode::from_raw_mode(rights.file_mode())) {
            Ok(fd) => {
                let file = File::from(fd);
                rights.apply_to_file(&file)?;
                Ok(Unnamed { dir, file: Some(file), temporary: None })
            }
            // EISDIR: kernels and filesystems that do not know the flag see an attempt to write a directory.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT) => Self::named(dir, rights),
            Err(e) => Err(e.into()),
        }
    }

    fn named(dir: BorrowedFd<'d>, rights: Rights) -> io::Result<Self> {
        let name = temporary_name();
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let fd = rustix::fs::openat(dir, &name, flags, Mode::from_raw_mode(rights.file_mode()))?;
        let unnamed = Unnamed { dir, file: Some(File::from(fd)), temporary: Some(name) };
        rights.apply_to_file(unnamed.file())?;
        Ok(unnamed)
    }

    /// The file.
    pub(crate) fn file(&self) -> &File {
        self.file.as_ref().expect("only publishing takes the file")
    }

    /// Gives the file its name in one step. None, and nothing left behind, if the name is taken.
    ///
    /// # Errors
    /// What the filesystem says; nothing is left behind.
    pub(crate) fn publish(mut self, name: &str) -> io::Result<Option<File>> {
        let linked = match &self.temporary {
            None => link(self.file(), self.dir, name),
            Some(temporary) => {
                match rustix::fs::linkat(self.dir, temporary, self.dir, name, AtFlags::empty()) {
                    // No hard links here.
                    Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS | Errno::MLINK) => {
                        let moved = rustix::fs::renameat_with(
                            self.dir,
                            temporary,
                            self.dir,
                            name,
                            RenameFlags::NOREPLACE,
                        );
                        if moved.is_ok() {
                            self.temporary = None;
                        }
                        moved
                    }
                    other => other,
                }
            }
        };
        match linked {
            Ok(()) => Ok(self.file.take()),
            Err(Errno::EXIST) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }
}

impl Drop for Unnamed<'_> {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            // What stays is removed when the directory is opened alone the next time.
            let _ = rustix::fs::unlinkat(self.dir, temporary, AtFlags::empty());
        }
    }
}

/// Names an `O_TMPFILE` file: through /proc, which needs no capability, or else directly.
fn link(file: &File, dir: BorrowedFd<'_>, name: &str) -> rustix::io::Result<()> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    match rustix::fs::linkat(rustix::fs::CWD, path, dir, name, AtFlags::SYMLINK_FOLLOW) {
        Err(Errno::NOENT) => rustix::fs::linkat(file, "", dir, name, AtFlags::EMPTY_PATH),
        other => other,
    }
}

pub(crate) fn temporary_name() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    // Unique on this machine but for PID namespaces, where the time tells them apart; O_EXCL proves it.
    format!("{TEMPORARY}{}-{count}-{time:x}", std::process::id())
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn names(dir: &std::path::Path) -> Vec<String> {
        let mut names: Vec<_> =
            std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn names_appear_complete_and_only_once() {
        let dir = tempfile::tempdir().unwrap();
        let fd = File::open(dir.path()).unwrap();
        for (i, named) in [false, true].into_iter().enumerate() {
            let way =
                |dir, rights| if named { Unnamed::named(dir, rights) } else { Unnamed::create(dir, rights) };
            let name = format!("name{i}");
            let first = way(fd.as_fd(), Rights::private()).unwrap();
            first.file().write_all(b"first").unwrap();
            assert!(!names(dir.path()).contains(&name));
            let second = way(fd.as_fd(), Rights::private()).unwrap();
            assert!(first.publish(&name).unwrap().is_some());
            assert!(second.publish(&name).unwrap().is_none(), "the name is taken");
            drop(way(fd.as_fd(), Rights::private()).unwrap());
            assert_eq!(std::fs::read(dir.path().join(&name)).unwrap(), b"first");
            let mode = std::fs::metadata(dir.path().join(&name)).unwrap().permissions().mode();
            assert_eq!(mode & 0o7777, 0o600);
        }
        assert_eq!(names(dir.path()), ["name0", "name1"], "nothing else is left behind");
    }
}
