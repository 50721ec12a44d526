//! The protocol's side of the mount: the only file that names `fuser::Filesystem`. It decodes requests, answers on
//! the spot what needs no waiting, spawns the rest with the reply that it owns, and sends replies. What the calls
//! mean is in `ops`.

mod closing;
mod open;
mod reply;

use std::ffi::OsStr;
use std::future::Future;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, mpsc};
use std::time::{Duration, SystemTime};

use fuser::{
    AccessFlags, BsdFileFlags, Errno, FileHandle, Generation, INodeNo, IoctlFlags, KernelConfig, LockOwner,
    OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite,
    ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use nearfs_backends::{Error, Result, Spawner};

use self::closing::Closing;
use self::reply::{Fail, Slot, file_attr, send_bytes, send_entry, send_opened_dir, send_value};
use crate::counters::Op;
use crate::failures::Subject;
use crate::vfs::{Now, Vfs};

/// Number and generation of inodes: numbers are never given to something else while they are known.
const GENERATION: Generation = Generation(0);

/// One mount, as the protocol library sees it.
pub(crate) struct Adapter {
    vfs: Arc<Vfs>,
    spawner: Spawner,
    /// Of calls; longer waits are for nothing.
    deadline: Duration,
    open_files: open::Open,
    /// Inodes of files of the cache whose last handle was closed.
    closed: mpsc::Sender<u64>,
}

impl Adapter {
    /// With what must be started once the kernel can be told things.
    pub(crate) fn new(vfs: Arc<Vfs>, spawner: Spawner, deadline: Duration) -> (Self, Closing) {
        let open_files = open::Open::default();
        let (closed, receiver) = mpsc::channel();
        let closing =
            Closing { closed: receiver, open_files: Arc::clone(&open_files), vfs: Arc::downgrade(&vfs) };
        (Adapter { vfs, spawner, deadline, open_files, closed }, closing)
    }

    /// Works on `work` elsewhere and then answers with its result, unless the scanner was faster.
    fn spawn<R, T>(
        &self,
        op: Op,
        request: &Request,
        reply: R,
        subject: Subject,
        work: impl Future<Output = Result<T>> + Send + 'static,
        answer: impl FnOnce(&Vfs, R, Result<T>) + Send + 'static,
    ) where
        R: Fail + Send + 'static,
        T: Send + 'static,
    {
        let slot = Arc::new(Slot::new(reply));
        let registered = self.vfs.in_flight.register(op, request.pid(), slot.clone(), subject);
        let id = registered.id();
        let vfs = Arc::clone(&self.vfs);
        let task = self.spawner.spawn(async move {
            // Held to the end of the task, also if it is aborted.
            let _registered = registered;
            let result = work.await;
            if let Some(reply) = slot.take() {
                answer(&vfs, reply, result);
            }
        });
        self.vfs.in_flight.attach(id, task.abort_handle());
    }

    /// Answers with an error.
    fn fail(&self, op: Op, reply: impl Fail, error: &Error) {
        fail(&self.vfs, op, reply, error);
    }

    /// Answers a call that would change something.
    fn refuse(&self, reply: impl Fail) {
        reply.fail(self.vfs.change().kind().errno());
    }
}

fn fail(vfs: &Vfs, op: Op, reply: impl Fail, error: &Error) {
    let errno = vfs.reporter.errno(op, error);
    if errno != libc::ENOENT {
        vfs.counters.error(op);
    }
    reply.fail(errno);
}

impl fuser::Filesystem for Adapter {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        self.vfs.status.negotiate(config);
        Ok(())
    }

    fn destroy(&mut self) {
        self.abandon_files();
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let op = Op::Lookup;
        self.vfs.counters.begin(op);
        match self.vfs.lookup(request.pid(), parent.0, name.as_bytes()) {
            Ok(Now::Done(found)) => {
                self.vfs.counters.inline(op);
                send_entry(reply, &self.vfs.enter(found));
            }
            Ok(Now::Ask(ask)) => {
                let subject = ask.subject();
                self.spawn(op, request, reply, subject, ask.run(), move |vfs, reply, result| match result {
                    Ok(found) => send_entry(reply, &vfs.enter(found)),
                    Err(e) => fail(vfs, op, reply, &e),
                });
            }
            Err(e) => self.fail(op, reply, &e),
        }
    }

    fn forget(&self, _request: &Request, ino: INodeNo, lookups: u64) {
        if self.vfs.forget(ino.0, lookups) {
            self.forget_file(ino.0);
        }
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        self.vfs.counters.begin(Op::Getattr);
        match self.vfs.getattr(ino.0) {
            Ok((attr, ttl)) => {
                self.vfs.counters.inline(Op::Getattr);
                reply.attr(&ttl, &file_attr(&attr));
            }
            Err(e) => self.fail(Op::Getattr, reply, &e),
        }
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.open_file(request, ino.0, flags, reply);
    }

    fn release(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.release_file(ino.0, reply);
    }

    fn read(
        &self,
        request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let op = Op::Read;
        self.vfs.counters.begin(op);
        match self.vfs.read(ino.0, offset, size) {
            Ok(Now::Done(bytes)) => {
                self.vfs.counters.inline(op);
                send_bytes(&self.vfs, reply, &bytes);
            }
            Ok(Now::Ask(ask)) => {
                let subject = ask.subject();
                self.spawn(op, request, reply, subject, ask.run(), move |vfs, reply, result| match result {
                    Ok(bytes) => send_bytes(vfs, reply, &bytes),
                    Err(e) => fail(vfs, op, reply, &e),
                });
            }
            Err(e) => self.fail(op, reply, &e),
        }
    }

    fn flush(&self, _r: &Request, _ino: INodeNo, _handle: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        self.vfs.counters.begin(Op::Flush);
        self.vfs.counters.inline(Op::Flush);
        // Nothing is ever written: from now on the kernel does not ask at close.
        reply.fail(libc::ENOSYS);
    }

    fn fsync(&self, _r: &Request, _ino: INodeNo, _handle: FileHandle, _data_only: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsyncdir(
        &self,
        _r: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn opendir(&self, request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let op = Op::Opendir;
        self.vfs.counters.begin(op);
        match self.vfs.opendir(ino.0) {
            Ok(Now::Done(opened)) => {
                self.vfs.counters.inline(op);
                send_opened_dir(reply, opened);
            }
            Ok(Now::Ask(ask)) => {
                self.spawn(op, request, reply, Subject::Other, ask.run(), move |vfs, reply, result| {
                    match result {
                        Ok((inode, listing)) => send_opened_dir(reply, vfs.opened(inode, listing)),
                        Err(e) => fail(vfs, op, reply, &e),
                    }
                });
            }
            Err(e) => self.fail(op, reply, &e),
        }
    }

    fn readdir(
        &self,
        request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let op = Op::Readdir;
        self.vfs.counters.begin(op);
        match self.vfs.readdir(handle.0, offset) {
            Ok(Now::Done(batch)) => {
                self.vfs.counters.inline(op);
                self.vfs.fill_names(batch, &mut reply);
                reply.ok();
            }
            Ok(Now::Ask(ask)) => {
                self.spawn(op, request, reply, Subject::Other, ask.run(), move |vfs, mut reply, result| {
                    match result {
                        Ok(batch) => {
                            vfs.fill_names(batch, &mut reply);
                            reply.ok();
                        }
                        Err(e) => fail(vfs, op, reply, &e),
                    }
                });
            }
            Err(e) => self.fail(op, reply, &e),
        }
    }

    fn readdirplus(
        &self,
        request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let op = Op::Readdirplus;
        self.vfs.counters.begin(op);
        match self.vfs.readdir(handle.0, offset) {
            Ok(Now::Done(batch)) => {
                self.vfs.counters.inline(op);
                self.vfs.fill_entries(batch, &mut reply);
                reply.ok();
            }
            Ok(Now::Ask(ask)) => {
                self.spawn(op, request, reply, Subject::Other, ask.run(), move |vfs, mut reply, result| {
                    match result {
                        Ok(batch) => {
                            vfs.fill_entries(batch, &mut reply);
                            reply.ok();
                        }
                        Err(e) => fail(vfs, op, reply, &e),
                    }
                });
            }
            Err(e) => self.fail(op, reply, &e),
        }
    }

    fn releasedir(
        &self,
        _r: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.vfs.releasedir(handle.0);
        reply.ok();
    }

    fn statfs(&self, _request: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        self.vfs.counters.begin(Op::Statfs);
        self.vfs.counters.inline(Op::Statfs);
        let s = self.vfs.statfs();
        reply.statfs(s.blocks, s.blocks, s.blocks, s.files, s.files, s.block, s.name_max, s.block);
    }

    fn getxattr(&self, _request: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        self.vfs.counters.begin(Op::Getxattr);
        self.vfs.counters.inline(Op::Getxattr);
        match self.vfs.getxattr(ino.0, name.as_bytes()) {
            Ok(Some(value)) => send_value(reply, size, &value),
            Ok(None) => reply.fail(libc::ENODATA),
            Err(e) => self.fail(Op::Getxattr, reply, &e),
        }
    }

    fn listxattr(&self, _request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        self.vfs.counters.begin(Op::Listxattr);
        self.vfs.counters.inline(Op::Listxattr);
        match self.vfs.listxattr(ino.0) {
            Ok(names) => send_value(reply, size, &names),
            Err(e) => self.fail(Op::Listxattr, reply, &e),
        }
    }

    fn access(&self, _request: &Request, ino: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        self.vfs.counters.begin(Op::Access);
        self.vfs.counters.inline(Op::Access);
        match self.vfs.access(ino.0, mask.contains(AccessFlags::W_OK)) {
            Ok(()) => reply.ok(),
            Err(e) => self.fail(Op::Access, reply, &e),
        }
    }

    fn ioctl(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        _flags: IoctlFlags,
        _command: u32,
        _data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        self.vfs.counters.begin(Op::Ioctl);
        self.vfs.counters.inline(Op::Ioctl);
        match self.vfs.ioctl(ino.0) {
            Ok(errno) => reply.fail(errno),
            Err(e) => self.fail(Op::Ioctl, reply, &e),
        }
    }

    fn lseek(
        &self,
        _r: &Request,
        _i: INodeNo,
        _h: FileHandle,
        _offset: i64,
        _whence: i32,
        reply: ReplyLseek,
    ) {
        // The kernel then answers by itself: everything is data.
        reply.error(Errno::ENOSYS);
    }

    fn poll(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _notifier: fuser::PollNotifier,
        _events: fuser::PollEvents,
        _flags: fuser::PollFlags,
        reply: ReplyPoll,
    ) {
        // The kernel then answers by itself: always ready.
        reply.error(Errno::ENOSYS);
    }

    fn readlink(&self, _request: &Request, _ino: INodeNo, reply: ReplyData) {
        reply.fail(libc::EINVAL);
    }

    // What changes something does not come while the mount is read-only for the kernel. It may be made writable from
    // outside (`mount -o remount,rw`): then it is refused here.

    fn setattr(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        _size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        self.refuse(reply);
    }

    fn mknod(
        &self,
        _r: &Request,
        _p: INodeNo,
        _n: &OsStr,
        _mode: u32,
        _umask: u32,
        _dev: u32,
        reply: ReplyEntry,
    ) {
        self.refuse(reply);
    }

    fn mkdir(&self, _r: &Request, _p: INodeNo, _n: &OsStr, _mode: u32, _umask: u32, reply: ReplyEntry) {
        self.refuse(reply);
    }

    fn unlink(&self, _request: &Request, _parent: INodeNo, _name: &OsStr, reply: ReplyEmpty) {
        self.refuse(reply);
    }

    fn rmdir(&self, _request: &Request, _parent: INodeNo, _name: &OsStr, reply: ReplyEmpty) {
        self.refuse(reply);
    }

    fn symlink(&self, _r: &Request, _p: INodeNo, _n: &OsStr, _target: &std::path::Path, reply: ReplyEntry) {
        self.refuse(reply);
    }

    fn rename(
        &self,
        _request: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        _new_parent: INodeNo,
        _new_name: &OsStr,
        _flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        self.refuse(reply);
    }

    fn link(&self, _r: &Request, _ino: INodeNo, _parent: INodeNo, _name: &OsStr, reply: ReplyEntry) {
        self.refuse(reply);
    }

    fn create(
        &self,
        _request: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        self.refuse(reply);
    }

    fn write(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _offset: u64,
        _data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        self.refuse(reply);
    }

    fn fallocate(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _offset: u64,
        _length: u64,
        _mode: i32,
        reply: ReplyEmpty,
    ) {
        self.refuse(reply);
    }

    fn setxattr(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _name: &OsStr,
        _value: &[u8],
        _flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        self.refuse(reply);
    }

    fn removexattr(&self, _request: &Request, _ino: INodeNo, _name: &OsStr, reply: ReplyEmpty) {
        self.refuse(reply);
    }
}
