//! [`Rights`]: who may use a directory of the cache, and the modes that make it so.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nearfs_backends::{Error, ErrorKind, Result};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

/// Who uses a directory: one user (0700 and 0600), or a group (2770 and 0660).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rights {
    group: Option<u32>,
}

impl Rights {
    /// For this user alone.
    #[cfg(test)]
    pub(crate) fn private() -> Self {
        Rights { group: None }
    }

    /// For `group`, or for this user alone.
    ///
    /// # Errors
    /// `PermissionDenied` if this process is not a member of the group; the superuser always is.
    pub(crate) fn new(group: Option<u32>) -> Result<Self> {
        match group {
            Some(group) if !is_member(group) => Err(Error::new(
                ErrorKind::PermissionDenied,
                format!(
                    "the cache group must be one that this process is in, and it is not in group {group}"
                ),
            )
            .with_context("hint", "become a member of the group, or leave --cache-group out")),
            group => Ok(Rights { group }),
        }
    }

    pub(crate) fn dir_mode(self) -> u32 {
        if self.group.is_some() { 0o2770 } else { 0o700 }
    }

    pub(crate) fn file_mode(self) -> u32 {
        if self.group.is_some() { 0o660 } else { 0o600 }
    }

    /// Gives a new file the group and mode that the umask and the directory may have kept from it.
    pub(crate) fn apply_to_file(self, file: &File) -> io::Result<()> {
        let Some(group) = self.group else { return Ok(()) };
        let metadata = file.metadata()?;
        if metadata.gid() != group {
            rustix::fs::fchown(file, None, Some(Gid::from_raw(group)))?;
        }
        if metadata.mode() & 0o7777 != self.file_mode() {
            rustix::fs::fchmod(file, Mode::from_raw_mode(self.file_mode()))?;
        }
        Ok(())
    }

    fn apply_to_dir(self, dir: &File) -> io::Result<()> {
        // The group before the mode: changing the group may take the set-group-id bit away.
        if let Some(group) = self.group {
            rustix::fs::fchown(dir, None, Some(Gid::from_raw(group)))?;
        }
        Ok(rustix::fs::fchmod(dir, Mode::from_raw_mode(self.dir_mode()))?)
    }

    /// Whether the cache may be in `dir`, which was there before: nobody else can exchange what is in it.
    ///
    /// # Errors
    /// `PermissionDenied` if it belongs to somebody else, `InvalidInput` if others may write to it.
    pub(crate) fn check(self, dir: &File, path: &Path) -> Result<()> {
        let metadata = dir.metadata()?;
        let (mode, owner, group) = (metadata.mode() & 0o7777, metadata.uid(), metadata.gid());
        if mode & 0o002 != 0 {
            return Err(others_may_write(path, mode));
        }
        let ours = owner == rustix::process::geteuid().as_raw();
        let shared = self.group == Some(group);
        // A directory for a group, opened by its owner without naming the group.
        let adopted = ours && mode & 0o2000 != 0;
        match mode & 0o020 != 0 {
            true if shared || adopted => Ok(()),
            true if ours => Err(Error::new(
                ErrorKind::InvalidInput,
                format!("group {group} may write to the cache directory {} (mode {mode:o})", path.display()),
            )
            .with_context(
                "hint",
                format!("`chmod g-w {}`, or share it with `--cache-group`", path.display()),
            )),
            false if ours || owner == 0 => Ok(()),
            _ => Err(belongs_to_others(path, owner, mode)),
        }
    }

