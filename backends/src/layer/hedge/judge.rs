//! [`Judge`]: what is slow, and whether a second request may be made.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::window::{Quantiles, Window};
use super::{HedgeConfig, HedgeStats};
use crate::error::{Error, ErrorKind};
use crate::metrics::{HEDGES, HEDGES_REFUSED, HEDGES_WON};

/// Reads of up to 4 KiB are like-sized, those of more than 1 GiB too; between them each power of two is a class.
const SMALLEST: u32 = 12;
const CLASSES: usize = 20;

/// How much slower than the 95th percentile is slow. Waiting for the 95th percentile alone would hedge one request in
/// twenty, slow or not (Dean and Barroso, The Tail at Scale, CACM 56(2), 2013); twice as much leaves those out that are
/// merely the last of the healthy ones.
const SLOWER: f64 = 2.0;

/// Most second requests that may be saved up: slow answers come in clumps, but a store that gets slow as a whole must
/// not see many of them at once.
const BURST: f64 = 10.0;

/// Why a second request is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    /// Nothing has come.
    FirstByte,
    /// What comes, comes slowly or no more.
    Body,
}

impl Reason {
    fn label(self) -> &'static str {
        match self {
            Reason::FirstByte => "first_byte",
            Reason::Body => "body",
        }
    }
}

/// How long a request may take before it is slow; `None` while too little is known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Limits {
    /// To its first byte.
    pub(super) first_byte: Option<Duration>,
    /// From there to its last byte, the reader's own pauses left out.
    pub(super) body: Option<Duration>,
}

/// How long a request took.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Took {
    /// From the start of the request that brought it.
    pub(super) first_byte: Option<Duration>,
    /// The rest, if all of it came.
    pub(super) body: Option<Duration>,
}

/// Knows how long requests of each size take, and keeps the budget of second ones. Each request locks it twice, for
/// about a microsecond.
#[derive(Debug)]
pub(super) struct Judge {
    config: HedgeConfig,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    classes: [Class; CLASSES],
    /// Second requests that may be made now: a token bucket filled by requests, not by time.
    tokens: f64,
    quiet_until: Option<Instant>,
    stats: HedgeStats,
}

#[derive(Debug, Default)]
struct Class {
    first_byte: Window,
    body: Window,
}

/// The class of a read of `bytes` bytes, above 0.
pub(super) fn class_of(bytes: u64) -> usize {
    let power = bytes.max(1).next_power_of_two().trailing_zeros();
    (power.saturating_sub(SMALLEST) as usize).min(CLASSES - 1)
}

impl Judge {
    pub(super) fn new(config: HedgeConfig) -> Self {
        let state = State {
            classes: Default::default(),
            tokens: 1.0,
            quiet_until: None,
            stats: HedgeStats::default(),
        };
        Judge { config, state: Mutex::new(state) }
    }

    /// Counts a request of `class`, and says when it is slow.
    pub(super) fn request(&self, class: usize) -> Limits {
        let mut state = self.state.lock();
        state.stats.requests += 1;
        state.tokens = (state.tokens + self.config.share.clamp(0.0, 1.0)).min(BURST);
        let class = &mut state.classes[class];
        let limit = |window: &mut Window| {
            let Quantiles { p50, p95 } = window.quantiles(self.config.least_samples)?;
            Some(p95.mul_f64(SLOWER).max(p50 + self.config.slack))
        };
        Limits { first_byte: limit(&mut class.first_byte), body: limit(&mut class.body) }
    }

    /// Learns from a request of `class`.
    pub(super) fn learn(&self, class: usize, took: Took) {
        let mut state = self.state.lock();
        let class = &mut state.classes[class];
        took.first_byte.into_iter().for_each(|t| class.first_byte.add(t));
        took.body.into_iter().for_each(|t| class.body.add(t));
    }

    /// Whether a slow request may get a second one, which is then taken from the budget.
    pub(super) fn allow(&self, reason: Reason) -> bool {
        let mut state = self.state.lock();
        if state.quiet_until.is_some_and(|until| Instant::now() < until) {
            state.stats.refused_throttled += 1;
            HEDGES_REFUSED.counter(["throttled"]).increment(1);
            return false;
        }
        if state.tokens < 1.0 {
            state.stats.refused_budget += 1;
            HEDGES_REFUSED.counter(["budget"]).increment(1);
            return false;
        }
        state.tokens -= 1.0;
        state.stats.started += 1;
        HEDGES.counter([reason.label()]).increment(1);
        true
    }

