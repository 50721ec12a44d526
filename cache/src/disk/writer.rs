//! [`Writer`]: what came from the store goes to disk behind the readers' backs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use nearfs_backends::io::{BlockingPool, BlockingPoolConfig};
use tokio::sync::Notify;

/// Threads that write.
const THREADS: usize = 2;
/// More of them when those hang.
const SPARE: usize = 2;
/// After this long a write counts as hanging.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Bytes of one cache's memory that may wait for the disk.
#[derive(Debug)]
pub(crate) struct Quota {
    limit: u64,
    used: AtomicU64,
}

impl Quota {
    pub(crate) fn new(limit: u64) -> Arc<Self> {
        Arc::new(Quota { limit, used: AtomicU64::new(0) })
    }

    /// Bytes that wait now.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// Room for `bytes`, if there is some. Never waits.
    pub(crate) fn take(self: &Arc<Self>, bytes: u64) -> Option<Place> {
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(bytes).filter(|sum| *sum <= self.limit)
        });
        taken.is_ok().then(|| Place { quota: self.clone(), bytes })
    }
}

/// Room in a [`Quota`], given back on drop.
#[derive(Debug)]
pub(crate) struct Place {
    quota: Arc<Quota>,
    bytes: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.quota.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The threads that write to the directories of one tier, shared by all caches over it. What waits for them is
/// bounded by the quotas of those caches.
#[derive(Debug)]
pub(crate) struct Writer {
    pool: BlockingPool,
    pending: Arc<Pending>,
}

#[derive(Debug, Default)]
struct Pending {
    writes: AtomicUsize,
    none: Notify,
}

/// Something that is being fetched to be written, or is being written.
#[derive(Debug)]
pub(crate) struct Outstanding(Arc<Pending>);

impl Drop for Outstanding {
    fn drop(&mut self) {
        if self.0.writes.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.none.notify_waiters();
        }
    }
}

impl Writer {
    pub(crate) fn new() -> Self {
        let config = BlockingPoolConfig { threads: THREADS, max_blocked: SPARE, timeout: TIMEOUT };
        Writer { pool: BlockingPool::new(config), pending: Arc::default() }
    }

    /// Notes that something is on its way; until the result is dropped.
    pub(crate) fn expect(&self) -> Outstanding {
        self.pending.writes.fetch_add(1, Ordering::AcqRel);
        Outstanding(self.pending.clone())
    }

    /// Has `write` carried out soon.
    pub(crate) fn put(&self, write: impl FnOnce() + Send + 'static) {
        let outstanding = self.expect();
        self.pool.detach("cache write", move || {
            stand_back();
            write();
            drop(outstanding);
        });
    }

    /// True if nothing is on its way.
    pub(crate) fn is_idle(&self) -> bool {
        self.pending.writes.load(Ordering::Acquire) == 0
    }

    /// Waits until nothing is on its way.
    pub(crate) async fn flush(&self) {
        loop {
            let none = self.pending.none.notified();
            tokio::pin!(none);
            none.as_mut().enable();
            if self.is_idle() {
                return;
            }
            none.await;
        }
    }
}

/// Lets readers have the processors first: where these are busy, a thread of this niceness gets a tenth of what others
/// get.
const NICE: i32 = 10;

/// Makes the calling thread a modest one, once. Where that is refused it competes like any other.
fn stand_back() {
    thread_local! {
        static DONE: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
    }
    if !DONE.replace(true) {
        // For Linux a "process" is here a thread; none means the calling one.
        let _ = rustix::process::setpriority_process(None, NICE);
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn the_quota_bounds_what_waits_and_a_flush_waits_for_it() {
        let (writer, quota) = (Writer::new(), Quota::new(10));
        let (go, gate) = mpsc::channel::<()>();
        let place = quota.take(6).unwrap();
        writer.put(move || {
            gate.recv().unwrap();
            drop(place);
        });
        assert!(quota.take(5).is_none() && !writer.is_idle());
        let rest = quota.take(4).unwrap();
        assert_eq!((quota.used(), quota.limit()), (10, 10));
        drop(rest);
        let waited = tokio::time::timeout(Duration::from_millis(20), writer.flush()).await;
        assert!(waited.is_err(), "it is being written");
        go.send(()).unwrap();
        tokio::time::timeout(Duration::from_secs(20), writer.flush()).await.unwrap();
        assert_eq!(quota.used(), 0);
        // One that panics is over as well.
        let place = quota.take(10).unwrap();
        writer.put(move || {
            let _place = place;
            panic!("a write that fails in an unforeseen way");
        });
        tokio::time::timeout(Duration::from_secs(20), writer.flush()).await.unwrap();
        assert_eq!(quota.used(), 0);
    }
}
