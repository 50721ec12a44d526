//! [`RetryConfig`]: how often and how patiently failed calls are made again.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::human_duration;
use crate::error::{Error, ErrorKind, Result};

/// Settings of the retry layer: growing, random pauses between attempts ("full jitter", Exponential Backoff And
/// Jitter, AWS Architecture Blog 2015), bounded in number and in time. Progress starts both anew.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RetryConfig {
    /// Attempts made after the first one. 0 turns retrying off. Default: 8.
    pub max_retries: u32,
    /// Longest pause before the first retry; doubles with each further one. Default: `100ms`.
    #[serde(with = "human_duration")]
    pub initial_backoff: Duration,
    /// Longest pause before any retry. A longer `Retry-After` of the store still holds. Default: `10s`.
    #[serde(with = "human_duration")]
    pub max_backoff: Duration,
    /// Time without progress after which no further attempt is made. Default: `60s`.
    #[serde(with = "human_duration")]
    pub max_elapsed: Duration,
}

impl Default for RetryConfig {
    fn default() -> Self {
        RetryConfig {
            max_retries: 8,
            initial_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(10),
            max_elapsed: Duration::from_secs(60),
        }
    }
}

impl RetryConfig {
    /// Checks that the values can work together.
    ///
    /// # Errors
    /// `InvalidInput` if the first pause is longer than the longest one.
    pub fn check(&self) -> Result<()> {
        if self.initial_backoff > self.max_backoff {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!(
                    "initial_backoff is {}, expected at most max_backoff ({})",
                    humantime::format_duration(self.initial_backoff),
                    humantime::format_duration(self.max_backoff)
                ),
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_consistent_and_nonsense_is_refused() {
        assert!(RetryConfig::default().check().is_ok());
        let bad = RetryConfig { initial_backoff: Duration::from_secs(60), ..RetryConfig::default() };
        assert_eq!(bad.check().unwrap_err().kind(), ErrorKind::InvalidInput);
    }
}
