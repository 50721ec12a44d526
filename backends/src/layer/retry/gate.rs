//! The gate: one pace for all callers of a filesystem while its store asks to be called less often.
//!
//! Normally open and free of cost. The first `Throttled` answer closes it: from then on attempts pass one by one, at
//! a rate that starts below what the store had just managed and then follows a curve (after the idea of CUBIC,
//! RFC 9438: back to the last good rate at once, wait there, then probe faster and faster):
//!
//! * for two seconds from 0.7 of the last good rate up to it,
//! * then doubling every 0.8 s until the store refuses again, or until the gate falls open.
//!
//! With a store that allows a fixed rate, that costs a few refusals every couple of seconds; when the store recovers
//! the full rate is back within about seven. A `Retry-After` stops everybody until it is over.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::{info, warn};

use super::patience::Patience;
use crate::error::{Error, ErrorKind, Result, Retry};
use crate::metrics::THROTTLED_SECONDS;

/// Lowest rate, in attempts per second: a store that refuses a share of all calls at any rate (not those above a
/// rate) would otherwise be asked ever less for nothing.
const FLOOR: f64 = 8.0;
/// Part of the last good rate with which to go on after a refusal.
const CUT: f64 = 0.7;
/// Time back to the last good rate.
const RECOVERY: f64 = 2.0;
/// Time in which the rate doubles afterwards.
const DOUBLING: f64 = 0.8;
/// Rate above which there is nothing left to slow down.
const OPEN_ABOVE: f64 = 20_000.0;
/// Longest sleep before the rate is looked at anew: it may have grown meanwhile.
const TICK: Duration = Duration::from_millis(50);
/// Time over which the good rate is measured.
const WINDOW: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Gate {
    /// The fast path: false means open.
    closed: AtomicBool,
    state: Mutex<State>,
    /// Callers pass in the order in which they came: one at a time waits for the pace, the others for it.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct State {
    /// Good answers in the running second and in the one before.
    counted_from: Instant,
    good: f64,
    good_before: f64,
    /// The rate at which the store last refused, and when; `None` while open.
    refused: Option<(f64, Instant)>,
    last_pass: Instant,
    /// Nobody passes before (`Retry-After`).
    not_before: Instant,
}

/// Permission for one attempt.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pass {
    at: Instant,
}

impl Pass {
    /// For answers that come in the middle of something long: they speak of now.
    pub(super) fn now() -> Self {
        Pass { at: Instant::now() }
    }
}

impl Gate {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Gate {
            closed: AtomicBool::new(false),
            state: Mutex::new(State {
                counted_from: now,
                good: 0.0,
                good_before: 0.0,
                refused: None,
                last_pass: now,
                not_before: now,
            }),
            turn: tokio::sync::Mutex::new(()),
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Waits until an attempt may be made.
    ///
    /// # Errors
    /// `Throttled`, exhausted, if that takes longer than the caller's patience.
    pub(super) async fn pass(&self, patience: &Patience<'_>) -> Result<Pass> {
        let now = Instant::now();
        if !self.is_closed() {
            return Ok(Pass { at: now });
        }
        let waited = tokio::time::timeout(patience.left(), async {
            let _turn = self.turn.lock().await;
            loop {
                let wait = self.state.lock().wait(Instant::now());
                let Some(wait) = wait else { return };
                tokio::time::sleep(wait.min(TICK)).await;
            }
        });
        if waited.await.is_err() {
            let e = Error::new(ErrorKind::Throttled, "the store has asked for fewer calls for too long");
            return Err(patience.describe(e.with_retry(Retry::Exhausted)));
        }
        THROTTLED_SECONDS.histogram([]).record(now.elapsed().as_secs_f64());
        Ok(Pass::now())
    }

    pub(super) fn succeeded(&self, _: Pass) {
        let mut state = self.state.lock();
        let now = Instant::now();
        state.roll(now);
        state.good += 1.0;
        if state.refused.is_some() && state.rate(now) > OPEN_ABOVE {
            state.refused = None;
            self.closed.store(false, Ordering::Relaxed);
            info!("the store answers freely again");
        }
    }

