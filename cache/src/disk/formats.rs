//! Directories of older format versions, which nobody reads any more.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, Mode, OFlags};

use super::FORMAT;
use super::process::held;
use super::rights::open_dir;

/// Removes the directories of older format versions in `parent`, which is at `path`, that no process uses. What
/// cannot be removed stays; newer ones are left alone. Takes as long as there are files: not for a start.
pub(crate) fn remove_older(parent: &File, path: &Path) {
    let entries = match Dir::read_from(parent) {
        Ok(entries) => entries,
        Err(e) => return tracing::debug!(error = %e, "cannot look for older caches"),
    };
    for entry in entries.flatten() {
        let Some(name) = older(entry.file_name()) else { continue };
        match is_used(parent, &name) {
            Ok(true) => continue,
            Ok(false) => {}
            Err(e) => {
                tracing::debug!(error = %e, name, "an older cache stays");
                continue;
            }
        }
        match std::fs::remove_dir_all(path.join(&name)) {
            Ok(()) => {
                tracing::info!(directory = %path.join(&name).display(), "removed a cache of an older format")
            }
            Err(e) => tracing::debug!(error = %e, name, "an older cache stays"),
        }
    }
}

/// The name, if it is one of an older format.
fn older(name: &CStr) -> Option<String> {
    let name = name.to_str().ok()?;
    let version: u64 = name.strip_prefix("nearfs-v")?.parse().ok()?;
    (version < FORMAT).then(|| name.to_owned())
}

/// Whether a process holds any lock on its control file. All format versions use POSIX locks on a file of that name.
fn is_used(parent: &File, name: &str) -> io::Result<bool> {
    let dir = open_dir(parent.as_fd(), name)?;
    match rustix::fs::statat(&dir, "control", AtFlags::SYMLINK_NOFOLLOW) {
        Err(rustix::io::Errno::NOENT) => return Ok(false),
        Err(e) => return Err(e.into()),
        Ok(_) => {}
    }
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let control = File::from(rustix::fs::openat(&dir, "control", flags, Mode::empty())?);
    held(control.as_fd(), 0, 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::children::{self, Child};
    use crate::disk::process::try_lock;

    #[test]
    fn older_caches_go_when_nobody_uses_them() {
        if let Some((_, args)) = children::role() {
            let file = File::options().read(true).write(true).open(&args[0]).unwrap();
            assert!(try_lock(file.as_fd(), 17).unwrap());
            children::say("locked");
            children::wait();
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let parent = File::open(dir.path()).unwrap();
        let path = |name: &str| dir.path().join(name);
        for name in ["nearfs-v0/objects/00", "nearfs-v1", "nearfs-v99", "nearfs-vx", "other"] {
            std::fs::create_dir_all(path(name)).unwrap();
        }
        std::fs::write(path("nearfs-v0/control"), "old").unwrap();
        std::fs::write(path("nearfs-v0/objects/00/file"), "bytes").unwrap();
        let name = "older_caches_go_when_nobody_uses_them";
        let mut child = Child::start(module_path!(), name, "user", &[&path("nearfs-v0/control")]);
        assert_eq!(child.hear(), "locked");
        remove_older(&parent, dir.path());
        assert!(path("nearfs-v0/objects/00/file").exists(), "somebody uses it");
        child.go();
        child.end();
        remove_older(&parent, dir.path());
        assert!(!path("nearfs-v0").exists());
        for name in ["nearfs-v1", "nearfs-v99", "nearfs-vx", "other"] {
            assert!(path(name).exists(), "{name}");
        }
    }
}
