//! File data in memory: pieces of files under one budget, each fetched once however many readers want it.
//!
//! [`extent`]: one piece, readable while it is filled · [`map`]: the pieces of one file · [`flight`]: one request and
//! its waiters · [`policy`]: which piece goes first · [`blocks`]: one file, putting these together ·
//! [`disk`]: what the disk tier has of it · [`through`]: carrying requests out through that tier.

pub(crate) mod blocks;
mod disk;
pub(crate) mod extent;
mod fetch;
pub(crate) mod flight;
mod map;
mod policy;
mod through;

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nearfs_backends::io::{Buffer, BufferPool, BufferPoolConfig};
use parking_lot::Mutex;

use self::extent::{Extent, Purpose};
pub(crate) use self::policy::For;
use self::policy::Policy;
use crate::budget::{Budget, Charge};
use crate::clock::Tick;
use crate::stats::Counters;

/// Smallest budget, in bytes: room for a few requests of the kernel at once.
pub(crate) const MIN_MEMORY: u64 = 4 << 20;

/// The memory of all files of one cache.
#[derive(Debug)]
pub(crate) struct Memory {
    budget: Arc<Budget>,
    pool: BufferPool,
    policy: Mutex<Policy>,
    stats: Arc<Counters>,
    siblings_unread: AtomicU64,
}

impl Memory {
    /// `limit` bytes, less `aside` that somebody else holds.
    pub(crate) fn new(limit: u64, aside: u64, idle: Duration, stats: Arc<Counters>) -> Self {
        let limit = limit.max(MIN_MEMORY + aside);
        stats.memory_limit.set(limit);
        let limit = limit - aside;
        // Recycled buffers lie outside the budget, so they are kept to a small part of it.
        let max_idle = usize::try_from((limit / 32).min(64 << 20)).unwrap_or(64 << 20);
        let pool =
            BufferPool::new(BufferPoolConfig { max_idle, idle_timeout: idle.min(Duration::from_secs(10)) });
        Memory {
            budget: Budget::new(limit),
            pool,
            policy: Mutex::default(),
            stats,
            siblings_unread: AtomicU64::new(0),
        }
    }

    pub(crate) fn limit(&self) -> u64 {
        self.budget.limit()
    }

    pub(crate) fn used(&self) -> u64 {
        self.budget.used()
    }

    /// An empty buffer of recycled memory.
    pub(crate) fn buffer(&self, len: usize) -> Buffer {
        self.pool.get(len)
    }

    /// `bytes` for something that nobody waits for: never waits, leaves a sixteenth of the budget to readers, and
    /// takes nothing away that was itself fetched ahead.
    pub(crate) fn reserve_ahead(&self, bytes: u64, now: Tick) -> Option<Charge> {
        let spare = self.limit() / 16;
        loop {
            if let Some(charge) = self.budget.try_take(bytes, spare) {
                return Some(charge);
            }
            if self.budget.shortfall().is_some() || !self.evict_one(For::Prefetch, now) {
                return None;
            }
        }
    }

    /// `bytes` for a reader; waits its turn. `bytes` is at most half the limit.
    pub(crate) async fn reserve(&self, bytes: u64, now: Tick) -> Charge {
        if let Some(charge) = self.budget.try_take(bytes, 0) {
            return charge;
        }
        let ticket = self.budget.queue(bytes);
        self.make_room(now);
        if self.budget.shortfall().is_some() {
            self.stats.memory_waits.inc();
        }
        ticket.await
    }

    /// Evicts until the first who waits has enough, or nothing is left to evict.
    pub(crate) fn make_room(&self, now: Tick) {
        while self.budget.shortfall().is_some_and(|bytes| bytes > 0) {
            if !self.evict_one(For::Demand, now) {
                return;
            }
        }
    }

    /// Takes in extents whose request is over: they may go from now on.
    pub(crate) fn settle(&self, extents: &[Arc<Extent>], now: Tick) {
        {
            let mut policy = self.policy.lock();
            extents.iter().for_each(|extent| policy.add(extent, place(extent)));
        }
        self.make_room(now);
    }

    fn evict_one(&self, room_for: For, now: Tick) -> bool {
        let victim = self.policy.lock().victim(room_for, now, place);
        victim.is_some_and(|extent| {
            self.evict(&extent);
            true
        })
    }

    /// Takes `extent` away from its file.
    pub(crate) fn evict(&self, extent: &Arc<Extent>) {
        self.wasted(extent);
        extent.evict();
    }

    /// Notes that `extent` goes, perhaps without having been read.
    pub(crate) fn wasted(&self, extent: &Extent) {
        if extent.take_unread() {
            self.stats.prefetch_wasted.add(u64::from(extent.len));
            if extent.tag.purpose == Purpose::Sibling {
                self.stats.siblings_wasted.inc();
                self.siblings_unread.fetch_sub(u64::from(extent.len), Ordering::Relaxed);
            }
        }
    }

    /// Notes that `extent`, fetched ahead, was read for the first time.
    pub(crate) fn used_ahead(&self, extent: &Extent) {
        self.stats.prefetch_used.add(u64::from(extent.len));
        if extent.tag.purpose == Purpose::Sibling {
            self.stats.siblings_used.inc();
            self.siblings_unread.fetch_sub(u64::from(extent.len), Ordering::Relaxed);
        }
    }

    /// Notes that a sibling of `bytes` is being fetched.
    pub(crate) fn sibling_coming(&self, bytes: u64) {
        self.stats.siblings_fetched.inc();
        self.siblings_unread.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes of siblings fetched or on their way that nobody has read.
    pub(crate) fn siblings_unread(&self) -> u64 {
        self.siblings_unread.load(Ordering::Relaxed)
    }

    /// Gives back what nobody has used since `limit` and `may_go` agrees to.
    pub(crate) fn evict_unused(&self, limit: Tick, may_go: impl Fn(&Extent) -> bool) {
        let unused = self.policy.lock().unused_since(limit, may_go);
        unused.iter().for_each(|extent| self.evict(extent));
    }

    /// Gives recycled buffers back to the system.
    pub(crate) fn trim(&self) {
        self.pool.trim();
    }
}

/// What a buffer of `len` bytes costs: the pool's size class.
pub(crate) fn cost(len: u64) -> u64 {
    match len {
        0..0x8000 => len,
        _ => len.max(0x1_0000).next_power_of_two(),
    }
}

/// A number for the place of an extent in its file.
fn place(extent: &Extent) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    (extent.tag.file, extent.start).hash(&mut hasher);
    hasher.finish()
}
