//! GETATTR and access: what `stat` shows of an inode. Always answered from the inode table: an inode is one version,
//! and of a version nothing changes, also when the store has a newer one or none any more.

use std::time::{Duration, Instant, SystemTime};

use nearfs_backends::{Error, ErrorKind, Metadata, Result};

use crate::inode::{Inode, Node};
use crate::options::MountOptions;
use crate::vfs::{Vfs, forever, remaining};

/// What `stat` shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attr {
    pub(crate) ino: u64,
    pub(crate) is_dir: bool,
    pub(crate) size: u64,
    pub(crate) modified: SystemTime,
    /// Permission bits.
    pub(crate) mode: u16,
    pub(crate) nlink: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl Attr {
    /// Allocated 512-byte units.
    pub(crate) fn blocks(&self) -> u64 {
        self.size.div_ceil(512)
    }
}

/// How what the stores do not know is filled in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Style {
    uid: u32,
    gid: u32,
    umask: u32,
    file_mode: u32,
    dir_mode: u32,
    /// Time of what has none: that of the mount.
    time: SystemTime,
}

impl Style {
    pub(crate) fn new(options: &MountOptions, time: SystemTime) -> Self {
        Style {
            uid: options.uid.unwrap_or_else(|| rustix::process::geteuid().as_raw()),
            gid: options.gid.unwrap_or_else(|| rustix::process::getegid().as_raw()),
            umask: options.umask,
            file_mode: options.file_mode,
            dir_mode: options.dir_mode,
            time,
        }
    }

    /// Attributes of what a store describes as `metadata`.
    pub(crate) fn attr(&self, ino: u64, metadata: &Metadata) -> Attr {
        let default = if metadata.is_dir() { self.dir_mode } else { self.file_mode };
        // Set-id bits would mean other people than the store meant.
        let mode = metadata.mode.unwrap_or(default) & 0o777 & !self.umask;
        // Opening what must be restored first fails at once, not at some later read (but for root, whom no bits stop).
        let mode = if metadata.archived { 0 } else { mode };
        Attr {
            ino,
            is_dir: metadata.is_dir(),
            size: metadata.size,
            modified: metadata.modified.unwrap_or(self.time),
            mode: mode as u16,
            // Nothing has a second name. For a directory 1 says "not counted", so that nobody skips subdirectories
            // by arithmetic.
            nlink: 1,
            uid: self.uid,
            gid: self.gid,
        }
    }

    /// Attributes of what only the mount has. `size` is `None` for a directory.
    pub(crate) fn own(&self, ino: u64, size: Option<u64>) -> Attr {
        let metadata = match size {
            None => Metadata::dir(),
            Some(size) => Metadata::file(size, nearfs_backends::Version::Unknown),
        };
        self.attr(ino, &metadata)
    }
}

impl Vfs {
    /// Attributes of an inode, and how long they may be believed.
    ///
    /// # Errors
    /// `Stale` if the inode is not known.
    pub(crate) fn getattr(&self, ino: u64) -> Result<(Attr, Duration)> {
        let inode = self.table.get(ino)?;
        Ok(self.attr_of(&inode))
    }

    /// Attributes of `inode`, and how long they may be believed.
    pub(crate) fn attr_of(&self, inode: &Inode) -> (Attr, Duration) {
        let now = Instant::now();
        match &inode.node {
            Node::Top | Node::ControlDir => (self.style.own(inode.ino, None), remaining(forever(), now)),
            // The text never changes; its name is not believed for any time, so a new text is a new inode.
            Node::Control(text) => {
                (self.style.own(inode.ino, Some(text.len() as u64)), remaining(forever(), now))
            }
            Node::Dir(_) | Node::File(_) => match inode.attrs() {
                Some(a) => (self.style.attr(inode.ino, &a.metadata), remaining(a.expires, now)),
                None => (self.style.own(inode.ino, None), Duration::ZERO),
            },
        }
    }

    /// Whether `ino` may be accessed; the kernel checks the permission bits by itself.
    ///
    /// # Errors
    /// `Stale` if the inode is not known; `ReadOnly` for writing.
    pub(crate) fn access(&self, ino: u64, write: bool) -> Result<()> {
        self.table.get(ino)?;
        match write {
            true => Err(Error::new(ErrorKind::ReadOnly, "the mount is read-only")),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use nearfs_backends::Version;

    use super::*;

    fn style(options: MountOptions) -> Style {
        Style::new(&options, SystemTime::UNIX_EPOCH)
    }

    #[test]
    fn modes_come_from_the_store_or_else_from_the_options() {
        let file = Metadata::file(1000, Version::Generation(1));
        let plain = style(MountOptions::default());
        assert_eq!(plain.attr(5, &file).mode, 0o444);
        assert_eq!(plain.attr(5, &Metadata::dir()).mode, 0o555);
        assert_eq!(plain.attr(5, &file).blocks(), 2);
        let own = Metadata { mode: Some(0o6755), ..file };
        assert_eq!(plain.attr(5, &own).mode, 0o755, "set-id bits are not shown");
        assert_eq!(style(MountOptions { umask: 0o077, ..Default::default() }).attr(5, &own).mode, 0o700);
    }

    #[test]
    fn what_is_archived_cannot_be_opened() {
        let file = Metadata { archived: true, ..Metadata::file(1, Version::Generation(1)) };
        assert_eq!(style(MountOptions::default()).attr(5, &file).mode, 0);
    }

    #[test]
    fn what_has_no_time_has_that_of_the_mount() {
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(5);
        let with = Metadata { modified: Some(time), ..Metadata::dir() };
        let plain = style(MountOptions::default());
        assert_eq!(plain.attr(1, &with).modified, time);
        assert_eq!(plain.attr(1, &Metadata::dir()).modified, SystemTime::UNIX_EPOCH);
    }
}
