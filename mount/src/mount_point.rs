//! The directory a mount is made on: what is there now, taking over what is dead, refusing what lives, unmounting.

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use nearfs_backends::{Error, ErrorKind, Result};
use rustix::io::Errno;

use crate::attach::{Detach, abort_connection, detach};
use crate::mount_table::{self, MountEntry};
use crate::probe::{Liveness, probe};

/// How long a mount that is in the way is given to answer.
const PROBE_LIMIT: Duration = Duration::from_secs(5);
/// Pause between two attempts to unmount what is busy.
const RETRY: Duration = Duration::from_millis(50);
/// Dead mounts taken away from one directory at most; symbolic links followed at most.
const MOST: usize = 40;

/// How to unmount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UnmountOptions {
    /// End the connection at once: every waiting call fails, and so does every later one. Nobody stays stuck.
    /// Default: `false`.
    pub force: bool,
    /// Take the mount out of sight at once, and away when the last one that uses it is done. Default: `false`.
    pub lazy: bool,
    /// How long to wait for those who use it to be done. Default: not at all.
    pub drain: Duration,
}

/// How it was unmounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmounted {
    /// Nobody used it.
    Clean,
    /// Out of sight; those who use it go on until they are done.
    Lazily,
    /// Those who used it got errors.
    Forced,
}

/// Unmounts the nearfs mount at `dir`, also one of another process, also one that hangs or is dead.
///
/// # Errors
/// `InvalidInput` if no nearfs mount is there, `TimedOut` if it is still in use after `drain`, `PermissionDenied`.
pub fn unmount(dir: &Path, options: UnmountOptions) -> Result<Unmounted> {
    let dir = resolve(dir)?;
    let Some(mount) = mount_table::at(&dir)? else {
        return Err(refused(&dir, "nothing is mounted here"));
    };
    if mount.fs_type != mount_table::FS_TYPE {
        return Err(refused(&dir, &format!("what is mounted here is `{}`, not nearfs", mount.fs_type))
            .with_context("hint", "use umount"));
    }
    if options.force {
        abort(&dir, mount.connection());
        let detached = detach(&dir, Detach::Lazy);
        // A daemon that sees its connection end may take its mount away by itself, and be faster.
        let gone = mount_table::at(&dir)?.is_none_or(|m| m.device != mount.device);
        return match detached {
            Err(e) if !gone => Err(not_unmounted(&dir, e)),
            _ => Ok(Unmounted::Forced),
        };
    }
    if options.lazy {
        detach(&dir, Detach::Lazy).map_err(|e| not_unmounted(&dir, e))?;
        return Ok(Unmounted::Lazily);
    }
    match detach_idle(&dir, options.drain)? {
        true => Ok(Unmounted::Clean),
        false => Err(Error::new(ErrorKind::TimedOut, "the mount is in use")
            .during("unmount")
            .with_context("directory", dir.display())
            .with_context(
                "hint",
                "see who uses it with `fuser -vm`, or unmount with -l (when they are done) or -f",
            )),
    }
}

/// Unmounts once nobody uses it, waiting for at most `drain`; false if somebody still does.
pub(crate) fn detach_idle(dir: &Path, drain: Duration) -> Result<bool> {
    let end = Instant::now() + drain;
    loop {
        match detach(dir, Detach::Idle) {
            Ok(()) => return Ok(true),
            Err(Errno::BUSY) if Instant::now() < end => std::thread::sleep(RETRY),
            Err(Errno::BUSY) => return Ok(false),
            Err(e) => return Err(not_unmounted(dir, e)),
        }
    }
}

/// Ends the connection behind `dir`, by either of the two ways that this user may have.
pub(crate) fn abort(dir: &Path, connection: u64) {
    let by_file = abort_connection(connection);
    // EBUSY means that the mount stays, which is not what was asked for: the connection has ended all the same.
    let by_mount = detach(dir, Detach::Abort);
    if let (Err(file), Err(mount)) = (by_file, by_mount)
        && mount != Errno::BUSY
    {
        tracing::warn!(%file, %mount, "the connection could not be ended; callers wait for their deadline");
    }
}

pub(crate) fn not_unmounted(dir: &Path, e: Errno) -> Error {
    Error::from(std::io::Error::from(e)).during("unmount").with_context("directory", dir.display())
}

fn refused(dir: &Path, text: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, text).with_context("directory", dir.display())
}

/// The absolute name of `dir` without symbolic links, found without looking into what is mounted there: that may be
/// dead, or hang.
///
/// # Errors
/// Those of looking at the directories above it; `NotFound`.
pub(crate) fn resolve(dir: &Path) -> Result<PathBuf> {
    let named = |e: std::io::Error| Error::from(e).with_context("directory", dir.display());
    let mut path = std::path::absolute(dir).map_err(named)?;
    for _ in 0..MOST {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return path.canonicalize().map_err(named);
        };
        let parent = parent.canonicalize().map_err(named)?;
        path = parent.join(name);
        if mount_table::at(&path)?.is_some() {
            return Ok(path);
        }
        match path.symlink_metadata().map_err(named)?.is_symlink() {
            true => path = parent.join(path.read_link().map_err(named)?),
            false => return Ok(path),
        }
    }
    Err(refused(dir, "too many symbolic links"))
}

