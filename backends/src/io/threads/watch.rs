//! The watchdog of a [`BlockingPool`](super::BlockingPool): finds calls without progress, answers their callers and
//! writes their threads off.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{Shared, State, Task, Watchdog, timed_out, too_many_blocked};
use crate::error::Error;
use crate::io::completion::Expected;

/// How long the watchdog goes on ticking without anything to watch, before it must be woken.
const LINGER: Duration = Duration::from_secs(2);

impl Shared {
    pub(super) fn watch(self: Arc<Self>) {
        let tick = (self.config.timeout / 8).clamp(Duration::from_millis(5), Duration::from_millis(100));
        let mut last_seen = Instant::now();
        let mut state = self.state.lock();
        loop {
            let over = state.queue.is_empty() && state.running.values().all(|r| r.is_abandoned());
            if state.closed && over {
                return;
            }
            if !state.running.is_empty() || !state.queue.is_empty() {
                last_seen = Instant::now();
            } else if last_seen.elapsed() > LINGER {
                state.watchdog = Watchdog::Sleeping;
                self.watch.wait(&mut state);
                state.watchdog = Watchdog::Ticking;
                last_seen = Instant::now();
                continue;
            }
            self.watch.wait_for(&mut state, tick);
            let late = self.look(&mut state, tick);
            parking_lot::MutexGuard::unlocked(&mut state, || {
                for late in late {
                    late.caller.fail(late.error);
                }
            });
        }
    }

    /// One look at everything that runs or waits. Gives back whom to answer once the lock is released.
    fn look(self: &Arc<Self>, state: &mut State, tick: Duration) -> Vec<Late> {
        let now = self.epoch.elapsed().as_millis() as u64;
        let timeout = self.config.timeout.as_millis() as u64;
        let mut late = Vec::new();
        let (mut slow, mut given_up) = (0, 0);
        for running in state.running.values() {
            if running.is_abandoned() {
                continue;
            }
            let still = now.saturating_sub(running.beat.load(Ordering::Relaxed));
            if still >= timeout {
                running.abandoned.store(true, Ordering::Relaxed);
                given_up += 1;
                tracing::debug!(what = running.what, "a local call hangs; its thread is given up");
                if let Some(caller) = &running.caller {
                    let error = timed_out(running.what, self.config.timeout);
                    late.push(Late { caller: caller.clone(), error, _work: None });
                }
            } else if now.saturating_sub(running.begun) > tick.as_millis() as u64 {
                slow += 1;
            }
        }
        state.slow = slow;
        if given_up > 0 {
            state.abandoned += given_up;
            self.publish_blocked(state, given_up as i64);
        }
        self.expire_queue(state, &mut late);
        for _ in 0..state.queue.len().saturating_sub(state.idle) {
            self.spawn_if_allowed(state);
        }
        late
    }

    /// Takes out of the queue what has waited too long, or all of it when no more calls are started. Clean-up stays.
    fn expire_queue(&self, state: &mut State, late: &mut Vec<Late>) {
        let full = state.abandoned >= self.config.max_blocked;
        let oldest_is_late = state.queue.front().is_some_and(|t| t.queued.elapsed() >= self.config.timeout);
        if !full && !oldest_is_late {
            return;
        }
        let (gone, stay): (Vec<Task>, Vec<Task>) = state
            .queue
            .drain(..)
            .partition(|t| t.caller.is_some() && (full || t.queued.elapsed() >= self.config.timeout));
        state.queue.extend(stay);
        for task in gone {
            let error = if full {
                too_many_blocked(task.what, state.abandoned)
            } else {
                timed_out(task.what, self.config.timeout)
            };
            if let Some(caller) = task.caller.clone() {
                late.push(Late { caller, error, _work: Some(task) });
            }
        }
    }
}

/// A caller to be answered, and the work that is dropped with it, both without the lock.
struct Late {
    caller: Arc<dyn Expected>,
    error: Error,
    _work: Option<Task>,
}
