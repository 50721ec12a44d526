//! Who goes when room is needed, and how an object goes.

use std::cell::Cell;
use std::io;
use std::ops::RangeInclusive;

use rustix::fs::{Mode, OFlags};

use super::catalogue::Catalogue;
use super::host::Host;
use super::index::{Claimed, Entry, SlotRef};
use super::key::Key;
use super::locks::{self, Lock};
use super::object::{self, Large};
use super::policy::{Access, Choice, SAMPLE, choose};
use super::process::Owner;
use super::small::remove_name;

/// A large object with more than this on disk loses parts of it, so many bytes at once: enough to be worth opening it.
const PIECES: RangeInclusive<u64> = 8 << 20..=64 << 20;
/// Samples in a row from which nothing could go (all of it lent, or others were faster) before giving up.
const FRUITLESS: u32 = 8;
/// How often a claim starts again after it cleared what was in its way.
const ATTEMPTS: u32 = 16;

/// Tries to become the one who fills `key`, an object of `size` bytes; counts as an access of it.
///
/// What dead processes left in the way is cleared, and a full bucket loses the object that the policy values least,
/// if it values the newcomer more. Never [`Claimed::Dead`].
pub(crate) fn claim(cat: &Catalogue, key: &Key, size: u64) -> Claimed {
    let me = cat.me();
    if me == Owner::NO_SLOT {
        // Nobody could tell that this process lives.
        return Claimed::Full;
    }
    let moment = cat.moment();
    let before = cat.index().history(key);
    for _ in 0..ATTEMPTS {
        match cat.index().claim(key, size, me, moment, &|owner| cat.is_alive(owner)) {
            Claimed::Dead(at) => {
                if !undo(cat, at) {
                    return Claimed::Full;
                }
            }
            Claimed::Full => {
                let newcomer = Access::first(moment.now, moment.seconds, size);
                let neighbours = cat.index().neighbours(key).filter(|e| !e.is_pinned()).collect();
                if evict_one(cat, neighbours, Some(&newcomer), u64::MAX) == Evicted::Nothing {
                    return Claimed::Full;
                }
            }
            Claimed::Mine(at) => {
                if let Some(before) = before {
                    cat.policy().back(&before, &cat.scene());
                }
                return Claimed::Mine(at);
            }
            other => return other,
        }
    }
    Claimed::Full
}

/// Notes a visit of the live object in `at`.
pub(crate) fn accessed(cat: &Catalogue, at: SlotRef) {
    let before = cat.index().touch(at, cat.moment());
    cat.policy().back(&before, &cat.scene());
}

