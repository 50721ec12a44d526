//! Renames, copies, deletions and directories.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{AtFlags, Mode};
use rustix::io::Errno;

use super::temp::{self, Temp};
use super::{Inner, attr, file, is_hidden, writer};
use crate::error::{Error, ErrorKind, Result};
use crate::io::Beat;
use crate::options::Condition;
use crate::path::FsPath;

/// Bytes copied by one system call: between two, a copy shows that it is alive.
const COPY_STEP: usize = 8 << 20;

/// Renames a file or directory; the target may be a file only.
pub(super) fn rename(fs: &Inner, from: &FsPath, to: &FsPath, no_replace: bool) -> Result<()> {
    if from.is_root() {
        return Err(Error::new(ErrorKind::InvalidInput, "the root cannot be renamed"));
    }
    if is_hidden(from) {
        return Err(Error::not_found(from));
    }
    writer::check_name(to)?;
    let source = rustix::fs::statat(&fs.root, from.as_bytes(), AtFlags::SYMLINK_NOFOLLOW)
        .map_err(|e| attr::lookup_error(e, from))?;
    if from == to {
        return if no_replace { Err(exists()) } else { Ok(()) };
    }
    if to.strip_prefix(from).is_some() && rustix::fs::FileType::from_raw_mode(source.st_mode).is_dir() {
        return Err(Error::new(ErrorKind::InvalidInput, "a directory cannot move below itself"));
    }
    let to_dir = attr::make_parent(&fs.root, to)?;
    match rustix::fs::statat(&to_dir, to.name(), AtFlags::SYMLINK_NOFOLLOW) {
        Ok(_) if no_replace => return Err(exists()),
        // The kernel would let a directory take the place of an empty one.
        Ok(stat) if rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir() => {
            return Err(Error::new(ErrorKind::IsADirectory, "a directory has the new name"));
        }
        _ => {}
    }
    temp::rename(fs.root.as_fd(), from.as_bytes(), to_dir.as_fd(), to.name(), no_replace)
}

/// Copies a file, sharing its blocks where the filesystem can.
pub(super) fn copy(fs: Arc<Inner>, from: &FsPath, to: &FsPath, no_replace: bool, beat: &Beat) -> Result<()> {
    if is_hidden(from) {
        return Err(Error::not_found(from));
    }
    let (source, metadata) = file::open_regular(&fs, from)?;
    writer::check_name(to)?;
    let mode = metadata.mode.unwrap_or(0o666) & 0o777;
    let mut temp = Temp::new(attr::make_parent(&fs.root, to)?, mode)?;
    if rustix::fs::ioctl_ficlone(temp.file(), &source).is_err() {
        copy_bytes(&source, &mut temp, metadata.size, beat)?;
    }
    if attr::version_of(&source)? != metadata.version {
        return Err(Error::new(ErrorKind::Stale, "the file was changed while it was copied"));
    }
    let condition = if no_replace { Condition::Absent } else { Condition::None };
    writer::publish(temp, to, &condition, beat).map(|_| ())
}

fn copy_bytes(source: &OwnedFd, temp: &mut Temp, size: u64, beat: &Beat) -> Result<()> {
    let mut done = 0;
    while done < size {
        let step = COPY_STEP.min((size - done).try_into().unwrap_or(COPY_STEP));
        let (mut from, mut to) = (done, done);
        match rustix::fs::copy_file_range(source, Some(&mut from), temp.file(), Some(&mut to), step) {
            // Some filesystems end early without a word; plain reads tell why.
            Ok(0) => return copy_plainly(source, temp, done, size, beat),
            Ok(n) => {
                done += n as u64;
                temp.wrote(n as u64)?;
            }
            Err(Errno::INTR) => {}
            Err(Errno::XDEV | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::PERM) => {
                return copy_plainly(source, temp, done, size, beat);
            }
            Err(e) => return Err(attr::error(e)),
        }
        beat.touch();
        stop_if_unwanted(beat)?;
    }
    Ok(())
}

fn copy_plainly(source: &OwnedFd, temp: &mut Temp, mut done: u64, size: u64, beat: &Beat) -> Result<()> {
    let mut space = vec![0; 1 << 20];
    while done < size {
        match rustix::io::pread(source, &mut space[..], done) {
            Ok(0) => return Err(Error::new(ErrorKind::Stale, "the file became shorter while it was copied")),
            Ok(n) => {
                temp.append(&space[..n], || beat.touch())?;
                done += n as u64;
            }
            Err(Errno::INTR) => {}
            Err(e) => return Err(attr::error(e)),
        }
        stop_if_unwanted(beat)?;
    }
    Ok(())
}

fn stop_if_unwanted(beat: &Beat) -> Result<()> {
    if beat.is_wanted() { Ok(()) } else { Err(Error::new(ErrorKind::Interrupted, "the copy was cancelled")) }
}

/// Deletes a file, or a link wherever it leads; a missing one is fine.
pub(super) fn delete(fs: &Inner, path: &FsPath) -> Result<()> {
    if path.is_root() {
        return Err(Error::new(ErrorKind::IsADirectory, "the root is a directory"));
    }
    if is_hidden(path) {
        return Ok(());
    }
    match rustix::fs::unlinkat(&fs.root, path.as_bytes(), AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT | Errno::NOTDIR) => Ok(()),
        // POSIX lets a filesystem say EPERM for a directory.
        Err(Errno::PERM) if attr::stat(&fs.root, path).is_ok_and(|m| m.is_dir()) => {
            Err(attr::error(Errno::ISDIR))
        }
        Err(e) => Err(attr::error(e)),
    }
}

pub(super) fn create_dir(fs: &Inner, path: &FsPath) -> Result<()> {
    if path.is_root() {
        return Err(exists());
    }
    writer::check_name(path)?;
    let parent = attr::make_parent(&fs.root, path)?;
    rustix::fs::mkdirat(&parent, path.name(), Mode::from_raw_mode(0o777)).map_err(attr::error)
}

pub(super) fn remove_dir(fs: &Inner, path: &FsPath) -> Result<()> {
    if path.is_root() {
        return Err(Error::new(ErrorKind::InvalidInput, "the root always exists"));
    }
    if is_hidden(path) {
        return Err(Error::not_found(path));
    }
    let remove = || rustix::fs::unlinkat(&fs.root, path.as_bytes(), AtFlags::REMOVEDIR);
    let done = match remove() {
        // What a crashed writer left is hidden, so nobody else can remove it.
        Err(Errno::NOTEMPTY | Errno::EXIST) => match attr::open_dir(&fs.root, path) {
            Ok(dir) if temp::clean(dir.as_fd()) => remove(),
            _ => Err(Errno::NOTEMPTY),
        },
        done => done,
    };
    done.map_err(|e| match e {
        // A file above it means that it does not exist; a file in its place, that it is none.
        Errno::NOTDIR if attr::stat(&fs.root, path).is_ok() => {
            Error::new(ErrorKind::NotADirectory, "this is not a directory")
        }
        e => attr::lookup_error(e, path),
    })
}

fn exists() -> Error {
    Error::new(ErrorKind::AlreadyExists, "the name is taken")
}
