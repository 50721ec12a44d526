//! [`Index`]: which objects a cache directory holds, in memory that every process of the directory has mapped.
//!
//! A table of `n` slots of 128 bytes, then one bit per slot that says whether it is worth looking at, then 16 KiB for
//! what the eviction policy learned. An object lives in one of the 16 neighbouring slots of its bucket. Nothing here does I/O and nothing blocks: a slot changes hands
//! by one compare-and-swap of its state word, which carries phase, generation and owner, and whoever finds the owner
//! dead may take the slot on.
//!
//! ```text
//! EMPTY/GHOST -> CLAIMED (key being written) -> NAMED (key there, looking for rivals) -> FILLING -> LIVE
//! LIVE -> REMOVING -> GHOST or EMPTY          NAMED -> EMPTY/GHOST when a rival was first
//! ```
//!
//! **One slot per key.** Two inserters that miss each other's slot in their first look both show their key (NAMED)
//! before they look again, in one order all agree on. So at least one of them sees the other: who sees a rival that
//! is past NAMED backs off; of two NAMED ones the higher backs off, and the lower waits for that.
//!
//! **Readers** load the state, read the fields, and find the state unchanged: the generation grows each time a slot
//! is claimed. 24 bits of it would have to wrap within one read to fool a reader.
//!
//! **The charge** of an entry carries the generation too, so a change of it never lands on the slot's next tenant.

mod claim;
mod occupancy;
mod slot;

use std::sync::atomic::{AtomicU64, Ordering, fence};

pub(crate) use claim::Claimed;
pub(crate) use slot::{COMPLETE, Entry, Facts, HAS_STATE, PINNED, Phase, SlotRef, State};

use super::key::Key;
use super::mapping::Mapping;
use super::policy::{Access, LEARNED_WORDS};
use super::process::Owner;
use super::words::Word;
use slot::{ACCESS, BOOT, CHARGE, CRC, DEV, INO, KEY, MTIME, SIZE, STATE, WORDS};

/// Slots of one bucket. At one entry per two slots (the table is made for objects of 64 KiB on average), one bucket
/// in 10 000 overflows.
pub(crate) const BUCKET: usize = 16;
/// Unit of charges, in bytes: the block size of the filesystems that matter.
pub(crate) const CHARGE_UNIT: u64 = 4096;
/// Words for what the policy learned; a few are to spare.
const LEARNED: usize = 2048;
const _: () = assert!(LEARNED_WORDS <= LEARNED);
/// Where the words of an index lie: a mapping, or plain memory in tests.
pub(crate) trait Memory: Send + Sync {
    type Word: Word<u64>;

    fn words(&self) -> &[Self::Word];
}

impl Memory for Mapping {
    type Word = AtomicU64;

    fn words(&self) -> &[AtomicU64] {
        self.u64s(0, self.len() / 8)
    }
}

/// The table. All access is through atomics, so `&self` is enough and any process may do anything at any time.
#[derive(Debug)]
pub(crate) struct Index<M = Mapping> {
    memory: M,
    slots: usize,
}

/// When something is accessed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    /// The logical clock: accesses of the whole cache.
    pub(crate) now: u64,
    /// The wall clock, seconds since 1970.
    pub(crate) seconds: u32,
}

impl<M: Memory> Index<M> {
    /// The index in `memory`, which holds [`Index::<M>::bytes`] of `slots`. All zeros is an empty index.
    ///
    /// # Panics
    /// If `slots` is not a power of two of at least 64, or the memory is too small.
    pub(crate) fn new(memory: M, slots: usize) -> Self {
        assert!(slots.is_power_of_two() && slots >= 64, "an index has a power of two of slots, at least 64");
        assert!(memory.words().len() as u64 * 8 >= Self::bytes(slots), "the memory holds all slots");
        Index { memory, slots }
    }

    /// Bytes of an index of `slots` slots.
    pub(crate) fn bytes(slots: usize) -> u64 {
        (slots * WORDS * 8 + slots / 8 + LEARNED * 8) as u64
    }

    /// Number of slots.
    pub(crate) fn slots(&self) -> usize {
        self.slots
    }

    /// The shared words of the policy: zeros at first, then whatever it makes of them.
    pub(crate) fn learned(&self) -> &[M::Word] {
        &self.words()[self.slots * WORDS + self.slots / 64..][..LEARNED_WORDS]
    }

    fn words(&self) -> &[M::Word] {
        self.memory.words()
    }

    fn word(&self, slot: usize, word: usize) -> &M::Word {
        &self.words()[slot * WORDS + word]
    }

    fn state(&self, slot: usize, order: Ordering) -> State {
        State(self.word(slot, STATE).load(order))
    }

    fn get(&self, slot: usize, word: usize) -> u64 {
        self.word(slot, word).load(Ordering::Relaxed)
    }

    fn set(&self, slot: usize, word: usize, value: u64) {
        self.word(slot, word).store(value, Ordering::Relaxed);
    }

