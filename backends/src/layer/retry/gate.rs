//! The gate: one pace for all callers of a filesystem while its store asks to be called less often.
//!
//! Normally open and free of cost. When more calls than a tolerable few are refused (`Throttled`) it closes: from then
//! on attempts pass one by one, at a rate that starts below what the store had just managed and then follows a curve
//! (after the idea of CUBIC, RFC 9438: back to the last good rate at once, wait there, then probe faster and faster):
//!
//! * for two seconds from 0.7 of the last good rate up to it,
//! * then doubling every 0.8 s until the store refuses too much again, or until the gate falls open.
//!
//! With a store that allows a fixed rate, that costs a few refusals every couple of seconds; when the store recovers
//! the full rate is back within about ten. A refusal with a `Retry-After` always closes the gate, and stops everybody
//! until it is over.
//!
//! Some stores refuse a share of all calls at any rate. Slowing down is no answer to those: it must help, or it ends.
//! So the gate experiments with its rate, as PCC does where TCP takes every loss for congestion (Dong et al., PCC:
//! Re-architecting Congestion Control for Consistent High Performance, NSDI 2015):
//!
//! * Refusals count as a share of recent answers, and only for more than chance makes of it. 2 % are tolerated.
//! * If more are refused even while the gate is slow, evenly over time, then that share becomes the background, and
//!   the gate speeds up.
//! * From then on it dips now and then to a quarter of the rate. If the share falls with it, or rises above the
//!   background at any other time, the rate matters after all: the gate slows down as before, and waits longer before
//!   the next experiment. (Of many callers of one limited store, each for itself sees little of its own part in the
//!   refusals; the dip shows it to the one that takes most.)
//!
//! Where most calls are refused nothing is concluded: an outage looks the same at every rate. So even a wrong
//! conclusion costs no more than two attempts for an answer, until it is revised (gRFC A6 draws the line for retries
//! there too).

mod sample;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::{info, warn};

use self::sample::Sample;
use super::patience::Patience;
use crate::error::{Error, ErrorKind, Result, Retry};
use crate::metrics::THROTTLED_SECONDS;

/// Lowest rate, in attempts per second: enough to notice within seconds that the store has recovered.
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

/// Share of refusals that is not worth slowing down for: it costs one call in fifty.
const TOLERATED: f64 = 0.02;
/// Share of refusals at which calls cost more than they bring.
const TOO_MANY: f64 = 0.5;
/// Answers at a slow rate from which a background may be concluded.
const EVIDENCE: f64 = 64.0;
/// Answers in a dip, and from which a comparison is worth it.
const ENOUGH: f64 = 32.0;
/// How much slower a dip is.
const DIP: f64 = 4.0;
/// Longest dip, if there are few calls.
const LONGEST_DIP: Duration = Duration::from_secs(8);
/// Shortest and longest time from one dip to the next. It doubles with each that confirms the background.
const BETWEEN_DIPS: (Duration, Duration) = (Duration::from_secs(3), Duration::from_secs(60));
/// Shortest and longest time from an experiment that failed to the next. It grows fourfold with each.
const MISTRUST: (Duration, Duration) = (Duration::from_secs(8), Duration::from_secs(256));

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
    /// `None` while open.
    slow: Option<Slow>,
    /// Answers to calls made since the pace last changed, in about the last two seconds.
    recent: Sample,
    /// Answers to calls made in the two seconds after slowing down.
    when_slow: Sample,
    /// What the store refuses at any rate, as far as is known.
    background: Option<Sample>,
    /// No background is concluded before, and the wait after the next one that turns out wrong.
    experiment_from: Instant,
    mistrust: Duration,
    /// No dip before, and the wait after the next one.
    dip_from: Instant,
    between_dips: Duration,
    /// The recent answers before the dip under way.
    before_dip: Sample,
    last_pass: Instant,
    /// Nobody passes before (`Retry-After`).
    not_before: Instant,
}

/// A pace of the closed gate: calls per second, by phase and time since.
#[derive(Debug, Clone, Copy)]
struct Slow {
    rate: f64,
    since: Instant,
    phase: Phase,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// After a refusal: `rate` is to be reached again within `RECOVERY`.
    Cut,
    /// There is a background: faster and faster from `rate` on.
    Climb,
    /// There is a background: `rate` for a while, to see whether that helps.
    Dip,
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
                slow: None,
                recent: Sample::default(),
                when_slow: Sample::default(),
                background: None,
                experiment_from: now,
                mistrust: MISTRUST.0,
                dip_from: now,
                between_dips: BETWEEN_DIPS.0,
                before_dip: Sample::default(),
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

    pub(super) fn succeeded(&self, pass: Pass) {
        let mut state = self.state.lock();
        let now = Instant::now();
        state.roll(now);
        state.good += 1.0;
        if !state.count(pass, false) {
            return;
        }
        if state.experiment(now) {
            self.closed.store(true, Ordering::Relaxed);
        } else if state.slow.is_some() && state.rate(now) > OPEN_ABOVE {
            state.slow = None;
            self.closed.store(false, Ordering::Relaxed);
            if state.background.is_none() {
                // What came before says nothing about the next time.
                (state.mistrust, state.when_slow) = (MISTRUST.0, Sample::default());
                info!("the store answers freely again");
            }
        }
    }

