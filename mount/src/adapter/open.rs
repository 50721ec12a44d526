//! OPEN and RELEASE: who fills the kernel's pages of a file, this process or a file of the cache.

use std::sync::Arc;
use std::time::Duration;

use fuser::{BackingId, FileHandle, FopenFlags, OpenAccMode, OpenFlags, ReplyEmpty, ReplyOpen, Request};
use nearfs_backends::Result;
use nearfs_cache::LentFile;

use super::reply::Fail;
use super::{Adapter, fail};
use crate::counters::Op;
use crate::failures::Subject;
use crate::handle::open::{OpenFiles, Way};
use crate::ops::open::lend;
use crate::options::OpenMode;
use crate::passthrough::Counted;
use crate::vfs::Vfs;

/// Longest time that an open waits for the cache's filesystem to look a file up; then it is opened without.
const PATIENCE: Duration = Duration::from_secs(1);

/// Handles need no numbers: what is open is counted by inode.
const HANDLE: FileHandle = FileHandle(0);

/// A file of the cache that the kernel reads by itself, as long as this lives.
#[derive(Debug)]
pub(super) struct Backing {
    // In this order: the kernel lets go before the cache may take anything away.
    id: BackingId,
    _file: LentFile,
    _counted: Counted,
}

impl Adapter {
    pub(super) fn open_file(&self, request: &Request, ino: u64, flags: OpenFlags, reply: ReplyOpen) {
        let op = Op::Open;
        self.vfs.counters.begin(op);
        if flags.acc_mode() != OpenAccMode::O_RDONLY {
            return self.refuse(reply);
        }
        self.vfs.counters.inline(op);
        match self.vfs.status.agreed_mode() {
            // From now on the kernel opens by itself.
            OpenMode::Stateless => return reply.fail(libc::ENOSYS),
            OpenMode::Passthrough => {}
            _ => return reply.opened(HANDLE, kept(&self.vfs)),
        }
        if let Some(way) = self.open_files.join(ino) {
            return send(&self.vfs, reply, &way);
        }
        let file = match self.vfs.passable(ino) {
            Ok(Some(file)) => file,
            Ok(None) => return send(&self.vfs, reply, &self.open_files.open(ino, Way::Kept)),
            Err(e) => return self.fail(op, reply, &e),
        };
        // The cache's filesystem may have to look it up on its disk.
        let patience = PATIENCE.min(self.deadline / 4);
        let lending = self.spawner.handle().spawn_blocking(move || lend(&file));
        let work = async move {
            Ok(match tokio::time::timeout(patience, lending).await {
                Ok(Ok(lent)) => lent,
                Ok(Err(e)) => Err(format!("the cache could not be asked: {e}")),
                Err(_) => Err(format!("the filesystem of the cache did not answer within {patience:?}")),
            })
        };
        let open_files = Arc::clone(&self.open_files);
        self.spawn(op, request, reply, Subject::Other, work, move |vfs, reply, lent: Result<_>| match lent {
            Ok(lent) => {
                let backing = match lent {
                    Ok(file) => file.and_then(|file| backing(vfs, &reply, file)),
                    Err(reason) => {
                        not_passed(vfs, reason);
                        None
                    }
                };
                let wanted = backing.map_or(Way::Kept, |backing| Way::Passed(Arc::new(backing)));
                send(vfs, reply, &open_files.open(ino, wanted));
            }
            Err(e) => fail(vfs, op, reply, &e),
        });
    }

    pub(super) fn release_file(&self, ino: u64, reply: ReplyEmpty) {
        self.vfs.counters.begin(Op::Release);
        self.vfs.counters.inline(Op::Release);
        if self.vfs.status.agreed_mode() == OpenMode::Passthrough {
            // Before the answer: then the kernel may forget the inode.
            if self.open_files.close(ino) {
                // Nobody listens if the mount is ending.
                let _ = self.closed.send(ino);
            }
        }
        reply.ok();
    }

    pub(super) fn forget_file(&self, ino: u64) {
        if self.vfs.status.agreed_mode() == OpenMode::Passthrough {
            self.open_files.forget(ino);
        }
    }

    /// The connection ends, but mappings may go on. What the kernel has it keeps until it has no use for it: it also
    /// holds the lock that keeps others from taking anything away.
    pub(super) fn abandon_files(&self) {
        self.open_files.take_all(|backing| {
            if let Some(backing) = Arc::into_inner(backing) {
                backing.id.into_raw();
            }
        });
    }
}

/// Lets the kernel have `file`; nothing, and that is told, if it does not take it.
fn backing(vfs: &Vfs, reply: &ReplyOpen, file: LentFile) -> Option<Backing> {
    let passthrough = &vfs.status.passthrough;
    match reply.open_backing(&file) {
        Ok(id) => return Some(Backing { id, _file: file, _counted: passthrough.count() }),
        Err(e) => match passthrough.refused(&e) {
            Some(reason) => vfs.status.note_no_passthrough(&reason),
            None => not_passed(vfs, format!("the kernel refused it: {e}")),
        },
    }
    None
}

/// A file is not passed through because of `reason`, which is told if it is not the same as last time.
fn not_passed(vfs: &Vfs, reason: String) {
    let passthrough = &vfs.status.passthrough;
    if passthrough.is_on() && passthrough.failed(&reason) {
        tracing::warn!(reason, "a cached file is not passed through");
    }
}

/// Pages stay from one open to the next.
fn kept(vfs: &Vfs) -> FopenFlags {
    let mut flags = FopenFlags::FOPEN_KEEP_CACHE;
    flags.set(FopenFlags::FOPEN_NOFLUSH, vfs.status.knows_no_flush());
    flags
}

/// The handle has been counted: from now on the kernel may close it at any time.
fn send(vfs: &Vfs, reply: ReplyOpen, way: &Way<Backing>) {
    match way {
        Way::Kept => reply.opened(HANDLE, kept(vfs)),
        Way::Passed(backing) => {
            vfs.status.passthrough.opened();
            // The kernel refuses to keep pages that it does not fill.
            reply.opened_passthrough(HANDLE, FopenFlags::FOPEN_NOFLUSH, &backing.id);
        }
    }
}

pub(super) type Open = Arc<OpenFiles<Backing>>;
