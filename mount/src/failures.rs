//! Reads that failed slowly a moment ago.
//!
//! When a readahead fails, the kernel does not tell the reader: it asks for the first missing page again. A reader
//! that has waited for the whole deadline would then wait for another one. So the failure of a read that took long is
//! remembered for a moment and given to a read that asks for the same bytes at once.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nearfs_backends::ErrorKind;
use parking_lot::Mutex;

/// For how long: long enough for a woken reader to come back, too short for a person to notice.
const REMEMBER: Duration = Duration::from_secs(1);
/// Only reads that took at least this long; others are cheap to make again.
const SLOW: Duration = Duration::from_millis(500);
/// Failures remembered at most; when full, the failure is just not remembered.
const LIMIT: usize = 8192;

#[derive(Debug, Clone)]
struct Failure {
    range: Range<u64>,
    kind: ErrorKind,
    at: Instant,
}

/// The slow failures of the last moment, by inode.
#[derive(Debug, Default)]
pub(crate) struct RecentFailures {
    by_inode: Mutex<HashMap<u64, Vec<Failure>>>,
    count: AtomicUsize,
}

impl RecentFailures {
    /// A read of `range` of `ino` failed after `took`.
    pub(crate) fn note(&self, ino: u64, range: Range<u64>, kind: ErrorKind, took: Duration, now: Instant) {
        if took < SLOW {
            return;
        }
        let mut map = self.by_inode.lock();
        purge(&mut map, now);
        let count: usize = map.values().map(Vec::len).sum();
        if count < LIMIT {
            map.entry(ino).or_default().push(Failure { range, kind, at: now });
            self.count.store(count + 1, Ordering::Relaxed);
        }
    }

    /// The failure that a read of `ino` from `offset` on has just met, if any.
    pub(crate) fn find(&self, ino: u64, offset: u64, now: Instant) -> Option<ErrorKind> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut map = self.by_inode.lock();
        purge(&mut map, now);
        self.count.store(map.values().map(Vec::len).sum(), Ordering::Relaxed);
        map.get(&ino)?.iter().find(|f| f.range.contains(&offset)).map(|f| f.kind)
    }
}

fn purge(map: &mut HashMap<u64, Vec<Failure>>, now: Instant) {
    map.retain(|_, failures| {
        failures.retain(|f| now.saturating_duration_since(f.at) < REMEMBER);
        !failures.is_empty()
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_failure_is_given_again_for_a_moment_and_a_fast_one_never() {
        let f = RecentFailures::default();
        let now = Instant::now();
        f.note(5, 0..1000, ErrorKind::TimedOut, Duration::from_secs(60), now);
        f.note(6, 0..1000, ErrorKind::Unavailable, Duration::from_millis(1), now);
        assert_eq!(f.find(5, 10, now), Some(ErrorKind::TimedOut));
        assert_eq!(f.find(5, 1000, now), None, "other bytes");
        assert_eq!(f.find(6, 10, now), None, "it was fast");
        assert_eq!(f.find(5, 10, now + REMEMBER), None, "a moment later");
        assert!(f.by_inode.lock().is_empty());
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let f = RecentFailures::default();
        let now = Instant::now();
        for i in 0..(LIMIT as u64 + 100) {
            f.note(i, 0..1, ErrorKind::TimedOut, Duration::from_secs(60), now);
        }
        assert_eq!(f.by_inode.lock().len(), LIMIT);
    }
}