    /// A second request brought what the first had not.
    pub(super) fn won(&self) {
        self.state.lock().stats.won += 1;
        HEDGES_WON.counter([]).increment(1);
    }

    /// Hears of a failure: a store that asks for fewer requests gets no second ones for a while.
    pub(super) fn hear(&self, e: &Error) {
        if e.kind() == ErrorKind::Throttled {
            self.state.lock().quiet_until = Some(Instant::now() + self.config.quiet);
        }
    }

    pub(super) fn stats(&self) -> HedgeStats {
        self.state.lock().stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn judge() -> Judge {
        Judge::new(HedgeConfig::default())
    }

    fn teach(judge: &Judge, class: usize, times: impl IntoIterator<Item = u64>) {
        for t in times {
            let took = Took { first_byte: Some(ms(t)), body: Some(ms(t / 2)) };
            judge.learn(class, took);
        }
    }

    #[test]
    fn classes_are_powers_of_two_with_open_ends() {
        assert_eq!([1, 4096].map(class_of), [0, 0]);
        assert_eq!([4097, 8192, 8193].map(class_of), [1, 1, 2]);
        assert_eq!([(1 << 20) - 1, 1 << 20, (1 << 20) + 1].map(class_of), [8, 8, 9]);
        assert_eq!([1 << 31, u64::MAX >> 1].map(class_of), [CLASSES - 1; 2]);
    }

    #[test]
    fn nothing_is_slow_before_there_are_samples_of_that_size() {
        let judge = judge();
        teach(&judge, 8, [30; 31]);
        assert_eq!(judge.request(8), Limits::default());
        teach(&judge, 8, [30]);
        assert_eq!(judge.request(8).first_byte, Some(ms(80)));
        assert_eq!(judge.request(9), Limits::default());
    }

    #[test]
    fn slow_is_twice_the_95th_percentile_and_at_least_the_median_and_50_ms() {
        let judge = judge();
        // One in ten takes 200 ms, so that is the 95th percentile.
        teach(&judge, 8, (0..100).map(|i| if i % 10 == 0 { 200 } else { 40 }));
        assert_eq!(judge.request(8), Limits { first_byte: Some(ms(400)), body: Some(ms(200)) });
        // One in a hundred does not count.
        teach(&judge, 3, (0..100).map(|i| if i == 50 { 1_000 } else { 20 }));
        assert_eq!(judge.request(3), Limits { first_byte: Some(ms(70)), body: Some(ms(60)) });
    }

    #[test]
    fn second_requests_are_a_share_of_the_first_and_a_few_saved_up() {
        let judge = judge();
        let allowed = |n| (0..n).filter(|_| judge.allow(Reason::FirstByte)).count();
        assert_eq!(allowed(100), 1, "the one it starts with");
        for _ in 0..1_000 {
            judge.request(0);
        }
        assert_eq!(allowed(100), BURST as usize, "what was not needed is not kept for ever");
        let mut more = 0;
        for _ in 0..10_000 {
            judge.request(0);
            more += allowed(1);
        }
        assert!((290..=301).contains(&more), "{more} of 10 000 are not 3 %");
        let stats = judge.stats();
        assert_eq!((stats.requests, stats.started), (11_000, 11 + more as u64));
        assert_eq!(stats.refused_budget, 99 + 90 + 10_000 - more as u64);
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_refuses_for_being_asked_too_often_gets_no_second_requests_for_a_while() {
        let judge = judge();
        judge.hear(&Error::new(ErrorKind::Unavailable, "x"));
        for _ in 0..100 {
            judge.request(0);
        }
        assert!(judge.allow(Reason::Body));
        judge.hear(&Error::new(ErrorKind::Throttled, "x"));
        assert!(!judge.allow(Reason::Body));
        tokio::time::advance(HedgeConfig::default().quiet - ms(1)).await;
        assert!(!judge.allow(Reason::Body));
        tokio::time::advance(ms(1)).await;
        assert!(judge.allow(Reason::Body));
        assert_eq!(judge.stats().refused_throttled, 2);
    }
}
