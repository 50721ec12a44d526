//! Requests that wait, and the one thread that ends those nobody waits for any more.
//!
//! A killed process stays until its request is answered, and the protocol library does not tell us of interrupts. So
//! one thread looks, ten times a second, at the callers of requests that have waited for a while: a caller that has
//! SIGKILL pending or is gone gets `EINTR` at once and its work is dropped. A request that reaches the deadline gets
//! `ETIMEDOUT`. The thread answers by itself: neither depends on the runtime making progress.
//!
//! Other signals never cancel anything. A caller in another PID namespace (pid 0) cannot be looked at: for it only
//! the deadline holds.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nearfs_backends::ErrorKind;
use parking_lot::Mutex;
use tokio::task::AbortHandle;

use crate::counters::{Counters, Op};
use crate::failures::{RecentFailures, Subject};
use crate::handle::file::FileHandles;

/// Time between two looks, and the age from which a request's caller is looked at.
const TICK: Duration = Duration::from_millis(100);
/// Callers looked at in one tick: a look costs about 17 µs, so at most a tenth of one core.
const LOOKS_PER_TICK: usize = 512;
/// Ticks without any request after which the thread sleeps until there is one.
const IDLE_TICKS: u32 = 50;
/// Ticks between two sweeps of idle file handles.
const SWEEP_TICKS: u32 = 300;
const SHARDS: usize = 16;

/// A reply that waits to be sent: by the task that does the work, or by the scanner, whoever is first.
pub(crate) trait Pending: Send + Sync {
    /// Answers with `errno`; false if it has been answered already.
    fn fail(&self, errno: i32) -> bool;
}

struct Request {
    op: Op,
    /// Thread id of the caller; 0 = not visible from here.
    tid: u32,
    started: Instant,
    pending: Arc<dyn Pending>,
    task: Option<AbortHandle>,
    subject: Subject,
}

/// The requests that are being worked on.
#[derive(Default)]
pub(crate) struct InFlight {
    shards: [Mutex<HashMap<u64, Request>>; SHARDS],
    next: AtomicU64,
    count: AtomicUsize,
    parked: AtomicBool,
    scanner: Mutex<Option<std::thread::Thread>>,
}

impl std::fmt::Debug for InFlight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InFlight").field("count", &self.len()).finish_non_exhaustive()
    }
}

/// Removes its request when dropped, which the task that works on it does at its end, however it ends.
pub(crate) struct Registered {
    all: Arc<InFlight>,
    id: u64,
}

impl InFlight {
    /// Registers a request of the thread `tid` that `pending` answers.
    pub(crate) fn register(
        self: &Arc<Self>,
        op: Op,
        tid: u32,
        pending: Arc<dyn Pending>,
        subject: Subject,
    ) -> Registered {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let request = Request { op, tid, started: Instant::now(), pending, task: None, subject };
        self.shard(id).lock().insert(id, request);
        self.count.fetch_add(1, Ordering::SeqCst);
        if self.parked.load(Ordering::SeqCst)
            && let Some(thread) = &*self.scanner.lock()
        {
            thread.unpark();
        }
        Registered { all: Arc::clone(self), id }
    }

    /// Tells which task works on `id`; aborts it if the request has been answered meanwhile.
    pub(crate) fn attach(&self, id: u64, task: AbortHandle) {
        match self.shard(id).lock().get_mut(&id) {
            Some(request) => request.task = Some(task),
            None => task.abort(),
        }
    }

    /// Number of requests being worked on.
    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// Age of the oldest one.
    pub(crate) fn oldest(&self) -> Option<Duration> {
        let ages = self.shards.iter().filter_map(|s| s.lock().values().map(|r| r.started).min());
        ages.min().map(|started| started.elapsed())
    }

    /// Answers every request with `errno` and drops its work.
    pub(crate) fn fail_all(&self, errno: i32) {
        for shard in &self.shards {
            let requests: Vec<_> = {
                let mut shard = shard.lock();
                self.count.fetch_sub(shard.len(), Ordering::SeqCst);
                shard.drain().map(|(_, r)| r).collect()
            };
            for request in &requests {
                end(request, errno);
            }
        }
    }

    fn shard(&self, id: u64) -> &Mutex<HashMap<u64, Request>> {
        &self.shards[id as usize % SHARDS]
    }

    fn remove(&self, id: u64) -> Option<Request> {
        let request = self.shard(id).lock().remove(&id)?;
        self.count.fetch_sub(1, Ordering::SeqCst);
        Some(request)
    }
}

impl Registered {
    /// The request's number.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.all.remove(self.id);
    }
}

/// Sends the reply before the work is dropped: the other way round its owner could answer first.
fn end(request: &Request, errno: i32) -> bool {
    let sent = request.pending.fail(errno);
    if let Some(task) = &request.task {
        task.abort();
    }
    sent
}

/// What the scanner works with.
#[derive(Debug)]
pub(crate) struct Scanner {
    pub(crate) in_flight: Arc<InFlight>,
    pub(crate) deadline: Duration,
    pub(crate) counters: Arc<Counters>,
    pub(crate) failures: Arc<RecentFailures>,
    pub(crate) files: Arc<FileHandles>,
    pub(crate) stop: Arc<AtomicBool>,
}

