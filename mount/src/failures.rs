//! Calls that failed slowly a moment ago.
//!
//! When a readahead fails, the kernel does not tell the reader: it asks for the first missing page again. When a name
//! is looked up again because its lifetime is over and that fails, it drops the name and asks once more. Who has
//! waited for the whole deadline would then wait for another one. So the failure of a call that took long is
//! remembered for a moment and given to a call that asks for the same at once.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nearfs_backends::ErrorKind;
use parking_lot::Mutex;

use crate::tree::Place;

/// For how long: enough for a woken caller to come back, too short for a person to notice.
const REMEMBER: Duration = Duration::from_secs(1);
/// Only calls that took at least this long; others are cheap to make again.
const SLOW: Duration = Duration::from_millis(500);
/// Failures remembered at most; when full, a failure is just not remembered.
const LIMIT: usize = 8192;

/// What a call asked for.
#[derive(Debug, Clone)]
pub(crate) enum Subject {
    /// A name.
    Name(Place),
    /// Bytes of an inode.
    Bytes(u64, Range<u64>),
    /// Something else; nothing of it is remembered.
    Other,
}

#[derive(Debug)]
struct Failure {
    kind: ErrorKind,
    at: Instant,
}

/// The slow failures of the last moment.
#[derive(Debug, Default)]
pub(crate) struct RecentFailures {
    known: Mutex<Known>,
    count: AtomicUsize,
}

#[derive(Debug, Default)]
struct Known {
    names: HashMap<Place, Failure>,
    bytes: HashMap<u64, Vec<(Range<u64>, Failure)>>,
}

impl Known {
    fn purge(&mut self, now: Instant) {
        let fresh = |f: &Failure| now.saturating_duration_since(f.at) < REMEMBER;
        self.names.retain(|_, f| fresh(f));
        self.bytes.retain(|_, failures| {
            failures.retain(|(_, f)| fresh(f));
            !failures.is_empty()
        });
    }

    fn len(&self) -> usize {
        self.names.len() + self.bytes.values().map(Vec::len).sum::<usize>()
    }
}

impl RecentFailures {
    /// A call that asked for `subject` failed after `took`.
    pub(crate) fn note(&self, subject: &Subject, kind: ErrorKind, took: Duration, now: Instant) {
        // A killed caller is nobody else's failure, but others may wait behind its lookup.
        let killed = kind == ErrorKind::Interrupted;
        if killed && !matches!(subject, Subject::Name(_)) || !killed && took < SLOW {
            return;
        }
        let mut known = self.known.lock();
        known.purge(now);
        if known.len() >= LIMIT {
            return;
        }
        let failure = Failure { kind, at: now };
        match subject {
            Subject::Name(place) => {
                known.names.insert(place.clone(), failure);
            }
            Subject::Bytes(ino, range) => {
                known.bytes.entry(*ino).or_default().push((range.clone(), failure));
            }
            Subject::Other => {}
        }
        self.count.store(known.len(), Ordering::Relaxed);
    }

    /// The failure that a lookup of `place` has just met, if any.
    pub(crate) fn of_name(&self, place: &Place, now: Instant) -> Option<ErrorKind> {
        self.find(now, |known| known.names.get(place).map(|f| f.kind))
    }

    /// The failure that a read of `ino` from `offset` on has just met, if any.
    pub(crate) fn of_bytes(&self, ino: u64, offset: u64, now: Instant) -> Option<ErrorKind> {
        self.find(now, |known| {
            let of_inode = known.bytes.get(&ino)?;
            of_inode.iter().find(|(range, _)| range.contains(&offset)).map(|(_, f)| f.kind)
        })
    }

    fn find<T>(&self, now: Instant, find: impl FnOnce(&Known) -> Option<T>) -> Option<T> {
        // Nearly always there is none: then no lock is taken.
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut known = self.known.lock();
        known.purge(now);
        self.count.store(known.len(), Ordering::Relaxed);
        find(&known)
    }
}

#[cfg(test)]
mod tests {
    use nearfs_backends::FsPath;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn place(path: &str) -> Place {
        Place { fs: 0, path: FsPath::parse(path).unwrap() }
    }

    #[test]
    fn a_slow_failure_is_given_again_for_a_moment_and_a_fast_one_never() {
        let f = RecentFailures::default();
        let now = Instant::now();
        f.note(&Subject::Bytes(5, 0..1000), ErrorKind::TimedOut, MINUTE, now);
        f.note(&Subject::Bytes(6, 0..1000), ErrorKind::Unavailable, Duration::from_millis(1), now);
        f.note(&Subject::Name(place("a")), ErrorKind::Unavailable, MINUTE, now);
        assert_eq!(f.of_bytes(5, 10, now), Some(ErrorKind::TimedOut));
        assert_eq!(f.of_bytes(5, 1000, now), None, "other bytes");
        assert_eq!(f.of_bytes(6, 10, now), None, "it was fast");
        f.note(&Subject::Bytes(7, 0..1000), ErrorKind::Interrupted, MINUTE, now);
        assert_eq!(f.of_bytes(7, 10, now), None, "a killed reader is not the next reader's failure");
        assert_eq!(f.of_name(&place("a"), now), Some(ErrorKind::Unavailable));
        assert_eq!(f.of_name(&place("b"), now), None);
        assert_eq!(f.of_bytes(5, 10, now + REMEMBER), None, "a moment later");
        assert_eq!(f.known.lock().len(), 0);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let f = RecentFailures::default();
        let now = Instant::now();
        for i in 0..(LIMIT as u64 + 100) {
            f.note(&Subject::Bytes(i, 0..1), ErrorKind::TimedOut, MINUTE, now);
        }
        assert_eq!(f.known.lock().len(), LIMIT);
    }
}
