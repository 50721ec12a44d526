//! A result that another thread will deliver: [`Promise`] for who delivers, [`Outcome`] for who waits.
//!
//! Like a oneshot channel, except that a watchdog may deliver a failure first and that the deliverer can ask whether
//! anybody still waits. Needs no runtime.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use crate::error::{Error, Result};

enum State<T> {
    Waiting(Option<Waker>),
    Done(Result<T>),
    /// Nobody waits any more: the result was taken, or the future dropped.
    Gone,
}

/// The delivering side. The first delivery counts, later ones are dropped.
pub(crate) struct Promise<T>(Arc<Mutex<State<T>>>);

/// The waiting side. Dropping it makes [`Expected::is_wanted`] false.
pub(crate) struct Outcome<T>(Arc<Mutex<State<T>>>);

/// What a watchdog needs of a promise, whatever its type.
pub(crate) trait Expected: Send + Sync {
    /// Delivers a failure, unless something was delivered already.
    fn fail(&self, error: Error);

    /// True while somebody waits for a delivery.
    fn is_wanted(&self) -> bool;
}

/// Both sides of a new result.
pub(crate) fn pair<T>() -> (Promise<T>, Outcome<T>) {
    let state = Arc::new(Mutex::new(State::Waiting(None)));
    (Promise(state.clone()), Outcome(state))
}

impl<T> Promise<T> {
    /// Delivers `result`, unless something was delivered already or nobody waits.
    pub(crate) fn settle(&self, result: Result<T>) {
        let mut state = self.0.lock();
        // What is not delivered is dropped here, outside the lock: it may own much.
        let (_unwanted, waker) = match &mut *state {
            State::Waiting(waker) => {
                let waker = waker.take();
                *state = State::Done(result);
                (None, waker)
            }
            State::Done(_) | State::Gone => (Some(result), None),
        };
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Clone for Promise<T> {
    fn clone(&self) -> Self {
        Promise(self.0.clone())
    }
}

impl<T: Send> Expected for Promise<T> {
    fn fail(&self, error: Error) {
        self.settle(Err(error));
    }

    fn is_wanted(&self) -> bool {
        matches!(*self.0.lock(), State::Waiting(_))
    }
}

impl<T> Future for Outcome<T> {
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T>> {
        let mut state = self.0.lock();
        if let State::Waiting(waker) = &mut *state {
            match waker {
                Some(waker) => waker.clone_from(cx.waker()),
                None => *waker = Some(cx.waker().clone()),
            }
            return Poll::Pending;
        }
        match std::mem::replace(&mut *state, State::Gone) {
            State::Done(result) => Poll::Ready(result),
            State::Waiting(_) | State::Gone => panic!("an outcome was polled after it had been taken"),
        }
    }
}

impl<T> Drop for Outcome<T> {
    fn drop(&mut self) {
        let _left = std::mem::replace(&mut *self.0.lock(), State::Gone);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn the_first_delivery_counts() {
        let (promise, outcome) = pair::<u8>();
        assert!(promise.is_wanted());
        promise.fail(Error::new(ErrorKind::TimedOut, "late"));
        promise.settle(Ok(1));
        assert!(!promise.is_wanted());
        assert_eq!(futures::executor::block_on(outcome).unwrap_err().kind(), ErrorKind::TimedOut);
    }

    #[test]
    fn a_dropped_future_is_seen_and_the_result_dropped() {
        let (promise, outcome) = pair::<Arc<()>>();
        drop(outcome);
        assert!(!promise.is_wanted());
        let value = Arc::new(());
        promise.settle(Ok(value.clone()));
        assert_eq!(Arc::strong_count(&value), 1);
    }

    #[test]
    fn a_waiting_future_is_woken() {
        let (promise, outcome) = pair::<u8>();
        let thread = std::thread::spawn(move || futures::executor::block_on(outcome).unwrap());
        std::thread::sleep(std::time::Duration::from_millis(20));
        promise.settle(Ok(9));
        assert_eq!(thread.join().unwrap(), 9);
    }
}
