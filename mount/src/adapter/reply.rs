//! Replies: how answers are put into the protocol's words, and who sends them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use fuser::{
    Errno, FileAttr, FileHandle, FileType, FopenFlags, INodeNo, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyOpen, ReplyWrite,
    ReplyXattr,
};
use parking_lot::Mutex;

use crate::interrupt::Pending;
use crate::ops::attr::Attr;
use crate::ops::dir::{EntrySink, NameSink, OpenedDir};
use crate::ops::lookup::Entry;
use crate::vfs::Vfs;

/// A reply that somebody sends: the task that does the work or the scanner, whoever takes it first.
pub(super) struct Slot<R>(Mutex<Option<R>>);

impl<R> Slot<R> {
    pub(super) fn new(reply: R) -> Self {
        Slot(Mutex::new(Some(reply)))
    }

    pub(super) fn take(&self) -> Option<R> {
        self.0.lock().take()
    }
}

impl<R: Fail + Send> Pending for Slot<R> {
    fn fail(&self, errno: i32) -> bool {
        self.take().map(|reply| reply.fail(errno)).is_some()
    }
}

/// A reply that can be an error.
pub(super) trait Fail {
    fn fail(self, errno: i32);
}

macro_rules! fail {
    ($($reply:ty),*) => {
        $(impl Fail for $reply {
            fn fail(self, errno: i32) {
                self.error(Errno::from_i32(errno));
            }
        })*
    };
}

fail!(
    ReplyAttr,
    ReplyCreate,
    ReplyData,
    ReplyDirectory,
    ReplyDirectoryPlus,
    ReplyEmpty,
    ReplyEntry,
    ReplyIoctl,
    ReplyOpen,
    ReplyWrite,
    ReplyXattr
);

pub(super) fn file_attr(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(attr.ino),
        size: attr.size,
        blocks: attr.blocks(),
        atime: attr.modified,
        mtime: attr.modified,
        ctime: attr.modified,
        crtime: attr.modified,
        kind: if attr.is_dir { FileType::Directory } else { FileType::RegularFile },
        perm: attr.mode,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

/// An entry with inode 0: "there is no such name", to be believed for a while.
fn absent() -> FileAttr {
    let attr = Attr {
        ino: 0,
        is_dir: false,
        size: 0,
        modified: SystemTime::UNIX_EPOCH,
        mode: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
    };
    file_attr(&attr)
}

pub(super) fn send_entry(reply: ReplyEntry, entry: &Entry) {
    match entry {
        Entry::Inode(attr, attr_ttl, entry_ttl) => {
            reply.entry_with_ttls(attr_ttl, entry_ttl, &file_attr(attr), super::GENERATION);
        }
        Entry::Absent(Duration::ZERO) => reply.fail(libc::ENOENT),
        Entry::Absent(ttl) => reply.entry(ttl, &absent(), super::GENERATION),
    }
}

pub(super) fn send_bytes(vfs: &Vfs, reply: ReplyData, bytes: &Bytes) {
    vfs.counters.read(bytes.len());
    reply.data(bytes);
}

pub(super) fn send_opened_dir(reply: ReplyOpen, opened: OpenedDir) {
    let mut flags = FopenFlags::empty();
    flags.set(FopenFlags::FOPEN_CACHE_DIR, opened.may_copy);
    flags.set(FopenFlags::FOPEN_KEEP_CACHE, opened.keep_copy);
    reply.opened(FileHandle(opened.handle), flags);
}

/// Answers a request for the value of an attribute of `size` bytes at most (0: only its length is asked for).
pub(super) fn send_value(reply: ReplyXattr, size: u32, value: &[u8]) {
    match u32::try_from(value.len()) {
        Ok(len) if size == 0 => reply.size(len),
        Ok(len) if len <= size => reply.data(value),
        _ => reply.fail(libc::ERANGE),
    }
}

impl NameSink for ReplyDirectory {
    fn add(&mut self, ino: u64, next: u64, is_dir: bool, name: &[u8]) -> bool {
        let kind = if is_dir { FileType::Directory } else { FileType::RegularFile };
        ReplyDirectory::add(self, INodeNo(ino), next, kind, OsStr::from_bytes(name))
    }
}

impl EntrySink for ReplyDirectoryPlus {
    fn add(&mut self, attr: &Attr, ttl: Duration, next: u64, name: &[u8]) -> bool {
        let name = OsStr::from_bytes(name);
        ReplyDirectoryPlus::add(
            self,
            INodeNo(attr.ino),
            next,
            name,
            &ttl,
            &file_attr(attr),
            super::GENERATION,
        )
    }
}
