//! When a file that was passed through may be taken away again.
//!
//! A mapping goes on after its handle is closed, and a mapping of a file that is passed through is one of the cache's
//! file: the kernel closes the handle, and says nothing when the mapping goes. But a mapping, like a handle, holds the
//! inode. So what was passed through is kept until the kernel forgets the inode. That it would do when it is short of
//! memory, so it is asked: a moment after the last handle is closed its name is taken out of the kernel's memory. If
//! nothing uses the file it is forgotten at once, else when the last mapping goes.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use fuser::{INodeNo, Notifier};

use super::open::Open;
use crate::vfs::Vfs;

/// How long a file is kept after its last handle: one that is opened again within it need not be looked up.
const LINGER: Duration = Duration::from_millis(500);

/// Asks the kernel to forget files that were passed through and are closed.
pub(crate) struct Closing {
    pub(super) closed: Receiver<(u64, Instant)>,
    pub(super) open_files: Open,
    pub(super) vfs: Weak<Vfs>,
}

impl Closing {
    /// Works in a thread of its own (the kernel may have to wait for a lookup that is in progress) until the mount ends.
    ///
    /// # Errors
    /// Those of making a thread.
    pub(crate) fn start(self, notifier: Notifier) -> io::Result<()> {
        std::thread::Builder::new().name("nearfs-closing".into()).spawn(move || self.run(&notifier)).map(drop)
    }

    fn run(&self, notifier: &Notifier) {
        let mut waiting = VecDeque::new();
        loop {
            let due = waiting.front().map(|(_, at): &(u64, Instant)| *at + LINGER);
            let wait =
                due.map_or(Duration::from_secs(3600), |due| due.saturating_duration_since(Instant::now()));
            match self.closed.recv_timeout(wait) {
                Ok(closed) => waiting.push_back(closed),
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {
                    if let Some((ino, _)) =
                        waiting.pop_front().filter(|(ino, _)| self.open_files.lingers(*ino))
                    {
                        let Some(vfs) = self.vfs.upgrade() else { return };
                        forget(&vfs, notifier, ino);
                    }
                }
            }
        }
    }
}

fn forget(vfs: &Arc<Vfs>, notifier: &Notifier, ino: u64) {
    let Some((parent, name)) = vfs.name_of(ino) else { return };
    // It may have forgotten it by itself, or have another inode of that name now.
    if let Err(e) = notifier.inval_entry(INodeNo(parent), OsStr::from_bytes(&name)) {
        tracing::debug!(error = %e, "the kernel did not forget a name");
    }
}
