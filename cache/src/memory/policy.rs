//! [`Policy`]: which extent goes when memory is needed.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::extent::Extent;
use crate::clock::Tick;

/// Evictable extents in two queues, after "FIFO queues are all you need for cache eviction" (S3-FIFO, Yang et al.,
/// SOSP 2023): what was read once leaves from `small`, what was read again moves to `main` and gets more rounds
/// there, and a list of what left lately sends what comes back straight to `main`. So one pass over much data does
/// not push out what is used again and again.
///
/// Extents that were read from the disk tier stand in a queue of their own, `backed`, and go before all others: the
/// kernel and the disk have their bytes, so they never push out what is in memory alone.
///
/// Hits touch only the extent itself; the queues are changed when extents come and go.
#[derive(Debug, Default)]
pub(crate) struct Policy {
    backed: VecDeque<Weak<Extent>>,
    small: VecDeque<Weak<Extent>>,
    main: VecDeque<Weak<Extent>>,
    ghosts: Ghosts,
}

/// Share of the queues' extents that `small` may have before it is the one to shrink: the paper's tenth.
const SMALL_SHARE: usize = 10;
/// Fetched ahead and unread: kept this long against others' demand before it is taken for useless.
const UNREAD_GRACE: Duration = Duration::from_secs(5);

/// For whom room is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum For {
    /// A reader waits: anything may go.
    Demand,
    /// Nobody waits: what was fetched ahead lately stays.
    Prefetch,
}

impl Policy {
    /// Adds an extent that is complete and may go from now on. `id` names its place in its file, also when it
    /// comes back.
    pub(crate) fn add(&mut self, extent: &Arc<Extent>, id: u64) {
        let queue = if extent.is_backed() {
            &mut self.backed
        } else if self.ghosts.take(id) {
            &mut self.main
        } else {
            &mut self.small
        };
        queue.push_back(Arc::downgrade(extent));
        self.tidy();
    }

    /// The next one to go, already out of the queues.
    pub(crate) fn victim(
        &mut self,
        room_for: For,
        now: Tick,
        id: impl Fn(&Extent) -> u64,
    ) -> Option<Arc<Extent>> {
        self.backed(now, false)
            .or_else(|| self.unbacked(room_for, now, id))
            .or_else(|| self.backed(now, room_for == For::Demand))
    }

    /// The next one of those that the disk tier has; without `all`, what was read ahead lately stays.
    fn backed(&mut self, now: Tick, all: bool) -> Option<Arc<Extent>> {
        for _ in 0..self.backed.len() {
            let weak = self.backed.pop_front()?;
            let Some(extent) = alive(&weak) else { continue };
            if all || !is_fresh(&extent, now) {
                return Some(extent);
            }
            self.backed.push_back(weak);
        }
        None
    }

    /// The next one of the others.
    fn unbacked(&mut self, room_for: For, now: Tick, id: impl Fn(&Extent) -> u64) -> Option<Arc<Extent>> {
        let mut spared = 0;
        loop {
            let from_small = !self.small.is_empty()
                && self.small.len() * SMALL_SHARE >= self.small.len() + self.main.len();
            let queue = if from_small { &mut self.small } else { &mut self.main };
            let Some(weak) = queue.pop_front() else {
                if self.small.is_empty() {
                    return None;
                }
                continue;
            };
            let Some(extent) = alive(&weak) else { continue };
            let fresh = is_fresh(&extent, now);
            if fresh && spared <= queue.len() {
                spared += 1;
                queue.push_back(weak);
                continue;
            }
            if fresh && room_for == For::Prefetch {
                queue.push_back(weak);
                return None;
            }
            if !extent.is_backed() && extent.cool() {
                self.main.push_back(weak);
                continue;
            }
            if from_small {
                self.ghosts.add(id(&extent), self.small.len() + self.main.len());
            }
            return Some(extent);
        }
    }

    /// All extents that were last used before `limit` and that `may_go` agrees to.
    pub(crate) fn unused_since(&self, limit: Tick, may_go: impl Fn(&Extent) -> bool) -> Vec<Arc<Extent>> {
        let all = self.small.iter().chain(&self.main).chain(&self.backed);
        all.filter_map(alive).filter(|e| e.used_at() < limit && may_go(e)).collect()
    }

    /// Drops entries of extents that went on their own when they are the majority.
    fn tidy(&mut self) {
        for queue in [&mut self.small, &mut self.main, &mut self.backed] {
            if queue.len() > 1024 && queue.len() == queue.capacity() {
                queue.retain(|weak| alive(weak).is_some());
                queue.reserve(queue.len().max(1024));
            }
        }
    }
}

/// Fetched ahead a short time ago and not read yet.
fn is_fresh(extent: &Extent, now: Tick) -> bool {
    extent.is_unread() && now.since(extent.used_at()) < UNREAD_GRACE
}

fn alive(weak: &Weak<Extent>) -> Option<Arc<Extent>> {
    weak.upgrade().filter(|e| e.is_charged())
}

/// Places of extents that left `small` lately.
#[derive(Debug, Default)]
struct Ghosts {
    order: VecDeque<u64>,
    set: HashSet<u64>,
}

impl Ghosts {
    fn add(&mut self, id: u64, keep: usize) {
        if self.set.insert(id) {
            self.order.push_back(id);
        }
        while self.order.len() > keep.max(64) {
            if let Some(old) = self.order.pop_front() {
                self.set.remove(&old);
            }
        }
    }

    fn take(&mut self, id: u64) -> bool {
        self.set.remove(&id)
    }
}
