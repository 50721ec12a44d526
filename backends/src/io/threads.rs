//! [`BlockingPool`]: system calls that may hang, on threads that may be given up.
//!
//! A call on a dead network filesystem never comes back and its thread cannot be stopped. So the caller is answered
//! `TimedOut` after a time without progress, the thread is counted as blocked, others take over its work, and when
//! too many are blocked further calls fail at once instead of costing yet another thread.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::completion::{Expected, pair};
use crate::error::{Error, ErrorKind, Result, Retry};
use crate::metrics::{LOCAL_BLOCKED, LOCAL_TIMEOUTS};

mod watch;

/// Calls that may wait for a thread; who comes later waits for a place.
const QUEUE: usize = 1024;
/// How long a thread without work stays.
const THREAD_IDLE: Duration = Duration::from_secs(10);

/// Settings of a [`BlockingPool`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockingPoolConfig {
    /// Threads that make progress at the same time. At least 1. Default: 16.
    pub threads: usize,
    /// Threads that may be blocked beyond `timeout` before further calls fail at once. At least 1. Default: 64.
    pub max_blocked: usize,
    /// How long a call may be without progress, waiting for a thread included. Default: 30 s.
    pub timeout: Duration,
}

impl Default for BlockingPoolConfig {
    fn default() -> Self {
        BlockingPoolConfig { threads: 16, max_blocked: 64, timeout: Duration::from_secs(30) }
    }
}

/// A bounded pool of own threads for blocking calls. Clones share it; with the last clone it finishes its queue and
/// ends.
///
/// At most `threads + max_blocked` threads exist. A thread that has been busy with one call for more than a moment no
/// longer counts against `threads`: neither a hanging corner of the disk nor a few long copies hold up the rest.
#[derive(Clone)]
pub struct BlockingPool(Arc<Handle>);

struct Handle {
    shared: Arc<Shared>,
}

struct Shared {
    config: BlockingPoolConfig,
    state: Mutex<State>,
    /// Work has come, or the pool closes.
    work: Condvar,
    /// The watchdog has something to watch again.
    watch: Condvar,
    places: Arc<Semaphore>,
    epoch: Instant,
    /// Copy of `State::abandoned`, readable without the lock.
    blocked: AtomicUsize,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Task>,
    running: HashMap<u64, Arc<Running>>,
    next_id: u64,
    /// Threads alive, whatever they do.
    total: usize,
    /// Threads waiting for work.
    idle: usize,
    /// Threads that the watchdog found busy with one call for longer than a moment, not given up.
    slow: usize,
    /// Busy threads that were given up.
    abandoned: usize,
    watchdog: Watchdog,
    closed: bool,
}

#[derive(Default, PartialEq, Eq)]
enum Watchdog {
    #[default]
    None,
    Sleeping,
    Ticking,
}

struct Task {
    what: &'static str,
    work: Box<dyn FnOnce(&Beat) + Send>,
    /// Who waits for it; `None` for clean-up work that nobody waits for and that is never dropped.
    caller: Option<Arc<dyn Expected>>,
    queued: Instant,
    _place: Option<OwnedSemaphorePermit>,
}

struct Running {
    what: &'static str,
    caller: Option<Arc<dyn Expected>>,
    /// When it began, in milliseconds since the pool's epoch.
    begun: u64,
    /// Last sign of life, likewise.
    beat: AtomicU64,
    abandoned: AtomicBool,
}

/// The sign of life of a call that takes many steps.
pub struct Beat {
    running: Arc<Running>,
    epoch: Instant,
}