    /// The rights in force in `dir`, a directory that the cache itself made some time ago: those of the group that it
    /// was made for, if we made it and no group is named.
    ///
    /// # Errors
    /// `PermissionDenied` if it is somebody else's, `InvalidInput` if it is ours and was made for others.
    pub(crate) fn settle(self, dir: &File, path: &Path) -> Result<Rights> {
        let metadata = dir.metadata()?;
        let (mode, owner, group) = (metadata.mode() & 0o7777, metadata.uid(), metadata.gid());
        if mode & 0o002 != 0 {
            return Err(others_may_write(path, mode));
        }
        let ours = owner == rustix::process::geteuid().as_raw();
        let for_group = mode == 0o2770;
        match self.group {
            Some(wanted) if for_group && group == wanted => Ok(self),
            Some(wanted) if ours => Err(Error::new(
                ErrorKind::InvalidInput,
                format!(
                    "expected the cache in {} to be shared with group {wanted}, found group {group} and mode {mode:o}",
                    path.display()
                ),
            )
            .with_context("hint", format!("remove {}, or name another --cache-dir", path.display()))),
            None if ours && for_group => Ok(Rights { group: Some(group) }),
            None if ours => {
                if mode != 0o700 {
                    rustix::fs::fchmod(dir, Mode::from_raw_mode(0o700)).map_err(io::Error::from)?;
                }
                Ok(self)
            }
            _ => Err(belongs_to_others(path, owner, mode)),
        }
    }

    /// The directory `name` in `parent`, made with these rights if it is missing, and whether it was made. It never
    /// appears with other rights.
    ///
    /// # Errors
    /// What the filesystem says.
    pub(crate) fn make_dir(self, parent: BorrowedFd<'_>, name: &str) -> io::Result<(File, bool)> {
        match open_dir(parent, name) {
            Ok(dir) => return Ok((dir, false)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
        if self.group.is_none() {
            return match rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(self.dir_mode())) {
                Ok(()) => Ok((open_dir(parent, name)?, true)),
                Err(Errno::EXIST) => Ok((open_dir(parent, name)?, false)),
                Err(e) => Err(e.into()),
            };
        }
        // Under another name first: with the umask in force, the other members could not use it yet.
        let temporary = super::publish::temporary_name();
        rustix::fs::mkdirat(parent, &temporary, Mode::from_raw_mode(0o700))?;
        let made = open_dir(parent, &temporary).and_then(|dir| self.apply_to_dir(&dir).map(|()| dir));
        let moved = made.and_then(|dir| {
            rustix::fs::renameat_with(parent, &temporary, parent, name, RenameFlags::NOREPLACE)?;
            Ok(dir)
        });
        match moved {
            Ok(dir) => Ok((dir, true)),
            Err(e) => {
                let _ = rustix::fs::unlinkat(parent, &temporary, AtFlags::REMOVEDIR);
                match Errno::from_io_error(&e) {
                    Some(Errno::EXIST | Errno::NOTEMPTY) => Ok((open_dir(parent, name)?, false)),
                    // The filesystem cannot rename like this: one at a time, and members may have to try again.
                    Some(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                        rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(self.dir_mode()))?;
                        let dir = open_dir(parent, name)?;
                        self.apply_to_dir(&dir)?;
                        Ok((dir, true))
                    }
                    _ => Err(e),
                }
            }
        }
    }
}

/// Opens the directory `name` in `parent`; a symbolic link is not followed.
pub(crate) fn open_dir(parent: BorrowedFd<'_>, name: &str) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    Ok(File::from(rustix::fs::openat(parent.as_fd(), name, flags, Mode::empty())?))
}

fn is_member(group: u32) -> bool {
    rustix::process::geteuid().is_root()
        || rustix::process::getegid().as_raw() == group
        || rustix::process::getgroups().is_ok_and(|groups| groups.iter().any(|g| g.as_raw() == group))
}

fn belongs_to_others(path: &Path, owner: u32, mode: u32) -> Error {
    Error::new(
        ErrorKind::PermissionDenied,
        format!("the cache directory {} belongs to user {owner} (mode {mode:o})", path.display()),
    )
    .with_context("hint", "name a --cache-dir of your own, or share one with --cache-group".to_owned())
}