/// Removes objects until `bytes` are free or nothing more can go, and returns how many were freed. With `newcomer`,
/// the key that the room is for, only what the policy values less than that goes; without, something always goes.
pub(crate) fn make_room(cat: &Catalogue, bytes: u64, newcomer: Option<&Key>) -> u64 {
    let access = newcomer.and_then(|key| cat.index().history(key));
    let (ghosts, each) = cat.index().ghosts_at(random());
    cat.policy().ghosts(&ghosts, each, &cat.scene());
    let (mut freed, mut fruitless) = (0, 0);
    while freed < bytes && fruitless < FRUITLESS {
        let candidates = cat.index().live_from(random());
        let sample = candidates.filter(|e| !e.is_pinned() && newcomer != Some(&e.key)).take(SAMPLE).collect();
        match evict_one(cat, sample, access.as_ref(), bytes - freed) {
            Evicted::Bytes(0) => fruitless += 1,
            Evicted::Bytes(n) => (freed, fruitless) = (freed + n, 0),
            Evicted::Nothing => break,
        }
    }
    cat.count_evicted(freed);
    freed
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Evicted {
    Bytes(u64),
    /// Nothing of the sample can go, or the newcomer is worth less than all of it.
    Nothing,
}

/// Removes the least valuable of `sample` that can go.
fn evict_one(cat: &Catalogue, mut sample: Vec<Entry>, newcomer: Option<&Access>, wanted: u64) -> Evicted {
    if sample.is_empty() {
        return Evicted::Nothing;
    }
    let scene = cat.scene();
    while !sample.is_empty() {
        let accesses: Vec<Access> = sample.iter().map(|e| Access { size: e.charged, ..e.access }).collect();
        match choose(cat.policy(), &accesses, newcomer, &scene) {
            Choice::Evict(i) => match take(cat, &sample[i], wanted) {
                Some(bytes) => return Evicted::Bytes(bytes),
                None => drop(sample.swap_remove(i)),
            },
            Choice::Reject | Choice::Nothing => return Evicted::Nothing,
        }
    }
    // All of them are lent, or gone already. There may be others.
    Evicted::Bytes(0)
}

/// Frees bytes of `entry`: all of it, or a part of a large one. `None` if that cannot be.
fn take(cat: &Catalogue, entry: &Entry, wanted: u64) -> Option<u64> {
    if entry.has_state() && entry.charged > *PIECES.end() && wanted < entry.charged {
        let freed = match Large::open(&cat.ground(), &entry.key, entry.at, entry.size) {
            Ok(Some(large)) => large.evict_units(wanted.clamp(*PIECES.start(), *PIECES.end())),
            Ok(None) => 0,
            Err(e) => {
                tracing::debug!(object = ?entry.key, error = %e, "a large object cannot be opened to shrink it");
                0
            }
        };
        if freed > 0 {
            return Some(freed);
        }
    }
    remove(cat, entry)
}

/// Removes the object of `entry` from the cache and returns the bytes freed. `None` if it is lent to somebody, is
/// gone already, or cannot be removed. Pinned objects are removed like others.
pub(crate) fn remove(cat: &Catalogue, entry: &Entry) -> Option<u64> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let objects = cat.objects(&entry.key).ok()?;
    let file = rustix::fs::openat(objects, entry.key.name(), flags, Mode::empty()).ok();
    // Whoever has it lent holds the lock, whoever is about to will find that the slot has changed. Held until the
    // name is gone. What cannot be opened or has no locks cannot be lent either.
    if let Some(file) = &file
        && !locks::try_lock(file, Lock::Exclusive).unwrap_or(true)
    {
        return None;
    }
    let removed = cat
        .index()
        .begin_removal(entry.at, cat.me())
        .and_then(|at| finish(cat, entry.at, at, &entry.key, entry.has_state(), true));
    if let Some(file) = &file {
        // A child that was forked meanwhile has a copy of the descriptor, and would keep the lock.
        locks::unlock(file);
    }
    removed
}

/// Removes what the index says of `entry` because the disk has something else. True if this call did it.
pub(crate) fn discard(cat: &Catalogue, entry: &Entry, why: &str) -> bool {
    let Some(at) = cat.index().begin_removal(entry.at, cat.me()) else { return false };
    cat.count_wrong(&entry.key, why);
    finish(cat, entry.at, at, &entry.key, entry.has_state(), false).is_some()
}

/// Removes what a dead process left in a slot that it filled or removed. False if somebody else was first or the
/// files cannot be removed.
pub(crate) fn undo(cat: &Catalogue, dead: SlotRef) -> bool {
    let Some(at) = cat.index().adopt(dead, cat.me()) else {
        // Somebody else does it; there is no harm in looking again.
        return true;
    };
    let key = cat.index().key_of(at);
    finish(cat, dead, at, &key, true, true).is_some()
}

/// The second half of a removal: the files, the charge, the slot. `before` is what the slot was, and is again if the
/// files cannot be removed.
fn finish(
    cat: &Catalogue,
    before: SlotRef,
    at: SlotRef,
    key: &Key,
    has_state: bool,
    remember: bool,
) -> Option<u64> {
    if let Err(e) = remove_files(cat, key, has_state)
        && !cat.is_gone()
    {
        cat.index().put_back(at, before);
        cat.failed(&e);
        return None;
    }
    let charge = cat.index().take_charge(at);
    cat.release(charge);
    cat.index().vacate(at, remember);
    Some(charge)
}

pub(super) fn remove_files(cat: &Catalogue, key: &Key, has_state: bool) -> io::Result<()> {
    if has_state {
        object::discard(&cat.ground(), key)?;
    }
    match cat.objects(key) {
        Ok(objects) => remove_name(objects, &key.name()),
        // The directory of the files is missing, and they with it.
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e),
    }
}

/// A number that differs between threads and calls; SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
pub(crate) fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    thread_local! {
        static STATE: Cell<u64> = Cell::new(RandomState::new().hash_one(std::process::id()));
    }
    let mut z = STATE.with(|state| {
        state.set(state.get().wrapping_add(0x9e37_79b9_7f4a_7c15));
        state.get()
    });
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
