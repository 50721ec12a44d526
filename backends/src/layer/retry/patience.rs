//! How long one call is tried: attempts, pauses, time.

use std::time::Duration;

use rand::RngExt;
use tokio::time::Instant;
use tracing::debug;

use crate::config::RetryConfig;
use crate::error::{Error, Result, Retry};
use crate::layer::metrics::kind_label;
use crate::metrics::{RETRIES, RETRIES_EXHAUSTED};
use crate::path::FsPath;

/// The patience left for one call or stream. Progress restores it.
///
/// Pauses are drawn evenly from zero to a bound that doubles ("full jitter", Exponential Backoff And Jitter, AWS
/// Architecture Blog 2015), so that callers who failed together do not come back together.
pub(super) struct Patience<'a> {
    config: &'a RetryConfig,
    operation: &'static str,
    path: &'a FsPath,
    attempts: u32,
    since: Instant,
}

impl<'a> Patience<'a> {
    pub(super) fn new(config: &'a RetryConfig, operation: &'static str, path: &'a FsPath) -> Self {
        Patience { config, operation, path, attempts: 0, since: Instant::now() }
    }

    /// Something arrived: start counting anew.
    pub(super) fn progress(&mut self) {
        self.attempts = 0;
        self.since = Instant::now();
    }

    /// Waits before the next attempt after `e`.
    ///
    /// # Errors
    /// `e` itself if there is to be none: it cannot pass, or patience is used up (then marked as exhausted).
    pub(super) async fn pause(&mut self, e: Error) -> Result<()> {
        let Retry::Later(asked) = e.retry() else { return Err(e) };
        if self.attempts >= self.config.max_retries {
            return Err(self.exhausted(e));
        }
        let jitter = rand::rng().random::<f64>();
        // The store's wish is a lower bound; the random part on top keeps the callers apart.
        let pause = asked.unwrap_or_default() + backoff(self.config, self.attempts).mul_f64(jitter);
        if self.since.elapsed() + pause > self.config.max_elapsed {
            return Err(self.exhausted(e));
        }
        self.attempts += 1;
        RETRIES.counter([self.operation, kind_label(e.kind())]).increment(1);
        debug!(
            operation = self.operation, path = %self.path, attempt = self.attempts, ?pause, error = %e.chain(),
            "trying again"
        );
        tokio::time::sleep(pause).await;
        Ok(())
    }

    pub(super) fn exhausted(&self, e: Error) -> Error {
        if !e.is_retryable() {
            return e;
        }
        RETRIES_EXHAUSTED.counter([self.operation, kind_label(e.kind())]).increment(1);
        // Without a single further attempt there were no retries to report.
        let e = if self.attempts > 0 { e.with_context("attempts", self.attempts + 1) } else { e };
        e.with_retry(Retry::Exhausted).during(self.operation).at(self.path)
    }

    /// Time that may still be spent without progress.
    pub(super) fn left(&self) -> Duration {
        self.config.max_elapsed.saturating_sub(self.since.elapsed())
    }

    pub(super) fn describe(&self, e: Error) -> Error {
        e.during(self.operation).at(self.path)
    }
}

/// The bound of the pause before retry number `n` (from 0).
fn backoff(config: &RetryConfig, n: u32) -> Duration {
    config.initial_backoff.saturating_mul(1u32.checked_shl(n).unwrap_or(u32::MAX)).min(config.max_backoff)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn bounds_double_up_to_the_longest() {
        let config = RetryConfig::default();
        let bounds: Vec<_> = [0, 1, 2, 6, 7, 31, 32, 99].map(|n| backoff(&config, n).as_millis()).into();
        assert_eq!(bounds, [100, 200, 400, 6_400, 10_000, 10_000, 10_000, 10_000]);
    }

    #[tokio::test(start_paused = true)]
    async fn attempts_and_time_are_bounded_and_progress_restores_both() {
        let config = RetryConfig::default();
        let path = FsPath::root();
        let unavailable = || Error::new(ErrorKind::Unavailable, "x");
        let mut patience = Patience::new(&config, "read", &path);
        for _ in 0..8 {
            patience.pause(unavailable()).await.unwrap();
        }
        let e = patience.pause(unavailable()).await.unwrap_err();
        assert_eq!((e.retry(), e.context("attempts")), (Retry::Exhausted, Some("9")));
        patience.progress();
        patience.pause(unavailable()).await.unwrap();

        let asked = unavailable().with_retry(Retry::Later(Some(Duration::from_secs(59))));
        let before = Instant::now();
        let mut patience = Patience::new(&config, "read", &path);
        patience.pause(asked.duplicate()).await.unwrap();
        assert!(before.elapsed() >= Duration::from_secs(59), "an asked pause is kept");
        assert_eq!(patience.pause(asked).await.unwrap_err().retry(), Retry::Exhausted);

        let never = Error::new(ErrorKind::NotFound, "x");
        assert_eq!(patience.pause(never).await.unwrap_err().retry(), Retry::Never);
    }
}
