//! [`Mount`] and [`MountSession`]: a mount from its beginning to its end.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use nearfs_backends::{Error, ErrorKind, Result, Spawner};
use parking_lot::{Condvar, Mutex};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use crate::adapter::Adapter;
use crate::attach::{self, Detach, detach};
use crate::control::ControlFile;
use crate::interrupt::{Scanner, ScannerThread};
use crate::mount_point::{self, UnmountOptions, Unmounted};
use crate::mount_table::{self, connection};
use crate::options::{MountOptions, OpenMode};
use crate::readahead::{self, Device};
use crate::tree::{Roots, Tree};
use crate::vfs::Vfs;

/// How long requests that were waiting when the unmount began may go on before they get an error.
const GRACE: Duration = Duration::from_secs(3);
/// How long the end of a connection may take to be noticed.
const END_LIMIT: Duration = Duration::from_secs(7);

/// Makes mounts.
#[derive(Debug, Clone, Copy)]
pub struct Mount;

impl Mount {
    /// Mounts `tree` on the directory `dir` and returns once the directory answers.
    ///
    /// Work goes on `spawner`'s runtime, requests are taken by threads of their own. Blocks for as long as mounting
    /// takes: not for a thread of that runtime. A dead FUSE mount on `dir` is taken over.
    ///
    /// # Errors
    /// `Unsupported` and `InvalidInput` for options ([`MountOptions::validate`]) and names of `tree`;
    /// `AlreadyExists` if a live mount is there; `NotFound`, `NotADirectory`; `PermissionDenied` if this user may not
    /// mount; `TimedOut` if the directory does not answer. After an error nothing is left mounted.
    pub fn start(
        tree: impl Into<Tree>,
        dir: impl AsRef<Path>,
        options: MountOptions,
        spawner: Spawner,
    ) -> Result<MountSession> {
        options.validate()?;
        let roots = Roots::new(tree.into())?;
        let source = options.source.clone().unwrap_or_else(|| roots.source());
        let dir = mount_point::resolve(dir.as_ref())?;
        mount_point::prepare(&dir)?;
        let vfs = Arc::new(Vfs::new(roots, &options));
        let clone_fd = attach::device_opens();
        let threads = options.thread_count();
        vfs.status.set_threads(threads, clone_fd);

        let fd = attach::mount(&dir, &source, &options)?;
        let mut config = fuser::Config::default();
        // The kernel decides who is let in.
        config.acl = fuser::SessionACL::All;
        config.n_threads = Some(threads);
        config.clone_fd = clone_fd;
        let guard = Unfinished { dir: &dir, armed: true };
        let acl = fuser::SessionACL::All;
        let (adapter, closing) = Adapter::new(Arc::clone(&vfs), spawner, options.deadline);
        let session = fuser::Session::from_fd(adapter, fd, acl, config)
            .map_err(|e| Error::from(e).during("mount").with_context("directory", dir.display()))?;
        if vfs.status.mode() == OpenMode::Passthrough {
            closing.start(session.as_fd().try_clone_to_owned()?, session.notifier())?;
        }
        let device = match mount_table::at(&dir)? {
            Some(mount) if mount.fs_type == mount_table::FS_TYPE => mount.device,
            _ => {
                return Err(
                    Error::new(ErrorKind::Other, "the mount vanished while it was made").during("mount")
                );
            }
        };
        vfs.status.set_read_ahead(readahead::raise(device, options.read_ahead_kib), options.read_ahead_kib);
        if let Some(most) = background(device) {
            vfs.status.set_background(most);
        }
        let scanner = Scanner {
            in_flight: Arc::clone(&vfs.in_flight),
            deadline: options.deadline,
            counters: Arc::clone(&vfs.counters),
            failures: Arc::clone(&vfs.failures),
            files: Arc::clone(&vfs.files),
            stop: Arc::default(),
        };
        let scanner = scanner.spawn()?;
        let end = Arc::new(End::default());
        start_serving(session, scanner, &vfs, &dir, device, &end)?;
        let session = MountSession { vfs, dir: dir.clone(), source, device, end };
        await_answer(&session, options.ready_timeout)?;
        guard.disarm();
        tracing::debug!(dir = %session.dir.display(), source = session.source, "mounted");
        Ok(session)
    }
}

/// Takes away a mount that was made but not finished.
struct Unfinished<'a> {
    dir: &'a Path,
    armed: bool,
}

