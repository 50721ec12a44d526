//! [`Space`]: bytes are reserved before they are written, over all processes of a directory.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::control::Control;
use super::health::Health;
use super::process::{Owner, give_back};
use crate::clock::Clock;

/// How old the figures of the filesystem may be.
const LOOK: Duration = Duration::from_secs(1);
/// How often room is made for one reservation: others may take what was freed for it.
const ATTEMPTS: u32 = 64;
/// Share of the filesystem's inodes that is left for others.
const FREE_INODES: f64 = 0.05;
/// Freed at once when inodes run out, in bytes: some hundred small objects.
const INODE_BATCH: u64 = 8 << 20;
/// How long the same surplus must be seen before it is taken for the remains of a dead process.
const PROOF: Duration = Duration::from_secs(10);

/// The bytes of one directory: how many there may be, and how many there are.
#[derive(Debug)]
pub(crate) struct Space {
    control: &'static Control,
    /// The directory, to ask the filesystem.
    dir: Arc<File>,
    health: Arc<Health>,
    clock: Clock,
    /// Charged for what has a fixed size: the index, as far as it is not small.
    base: u64,
    /// Share of the filesystem that stays free, as bits of an `f64`.
    free: AtomicU64,
    /// When to look at the filesystem again.
    look_at: AtomicU64,
    /// Bytes that may still be written before the filesystem has less left than that share, as far as known.
    room: AtomicI64,
    /// What [`Space::reconcile`] saw, and since when.
    surplus: Mutex<Option<(u64, u64, u64)>>,
}

impl Space {
    pub(crate) fn new(
        control: &'static Control,
        dir: Arc<File>,
        health: Arc<Health>,
        clock: Clock,
        base: u64,
        free: f64,
    ) -> Self {
        Space {
            control,
            dir,
            health,
            clock,
            base,
            free: AtomicU64::new(free.to_bits()),
            look_at: AtomicU64::new(0),
            room: AtomicI64::new(0),
            surplus: Mutex::new(None),
        }
    }

    /// Limit of [`used`](Self::used), in bytes.
    pub(crate) fn limit(&self) -> u64 {
        self.control.limit().load(Ordering::Acquire)
    }

    /// Sets the limit, for every process. What is above it goes when room is made the next time.
    pub(crate) fn set_limit(&self, bytes: u64) {
        self.control.limit().store(bytes, Ordering::Release);
    }

    /// Sets the share of the filesystem that stays free, for this process.
    pub(crate) fn set_free(&self, share: f64) {
        self.free.store(share.to_bits(), Ordering::Relaxed);
        self.look_at.store(0, Ordering::Relaxed);
    }

    /// Bytes of all entries and reservations, and of a large index.
    pub(crate) fn used(&self) -> u64 {
        self.control.used().load(Ordering::Acquire)
    }

    /// Bytes lent out by all processes.
    pub(crate) fn lent(&self) -> u64 {
        self.control.lent().load(Ordering::Acquire)
    }

    /// Bytes that would have to go for `bytes` more to be within the limit and the filesystem's free share; 0 if
    /// there is room.
    pub(crate) fn wanted(&self, bytes: u64) -> u64 {
        let over = self.used().saturating_add(bytes).saturating_sub(self.limit());
        over.max(self.missing(bytes))
    }

    /// Reserves `bytes`, after making room with `evict` if need be: it is told how many bytes to free, [releases]
    /// the charges of what goes, and says how many that were. `None` if nothing more can go, or the directory is not
    /// written to at present.
    ///
    /// [releases]: Self::release
    pub(crate) fn reserve(&self, bytes: u64, evict: &dyn Fn(u64) -> u64) -> Option<Reserved> {
        let owner = self.control.me().ok()?;
        if bytes > self.limit().saturating_sub(self.base) || !self.health.writable() {
            return None;
        }
        let mut reaped = false;
        for _ in 0..ATTEMPTS {
            let mut wanted = self.missing(bytes);
            if wanted == 0 {
                match self.charge(bytes) {
                    None => {
                        // The total first: who dies between the two leaves too many bytes counted, never too few.
                        self.control.add_reserved(owner, bytes);
                        self.room.fetch_sub(signed(bytes), Ordering::Relaxed);
                        return Some(Reserved { control: self.control, owner, bytes });
                    }
                    Some(over) => wanted = over,
                }
            }
            if !reaped {
                reaped = true;
                if self.control.reap() > 0 {
                    continue;
                }
            }
            // `look` may have found that the directory is gone.
            if !self.health.writable() || evict(wanted) == 0 {
                return None;
            }
        }
        None
    }

    /// Adds `bytes` to the total if that stays within the limit; else says by how many it would not.
    fn charge(&self, bytes: u64) -> Option<u64> {
        let limit = self.limit();
        let charged = self.control.used().try_update(Ordering::AcqRel, Ordering::Acquire, |used| {
            used.checked_add(bytes).filter(|sum| *sum <= limit)
        });
        charged.err().map(|used| used.saturating_add(bytes).saturating_sub(limit))
    }

    /// Takes the charge of an entry that is gone back.
    pub(crate) fn release(&self, bytes: u64) {
        give_back(self.control.used(), bytes);
        self.room.fetch_add(signed(bytes), Ordering::Relaxed);
    }

