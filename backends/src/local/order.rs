//! [`Order`]: calls see the end of changes whose caller stopped waiting.
//!
//! Dropping the future of a rename does not stop a thread that is in the middle of it. Without this, whoever looks
//! next could see the old name, and then not the new one either.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// How long a call waits for changes that nobody waits for. A change that hangs delays others this long, once.
const PATIENCE: Duration = Duration::from_millis(100);

/// The changes of one filesystem that go on without a caller.
#[derive(Default)]
pub(super) struct Order {
    state: Mutex<State>,
    over: Condvar,
    /// Number of orphans, readable without the lock.
    orphans: AtomicUsize,
}

#[derive(Default)]
struct State {
    next: u64,
    orphans: BTreeSet<u64>,
}

/// Where one change is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Going,
    Orphan,
    Over,
}

struct Change {
    order: Arc<Order>,
    number: u64,
    phase: Mutex<Phase>,
}

/// Held by the future that waits for a change.
pub(super) struct Waiting(Arc<Change>);

/// Held by the work itself, begun or not.
pub(super) struct Working(Arc<Change>);

impl Order {
    /// A change begins.
    pub(super) fn begin(self: &Arc<Self>) -> (Waiting, Working) {
        let number = {
            let mut state = self.state.lock();
            state.next += 1;
            state.next
        };
        let change = Arc::new(Change { order: self.clone(), number, phase: Mutex::new(Phase::Going) });
        (Waiting(change.clone()), Working(change))
    }

    /// Waits on the calling thread, shortly, until no change goes on without a caller.
    pub(super) fn settle(&self) {
        self.settle_before(u64::MAX);
    }

    /// As `settle`, only for changes numbered below `number`: so that no two wait for one another.
    fn settle_before(&self, number: u64) {
        if self.orphans.load(Ordering::Acquire) == 0 {
            return;
        }
        let end = Instant::now() + PATIENCE;
        let mut state = self.state.lock();
        while state.orphans.first().is_some_and(|o| *o < number) {
            if self.over.wait_until(&mut state, end).timed_out() {
                state.orphans.retain(|o| *o >= number);
            }
            self.orphans.store(state.orphans.len(), Ordering::Release);
        }
    }
}

impl Working {
    /// Waits, shortly, for earlier changes that go on without a caller.
    pub(super) fn settle(&self) {
        self.0.order.settle_before(self.0.number);
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut phase = self.0.phase.lock();
        if *phase == Phase::Going {
            *phase = Phase::Orphan;
            let mut state = self.0.order.state.lock();
            state.orphans.insert(self.0.number);
            self.0.order.orphans.store(state.orphans.len(), Ordering::Release);
        }
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        let mut phase = self.0.phase.lock();
        if std::mem::replace(&mut *phase, Phase::Over) == Phase::Orphan {
            let mut state = self.0.order.state.lock();
            // Written off already, if it took too long.
            state.orphans.remove(&self.0.number);
            self.0.order.orphans.store(state.orphans.len(), Ordering::Release);
            self.0.order.over.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_waits_for_orphans_but_not_for_ever() {
        let order = Arc::new(Order::default());
        let (waiting, working) = order.begin();
        order.settle();
        drop(waiting);
        assert_eq!(order.orphans.load(Ordering::Relaxed), 1);
        let thread = std::thread::spawn(move || {
            std::thread::sleep(PATIENCE / 4);
            drop(working);
        });
        order.settle();
        assert_eq!(order.orphans.load(Ordering::Relaxed), 0);
        thread.join().unwrap();

        let (waiting, hanging) = order.begin();
        drop(waiting);
        order.settle();
        assert_eq!(order.orphans.load(Ordering::Relaxed), 0, "written off");
        let (waiting, working) = order.begin();
        drop(waiting);
        drop(hanging);
        assert_eq!(order.orphans.load(Ordering::Relaxed), 1, "the one written off does not count down");
        drop(working);
        assert_eq!(order.orphans.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_finished_change_leaves_no_orphan() {
        let order = Arc::new(Order::default());
        let (waiting, working) = order.begin();
        drop(working);
        drop(waiting);
        assert_eq!(order.orphans.load(Ordering::Relaxed), 0);
    }
}