impl Unfinished<'_> {
    fn disarm(mut self) {
        self.armed = false;
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if self.armed {
            let _ = detach(self.dir, Detach::Abort);
            let _ = detach(self.dir, Detach::Lazy);
        }
    }
}

/// Whether and how the connection has ended.
#[derive(Debug, Default)]
struct End {
    result: Mutex<Option<Option<String>>>,
    changed: Condvar,
}

impl End {
    fn set(&self, result: io::Result<()>) {
        *self.result.lock() = Some(result.err().map(|e| e.to_string()));
        self.changed.notify_all();
    }

    fn has_come(&self) -> bool {
        self.result.lock().is_some()
    }

    /// True if it came within `limit`.
    fn wait(&self, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        let mut result = self.result.lock();
        while result.is_none() {
            if self.changed.wait_until(&mut result, end).timed_out() {
                return result.is_some();
            }
        }
        true
    }
}

fn start_serving(
    session: fuser::Session<Adapter>,
    scanner: ScannerThread,
    vfs: &Arc<Vfs>,
    dir: &Path,
    device: Device,
    end: &Arc<End>,
) -> Result<()> {
    let (vfs, dir, end) = (Arc::clone(vfs), dir.to_owned(), Arc::clone(end));
    let serve = move || {
        let result = session.run();
        vfs.in_flight.fail_all(libc::ENOTCONN);
        drop(scanner);
        // The connection may have been ended from outside: do not leave a dead mount behind.
        if mount_table::at(&dir).is_ok_and(|m| m.is_some_and(|m| m.device == device)) {
            let _ = detach(&dir, Detach::Lazy);
        }
        if let Err(e) = &result {
            tracing::warn!(error = %e, dir = %dir.display(), "the mount ended with an error");
        }
        end.set(result);
    };
    std::thread::Builder::new().name("nearfs-session".into()).spawn(serve)?;
    Ok(())
}

