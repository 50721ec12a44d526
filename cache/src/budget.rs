//! [`Budget`]: a number of bytes that all files share, given out first come, first served.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::sync::Mutex;

/// Bytes that may be in use at once.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    used: u64,
    queue: VecDeque<Arc<Waiting>>,
}

/// One place in the queue. Its lock is taken inside the budget's, never the other way round.
#[derive(Debug)]
struct Waiting {
    need: u64,
    step: Mutex<Step>,
}

#[derive(Debug)]
enum Step {
    Queued(Option<Waker>),
    Granted,
    Taken,
}

impl Budget {
    pub(crate) fn new(limit: u64) -> Arc<Self> {
        Arc::new(Budget { limit, state: Mutex::new(State::default()) })
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    pub(crate) fn used(&self) -> u64 {
        self.state.lock().used
    }

    /// `bytes`, if they are free, nobody waits, and `spare` stays free besides.
    pub(crate) fn try_take(self: &Arc<Self>, bytes: u64, spare: u64) -> Option<Charge> {
        let mut state = self.state.lock();
        if !state.queue.is_empty() || state.used + bytes + spare > self.limit {
            return None;
        }
        state.used += bytes;
        Some(Charge { budget: self.clone(), bytes })
    }

    /// A place in the queue for `bytes`, which must not be above the limit (nobody could ever get them).
    pub(crate) fn queue(self: &Arc<Self>, bytes: u64) -> Ticket {
        assert!(bytes <= self.limit, "{bytes} bytes do not fit into a budget of {}", self.limit);
        let waiting = Arc::new(Waiting { need: bytes, step: Mutex::new(Step::Queued(None)) });
        let mut state = self.state.lock();
        state.queue.push_back(waiting.clone());
        let woken = self.grant(&mut state);
        drop(state);
        wake(woken);
        Ticket { budget: self.clone(), waiting }
    }

    /// How many bytes must come free for the first in the queue; `None` if nobody waits.
    pub(crate) fn shortfall(&self) -> Option<u64> {
        let state = self.state.lock();
        state.queue.front().map(|w| (state.used + w.need).saturating_sub(self.limit))
    }

    fn give(&self, bytes: u64) {
        let mut state = self.state.lock();
        state.used -= bytes;
        let woken = self.grant(&mut state);
        drop(state);
        wake(woken);
    }

    fn grant(&self, state: &mut State) -> Vec<Waker> {
        let mut woken = Vec::new();
        while let Some(first) = state.queue.front() {
            if state.used + first.need > self.limit {
                break;
            }
            state.used += first.need;
            if let Step::Queued(Some(waker)) = std::mem::replace(&mut *first.step.lock(), Step::Granted) {
                woken.push(waker);
            }
            state.queue.pop_front();
        }
        woken
    }
}

fn wake(wakers: Vec<Waker>) {
    wakers.into_iter().for_each(Waker::wake);
}

/// Bytes taken from a budget, given back on drop.
#[derive(Debug)]
pub(crate) struct Charge {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Charge {
    /// Cuts `bytes` off as a charge of their own.
    pub(crate) fn split(&mut self, bytes: u64) -> Charge {
        assert!(bytes <= self.bytes, "a charge of {} has no {bytes} bytes to split off", self.bytes);
        self.bytes -= bytes;
        Charge { budget: self.budget.clone(), bytes }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.budget.give(self.bytes);
        }
    }
}

/// A place in the queue of a budget: a future of the charge. Dropping it leaves the queue.
#[derive(Debug)]
pub(crate) struct Ticket {
    budget: Arc<Budget>,
    waiting: Arc<Waiting>,
}

impl Future for Ticket {
    type Output = Charge;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Charge> {
        let mut step = self.waiting.step.lock();
        match &mut *step {
            Step::Queued(waker) => {
                *waker = Some(cx.waker().clone());
                Poll::Pending
            }
            Step::Granted => {
                *step = Step::Taken;
                Poll::Ready(Charge { budget: self.budget.clone(), bytes: self.waiting.need })
            }
            Step::Taken => panic!("a ticket was polled after it had been honoured"),
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut state = self.budget.state.lock();
        let step = std::mem::replace(&mut *self.waiting.step.lock(), Step::Taken);
        match step {
            Step::Taken => return,
            Step::Granted => state.used -= self.waiting.need,
            Step::Queued(_) => state.queue.retain(|w| !Arc::ptr_eq(w, &self.waiting)),
        }
        // Leaving may let the next one through.
        let woken = self.budget.grant(&mut state);
        drop(state);
        wake(woken);
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn nobody_overtakes_the_queue_and_leaving_it_loses_nothing() {
        let budget = Budget::new(10);
        let six = budget.try_take(6, 0).unwrap();
        assert!(budget.try_take(4, 1).is_none());
        let mut big = budget.queue(8);
        let mut small = budget.queue(2);
        assert!((&mut big).now_or_never().is_none() && (&mut small).now_or_never().is_none());
        assert_eq!((budget.used(), budget.shortfall()), (6, Some(4)));
        assert!(budget.try_take(1, 0).is_none(), "there is room, but others wait for it");
        drop(big);
        let two = (&mut small).now_or_never().expect("the queue moved up");
        drop((six, two, small));
        assert_eq!(budget.used(), 0);
        let granted = budget.queue(10);
        assert_eq!(budget.used(), 10);
        drop(granted);
        assert_eq!((budget.used(), budget.shortfall()), (0, None));
        let mut charge = budget.try_take(7, 0).unwrap();
        let part = charge.split(3);
        drop(charge);
        assert_eq!(budget.used(), 3);
        drop(part);
        assert_eq!(budget.used(), 0);
    }
}
