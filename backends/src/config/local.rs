//! [`LocalConfig`]: a directory of this machine as a filesystem.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::human_duration;
use crate::error::{Error, ErrorKind, Result};
use crate::io::{BlockingPoolConfig, EngineChoice, EngineConfig};

/// Settings of a local filesystem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LocalConfig {
    /// The directory shown as the root. Default: `/`.
    pub root: PathBuf,
    /// How files are read: `auto`, `uring` or `psync`. Default: `auto`.
    pub engine: EngineChoice,
    /// How long one call may be without progress before it fails with `TimedOut`; above zero. Default: `30s`.
    #[serde(with = "human_duration")]
    pub io_timeout: Duration,
    /// Calls that may hang beyond `io_timeout` before further ones fail at once. Default: 64; at least 1.
    pub max_blocked: usize,
    /// Threads that work at the same time. Default: 16; at least 1.
    pub threads: usize,
    /// Refuse every change with `ReadOnly`. Default: `false`.
    pub read_only: bool,
}

impl Default for LocalConfig {
    fn default() -> Self {
        let BlockingPoolConfig { threads, max_blocked, timeout } = BlockingPoolConfig::default();
        LocalConfig {
            root: PathBuf::from("/"),
            engine: EngineChoice::Auto,
            io_timeout: timeout,
            max_blocked,
            threads,
            read_only: false,
        }
    }
}

impl LocalConfig {
    /// The defaults with this root.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        LocalConfig { root: root.into(), ..Default::default() }
    }

    /// What the engine needs to know.
    ///
    /// # Errors
    /// `InvalidInput` for a value outside its range; the message names it.
    pub(crate) fn engine_config(&self) -> Result<EngineConfig> {
        let bad =
            |what: &str| Err(Error::new(ErrorKind::InvalidInput, format!("`{what}` of a local store is 0")));
        match self {
            c if c.io_timeout.is_zero() => bad("io_timeout"),
            c if c.max_blocked == 0 => bad("max_blocked"),
            c if c.threads == 0 => bad("threads"),
            c => {
                let (threads, max_blocked, timeout) = (c.threads, c.max_blocked, c.io_timeout);
                Ok(EngineConfig {
                    choice: c.engine,
                    threads: BlockingPoolConfig { threads, max_blocked, timeout },
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_out_of_range_are_named() {
        let mut config = LocalConfig::new("/data");
        assert!(config.engine_config().is_ok());
        config.threads = 0;
        let error = config.engine_config().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("threads"), "{error}");
    }
}
