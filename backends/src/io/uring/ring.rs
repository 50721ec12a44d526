//! The thread of a ring: submits in batches, waits without spinning, hands results out.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::Semaphore;

use super::inflight::{BELL, CANCEL, Ended, State};
use super::{DEPTH, Shared, broken, probe};
use crate::io::completion::Expected;
use crate::io::threads::{BlockingPoolConfig, count_blocked};

/// Pause before trying again when the kernel is short of memory for a submission.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(1);

/// Starts the ring's thread and its watchdog.
///
/// # Errors
/// Why io_uring cannot be used, in words for people.
pub(super) fn start(number: usize, config: &BlockingPoolConfig) -> Result<Arc<Shared>, String> {
    let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|e| format!("no descriptor for io_uring: {e}"))?;
    let shared = Arc::new(Shared {
        state: Mutex::new(State::default()),
        watch: Condvar::new(),
        wake,
        places: Arc::new(Semaphore::new(DEPTH as usize)),
        timeout: config.timeout,
        max_blocked: config.max_blocked.max(1),
        stuck: AtomicUsize::new(0),
        broken: AtomicBool::new(false),
    });
    let (report, opened) = mpsc::channel();
    let own = shared.clone();
    std::thread::Builder::new()
        .name(format!("nearfs-uring-{number}"))
        .spawn(move || {
            // Opened here: a ring with a single issuer belongs to the thread that opened it.
            match probe::open_ring(DEPTH) {
                Ok(ring) => {
                    let _ = report.send(Ok(()));
                    Thread { ring, shared: own, entries: Vec::new(), is_bell_armed: false }.run();
                }
                Err(reason) => drop(report.send(Err(reason))),
            }
        })
        .map_err(|e| format!("no thread for io_uring: {e}"))?;
    opened.recv().unwrap_or_else(|_| Err("the io_uring thread ended at once".into()))?;
    let own = shared.clone();
    let watch = std::thread::Builder::new().name(format!("nearfs-uring-w{number}"));
    if let Err(e) = watch.spawn(move || own.watch()) {
        shared.state.lock().closed = true;
        shared.ring_the_bell();
        return Err(format!("no thread for io_uring: {e}"));
    }
    Ok(shared)
}

struct Thread {
    ring: IoUring,
    shared: Arc<Shared>,
    /// To be submitted, in this order.
    entries: Vec<squeue::Entry>,
    is_bell_armed: bool,
}

impl Thread {
    fn run(mut self) {
        while self.collect() {
            self.fill();
            if let Err(error) = self.enter() {
                self.give_way(&error);
                return;
            }
            self.reap();
        }
    }

    /// Moves what is queued to the entries. False when the ring is closed and nothing is left to wait for.
    fn collect(&mut self) -> bool {
        let mut unwanted = Vec::new();
        let mut state = self.shared.state.lock();
        state.sleeping = false;
        while let Some(read) = state.queue.pop_front() {
            if read.promise().is_wanted() {
                self.entries.push(state.inflight.insert(read));
            } else {
                unwanted.push(read);
            }
        }
        for key in state.cancel.drain(..) {
            self.entries.push(opcode::AsyncCancel::new(key).build().user_data(CANCEL));
        }
        let is_over = state.closed && state.inflight.is_empty() && self.entries.is_empty();
        drop(state);
        // Dropped without the lock: their memory may be much.
        drop(unwanted);
        !is_over
    }

    /// Moves entries to the submission queue, as many as fit.
    fn fill(&mut self) {
        let mut queue = self.ring.submission();
        if !self.is_bell_armed {
            let poll = opcode::PollAdd::new(types::Fd(self.shared.wake.as_raw_fd()), libc::POLLIN as u32);
            // SAFETY: a poll refers to no memory; the eventfd lives as long as `shared`.
            self.is_bell_armed = unsafe { queue.push(&poll.build().user_data(BELL)) }.is_ok();
        }
        let mut pushed = 0;
        for entry in &self.entries {
            // SAFETY: memory and descriptor of a read belong to the in-flight table until its completion has been
            // seen, whatever becomes of this submission or of the caller; a cancellation refers to no memory.
            if unsafe { queue.push(entry) }.is_err() {
                break;
            }
            pushed += 1;
        }
        self.entries.drain(..pushed);
    }

    /// Submits, and waits for a completion when there is nothing else to do.
    fn enter(&mut self) -> std::io::Result<()> {
        let mut wanted = usize::from(self.entries.is_empty());
        if wanted == 1 {
            let mut state = self.shared.state.lock();
            // From here on whoever queues rings the bell, and the poll on it ends the wait.
            state.sleeping = state.queue.is_empty() && state.cancel.is_empty();
            wanted = usize::from(state.sleeping);
        }
        match self.ring.submit_and_wait(wanted) {
            Ok(_) => Ok(()),
            Err(e) => match e.raw_os_error() {
                Some(libc::EINTR) => Ok(()),
                // Entries not taken stay in the submission queue.
                Some(libc::EAGAIN | libc::EBUSY | libc::ENOMEM) => {
                    std::thread::sleep(SHORTAGE_PAUSE);
                    Ok(())
                }
                _ => Err(e),
            },
        }
    }

    fn reap(&mut self) {
        let mut ended = Vec::new();
        {
            let completions: Vec<cqueue::Entry> = self.ring.completion().collect();
            let mut state = self.shared.state.lock();
            for completion in completions {
                match completion.user_data() {
                    BELL => {
                        self.is_bell_armed = false;
                        let _ = rustix::io::read(&self.shared.wake, &mut [0; 8]);
                    }
                    CANCEL => {}
                    key => match state.inflight.complete(key, completion.result()) {
                        Some(Ok(end)) => ended.push(end),
                        Some(Err(entry)) => self.entries.push(entry),
                        None => debug_assert!(false, "a completion belongs to a read in flight"),
                    },
                }
            }
        }
        for Ended { read, result } in ended {
            if read.given_up {
                self.shared.stuck.fetch_sub(1, Ordering::Relaxed);
                count_blocked(-1);
            }
            read.promise().settle(result);
        }
    }

    /// The kernel refuses to go on: every caller is told, and reads another way. Memory that it may still write to is
    /// never freed.
    fn give_way(self, error: &std::io::Error) {
        let mut state = self.shared.state.lock();
        self.shared.broken.store(true, Ordering::Release);
        let mut left = std::mem::take(&mut state.inflight);
        let queued = std::mem::take(&mut state.queue);
        drop(state);
        tracing::warn!(%error, "io_uring stopped working; reading by threads from here on");
        for (_, read) in left.iter_mut() {
            read.promise().settle(Err(broken()));
            read.place = None;
        }
        for read in &queued {
            read.promise().settle(Err(broken()));
        }
        std::mem::forget(left);
    }
}