    /// Replaces `old` by `new`; false if the word is something else.
    fn replace(&self, slot: usize, word: usize, old: u64, new: u64) -> bool {
        let word = self.word(slot, word);
        word.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    fn has_key(&self, slot: usize, key: &[u64; 4]) -> bool {
        (0..4).all(|i| self.get(slot, KEY + i) == key[i])
    }

    /// The slots where `key` may be, the likeliest first.
    fn places(&self, words: &[u64; 4]) -> impl Iterator<Item = usize> + use<M> {
        let bucket = (words[0] as usize) & (self.slots / BUCKET - 1);
        let home = words[1] as usize;
        (0..BUCKET).map(move |i| bucket * BUCKET + (home.wrapping_add(i)) % BUCKET)
    }

    /// The object of `key`, if it is here.
    pub(crate) fn find(&self, key: &Key) -> Option<SlotRef> {
        let words = key.words();
        self.places(&words).find_map(|slot| {
            let state = self.state(slot, Ordering::Acquire);
            (state.phase() == Phase::Live && self.has_key(slot, &words) && self.unchanged(slot, state))
                .then_some(SlotRef { slot: slot as u32, state })
        })
    }

    /// What the index says of the object in `slot`; `None` if it is no longer the same.
    pub(crate) fn entry(&self, at: SlotRef) -> Option<Entry> {
        let slot = at.number();
        if self.state(slot, Ordering::Acquire) != at.state {
            return None;
        }
        let crc = self.get(slot, CRC);
        let entry = Entry {
            at,
            key: Key::from_words(std::array::from_fn(|i| self.get(slot, KEY + i))),
            size: self.get(slot, SIZE),
            charged: self.charge(slot, at.state),
            ino: self.get(slot, INO),
            dev: self.get(slot, DEV),
            mtime_ns: self.get(slot, MTIME),
            crc: (crc >> 32) as u32,
            flags: crc as u32,
            boot: self.get(slot, BOOT),
            access: self.access(slot),
        };
        self.unchanged(slot, at.state).then_some(entry)
    }

    /// Who is filling or removing the object of `key`, perhaps dead.
    pub(crate) fn worker(&self, key: &Key) -> Option<Owner> {
        let words = key.words();
        self.places(&words).find_map(|slot| {
            let state = self.state(slot, Ordering::Acquire);
            let working = matches!(state.phase(), Phase::Named | Phase::Filling | Phase::Removing);
            (working && self.has_key(slot, &words) && self.unchanged(slot, state)).then_some(state.owner())
        })
    }

    /// True if `slot` is still what it was when `at` was made.
    pub(crate) fn is_current(&self, at: SlotRef) -> bool {
        self.unchanged(at.number(), at.state)
    }

    /// The second half of a consistent read: true if everything read since `state` was loaded belongs to it.
    fn unchanged(&self, slot: usize, state: State) -> bool {
        // Acquire: no read before this moves behind it. Whoever changes the fields puts a release fence between its
        // change of the state and those of the fields, so a new field read before means a new state read here.
        fence(Ordering::Acquire);
        self.state(slot, Ordering::Relaxed) == state
    }

    /// The accesses remembered for `key`: of the object here, or of one that left.
    pub(crate) fn history(&self, key: &Key) -> Option<Access> {
        let words = key.words();
        self.places(&words).find_map(|slot| {
            let state = self.state(slot, Ordering::Acquire);
            let remembers =
                matches!(state.phase(), Phase::Live | Phase::Ghost | Phase::Removing | Phase::Filling);
            if !remembers || !self.has_key(slot, &words) {
                return None;
            }
            let access = self.access(slot);
            self.unchanged(slot, state).then_some(access)
        })
    }

    fn access(&self, slot: usize) -> Access {
        Access::from_words(std::array::from_fn(|i| self.get(slot, ACCESS + i)), self.get(slot, SIZE))
    }

    fn set_access(&self, slot: usize, access: &Access) {
        for (i, word) in access.words().into_iter().enumerate() {
            self.set(slot, ACCESS + i, word);
        }
    }

    /// Notes an access and returns what was remembered before. Plain stores: of two at once one may be lost.
    pub(crate) fn touch(&self, at: SlotRef, moment: Moment) -> Access {
        let before = self.access(at.number());
        self.set_access(at.number(), &before.again(moment.now, moment.seconds));
        before
    }

    /// Shows the object in a slot that the caller fills; its files are in place.
    pub(crate) fn publish(&self, at: SlotRef, facts: &Facts) -> SlotRef {
        debug_assert_eq!(at.phase(), Phase::Filling);
        let slot = at.number();
        self.set(slot, INO, facts.ino);
        self.set(slot, DEV, facts.dev);
        self.set(slot, MTIME, facts.mtime_ns);
        self.set(slot, CRC, u64::from(facts.crc) << 32 | u64::from(facts.flags));
        self.set(slot, BOOT, facts.boot);
        self.set(slot, CHARGE, slot::charge(at.state, facts.charged));
        self.advance(at, State::new(Phase::Live, at.state.generation(), Owner(0)))
    }

    /// Moves a slot that only the caller may change to `next`.
    fn advance(&self, at: SlotRef, next: State) -> SlotRef {
        // Release: whoever sees the new phase sees the fields that belong to it.
        self.word(at.number(), STATE).store(next.0, Ordering::SeqCst);
        SlotRef { slot: at.slot, state: next }
    }

    /// Begins to remove a live object: nobody finds it any more, its files are the caller's to remove. `None` if it
    /// is gone or somebody else was first.
    pub(crate) fn begin_removal(&self, at: SlotRef, me: Owner) -> Option<SlotRef> {
        (at.phase() == Phase::Live).then(|| self.adopt(at, me)).flatten()
    }

    /// Takes over what `at` was seen in (a live object, or one whose owner is dead) to remove it.
    pub(crate) fn adopt(&self, at: SlotRef, me: Owner) -> Option<SlotRef> {
        let removing = State::new(Phase::Removing, at.state.generation(), me);
        let won = self.replace(at.number(), STATE, at.state.0, removing.0);
        won.then_some(SlotRef { slot: at.slot, state: removing })
    }

    /// Makes a slot that the caller adopted what it was `before`: its files could not be removed.
    pub(crate) fn put_back(&self, at: SlotRef, before: SlotRef) {
        debug_assert_eq!((at.slot, at.phase()), (before.slot, Phase::Removing));
        self.advance(at, before.state);
    }

    /// Takes the charge of a slot that the caller removes: bytes that go back to the space, once.
    pub(crate) fn take_charge(&self, at: SlotRef) -> u64 {
        let old = self.word(at.number(), CHARGE).swap(slot::NO_CHARGE, Ordering::SeqCst);
        slot::charged(old, at.state).unwrap_or(0)
    }

    /// Gives up a slot that the caller claimed, fills or removes, when its files and its charge are gone. With
    /// `remember` its accesses stay for the day it comes back.
    pub(crate) fn vacate(&self, at: SlotRef, remember: bool) {
        let slot = at.number();
        // Before the state: afterwards the slot may be somebody else's.
        self.set(slot, CHARGE, slot::NO_CHARGE);
        self.leave(slot);
        let phase = if remember { Phase::Ghost } else { Phase::Empty };
        self.advance(at, State::new(phase, at.state.generation(), Owner(0)));
    }

    /// Adds `bytes` (rounded up to [`CHARGE_UNIT`]) to the charge of an object that is live or being filled. False if
    /// it is no longer there: the caller then gives the bytes back to the space itself.
    pub(crate) fn add_charge(&self, at: SlotRef, bytes: u64) -> bool {
        self.change_charge(at, |now| now + bytes.next_multiple_of(CHARGE_UNIT)).is_some()
    }

    /// Takes up to `bytes` (rounded up to [`CHARGE_UNIT`]) off the charge and returns how much that was: bytes that
    /// the caller gives back to the space. 0 if the object is no longer there.
    pub(crate) fn sub_charge(&self, at: SlotRef, bytes: u64) -> u64 {
        let bytes = bytes.next_multiple_of(CHARGE_UNIT);
        self.change_charge(at, |now| now.saturating_sub(bytes)).map_or(0, |(old, new)| old - new)
    }

    fn change_charge(&self, at: SlotRef, change: impl Fn(u64) -> u64) -> Option<(u64, u64)> {
        loop {
            let word = self.get(at.number(), CHARGE);
            let old = slot::charged(word, at.state)?;
            let new = change(old);
            if self.replace(at.number(), CHARGE, word, slot::charge(at.state, new)) {
                return Some((old, new));
            }
        }
    }

    fn charge(&self, slot: usize, state: State) -> u64 {
        slot::charged(self.get(slot, CHARGE), state).unwrap_or(0)
    }

    /// Sets flags ([`PINNED`], [`COMPLETE`], …) of a live object. False if it is no longer there.
    pub(crate) fn set_flags(&self, at: SlotRef, flags: u32) -> bool {
        if !self.is_current(at) {
            return false;
        }
        let word = self.word(at.number(), CRC);
        word.fetch_or(u64::from(flags), Ordering::SeqCst);
        if self.is_current(at) {
            return true;
        }
        // It left in between: the slot's next tenant must not inherit the flags.
        word.fetch_and(!u64::from(flags), Ordering::SeqCst);
        false
    }

    /// Clears flags of a live object. False if it is no longer there.
    pub(crate) fn clear_flags(&self, at: SlotRef, flags: u32) -> bool {
        if !self.is_current(at) {
            return false;
        }
        self.word(at.number(), CRC).fetch_and(!u64::from(flags), Ordering::SeqCst);
        self.is_current(at)
    }

    /// Notes that the bytes of a live object were proven under boot tag `boot` in a file on device `dev` that was
    /// last changed at `mtime_ns` (0: not complete yet). What the slot may hold by now was made under the same boot
    /// tag, and a wrong device or time only costs another check.
    pub(crate) fn believe(&self, at: SlotRef, boot: u64, dev: u64, mtime_ns: u64) {
        let slot = at.number();
        if self.is_current(at) {
            self.set(slot, MTIME, mtime_ns);
            self.set(slot, DEV, dev);
            self.word(slot, BOOT).store(boot, Ordering::Release);
        }
    }
}

#[cfg(all(test, feature = "shuttle"))]
mod schedules;
#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
