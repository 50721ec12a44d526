//! [`Refresh`]: directories in use are listed anew before their entries expire, so that nobody waits for it.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use super::directory::Directory;
use super::lister::Cause;
use super::names::Names;
use crate::clock::Tick;
use crate::config::Lifetime;

/// Directories that wait for their turn.
const MAX_WAITING: usize = 4096;
/// Renewals at a time.
const AT_ONCE: usize = 8;
/// Larger directories are left to their next lookup.
const MAX_ENTRIES: usize = 50_000;
/// The shortest lifetime that is worth it.
const SHORTEST: Duration = Duration::from_secs(2);

/// The directories that were used since they were listed, in the order in which they fall due (all have the same
/// lifetime): at four fifths of it.
#[derive(Debug, Default)]
pub(super) struct Refresh {
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<(Tick, Weak<Directory>)>,
    running: bool,
}

impl Refresh {
    /// `directory` was used for the first time since it was listed.
    pub(super) fn used(&self, names: &Names, directory: &Arc<Directory>) {
        let Lifetime::For(lifetime) = names.metadata_ttl else { return };
        let Some(listing) = directory.listing().filter(|l| l.len() <= MAX_ENTRIES) else { return };
        if lifetime < SHORTEST {
            return;
        }
        let due = listing.seen().after(lifetime / 5 * 4);
        let mut queue = self.queue.lock();
        if queue.waiting.len() >= MAX_WAITING {
            return;
        }
        let at = queue.waiting.partition_point(|(t, _)| *t <= due);
        queue.waiting.insert(at, (due, Arc::downgrade(directory)));
        if !std::mem::replace(&mut queue.running, true) {
            names.spawner.spawn(run(names.me.clone()));
        }
    }

    /// The next directories that are due, and how long to wait before looking again; `None` when nothing waits.
    fn due(&self, now: Tick) -> Option<(Vec<Arc<Directory>>, Duration)> {
        let mut queue = self.queue.lock();
        let mut due = Vec::new();
        while due.len() < AT_ONCE && queue.waiting.front().is_some_and(|(t, _)| *t <= now) {
            due.extend(queue.waiting.pop_front().and_then(|(_, weak)| weak.upgrade()));
        }
        match queue.waiting.front() {
            Some((t, _)) => Some((due, t.since(now))),
            None if due.is_empty() => {
                queue.running = false;
                None
            }
            None => Some((due, Duration::ZERO)),
        }
    }
}

async fn run(names: Weak<Names>) {
    loop {
        let pause = {
            let Some(names) = names.upgrade() else { return };
            let Some((due, pause)) = names.refresh.due(names.clock.now()) else { return };
            let renewals = due.iter().filter_map(|directory| names.refresh_now(directory));
            for listing in renewals.collect::<Vec<_>>() {
                // Whether it succeeds is seen by the next lookup.
                let _ = listing.wait_end().await;
            }
            pause
        };
        if !pause.is_zero() {
            // In steps, so that the task ends soon after the cache has.
            tokio::time::sleep(pause.clamp(Duration::from_millis(50), Duration::from_secs(1))).await;
        }
    }
}

impl Names {
    fn refresh_now(&self, directory: &Arc<Directory>) -> Option<Arc<super::Listing>> {
        let now = self.clock.now();
        let epoch = self.epochs.of(&directory.path);
        let used = directory.was_used();
        let mut state = directory.state.lock();
        let current = state.listing.as_ref().is_some_and(|l| l.is_fresh(now, epoch));
        if !used || !current || state.running.is_some() {
            return None;
        }
        Some(self.start(directory, &mut state, Cause::Refresh, usize::MAX))
    }
}
