//! [`Clock`]: where the cache reads the time, so that tests can move it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A monotonic clock: the system's, plus what a test added.
#[derive(Debug, Clone)]
pub(crate) struct Clock {
    base: Instant,
    skipped: Option<Arc<AtomicU64>>,
}

/// Later than any lifetime that is not for ever: about 100 years, which an `Instant` can still hold.
const FAR: u64 = 3_155_760_000 * 1_000_000_000;

impl Clock {
    pub(crate) fn system() -> Self {
        Clock { base: Instant::now(), skipped: None }
    }

    /// A clock that stands still except when [`Clock::skip`] moves it.
    #[cfg(all(test, not(feature = "shuttle")))]
    pub(crate) fn manual() -> Self {
        Clock { base: Instant::now(), skipped: Some(Arc::new(AtomicU64::new(0))) }
    }

    /// Moves a manual clock forward.
    #[cfg(all(test, not(feature = "shuttle")))]
    pub(crate) fn skip(&self, by: Duration) {
        let skipped = self.skipped.as_ref().expect("only a manual clock is moved");
        skipped.fetch_add(u64::try_from(by.as_nanos()).unwrap_or(FAR), Ordering::SeqCst);
    }

    /// The time now, in nanoseconds since this clock was made.
    pub(crate) fn now(&self) -> Tick {
        match &self.skipped {
            None => Tick(u64::try_from(self.base.elapsed().as_nanos()).unwrap_or(FAR)),
            Some(skipped) => Tick(skipped.load(Ordering::SeqCst)),
        }
    }

    /// `tick` as the `Instant` that callers outside understand.
    pub(crate) fn instant(&self, tick: Tick) -> Instant {
        self.base + Duration::from_nanos(tick.0.min(FAR))
    }
}

/// A moment of one [`Clock`]: cheap to store in an atomic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tick(pub(crate) u64);

impl Tick {
    /// A moment that never comes.
    pub(crate) const FOREVER: Tick = Tick(u64::MAX);

    /// This moment and `by`.
    pub(crate) fn after(self, by: Duration) -> Tick {
        Tick(self.0.saturating_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// Time from `earlier` to this moment; zero if it is later.
    pub(crate) fn since(self, earlier: Tick) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}