    pub(super) fn failed(&self, pass: Pass, e: &Error) {
        if e.kind() != ErrorKind::Throttled {
            return;
        }
        let mut state = self.state.lock();
        let now = Instant::now();
        if let Retry::Later(Some(pause)) = e.retry() {
            state.not_before = state.not_before.max(now + pause);
        }
        // Answers to attempts made before the last cut say nothing about the rate since.
        if state.refused.is_some_and(|(_, since)| pass.at < since) {
            return;
        }
        state.roll(now);
        let was_open = state.refused.is_none();
        let rate =
            if was_open { state.measured(now) } else { state.rate(now).min(state.measured(now) * 2.0) };
        // While the store makes everybody wait the curve stands still.
        state.refused = Some((rate.max(FLOOR), now.max(state.not_before)));
        self.closed.store(true, Ordering::Relaxed);
        drop(state);
        if was_open {
            warn!(rate, "the store asks for fewer calls; slowing down");
        }
    }
}

impl State {
    /// Forgets answers older than two windows.
    fn roll(&mut self, now: Instant) {
        let elapsed = now - self.counted_from;
        if elapsed >= WINDOW {
            self.good_before = if elapsed < WINDOW * 2 { self.good } else { 0.0 };
            self.good = 0.0;
            self.counted_from = now;
        }
    }

    /// Good answers per second lately: this window and the fading rest of the one before.
    fn measured(&self, now: Instant) -> f64 {
        let part = ((now - self.counted_from).as_secs_f64() / WINDOW.as_secs_f64()).min(1.0);
        self.good + self.good_before * (1.0 - part)
    }

    /// The rate that holds now, by the curve.
    fn rate(&self, now: Instant) -> f64 {
        let Some((refused_at, since)) = self.refused else { return f64::INFINITY };
        let t = now.saturating_duration_since(since).as_secs_f64();
        let rate = if t < RECOVERY {
            refused_at * (CUT + (1.0 - CUT) * t / RECOVERY)
        } else {
            refused_at * ((t - RECOVERY) / DOUBLING).min(64.0).exp2()
        };
        rate.max(FLOOR)
    }

    /// Takes a pass, or says how long to wait for one.
    fn wait(&mut self, now: Instant) -> Option<Duration> {
        if now < self.not_before {
            return Some(self.not_before - now);
        }
        let gap = Duration::from_secs_f64(1.0 / self.rate(now));
        let next = self.last_pass + gap;
        if now < next {
            return Some(next - now);
        }
        // Unused time is not saved up: a pause must not end in a burst. A late timer may be made up for.
        self.last_pass = if now - next < TICK { next } else { now };
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RetryConfig;
    use crate::path::FsPath;

    #[tokio::test(start_paused = true)]
    async fn an_open_gate_costs_no_time_and_a_wish_for_a_pause_stops_everybody() {
        let (gate, config, path) = (Gate::new(), RetryConfig::default(), FsPath::root());
        let patience = Patience::new(&config, "read", &path);
        let start = Instant::now();
        let pass = gate.pass(&patience).await.unwrap();
        assert_eq!(start.elapsed(), Duration::ZERO);
        let e = Error::new(ErrorKind::Throttled, "x").with_retry(Retry::Later(Some(Duration::from_secs(2))));
        gate.failed(pass, &e);
        assert!(gate.is_closed());
        gate.pass(&patience).await.unwrap();
        assert!(start.elapsed() >= Duration::from_secs(2));
        let longer =
            Error::new(ErrorKind::Throttled, "x").with_retry(Retry::Later(Some(Duration::from_secs(99))));
        gate.failed(Pass::now(), &longer);
        let e = gate.pass(&patience).await.unwrap_err();
        assert_eq!((e.kind(), e.retry()), (ErrorKind::Throttled, Retry::Exhausted));
        assert!(start.elapsed() <= Duration::from_secs(61));
    }

    #[tokio::test(start_paused = true)]
    async fn other_failures_do_not_close_it() {
        let gate = Gate::new();
        gate.failed(Pass::now(), &Error::new(ErrorKind::Unavailable, "x"));
        assert!(!gate.is_closed());
    }
}
