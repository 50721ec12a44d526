//! [`Connections`]: how many data requests may be in flight, and how many of them prefetch may use, by measurement.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::clock::{Clock, Tick};
use crate::stats::Counters;

/// Connections prefetch starts with.
const START: f64 = 32.0;
/// Connections it always may use.
const LEAST: f64 = 4.0;
/// Up to this slowdown more connections are believed to help.
const GROW_BELOW: f64 = 1.6;
/// From this slowdown on they only share what there is.
const SHRINK_ABOVE: f64 = 3.0;
/// How fast the best rate seen is forgotten.
const HALF_LIFE: Duration = Duration::from_secs(20);
/// Smallest request whose rate says something.
const TELLING: u64 = 256 << 10;

/// The connections of one cache: at most `max`; readers wait for one, prefetch takes one if its share allows.
///
/// The share follows the delay of requests, as congestion control by delay does (TCP Vegas, Brakmo and Peterson
/// 1995): each finished request is compared with what it would take alone (the best first-byte time and rate seen
/// lately). While requests are hardly slowed by one another, each one that finishes adds a connection, which doubles
/// their number every round; when they take several times as long, the network or this machine is full and the share
/// shrinks. A store that asks for less halves it.
#[derive(Debug)]
pub(crate) struct Connections {
    max: usize,
    all: Arc<Semaphore>,
    ahead: Arc<AtomicUsize>,
    state: Mutex<State>,
    stats: Arc<Counters>,
    clock: Clock,
}

#[derive(Debug)]
struct State {
    target: f64,
    first_byte: f64,
    rate: f64,
    rated_at: Tick,
    shrunk_at: Tick,
    held_until: Tick,
    /// Prefetch wanted more connections than it had since the last one was added.
    wanted_more: bool,
}

/// The right to one request, until dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    _one: OwnedSemaphorePermit,
    ahead: Option<Arc<AtomicUsize>>,
    stats: Arc<Counters>,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.stats.in_flight.sub(1);
        if let Some(ahead) = &self.ahead {
            ahead.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// How one request went.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Measured {
    pub(crate) started: Tick,
    pub(crate) first_byte: Duration,
    pub(crate) total: Duration,
    pub(crate) bytes: u64,
}

impl Connections {
    pub(crate) fn new(max: usize, clock: &Clock, stats: Arc<Counters>) -> Self {
        let max = max.clamp(1, 65_536);
        let target = START.min(max as f64);
        stats.connections.set(target as u64);
        let now = clock.now();
        Connections {
            max,
            all: Arc::new(Semaphore::new(max)),
            ahead: Arc::default(),
            state: Mutex::new(State {
                target,
                first_byte: 0.0,
                rate: 0.0,
                rated_at: now,
                shrunk_at: now,
                held_until: now,
                wanted_more: false,
            }),
            stats,
            clock: clock.clone(),
        }
    }

    pub(crate) fn max(&self) -> usize {
        self.max
    }

    /// Connections prefetch may use now.
    pub(crate) fn target(&self) -> usize {
        self.state.lock().target as usize
    }

    /// A connection for a reader; waits its turn.
    pub(crate) async fn demand(&self) -> Permit {
        let one = self.all.clone().acquire_owned().await.expect("the semaphore is never closed");
        self.stats.in_flight.inc();
        Permit { _one: one, ahead: None, stats: self.stats.clone() }
    }

    /// A connection for prefetch, if its share allows. An eighth of all stays free for readers.
    pub(crate) fn try_ahead(&self) -> Option<Permit> {
        let mut state = self.state.lock();
        let share = (state.target as usize).min(self.max - (self.max / 8).min(self.max - 1));
        if self.ahead.load(Ordering::Acquire) >= share || self.all.available_permits() <= self.max / 8 {
            state.wanted_more = true;
            return None;
        }
        let one = self.all.clone().try_acquire_owned().ok()?;
        self.ahead.fetch_add(1, Ordering::AcqRel);
        drop(state);
        self.stats.in_flight.inc();
        Some(Permit { _one: one, ahead: Some(self.ahead.clone()), stats: self.stats.clone() })
    }

    /// Notes that prefetch would use more connections if its share were larger.
    pub(crate) fn want_more(&self) {
        self.state.lock().wanted_more = true;
    }

    /// Learns from a request that succeeded.
    pub(crate) fn finished(&self, m: Measured) {
        let now = self.clock.now();
        let mut state = self.state.lock();
        let first_byte = m.first_byte.as_secs_f64();
        // The least seen, drifting up slowly: routes and stores change.
        let lower = state.first_byte == 0.0 || first_byte < state.first_byte;
        state.first_byte += (first_byte - state.first_byte) * if lower { 1.0 } else { 0.005 };
        if m.bytes >= TELLING {
            let rate = m.bytes as f64 / (m.total - m.first_byte).as_secs_f64().max(1e-6);
            let age = now.since(state.rated_at).as_secs_f64() / HALF_LIFE.as_secs_f64();
            state.rate *= 0.5f64.powf(age);
            state.rated_at = now;
            if rate > state.rate {
                // Not the very best: a burst out of a buffer is no rate.
                state.rate += (rate - state.rate) * if state.rate == 0.0 { 1.0 } else { 0.3 };
            }
        }
        let alone = state.first_byte + if state.rate > 0.0 { m.bytes as f64 / state.rate } else { 0.0 };
        // Below a millisecond differences are scheduling, not load.
        let slowdown = m.total.as_secs_f64() / alone.max(0.001);
        if slowdown < GROW_BELOW && state.wanted_more && now >= state.held_until {
            state.target = (state.target + 1.0).min(self.max as f64);
            state.wanted_more = false;
        } else if slowdown > SHRINK_ABOVE && m.started >= state.shrunk_at {
            // Once for the requests of one level: those begun before it say nothing of it.
            let factor = (SHRINK_ABOVE / slowdown).clamp(0.3, 0.8);
            state.target = (state.target * factor).max(LEAST.min(self.max as f64));
            state.shrunk_at = now;
        }
        self.stats.connections.set(state.target as u64);
    }

    /// The store asked for less, or the network is overloaded.
    pub(crate) fn throttled(&self) {
        let now = self.clock.now();
        let mut state = self.state.lock();
        if now >= state.held_until {
            state.target = (state.target / 2.0).max(1.0);
            state.held_until = now.after(Duration::from_secs(1));
            state.shrunk_at = now;
            self.stats.connections.set(state.target as u64);
        }
    }
}