/// Makes `dir` ready to be mounted on: dead FUSE mounts are taken away from it, a live one is refused.
///
/// # Errors
/// `AlreadyExists` if a live mount is there (with its source, and process if that is known), `TimedOut` if one is
/// there that does not answer, `NotADirectory`, others as the system answers.
pub(crate) fn prepare(dir: &Path) -> Result<()> {
    for _ in 0..MOST {
        let Some(mount) = mount_table::at(dir)?.filter(MountEntry::is_fuse) else { break };
        match probe(dir, PROBE_LIMIT)? {
            Liveness::Dead => {
                tracing::info!(dir = %dir.display(), source = mount.source, "taking over from a dead mount");
                detach(dir, Detach::Lazy).map_err(|e| not_unmounted(dir, e))?;
            }
            Liveness::Silent => {
                return Err(in_the_way(dir, &mount, ErrorKind::TimedOut, "which does not answer")
                    .with_context("hint", "end it with `nearfs unmount -f`"));
            }
            Liveness::Alive | Liveness::Failed(_) => {
                let holder = holder(dir).map_or(String::new(), |pid| format!("held by process {pid}"));
                return Err(in_the_way(dir, &mount, ErrorKind::AlreadyExists, &holder)
                    .with_context("hint", "unmount it first, or choose another directory"));
            }
        }
    }
    let metadata =
        std::fs::metadata(dir).map_err(|e| Error::from(e).with_context("directory", dir.display()))?;
    match metadata.is_dir() {
        true => Ok(()),
        false => Err(Error::new(ErrorKind::NotADirectory, "the mount point is not a directory")
            .with_context("directory", dir.display())),
    }
}

fn in_the_way(dir: &Path, mount: &MountEntry, kind: ErrorKind, detail: &str) -> Error {
    let text = format!("`{}` is mounted here already, {detail}", mount.source);
    let text = text.trim_end_matches(", ").to_owned();
    Error::new(kind, text).during("mount").with_context("directory", dir.display())
}

/// The process behind a live nearfs mount, as the mount itself tells.
fn holder(dir: &Path) -> Option<u64> {
    let stats = dir.join(crate::control::DIR_NAME).join(crate::control::ControlFile::Stats.name());
    let (send, receive) = mpsc::channel();
    // In a thread of its own: it has just answered, but may stop to.
    std::thread::Builder::new()
        .name("nearfs-holder".into())
        .spawn(move || send.send(std::fs::read(stats)))
        .ok()?;
    let text = receive.recv_timeout(Duration::from_secs(2)).ok()?.ok()?;
    serde_json::from_slice::<serde_json::Value>(&text).ok()?.get("pid")?.as_u64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_resolved_without_looking_into_the_last_component() {
        let root = tempfile::tempdir().unwrap();
        let base = root.path().canonicalize().unwrap();
        std::fs::create_dir_all(base.join("a/b")).unwrap();
        std::os::unix::fs::symlink("a", base.join("link")).unwrap();
        std::os::unix::fs::symlink(base.join("link/b"), base.join("far")).unwrap();
        assert_eq!(resolve(&base.join("link/b")).unwrap(), base.join("a/b"));
        assert_eq!(resolve(&base.join("far")).unwrap(), base.join("a/b"));
        assert_eq!(resolve(&base.join("a/../a/b")).unwrap(), base.join("a/b"));
        assert_eq!(resolve(Path::new("/")).unwrap(), Path::new("/"));
        assert_eq!(resolve(&base.join("missing")).unwrap_err().kind(), ErrorKind::NotFound);
        std::os::unix::fs::symlink("loop", base.join("loop")).unwrap();
        assert!(resolve(&base.join("loop")).is_err());
    }

    #[test]
    fn what_is_not_ours_is_not_unmounted() {
        let dir = tempfile::tempdir().unwrap();
        let error = unmount(dir.path(), UnmountOptions::default()).unwrap_err();
        assert!(error.message().contains("nothing is mounted"), "{error}");
        let error = unmount(Path::new("/proc"), UnmountOptions::default()).unwrap_err();
        assert!(error.message().contains("`proc`, not nearfs"), "{error}");
    }

    #[test]
    fn only_a_directory_can_be_mounted_on() {
        let dir = tempfile::tempdir().unwrap();
        assert!(prepare(dir.path()).is_ok());
        let file = dir.path().join("f");
        std::fs::write(&file, "x").unwrap();
        assert_eq!(prepare(&file).unwrap_err().kind(), ErrorKind::NotADirectory);
    }
}
