//! What the mount tells the log: each failed call once, with path and cause, and never a flood.

use std::time::{Duration, Instant};

use nearfs_backends::{Error, ErrorKind};
use parking_lot::Mutex;

use crate::counters::Op;

/// Lines per [`PERIOD`]; what is beyond it is counted and told in one line.
const LINES: u32 = 20;
const PERIOD: Duration = Duration::from_secs(5);

/// Logs errors at the edge, at a bounded rate.
#[derive(Debug)]
pub(crate) struct Reporter {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    since: Instant,
    lines: u32,
    suppressed: u64,
}

impl Reporter {
    pub(crate) fn new() -> Self {
        Reporter { state: Mutex::new(State { since: Instant::now(), lines: 0, suppressed: 0 }) }
    }

    /// Logs `error`, which `op` is answered with, and gives its errno.
    pub(crate) fn errno(&self, op: Op, error: &Error) -> i32 {
        match error.kind() {
            // Everyday answers.
            ErrorKind::NotFound | ErrorKind::Interrupted | ErrorKind::ReadOnly => {
                tracing::debug!(operation = op.name(), error = %error.chain(), "request failed");
            }
            _ => self.warn(op, error),
        }
        error.kind().errno()
    }

    fn warn(&self, op: Op, error: &Error) {
        let Some(suppressed) = self.admit(Instant::now()) else { return };
        if suppressed > 0 {
            tracing::warn!(suppressed, "more requests failed than are logged");
        }
        let hint = error.context("hint").unwrap_or_default();
        let errno = error.kind().errno();
        tracing::warn!(operation = op.name(), errno, hint, error = %error.chain(), "request failed");
    }

    /// `None` if this line is one too many, else how many were left out before it.
    fn admit(&self, now: Instant) -> Option<u64> {
        let mut s = self.state.lock();
        if now.saturating_duration_since(s.since) >= PERIOD {
            (s.since, s.lines) = (now, 0);
        }
        if s.lines >= LINES {
            s.suppressed += 1;
            return None;
        }
        s.lines += 1;
        Some(std::mem::take(&mut s.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_counted_instead_of_logged() {
        let r = Reporter::new();
        let start = Instant::now();
        assert!((0..LINES).all(|_| r.admit(start) == Some(0)));
        assert!((0..100).all(|_| r.admit(start).is_none()));
        assert_eq!(r.admit(start + PERIOD), Some(100));
        assert_eq!(r.admit(start + PERIOD), Some(0));
    }

    #[test]
    fn the_errno_is_that_of_the_table() {
        let r = Reporter::new();
        assert_eq!(r.errno(Op::Read, &Error::new(ErrorKind::Stale, "changed")), libc::ESTALE);
        assert_eq!(r.errno(Op::Lookup, &Error::new(ErrorKind::NotFound, "no")), libc::ENOENT);
    }
}