impl Beat {
    /// Says that a step is done: the time limit starts again.
    pub fn touch(&self) {
        self.running.beat.store(self.epoch.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    /// False once nobody waits for this call any more: it may stop.
    pub fn is_wanted(&self) -> bool {
        self.running.caller.as_ref().is_none_or(|c| c.is_wanted())
    }
}

impl BlockingPool {
    /// A pool without threads: they come with the work.
    pub fn new(config: BlockingPoolConfig) -> Self {
        let config = BlockingPoolConfig {
            threads: config.threads.max(1),
            max_blocked: config.max_blocked.max(1),
            ..config
        };
        let shared = Arc::new(Shared {
            config,
            state: Mutex::new(State::default()),
            work: Condvar::new(),
            watch: Condvar::new(),
            places: Arc::new(Semaphore::new(QUEUE)),
            epoch: Instant::now(),
            blocked: AtomicUsize::new(0),
        });
        BlockingPool(Arc::new(Handle { shared }))
    }

    /// Runs `work` on a thread of the pool. `what` names the call in errors and thread dumps: `"stat"`.
    ///
    /// # Errors
    /// Those of `work`; `TimedOut` when it made no progress for the pool's timeout, or at once when too many threads
    /// are blocked; `Other` when it panicked or no thread could be started. The longest wait for an answer is
    /// twice the timeout: once for a place in the queue, once for the call.
    ///
    /// # Cancellation
    /// Work not begun is dropped. Work begun runs to its end with nobody waiting.
    pub async fn run<T, F>(&self, what: &'static str, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Beat) -> Result<T> + Send + 'static,
    {
        self.0.shared.refuse_if_blocked(what)?;
        let place = self.0.shared.places.clone().acquire_owned().await.ok();
        let (promise, outcome) = pair();
        let caller: Arc<dyn Expected> = Arc::new(promise.clone());
        let work = Box::new(move |beat: &Beat| {
            let result = catch_unwind(AssertUnwindSafe(|| work(beat)))
                .unwrap_or_else(|_| Err(Error::new(ErrorKind::Other, "the call panicked").during(what)));
            promise.settle(result);
        });
        self.0.shared.submit(Task {
            what,
            work,
            caller: Some(caller),
            queued: Instant::now(),
            _place: place,
        });
        outcome.await
    }

    /// Runs clean-up `work` some time soon, with nobody waiting. Never blocks, never dropped: what it owns (a
    /// descriptor, a temporary file) bounds how much of it there is.
    pub fn detach<F>(&self, what: &'static str, work: F)
    where
        F: FnOnce() + Send + 'static,
    {
        let work = Box::new(move |_: &Beat| {
            if catch_unwind(AssertUnwindSafe(work)).is_err() {
                tracing::error!(what, "clean-up panicked");
            }
        });
        self.0.shared.submit(Task { what, work, caller: None, queued: Instant::now(), _place: None });
    }

    /// Threads that were given up and have not come back.
    pub fn blocked_threads(&self) -> usize {
        self.0.shared.blocked.load(Ordering::Relaxed)
    }

    /// How long a call may be without progress.
    pub fn timeout(&self) -> Duration {
        self.0.shared.config.timeout
    }
}

impl fmt::Debug for BlockingPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlockingPool({} blocked)", self.blocked_threads())
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.state.lock().closed = true;
        self.shared.work.notify_all();
        self.shared.watch.notify_all();
    }
}

/// Adds to the number of local calls of this process that hang.
pub(super) fn count_blocked(by: i64) {
    LOCAL_BLOCKED.gauge([]).increment(by as f64);
}

/// The failure of a call without progress.
pub(super) fn timed_out(what: &'static str, timeout: Duration) -> Error {
    LOCAL_TIMEOUTS.counter([]).increment(1);
    Error::new(ErrorKind::TimedOut, format!("the local filesystem made no progress for {timeout:?}"))
        .during(what)
        .with_retry(Retry::Never)
}

/// The failure of a call that is not even tried.
pub(super) fn too_many_blocked(what: &'static str, blocked: usize) -> Error {
    LOCAL_TIMEOUTS.counter([]).increment(1);
    Error::new(
        ErrorKind::TimedOut,
        format!("{blocked} earlier calls hang in the local filesystem; no more are started"),
    )
    .during(what)
    .with_context("hint", "look for a dead network or FUSE mount below the root")
    .with_retry(Retry::Never)
}

impl Shared {
    fn refuse_if_blocked(&self, what: &'static str) -> Result<()> {
        let blocked = self.blocked.load(Ordering::Relaxed);
        if blocked >= self.config.max_blocked { Err(too_many_blocked(what, blocked)) } else { Ok(()) }
    }

    fn submit(self: &Arc<Self>, task: Task) {
        let mut state = self.state.lock();
        state.queue.push_back(task);
        if state.queue.len() > state.idle {
            self.spawn_if_allowed(&mut state);
        }
        if state.idle > 0 {
            self.work.notify_one();
        }
        let unserved: Vec<_> = if state.total == 0 { state.queue.drain(..).collect() } else { Vec::new() };
        drop(state);
        for task in unserved {
            let error = Error::new(ErrorKind::Other, "no thread could be started").during(task.what);
            match task.caller {
                Some(caller) => caller.fail(error),
                // Clean-up blocks its caller rather than being lost.
                None => {
                    let running = Arc::new(Running::new(&task, 0));
                    (task.work)(&Beat { running, epoch: self.epoch });
                }
            }
        }
    }

    /// Starts a thread if fewer than `threads` make progress and the total allows it.
    fn spawn_if_allowed(self: &Arc<Self>, state: &mut State) {
        if state.active() >= self.config.threads
            || state.total >= self.config.threads + self.config.max_blocked
        {
            return;
        }
        let shared = self.clone();
        let started = std::thread::Builder::new().name("nearfs-io".into()).spawn(move || shared.work());
        if started.is_err() {
            return;
        }
        state.total += 1;
        if state.watchdog == Watchdog::None {
            let shared = self.clone();
            let watch = std::thread::Builder::new().name("nearfs-io-watch".into());
            if watch.spawn(move || shared.watch()).is_ok() {
                state.watchdog = Watchdog::Ticking;
            }
        }
    }

    fn work(self: Arc<Self>) {
        let mut state = self.state.lock();
        loop {
            if let Some(task) = state.queue.pop_front() {
                if task.caller.as_ref().is_some_and(|c| !c.is_wanted()) {
                    // Dropped outside the lock: it may own descriptors, and closing one may block.
                    parking_lot::MutexGuard::unlocked(&mut state, || drop(task));
                    continue;
                }
                let id = state.next_id;
                state.next_id += 1;
                let running = Arc::new(Running::new(&task, self.epoch.elapsed().as_millis() as u64));
                state.running.insert(id, running.clone());
                if state.watchdog == Watchdog::Sleeping {
                    state.watchdog = Watchdog::Ticking;
                    self.watch.notify_one();
                }
                parking_lot::MutexGuard::unlocked(&mut state, || {
                    let beat = Beat { running: running.clone(), epoch: self.epoch };
                    (task.work)(&beat);
                });
                state.running.remove(&id);
                if running.is_abandoned() {
                    state.abandoned -= 1;
                    self.publish_blocked(&state, -1);
                    // Others took over; only as many as are wanted stay.
                    if state.active() > self.config.threads {
                        break;
                    }
                }
            } else if state.closed {
                break;
            } else {
                state.idle += 1;
                let waited = self.work.wait_for(&mut state, THREAD_IDLE);
                state.idle -= 1;
                if waited.timed_out() && state.queue.is_empty() {
                    break;
                }
            }
        }
        state.total -= 1;
    }

    /// `by` more (or fewer) threads are given up.
    fn publish_blocked(&self, state: &State, by: i64) {
        self.blocked.store(state.abandoned, Ordering::Relaxed);
        count_blocked(by);
    }
}

impl State {
    /// Threads that make progress or could; `slow` may lag behind by a tick.
    fn active(&self) -> usize {
        self.total.saturating_sub(self.slow + self.abandoned)
    }
}

impl Running {
    fn new(task: &Task, now: u64) -> Self {
        Running {
            what: task.what,
            caller: task.caller.clone(),
            begun: now,
            beat: AtomicU64::new(now),
            abandoned: AtomicBool::new(false),
        }
    }

    fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests;