    /// Counts `bytes` as lent out: they cannot go. `None` if that would be more than half of the limit.
    pub(crate) fn lend(&self, bytes: u64) -> Option<LentBytes> {
        let owner = self.control.me().ok()?;
        let most = self.limit() / 2;
        let add = || {
            self.control.lent().try_update(Ordering::AcqRel, Ordering::Acquire, |lent| {
                lent.checked_add(bytes).filter(|sum| *sum <= most)
            })
        };
        if add().is_err() {
            // What the dead had lent may be all that is in the way.
            self.control.reap();
            add().ok()?;
        }
        self.control.add_lent(owner, bytes);
        Some(LentBytes { control: self.control, owner, bytes })
    }

    /// Gives back what processes had reserved or lent out when they died. Returns the bytes of reservations.
    pub(crate) fn reap(&self) -> u64 {
        self.control.reap()
    }

    /// Starts counting with `charged` bytes of entries. Only for whoever has the directory alone.
    pub(crate) fn recount(&self, charged: u64) {
        self.control.clear_processes();
        self.control.lent().store(0, Ordering::Release);
        self.control.used().store(self.base.saturating_add(charged), Ordering::Release);
    }

    /// Counts `bytes` of entries that were there and not counted.
    pub(crate) fn found(&self, bytes: u64) {
        self.control.used().fetch_add(bytes, Ordering::AcqRel);
    }

    /// Corrects the total after processes died between two steps of their counting: `charged` is what the index says
    /// now. The total is changed only when nobody has anything reserved and the same difference was there for ten
    /// seconds in which nothing was counted. Returns the bytes that were counted too many.
    pub(crate) fn reconcile(&self, charged: u64) -> u64 {
        let used = self.used();
        let right = self.base.saturating_add(charged);
        let mut surplus = self.surplus.lock();
        if self.control.reserved() != 0 || used <= right {
            *surplus = None;
            return 0;
        }
        let now = self.clock.now();
        match *surplus {
            Some((seen_used, seen_right, until)) if (seen_used, seen_right) == (used, right) => {
                if now.0 < until {
                    return 0;
                }
                *surplus = None;
                let corrected =
                    self.control.used().compare_exchange(used, right, Ordering::AcqRel, Ordering::Relaxed);
                corrected.map_or(0, |used| used - right)
            }
            _ => {
                *surplus = Some((used, right, now.after(PROOF).0));
                0
            }
        }
    }

    /// Bytes that must be freed before `bytes` more leave the filesystem its free share.
    fn missing(&self, bytes: u64) -> u64 {
        self.look();
        let left = self.room.load(Ordering::Relaxed) - signed(bytes);
        if left < 0 { left.unsigned_abs() } else { 0 }
    }

    /// Looks at the filesystem, at most once a second: room left on it, and whether the directory is still there.
    fn look(&self) {
        let now = self.clock.now();
        let look_at = self.look_at.load(Ordering::Relaxed);
        let next = now.after(LOOK).0;
        if now.0 < look_at
            || self.look_at.compare_exchange(look_at, next, Ordering::Relaxed, Ordering::Relaxed).is_err()
        {
            return;
        }
        if !self.control.is_named(std::os::fd::AsFd::as_fd(&*self.dir)) {
            self.health.vanished();
        }
        match rustix::fs::fstatvfs(&*self.dir) {
            Ok(stat) => {
                let share = f64::from_bits(self.free.load(Ordering::Relaxed));
                let total = stat.f_blocks.saturating_mul(stat.f_frsize);
                let available = stat.f_bavail.saturating_mul(stat.f_frsize);
                let mut room = signed(available) - signed((total as f64 * share) as u64);
                if stat.f_files > 0 && (stat.f_favail as f64) < stat.f_files as f64 * FREE_INODES {
                    room = room.min(-signed(INODE_BATCH));
                }
                self.room.store(room, Ordering::Relaxed);
            }
            // A filesystem that cannot say is one that fails; the next write tells.
            Err(e) => self.health.failed(&e.into()),
        }
    }
}

/// `bytes` for arithmetic that may go below zero.
fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX / 2).min(i64::MAX / 2)
}

/// Bytes that are counted but not written yet. Dropped, they are given back.
#[derive(Debug)]
#[must_use]
pub(crate) struct Reserved {
    control: &'static Control,
    owner: Owner,
    bytes: u64,
}

impl Reserved {
    /// Bytes reserved.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Turns `used` of the bytes into the charge of an entry and gives the rest back. The caller writes the charge
    /// down after this: who dies in between leaves bytes counted that nobody has, which [`Space::reconcile`] finds.
    /// If it turned out to be more than was reserved, that is counted now.
    pub(crate) fn commit(mut self, used: u64) {
        if used > self.bytes {
            self.control.used().fetch_add(used - self.bytes, Ordering::AcqRel);
        }
        self.settle(self.bytes, self.bytes.saturating_sub(used));
    }

    /// `reserved` bytes are no longer reserved, and of these `back` are not used either.
    fn settle(&mut self, reserved: u64, back: u64) {
        self.bytes -= reserved;
        // A forked child has a copy of what its parent reserved, which is not its own to give back.
        if self.control.seated() == Some(self.owner) {
            self.control.sub_reserved(self.owner, reserved);
            give_back(self.control.used(), back);
        }
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.settle(self.bytes, self.bytes);
        }
    }
}

/// Bytes counted as lent out until this is dropped.
#[derive(Debug)]
#[must_use]
pub(crate) struct LentBytes {
    control: &'static Control,
    owner: Owner,
    bytes: u64,
}

impl Drop for LentBytes {
    fn drop(&mut self) {
        // As for a reservation: a forked child has only a copy.
        if self.control.seated() == Some(self.owner) {
            self.control.sub_lent(self.owner, self.bytes);
            give_back(self.control.lent(), self.bytes);
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
