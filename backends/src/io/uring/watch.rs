//! The watchdog of a ring. It is a thread of its own, because the ring's thread can hang too: submitting to a dead
//! disk may block.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::Shared;
use crate::io::completion::Expected;
use crate::io::threads::{count_blocked, timed_out};

/// How long the watchdog goes on ticking without anything to watch, before it must be woken.
const LINGER: Duration = Duration::from_secs(2);

impl Shared {
    pub(super) fn watch(self: Arc<Self>) {
        let tick = (self.timeout / 8).clamp(Duration::from_millis(5), Duration::from_millis(100));
        let mut last_seen = Instant::now();
        let mut state = self.state.lock();
        loop {
            let is_busy = !state.queue.is_empty() || state.inflight.iter_mut().any(|(_, r)| !r.given_up);
            if is_busy {
                last_seen = Instant::now();
            } else if state.closed || self.broken.load(Ordering::Acquire) {
                return;
            } else if last_seen.elapsed() > LINGER {
                state.unwatched = true;
                self.watch.wait(&mut state);
                state.unwatched = false;
                last_seen = Instant::now();
                continue;
            }
            self.watch.wait_for(&mut state, tick);
            let now = Instant::now();
            let mut late = Vec::new();
            let mut cancel = Vec::new();
            for (key, read) in state.inflight.iter_mut() {
                if !read.given_up && read.deadline <= now {
                    // The kernel keeps descriptor and memory; the place goes to somebody else.
                    read.given_up = true;
                    late.push((read.promise().clone(), read.place.take()));
                    cancel.push(key);
                }
            }
            self.stuck.fetch_add(cancel.len(), Ordering::Relaxed);
            count_blocked(cancel.len() as i64);
            let mut never_begun = Vec::new();
            while state.queue.front().is_some_and(|r| r.deadline <= now) {
                never_begun.extend(state.queue.pop_front());
            }
            parking_lot::MutexGuard::unlocked(&mut state, || {
                for (promise, place) in late {
                    promise.fail(timed_out("read", self.timeout));
                    drop(place);
                }
                for read in never_begun {
                    read.promise().fail(timed_out("read", self.timeout));
                }
            });
            // Only now: a cancelled read ends with ECANCELED, which is not what its caller should hear.
            if !cancel.is_empty() {
                state.cancel.append(&mut cancel);
                if std::mem::take(&mut state.sleeping) {
                    self.ring_the_bell();
                }
            }
        }
    }
}