fn others_may_write(path: &Path, mode: u32) -> Error {
    Error::new(
        ErrorKind::InvalidInput,
        format!("anybody may write to the cache directory {} (mode {mode:o})", path.display()),
    )
    .with_context("hint", format!("name a directory of your own below it, or `chmod o-w {}`", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A directory with the given mode, owner and group; the tests run as root.
    fn dir_with(mode: u32, owner: u32, group: u32) -> (tempfile::TempDir, File) {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(dir.path(), Some(owner), Some(group)).unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        let file = File::open(dir.path()).unwrap();
        (dir, file)
    }

    fn kind<T: std::fmt::Debug>(result: Result<T>) -> Option<ErrorKind> {
        result.err().map(|e| e.kind())
    }

    #[test]
    fn a_directory_that_others_may_change_is_refused() {
        use ErrorKind::{InvalidInput, PermissionDenied};
        let (alone, shared) = (Rights { group: None }, Rights { group: Some(77) });
        for (mode, owner, group, for_me, for_group) in [
            (0o700, 0, 0, None, None),
            (0o755, 0, 0, None, None),
            (0o2770, 0, 77, None, None),
            (0o770, 0, 77, Some(InvalidInput), None),
            (0o770, 0, 78, Some(InvalidInput), Some(InvalidInput)),
            (0o777, 0, 0, Some(InvalidInput), Some(InvalidInput)),
            (0o1777, 0, 0, Some(InvalidInput), Some(InvalidInput)),
            (0o700, 1000, 1000, Some(PermissionDenied), Some(PermissionDenied)),
            (0o2770, 1000, 77, Some(PermissionDenied), None),
        ] {
            let (dir, file) = dir_with(mode, owner, group);
            assert_eq!(kind(alone.check(&file, dir.path())), for_me, "{mode:o} {owner} {group}");
            assert_eq!(kind(shared.check(&file, dir.path())), for_group, "{mode:o} {owner} {group} shared");
        }
    }

    #[test]
    fn a_directory_made_for_a_group_stays_one() {
        let (alone, shared) = (Rights { group: None }, Rights { group: Some(77) });
        let (dir, file) = dir_with(0o2770, 0, 77);
        assert_eq!(shared.settle(&file, dir.path()).unwrap(), shared);
        assert_eq!(alone.settle(&file, dir.path()).unwrap(), shared, "its owner need not name the group");
        let (dir, file) = dir_with(0o2770, 1000, 77);
        assert_eq!(shared.settle(&file, dir.path()).unwrap(), shared);
        assert_eq!(kind(alone.settle(&file, dir.path())), Some(ErrorKind::PermissionDenied));
        let (dir, file) = dir_with(0o755, 0, 0);
        assert_eq!(kind(shared.settle(&file, dir.path())), Some(ErrorKind::InvalidInput));
        assert_eq!(alone.settle(&file, dir.path()).unwrap(), alone);
        assert_eq!(file.metadata().unwrap().mode() & 0o7777, 0o700, "closed to others");
    }

    #[test]
    fn directories_appear_with_their_rights() {
        let (dir, file) = dir_with(0o700, 0, 0);
        for (rights, group, mode) in
            [(Rights { group: None }, 0, 0o700), (Rights { group: Some(77) }, 77, 0o2770)]
        {
            let name = format!("{mode:o}");
            let (made, new) = rights.make_dir(file.as_fd(), &name).unwrap();
            let metadata = made.metadata().unwrap();
            assert!(new);
            assert_eq!((metadata.mode() & 0o7777, metadata.gid()), (mode, group));
            assert!(!rights.make_dir(file.as_fd(), &name).unwrap().1);
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "no temporary name stays");
    }

    #[test]
    fn the_superuser_is_in_every_group() {
        assert_eq!(Rights::new(Some(77)).unwrap().file_mode(), 0o660);
        assert_eq!(Rights::new(None).unwrap().file_mode(), 0o600);
    }
}
