//! What the kernel says of a name, as [`Metadata`].

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::error::{Error, ErrorKind, Result};
use crate::metadata::{Metadata, Version};
use crate::path::FsPath;

/// How directories are opened.
pub(super) const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);

/// What a name is, special kinds included.
pub(super) enum Found {
    /// A file or directory.
    Known(Metadata),
    /// A FIFO, socket or device.
    Special(&'static str),
}

/// The error of a failed call.
pub(super) fn error(errno: Errno) -> Error {
    Error::from(std::io::Error::from(errno))
}

/// The error of a failed look-up: a path below a file does not exist.
pub(super) fn lookup_error(errno: Errno, path: &FsPath) -> Error {
    if matches!(errno, Errno::NOENT | Errno::NOTDIR) { Error::not_found(path) } else { error(errno) }
}

/// The name under which the kernel finds `path` from the root's descriptor.
pub(super) fn name(path: &FsPath) -> &[u8] {
    if path.is_root() { b"." } else { path.as_bytes() }
}

/// Metadata of `path`, links followed.
pub(super) fn stat(root: &OwnedFd, path: &FsPath) -> Result<Metadata> {
    let stat = rustix::fs::statat(root, name(path), AtFlags::empty()).map_err(|e| lookup_error(e, path))?;
    match classify(&stat) {
        Found::Known(metadata) => Ok(metadata),
        Found::Special(kind) => Err(special(kind)),
    }
}

/// The refusal of a special kind.
pub(super) fn special(kind: &str) -> Error {
    Error::unsupported(format!("this is a {kind}; only regular files and directories are shown"))
}

pub(super) fn classify(stat: &Stat) -> Found {
    let kind = FileType::from_raw_mode(stat.st_mode);
    let modified = system_time(mtime_ns(stat));
    let mode = Some(stat.st_mode & 0o7777);
    match kind {
        FileType::RegularFile => {
            let file = Metadata::file(stat.st_size as u64, version(stat));
            Found::Known(Metadata { modified, mode, ..file })
        }
        FileType::Directory => Found::Known(Metadata { modified, mode, ..Metadata::dir() }),
        FileType::Fifo => Found::Special("FIFO"),
        FileType::Socket => Found::Special("socket"),
        FileType::CharacterDevice => Found::Special("character device"),
        FileType::BlockDevice => Found::Special("block device"),
        FileType::Symlink | FileType::Unknown => Found::Special("file of unknown kind"),
    }
}

/// The version of a regular file.
pub(super) fn version(stat: &Stat) -> Version {
    Version::Local { ino: stat.st_ino, size: stat.st_size as u64, mtime_ns: mtime_ns(stat) }
}

fn mtime_ns(stat: &Stat) -> i128 {
    i128::from(stat.st_mtime) * 1_000_000_000 + i128::from(stat.st_mtime_nsec)
}

fn system_time(ns: i128) -> Option<SystemTime> {
    let far = Duration::from_nanos_u128(ns.unsigned_abs());
    if ns < 0 { UNIX_EPOCH.checked_sub(far) } else { UNIX_EPOCH.checked_add(far) }
}

/// Opens the directory `path`.
///
/// # Errors
/// `NotADirectory` if it is something else, `NotFound` if a name above it is.
pub(super) fn open_dir(root: &OwnedFd, path: &FsPath) -> Result<OwnedFd> {
    rustix::fs::openat(root, name(path), DIRECTORY, Mode::empty()).map_err(|e| match e {
        Errno::NOTDIR if rustix::fs::statat(root, name(path), AtFlags::empty()).is_ok() => {
            Error::new(ErrorKind::NotADirectory, "not a directory")
        }
        e => lookup_error(e, path),
    })
}

/// Opens the directory that `path` is in, and makes it if need be.
///
/// # Errors
/// `NotADirectory` if a file stands in the way.
pub(super) fn make_parent(root: &OwnedFd, path: &FsPath) -> Result<OwnedFd> {
    let parent =
        path.parent().ok_or_else(|| Error::new(ErrorKind::IsADirectory, "the root is a directory"))?;
    // Twice: somebody may remove an empty parent in between.
    for _ in 0..2 {
        match open_dir(root, &parent) {
            Err(e) if e.kind() == ErrorKind::NotFound => make_dirs(root, &parent)?,
            other => return other,
        }
    }
    open_dir(root, &parent)
}

fn make_dirs(root: &OwnedFd, dir: &FsPath) -> Result<()> {
    match rustix::fs::mkdirat(root, name(dir), Mode::from_raw_mode(0o777)) {
        Err(Errno::NOENT) => {
            if let Some(parent) = dir.parent().filter(|p| !p.is_root()) {
                make_dirs(root, &parent)?;
            }
            match rustix::fs::mkdirat(root, name(dir), Mode::from_raw_mode(0o777)) {
                Ok(()) | Err(Errno::EXIST) => Ok(()),
                Err(e) => Err(error(e)),
            }
        }
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(e) => Err(error(e)),
    }
}

/// The version of the regular file that `fd` is.
pub(super) fn version_of(fd: impl AsFd) -> Result<Version> {
    rustix::fs::fstat(fd).map(|s| version(&s)).map_err(error)
}