/// The running scanner; stops when dropped.
#[derive(Debug)]
pub(crate) struct ScannerThread {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for ScannerThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

impl Scanner {
    /// Starts the thread.
    ///
    /// # Errors
    /// Those of starting a thread.
    pub(crate) fn spawn(self) -> std::io::Result<ScannerThread> {
        let stop = Arc::clone(&self.stop);
        let in_flight = Arc::clone(&self.in_flight);
        let thread = std::thread::Builder::new().name("nearfs-scan".into()).spawn(move || self.run())?;
        *in_flight.scanner.lock() = Some(thread.thread().clone());
        Ok(ScannerThread { stop, thread: Some(thread) })
    }

    fn run(self) {
        let can_look = proc_is_ours();
        if !can_look {
            tracing::warn!("/proc does not show this process: killed callers wait for the deadline");
        }
        let (mut idle, mut ticks, mut after) = (0u32, 0u32, 0u64);
        while !self.stop.load(Ordering::SeqCst) {
            std::thread::park_timeout(TICK);
            ticks += 1;
            if ticks % SWEEP_TICKS == 0 {
                self.files.sweep();
            }
            if self.in_flight.len() == 0 {
                idle += 1;
                // With handles left to sweep it goes on ticking, so that they are given back.
                if idle >= IDLE_TICKS && self.files.len() == 0 {
                    self.park();
                    idle = 0;
                }
                continue;
            }
            idle = 0;
            after = self.tick(can_look, after);
        }
    }

    fn park(&self) {
        self.in_flight.parked.store(true, Ordering::SeqCst);
        // A request that came before the flag was seen is seen here instead.
        while self.in_flight.len() == 0 && !self.stop.load(Ordering::SeqCst) {
            std::thread::park();
        }
        self.in_flight.parked.store(false, Ordering::SeqCst);
    }

    /// One look at everything; `after` is where the last one stopped, for fairness when there is too much.
    fn tick(&self, can_look: bool, after: u64) -> u64 {
        let mut late = Vec::new();
        let mut callers: Vec<(u64, u32)> = Vec::new();
        for shard in &self.in_flight.shards {
            for (&id, request) in shard.lock().iter() {
                let age = request.started.elapsed();
                if age >= self.deadline {
                    late.push(id);
                } else if can_look && request.tid != 0 && age >= TICK {
                    callers.push((id, request.tid));
                }
            }
        }
        late.into_iter().for_each(|id| self.end(id, ErrorKind::TimedOut));
        callers.sort_unstable();
        let first = callers.partition_point(|(id, _)| *id <= after);
        callers.rotate_left(first);
        let mut verdicts: HashMap<u32, bool> = HashMap::new();
        let mut last = after;
        for (id, tid) in callers {
            if !verdicts.contains_key(&tid) && verdicts.len() >= LOOKS_PER_TICK {
                break;
            }
            last = id;
            if *verdicts.entry(tid).or_insert_with(|| is_dying(tid)) {
                self.end(id, ErrorKind::Interrupted);
            }
        }
        last
    }

    fn end(&self, id: u64, kind: ErrorKind) {
        let Some(request) = self.in_flight.remove(id) else { return };
        let took = request.started.elapsed();
        // Before the answer: the caller, or who waits behind it, comes at once.
        self.failures.note(&request.subject, kind, took, Instant::now());
        if !end(&request, kind.errno()) {
            return;
        }
        match kind {
            ErrorKind::TimedOut => {
                self.counters.timed_out();
                self.counters.error(request.op);
                let (operation, caller) = (request.op.name(), request.tid);
                tracing::warn!(operation, caller, ?took, "a request reached the deadline");
            }
            _ => {
                self.counters.interrupted();
                tracing::debug!(operation = request.op.name(), caller = request.tid, "the caller was killed");
            }
        }
    }
}

/// True if `/proc` belongs to our PID namespace; else its numbers mean other processes.
fn proc_is_ours() -> bool {
    let me = std::fs::read_link("/proc/self");
    me.is_ok_and(|link| link.to_str().and_then(|s| s.parse().ok()) == Some(std::process::id()))
}

/// True if the thread has SIGKILL pending (its own or its process's), or exists no more.
pub(crate) fn is_dying(tid: u32) -> bool {
    if tid == 0 {
        return false;
    }
    match std::fs::read_to_string(format!("/proc/{tid}/status")) {
        Ok(status) => sigkill_pending(&status),
        // A hidden process (hidepid) looks like an absent one: ask the kernel in a way that it does not hide.
        Err(_) => is_gone(tid),
    }
}

/// True if no thread has this number.
fn is_gone(tid: u32) -> bool {
    let Some(pid) = i32::try_from(tid).ok().and_then(rustix::process::Pid::from_raw) else { return false };
    rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::SRCH)
}

fn sigkill_pending(status: &str) -> bool {
    let mask = 1u64 << (libc::SIGKILL - 1);
    status
        .lines()
        .filter_map(|line| line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:")))
        .any(|hex| u64::from_str_radix(hex.trim(), 16).is_ok_and(|pending| pending & mask != 0))
}

#[cfg(test)]
mod tests;