/// How many requests the kernel lets wait at once; nothing where it does not tell.
fn background(device: Device) -> Option<u64> {
    let file = format!("/sys/fs/fuse/connections/{}/max_background", connection(device));
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Waits until the kernel gets an answer for the root of the mount.
fn await_answer(session: &MountSession, limit: Duration) -> Result<()> {
    let (send, receive) = mpsc::channel();
    let dir = session.dir.clone();
    // Not in this thread: if there is no answer it stays until the connection is ended, which this one must do.
    std::thread::Builder::new().name("nearfs-ready".into()).spawn(move || {
        let flags = AtFlags::STATX_FORCE_SYNC | AtFlags::NO_AUTOMOUNT;
        let stat = statx(CWD, &dir, flags, StatxFlags::BASIC_STATS);
        // Nobody listens if the wait is over.
        let _ = send.send(stat.map(|s| (s.stx_dev_major, s.stx_dev_minor)));
    })?;
    let failed = |kind, text: &str| {
        Err(Error::new(kind, text).during("mount").with_context("directory", session.dir.display()))
    };
    match receive.recv_timeout(limit) {
        Ok(Ok(device)) if device == session.device => Ok(()),
        Ok(Ok(_)) => failed(ErrorKind::Other, "something else was mounted over the new mount"),
        Ok(Err(e)) => {
            let e = Error::from(io::Error::from(e));
            Err(e.during("mount").with_context("directory", session.dir.display()))
        }
        Err(_) => failed(ErrorKind::TimedOut, "the new mount does not answer"),
    }
}

/// A mount of this process. Unmounts when dropped, which may block for up to 10 s if it is in use.
#[derive(Debug)]
pub struct MountSession {
    vfs: Arc<Vfs>,
    dir: PathBuf,
    source: String,
    device: Device,
    end: Arc<End>,
}

impl MountSession {
    /// Where it is mounted: absolute, without symbolic links.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What `/proc/mounts` shows as source.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// How files are opened: never [`OpenMode::Auto`], and what was asked for only if it is possible here.
    pub fn open_mode(&self) -> OpenMode {
        self.vfs.status.mode()
    }

    /// What `.nearfs/stats` shows: a JSON object.
    pub fn stats(&self) -> serde_json::Value {
        serde_json::from_slice(&ControlFile::Stats.render(&self.vfs)).unwrap_or_default()
    }

    /// True once it is unmounted, here or from outside, and nobody uses it any more.
    pub fn has_ended(&self) -> bool {
        self.end.has_come()
    }

    /// Waits until it is unmounted, here or from outside, and nobody uses it any more; for at most `limit` if one is
    /// given. False if that did not happen. Blocks: not for a thread of the runtime.
    ///
    /// # Errors
    /// `Other` if the connection ended with an error.
    pub fn join(&self, limit: Option<Duration>) -> Result<bool> {
        let day = Duration::from_secs(24 * 3600);
        while !self.end.wait(limit.unwrap_or(day)) {
            if limit.is_some() {
                return Ok(false);
            }
        }
        match &*self.end.result.lock() {
            Some(Some(text)) => Err(Error::new(ErrorKind::Other, text.clone()).during("serve the mount")),
            _ => Ok(true),
        }
    }

    /// Unmounts. Blocks: not for a thread of the runtime.
    ///
    /// Without `force` and `lazy` it waits up to `drain` for the users of the mount. Those who then still use it get
    /// errors: calls in progress may go on for up to 3 s, and all of it ends within 10 s after `drain`. With `lazy`
    /// they go on, and [`MountSession::join`] tells when they are done. A second call, from another thread, with
    /// `force` cuts a first one short. A user without the right to end a connection whose users do not let go gets
    /// [`Unmounted::Lazily`]: it ends with this process.
    ///
    /// # Errors
    /// Those of the system; `AlreadyExists` if something else is mounted over it.
    pub fn unmount(&self, options: UnmountOptions) -> Result<Unmounted> {
        if self.has_ended() {
            return Ok(Unmounted::Clean);
        }
        match mount_table::at(&self.dir)? {
            Some(mount) if mount.device == self.device => {}
            Some(mount) => {
                let text = format!("`{}` is mounted over it", mount.source);
                return Err(Error::new(ErrorKind::AlreadyExists, text)
                    .during("unmount")
                    .with_context("directory", self.dir.display()));
            }
            // Taken away from outside; it may still be in use.
            None if options.lazy => return Ok(Unmounted::Lazily),
            None => return self.end_detached(options),
        }
        if options.lazy && !options.force {
            detach(&self.dir, Detach::Lazy).map_err(|e| mount_point::not_unmounted(&self.dir, e))?;
            return Ok(Unmounted::Lazily);
        }
        if !options.force {
            match mount_point::detach_idle(&self.dir, options.drain) {
                Ok(true) => return Ok(self.await_end(Unmounted::Clean)),
                Ok(false) => {}
                Err(e) if self.is_mounted()? => return Err(e),
                // Another call, or somebody outside, was faster.
                Err(_) => return Ok(self.await_end(Unmounted::Forced)),
            }
            tracing::warn!(dir = %self.dir.display(), "the mount is still in use: it is detached, its users get errors");
            self.settle();
        }
        self.vfs.in_flight.fail_all(libc::EIO);
        mount_point::abort(&self.dir, connection(self.device));
        if let Err(e) = detach(&self.dir, Detach::Lazy)
            && self.is_mounted()?
        {
            return Err(mount_point::not_unmounted(&self.dir, e));
        }
        Ok(self.await_end(Unmounted::Forced))
    }

    fn is_mounted(&self) -> Result<bool> {
        Ok(mount_table::at(&self.dir)?.is_some_and(|m| m.device == self.device))
    }

    /// It is out of sight already: waits for its users, then ends the connection if that is allowed.
    fn end_detached(&self, options: UnmountOptions) -> Result<Unmounted> {
        let patience = if options.force { Duration::ZERO } else { options.drain };
        if self.end.wait(patience) {
            return Ok(Unmounted::Clean);
        }
        self.vfs.in_flight.fail_all(libc::EIO);
        if let Err(e) = attach::abort_connection(connection(self.device)) {
            tracing::debug!(error = %e, "the connection could not be ended");
        }
        Ok(self.await_end(Unmounted::Forced))
    }

    /// Waits until the requests that are in progress now are answered, or [`GRACE`] is over.
    fn settle(&self) {
        let begin = Instant::now();
        while begin.elapsed() < GRACE && self.vfs.in_flight.oldest().is_some_and(|age| age >= begin.elapsed())
        {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn await_end(&self, how: Unmounted) -> Unmounted {
        if self.end.wait(END_LIMIT) {
            return how;
        }
        tracing::warn!(dir = %self.dir.display(), "unmounted, but still in use: the rest ends with this process");
        Unmounted::Lazily
    }
}

impl Drop for MountSession {
    fn drop(&mut self) {
        if let Err(e) = self.unmount(UnmountOptions::default()) {
            tracing::warn!(error = %e.chain(), "unmounting failed");
        }
    }
}
