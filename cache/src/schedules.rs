//! Budget, single flight and the waiters of a request under many schedules of threads. A lost wake-up is a deadlock
//! here, and shuttle reports it. Run with `cargo test -p nearfs-cache --features shuttle`.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use nearfs_backends::{Error, ErrorKind};
use shuttle::future::block_on;
use shuttle::thread;

use crate::budget::Budget;
use crate::clock::Tick;
use crate::memory::flight::Flight;
use crate::single_flight::SingleFlight;

const ROUNDS: usize = 3000;

/// Polls a future at most so many times, then gives up: a reader that leaves.
struct Impatient<F> {
    future: Option<F>,
    polls: u32,
}

impl<F: Future + Unpin> Future for Impatient<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(mut future) = self.future.take() else { return Poll::Ready(None) };
        if let Poll::Ready(value) = Pin::new(&mut future).poll(cx) {
            return Poll::Ready(Some(value));
        }
        if self.polls == 0 {
            return Poll::Ready(None);
        }
        self.polls -= 1;
        self.future = Some(future);
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

#[test]
fn the_budget_is_never_exceeded_and_nobody_waits_for_ever() {
    shuttle::check_random(
        || {
            let budget = Budget::new(10);
            let held = Arc::new(AtomicU64::new(0));
            let threads: Vec<_> = [7u64, 4, 10, 3]
                .into_iter()
                .enumerate()
                .map(|(i, need)| {
                    let (budget, held) = (budget.clone(), held.clone());
                    thread::spawn(move || {
                        let ticket = budget.queue(need);
                        let charge = match i {
                            // One leaves, perhaps after it was granted.
                            2 => block_on(Impatient { future: Some(ticket), polls: 1 }),
                            _ => Some(block_on(ticket)),
                        };
                        if let Some(mut charge) = charge {
                            let now = held.fetch_add(need, Ordering::SeqCst) + need;
                            assert!(now <= 10, "{now} bytes of 10 are held");
                            thread::yield_now();
                            held.fetch_sub(need, Ordering::SeqCst);
                            drop(charge.split(need / 2));
                        }
                        if let Some(extra) = budget.try_take(2, 1) {
                            assert!(budget.used() <= 10);
                            drop(extra);
                        }
                    })
                })
                .collect();
            threads.into_iter().for_each(|t| t.join().unwrap());
            assert_eq!((budget.used(), budget.shortfall()), (0, None));
        },
        ROUNDS,
    );
}

#[test]
fn one_call_at_a_time_and_everybody_gets_a_result() {
    shuttle::check_random(
        || {
            let flights = SingleFlight::<u8, u64>::new();
            let (running, calls) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
            let threads: Vec<_> = (0..4)
                .map(|i| {
                    let (flights, running, calls) = (flights.clone(), running.clone(), calls.clone());
                    thread::spawn(move || {
                        let joined = flights.join(&1, |lead| {
                            thread::spawn(move || {
                                assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0, "two calls at once");
                                let call = calls.fetch_add(1, Ordering::SeqCst);
                                thread::yield_now();
                                running.fetch_sub(1, Ordering::SeqCst);
                                match call {
                                    1 => drop(lead),
                                    _ => lead.finish(Ok(call)),
                                }
                            });
                        });
                        match i {
                            0 => {
                                block_on(Impatient { future: Some(joined), polls: 1 });
                            }
                            _ => match block_on(joined) {
                                Ok(call) => assert!(call < 4 && call != 1),
                                Err(e) => assert_eq!(e.kind(), ErrorKind::Interrupted),
                            },
                        }
                    })
                })
                .collect();
            threads.into_iter().for_each(|t| t.join().unwrap());
        },
        ROUNDS,
    );
}

#[test]
fn whoever_waits_for_bytes_is_woken_by_them_or_by_the_end() {
    shuttle::check_random(
        || {
            let flight = Flight::new(100..200, false, Tick(0));
            let waiters: Vec<_> = [101u64, 150, 160, 200]
                .into_iter()
                .map(|until| {
                    let flight = flight.clone();
                    thread::spawn(move || {
                        if until == 160 {
                            block_on(Impatient { future: Some(flight.wait(until)), polls: 1 });
                            return;
                        }
                        let result = block_on(flight.wait(until));
                        assert_eq!(result.is_ok(), until <= 150, "{until}");
                    })
                })
                .collect();
            flight.advance(120, Tick(1));
            thread::yield_now();
            flight.advance(150, Tick(2));
            flight.finish(Err(Error::new(ErrorKind::Unavailable, "the store is gone")));
            waiters.into_iter().for_each(|t| t.join().unwrap());
            assert!(!flight.is_awaited());
        },
        ROUNDS,
    );
}
