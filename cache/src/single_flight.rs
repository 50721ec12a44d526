//! [`SingleFlight`]: one call for each key at a time; whoever asks meanwhile gets its result.

use std::collections::HashMap;
use std::future::Future;
use std::hash::Hash;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use nearfs_backends::{Error, ErrorKind, Result};

use crate::sync::Mutex;

/// Calls that are running, by key.
#[derive(Debug)]
pub(crate) struct SingleFlight<K, V> {
    calls: Mutex<HashMap<K, Arc<Call<V>>>>,
}

#[derive(Debug)]
struct Call<V> {
    state: Mutex<State<V>>,
}

#[derive(Debug)]
struct State<V> {
    result: Option<Result<V>>,
    wakers: HashMap<u64, Waker>,
    next: u64,
}

impl<K, V> SingleFlight<K, V>
where
    K: Eq + Hash + Clone,
    V: Clone,
{
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(SingleFlight { calls: Mutex::new(HashMap::new()) })
    }

    /// The result of the running call for `key`; if there is none, `start` begins one. `start` must not wait: it
    /// hands the [`Lead`] to a task that runs on, whoever leaves.
    pub(crate) fn join(self: &Arc<Self>, key: &K, start: impl FnOnce(Lead<K, V>)) -> Joined<V> {
        let (call, lead) = {
            let mut calls = self.calls.lock();
            match calls.get(key) {
                Some(call) => (call.clone(), None),
                None => {
                    let state = State { result: None, wakers: HashMap::new(), next: 0 };
                    let call = Arc::new(Call { state: Mutex::new(state) });
                    calls.insert(key.clone(), call.clone());
                    (call.clone(), Some(Lead { of: self.clone(), key: key.clone(), call, over: false }))
                }
            }
        };
        if let Some(lead) = lead {
            start(lead);
        }
        Joined { call, id: None }
    }
}

/// The duty to end a call. Dropping it ends the call with `Interrupted`.
#[derive(Debug)]
pub(crate) struct Lead<K: Eq + Hash + Clone, V: Clone> {
    of: Arc<SingleFlight<K, V>>,
    key: K,
    call: Arc<Call<V>>,
    over: bool,
}

impl<K: Eq + Hash + Clone, V: Clone> Lead<K, V> {
    pub(crate) fn finish(mut self, result: Result<V>) {
        self.end(result);
    }

    fn end(&mut self, result: Result<V>) {
        self.over = true;
        // First out of the map: whoever asks from here on starts anew and is not answered from the past.
        self.of.calls.lock().remove(&self.key);
        let wakers = {
            let mut state = self.call.state.lock();
            state.result = Some(result);
            std::mem::take(&mut state.wakers)
        };
        wakers.into_values().for_each(Waker::wake);
    }
}

impl<K: Eq + Hash + Clone, V: Clone> Drop for Lead<K, V> {
    fn drop(&mut self) {
        if !self.over {
            self.end(Err(Error::new(ErrorKind::Interrupted, "the call was given up")));
        }
    }
}

/// Waits for the result of a call. Dropping it changes nothing for others.
#[derive(Debug)]
pub(crate) struct Joined<V> {
    call: Arc<Call<V>>,
    id: Option<u64>,
}

impl<V: Clone> Future for Joined<V> {
    type Output = Result<V>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<V>> {
        let this = &mut *self;
        let mut state = this.call.state.lock();
        match &state.result {
            Some(Ok(value)) => return Poll::Ready(Ok(value.clone())),
            Some(Err(e)) => return Poll::Ready(Err(e.duplicate())),
            None => {}
        }
        let id = *this.id.get_or_insert_with(|| {
            state.next += 1;
            state.next
        });
        state.wakers.insert(id, cx.waker().clone());
        Poll::Pending
    }
}

impl<V> Drop for Joined<V> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.call.state.lock().wakers.remove(&id);
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn all_who_ask_meanwhile_get_one_result_and_the_next_asks_anew() {
        let flights = SingleFlight::<u8, u8>::new();
        let mut leads = Vec::new();
        let first = flights.join(&1, |lead| leads.push(lead));
        let second = flights.join(&1, |_| panic!("one call is running"));
        let mut left = flights.join(&1, |_| panic!("one call is running"));
        assert!((&mut left).now_or_never().is_none());
        drop(left);
        leads.pop().unwrap().finish(Ok(7));
        assert_eq!(first.now_or_never().unwrap().unwrap(), 7);
        assert_eq!(second.now_or_never().unwrap().unwrap(), 7);
        let third = flights.join(&1, |lead| leads.push(lead));
        leads.clear();
        let error = third.now_or_never().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Interrupted);
    }
}
