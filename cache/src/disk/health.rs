//! [`Health`]: a directory that cannot be written to is left alone for a while.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::Clock;

/// How long nothing is written after a failure.
const OFF: Duration = Duration::from_secs(30);
/// How often a directory that fails is mentioned.
const QUIET: Duration = Duration::from_secs(300);

/// Whether it is worth writing to one directory, as this process sees it.
#[derive(Debug)]
pub(crate) struct Health {
    path: PathBuf,
    clock: Clock,
    /// Writing is off before this moment.
    off_until: AtomicU64,
    /// No warning before this moment.
    quiet_until: AtomicU64,
    /// Writing is off for good: the directory was removed.
    gone: AtomicBool,
}

impl Health {
    pub(crate) fn new(path: &Path, clock: Clock) -> Self {
        Health {
            path: path.to_owned(),
            clock,
            off_until: AtomicU64::new(0),
            quiet_until: AtomicU64::new(0),
            gone: AtomicBool::new(false),
        }
    }

    /// Whether to write now.
    pub(crate) fn writable(&self) -> bool {
        !self.gone.load(Ordering::Relaxed) && self.clock.now().0 >= self.off_until.load(Ordering::Relaxed)
    }

    /// Writing failed with `e`: nothing is written for 30 s, and at most every 5 minutes there is a warning.
    pub(crate) fn failed(&self, e: &io::Error) {
        self.off_until.fetch_max(self.clock.now().after(OFF).0, Ordering::Relaxed);
        if self.may_warn() {
            tracing::warn!(
                directory = %self.path.display(),
                error = %e,
                "the cache directory cannot be written to; nothing new is kept in it for {OFF:?}, reading goes on"
            );
        }
    }

    /// The directory is no longer where it was: nothing is ever written there again. A new one takes its place.
    pub(crate) fn vanished(&self) {
        if !self.gone.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                directory = %self.path.display(),
                "the cache directory was removed or replaced; nothing is kept until there is a new one"
            );
        }
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// True for one caller in five minutes.
    fn may_warn(&self) -> bool {
        let now = self.clock.now();
        let quiet_until = self.quiet_until.load(Ordering::Relaxed);
        let until = now.after(QUIET).0;
        now.0 >= quiet_until
            && self
                .quiet_until
                .compare_exchange(quiet_until, until, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn a_failure_switches_writing_off_for_a_while_and_warns_rarely() {
        let clock = Clock::manual();
        let health = Health::new(Path::new("/cache"), clock.clone());
        let full = io::Error::from_raw_os_error(libc::ENOSPC);
        assert!(health.writable());
        assert!(health.may_warn());
        health.failed(&full);
        assert!(!health.writable());
        assert!(!health.may_warn());
        clock.skip(Duration::from_secs(29));
        assert!(!health.writable());
        health.failed(&full);
        clock.skip(Duration::from_secs(29));
        assert!(!health.writable(), "the last failure counts");
        clock.skip(Duration::from_secs(1));
        assert!(health.writable());
        assert!(!health.may_warn());
        clock.skip(QUIET);
        assert!(health.may_warn());
        assert!(!health.may_warn());
        health.vanished();
        clock.skip(QUIET);
        assert!(!health.writable() && health.is_gone());
    }
}
