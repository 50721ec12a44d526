//! [`Flight`]: one request for a range of one file, and who waits for its bytes.

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};

use nearfs_backends::{Error, Result};
use tokio::task::AbortHandle;

use crate::clock::Tick;
use crate::sync::Mutex;

/// One request in flight. Bytes arrive front to back; everything before [`Flight::arrived`] can be read.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) range: Range<u64>,
    /// Nobody had asked for these bytes when it was started.
    pub(crate) ahead: bool,
    arrived: AtomicU64,
    progress_at: AtomicU64,
    state: Mutex<State>,
    abort: OnceLock<AbortHandle>,
    aborted: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    waiters: Vec<Waiter>,
    end: Option<Result<()>>,
}

#[derive(Debug)]
struct Waiter {
    id: u64,
    until: u64,
    waker: Waker,
}

impl Flight {
    pub(crate) fn new(range: Range<u64>, ahead: bool, now: Tick) -> Arc<Self> {
        Arc::new(Flight {
            arrived: AtomicU64::new(range.start),
            range,
            ahead,
            progress_at: AtomicU64::new(now.0),
            state: Mutex::new(State::default()),
            abort: OnceLock::new(),
            aborted: AtomicBool::new(false),
        })
    }

    /// Offset in the file up to which bytes are here.
    pub(crate) fn arrived(&self) -> u64 {
        self.arrived.load(Ordering::Acquire)
    }

    /// When bytes last arrived (or it was started).
    pub(crate) fn progress_at(&self) -> Tick {
        Tick(self.progress_at.load(Ordering::Relaxed))
    }

    /// True if somebody waits for its bytes.
    pub(crate) fn is_awaited(&self) -> bool {
        !self.state.lock().waiters.is_empty()
    }

    /// Waits until the bytes before `until` are here.
    ///
    /// # Errors
    /// What ended the request before.
    pub(crate) fn wait(self: &Arc<Self>, until: u64) -> Wait {
        debug_assert!(until <= self.range.end);
        Wait { flight: self.clone(), until, id: None }
    }

    /// Tells the waiters that the bytes before `arrived` are here.
    pub(crate) fn advance(&self, arrived: u64, now: Tick) {
        self.progress_at.store(now.0, Ordering::Relaxed);
        let mut woken = Vec::new();
        {
            // Under the lock, so that nobody registers between the look at `arrived` and the wake-up.
            let mut state = self.state.lock();
            self.arrived.store(arrived, Ordering::Release);
            let mut i = 0;
            while i < state.waiters.len() {
                if state.waiters[i].until <= arrived {
                    woken.push(state.waiters.swap_remove(i).waker);
                } else {
                    i += 1;
                }
            }
        }
        woken.into_iter().for_each(Waker::wake);
    }

    /// Ends it: whoever still waits gets the error, or, after `Ok`, has all the bytes.
    pub(crate) fn finish(&self, end: Result<()>) {
        let waiters = {
            let mut state = self.state.lock();
            state.end.get_or_insert(end);
            std::mem::take(&mut state.waiters)
        };
        waiters.into_iter().for_each(|w| w.waker.wake());
    }

    /// Names the task that carries it out.
    pub(crate) fn carried_by(&self, task: AbortHandle) {
        // Set once, by who spawned the task.
        let task = self.abort.get_or_init(|| task);
        if self.is_aborted() {
            task.abort();
        }
    }

    /// Gives the request up.
    pub(crate) fn abort(&self) {
        self.aborted.store(true, Ordering::Release);
        if let Some(task) = self.abort.get() {
            task.abort();
        }
    }

    /// True once it was given up.
    pub(crate) fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::Acquire)
    }
}

/// The future of [`Flight::wait`]. Dropping it changes nothing for others.
#[derive(Debug)]
pub(crate) struct Wait {
    flight: Arc<Flight>,
    until: u64,
    id: Option<u64>,
}

impl Future for Wait {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let this = &mut *self;
        let mut state = this.flight.state.lock();
        if this.flight.arrived() >= this.until {
            return Poll::Ready(Ok(()));
        }
        match &state.end {
            Some(Ok(())) => return Poll::Ready(Ok(())),
            Some(Err(e)) => return Poll::Ready(Err(Error::duplicate(e))),
            None => {}
        }
        if let Some(waiter) = state.waiters.iter_mut().find(|w| Some(w.id) == this.id) {
            waiter.waker.clone_from(cx.waker());
        } else {
            let id = state.next;
            state.next += 1;
            this.id = Some(id);
            state.waiters.push(Waiter { id, until: this.until, waker: cx.waker().clone() });
        }
        Poll::Pending
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            let mut state = self.flight.state.lock();
            if let Some(at) = state.waiters.iter().position(|w| w.id == id) {
                state.waiters.swap_remove(at);
            }
        }
    }
}