    pub(super) fn failed(&self, pass: Pass, e: &Error) {
        if e.kind() != ErrorKind::Throttled {
            return;
        }
        let mut state = self.state.lock();
        let now = Instant::now();
        let mut asked = false;
        if let Retry::Later(Some(pause)) = e.retry() {
            state.not_before = state.not_before.max(now + pause);
            asked = true;
        }
        state.roll(now);
        if !state.count(pass, true) {
            return;
        }
        let was_open = state.slow.is_none();
        if !asked && state.may_conclude(now) {
            let share = state.when_slow.share();
            state.conclude(now);
            info!(share, "the store refuses calls at low rates too; no longer slowing down for that");
        } else if asked || state.is_too_much() {
            let rate = state.slow_down(now);
            self.closed.store(true, Ordering::Relaxed);
            if was_open {
                warn!(rate, "the store asks for fewer calls; slowing down");
            }
        } else if state.experiment(now) {
            self.closed.store(true, Ordering::Relaxed);
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
            if elapsed < WINDOW * 2 { self.recent.halve() } else { self.recent = Sample::default() }
        }
    }

    /// Counts an answer; false for answers to attempts made before the pace last changed, which say nothing about it.
    fn count(&mut self, pass: Pass, refused: bool) -> bool {
        if let Some(slow) = self.slow {
            if pass.at < slow.since {
                return false;
            }
            let t = (pass.at - slow.since).as_secs_f64();
            if slow.phase == Phase::Dip || slow.phase == Phase::Cut && t < RECOVERY {
                self.when_slow.add(refused);
            }
        }
        self.recent.add(refused);
        true
    }

    /// Whether slowing down has turned out not to help.
    fn may_conclude(&self, now: Instant) -> bool {
        let s = self.when_slow;
        self.slow.is_some()
            && self.background.is_none()
            && now >= self.experiment_from
            && s.answers >= EVIDENCE
            && s.share() <= TOO_MANY
            && s.exceeds(TOLERATED)
            && s.is_even()
    }

    fn conclude(&mut self, now: Instant) {
        self.slow = Some(Slow { rate: self.rate(now), since: now, phase: Phase::Climb });
        self.background = Some(std::mem::take(&mut self.when_slow));
        self.recent = Sample::default();
        self.between_dips = BETWEEN_DIPS.0;
        self.dip_from = now + self.between_dips;
    }

    /// Whether more calls are refused than is known or tolerated at any rate.
    fn is_too_much(&self) -> bool {
        match self.background {
            None => self.recent.exceeds(TOLERATED),
            Some(known) => self.recent.exceeds(TOO_MANY) || self.recent.is_worse_than(&known),
        }
    }

    /// Begins and ends dips while there is a background; true if that leaves the gate closed.
    fn experiment(&mut self, now: Instant) -> bool {
        let Some(background) = self.background else { return false };
        if let Some(Slow { rate, since, phase: Phase::Dip }) = self.slow {
            let dip = self.when_slow;
            if dip.answers < ENOUGH && now < since + LONGEST_DIP {
                return true;
            }
            if dip.share() > TOO_MANY || self.before_dip.is_worse_than(&dip) {
                self.slow_down(now);
                return true;
            }
            if dip.answers >= ENOUGH {
                self.background = Some(dip);
            }
            self.when_slow = Sample::default();
            self.recent = self.before_dip;
            self.slow = Some(Slow { rate: rate * DIP, since: now, phase: Phase::Climb });
            self.between_dips = (self.between_dips * 2).min(BETWEEN_DIPS.1);
            self.dip_from = now + self.between_dips;
            return true;
        }
        if self.recent.answers < ENOUGH {
            return false;
        }
        if background.is_worse_than(&self.recent) {
            self.background = None;
            return false;
        }
        let rate = self.measured(now) / (1.0 - self.recent.share()).max(1.0 - TOO_MANY) / DIP;
        if now < self.dip_from || rate < FLOOR {
            return false;
        }
        self.before_dip = std::mem::take(&mut self.recent);
        self.when_slow = Sample::default();
        self.slow = Some(Slow { rate, since: now, phase: Phase::Dip });
        true
    }

    /// Starts the curve anew, below the present rate (which it returns).
    fn slow_down(&mut self, now: Instant) -> f64 {
        let measured = self.measured(now);
        let rate = if self.slow.is_none() { measured } else { self.rate(now).min(measured * 2.0) };
        let rate = rate.max(FLOOR);
        if self.background.take().is_some() {
            self.experiment_from = now + self.mistrust;
            self.mistrust = (self.mistrust * 4).min(MISTRUST.1);
            self.when_slow = Sample::default();
        } else if rate > FLOOR {
            // What came at higher rates counts less; slower than slowest there is not.
            self.when_slow.halve();
        }
        self.recent = Sample::default();
        // While the store makes everybody wait the curve stands still.
        self.slow = Some(Slow { rate, since: now.max(self.not_before), phase: Phase::Cut });
        rate
    }

    /// Good answers per second lately: this window and the fading rest of the one before.
    fn measured(&self, now: Instant) -> f64 {
        let part = ((now - self.counted_from).as_secs_f64() / WINDOW.as_secs_f64()).min(1.0);
        self.good + self.good_before * (1.0 - part)
    }

    /// The rate that holds now, by the curve.
    fn rate(&self, now: Instant) -> f64 {
        let Some(slow) = self.slow else { return f64::INFINITY };
        let t = now.saturating_duration_since(slow.since).as_secs_f64();
        let doubled = |t: f64| slow.rate * (t / DOUBLING).min(64.0).exp2();
        let rate = match slow.phase {
            Phase::Cut if t < RECOVERY => slow.rate * (CUT + (1.0 - CUT) * t / RECOVERY),
            Phase::Cut => doubled(t - RECOVERY),
            Phase::Climb => doubled(t),
            Phase::Dip => slow.rate,
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
mod tests;
