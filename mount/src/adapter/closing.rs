//! When a file that was passed through may be taken away again.
//!
//! A mapping goes on after its handle is closed, and a mapping of a file that is passed through is one of the cache's
//! file: the kernel closes the handle, and says nothing when the mapping goes. But a mapping, like a handle, holds the
//! inode. So what was passed through is kept until the kernel forgets the inode. That it would do when it is short of
//! memory, so it is asked, from a moment after the last handle is closed on and ever less often: it forgets the inode at
//! once if nothing uses it.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Weak;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use fuser::{INodeNo, Notifier};

use super::open::Open;
use crate::vfs::Vfs;

/// How long a file is kept after its last handle: one that is opened again within it need not be looked up.
const LINGER: Duration = Duration::from_millis(500);
/// Longest pause between two times that the kernel is asked to forget one file.
const LONGEST: Duration = Duration::from_secs(20);
/// Files that it is asked about at once.
const BATCH: usize = 256;
/// Notification of version 7.45 of the protocol (Linux 6.18): forget these inodes if nothing uses them.
const NOTIFY_PRUNE: i32 = 9;

/// Asks the kernel to forget files that were passed through and are closed.
pub(crate) struct Closing {
    pub(super) closed: Receiver<u64>,
    pub(super) open_files: Open,
    pub(super) vfs: Weak<Vfs>,
}

/// How the kernel is told.
struct Kernel {
    device: OwnedFd,
    notifier: Notifier,
    /// It knows [`NOTIFY_PRUNE`].
    prunes: bool,
}

impl Closing {
    /// Works in a thread of its own until the mount ends. `device` is that of the connection.
    ///
    /// # Errors
    /// Those of making a thread.
    pub(crate) fn start(self, device: OwnedFd, notifier: Notifier) -> io::Result<()> {
        let prunes = self.vfs.upgrade().is_some_and(|vfs| vfs.status.knows_prune());
        let kernel = Kernel { device, notifier, prunes };
        std::thread::Builder::new().name("nearfs-closing".into()).spawn(move || self.run(kernel)).map(drop)
    }

    fn run(&self, mut kernel: Kernel) {
        let mut waiting = BinaryHeap::new();
        let mut known = HashSet::new();
        loop {
            let now = Instant::now();
            let next = waiting.peek().map(|Reverse((due, ..)): &Reverse<(Instant, u64, Duration)>| *due);
            let wait = next.map_or(LONGEST, |due| due.saturating_duration_since(now));
            match self.closed.recv_timeout(wait) {
                Ok(ino) if known.insert(ino) => waiting.push(Reverse((now + LINGER, ino, LINGER))),
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {
                    let now = Instant::now();
                    let mut asked = Vec::new();
                    while asked.len() < BATCH && waiting.peek().is_some_and(|Reverse((due, ..))| *due <= now)
                    {
                        let Some(Reverse((_, ino, pause))) = waiting.pop() else { break };
                        match self.open_files.lingers(ino) {
                            true => asked.push((ino, pause)),
                            // It is open again, which ends with another close, or forgotten.
                            false => drop(known.remove(&ino)),
                        }
                    }
                    let Some(vfs) = self.vfs.upgrade() else { return };
                    kernel.forget(&vfs, &asked);
                    // It may be mapped; until it is forgotten it is asked about again.
                    waiting.extend(asked.into_iter().map(|(ino, pause)| {
                        let pause = (pause * 2).min(LONGEST);
                        Reverse((now + pause, ino, pause))
                    }));
                }
            }
        }
    }
}

impl Kernel {
    fn forget(&mut self, vfs: &Vfs, inodes: &[(u64, Duration)]) {
        if inodes.is_empty() {
            return;
        }
        if self.prunes {
            match rustix::io::write(&self.device, &prune(inodes)) {
                Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => self.prunes = false,
                _ => return,
            }
        }
        // Older kernels forget by name. They lock the directory for that, so not while anything else waits: a lookup
        // in it that hangs would then hold up every other one.
        if vfs.in_flight.oldest().is_some() {
            return;
        }
        for (parent, name) in inodes.iter().filter_map(|(ino, _)| vfs.name_of(*ino)) {
            // It may have forgotten it by itself, or have another inode of that name now.
            if let Err(e) = self.notifier.inval_entry(INodeNo(parent), OsStr::from_bytes(&name)) {
                tracing::debug!(error = %e, "the kernel did not forget a name");
            }
        }
    }
}

/// The message: its length, its kind, no request (u32, i32, u64), how many inodes (u32), room for later (12 bytes),
/// and their numbers (u64 each), all in the order of the machine.
fn prune(inodes: &[(u64, Duration)]) -> Vec<u8> {
    let len = 32 + 8 * inodes.len();
    let mut message = Vec::with_capacity(len);
    message.extend((len as u32).to_ne_bytes());
    message.extend(NOTIFY_PRUNE.to_ne_bytes());
    message.extend([0; 8]);
    message.extend((inodes.len() as u32).to_ne_bytes());
    message.extend([0; 12]);
    inodes.iter().for_each(|(ino, _)| message.extend(ino.to_ne_bytes()));
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_is_as_long_as_it_says() {
        let message = prune(&[(7, LINGER), (1 << 62, LINGER)]);
        assert_eq!((message.len(), &message[..4]), (48, &48u32.to_ne_bytes()[..]));
        assert_eq!(message[16..20], 2u32.to_ne_bytes());
        assert_eq!(message[40..48], (1u64 << 62).to_ne_bytes());
    }
}
