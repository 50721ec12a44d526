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

mod occupancy;
mod slot;

use std::sync::atomic::{AtomicU64, Ordering, fence};

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
/// How often an inserter looks whether a rival in a higher slot has backed off before it reports it as busy.
const PATIENCE: u32 = 64;
/// How often an inserter starts again because slots changed under it before it reports the key as busy.
const ATTEMPTS: u32 = 64;

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

/// What became of an attempt to claim a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claimed {
    /// The caller fills this slot now and must [`Index::publish`] or [`Index::vacate`] it. Files of this key's name
    /// may be left over from somebody who died.
    Mine(SlotRef),
    /// It is there.
    Live(SlotRef),
    /// Somebody alive fills or removes it.
    Busy(Owner),
    /// Somebody died while filling or removing a slot that is in the way: [`Index::adopt`] it, remove its files and
    /// claim again.
    Dead(SlotRef),
    /// All slots of the bucket hold other objects.
    Full,
}

/// What a first look at a bucket shows to somebody who wants to insert.
enum Look {
    Taken(Claimed),
    /// The slot to take, its state, and whether it remembers this very key.
    Room(usize, State, bool),
    /// Slots changed in between.
    Again,
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

    /// Tries to become the one who fills `key`, an object of `size` bytes, and notes an access at that moment.
    ///
    /// `alive` says whether an owner still lives. Waits at most for a moment, for one who is about to back off.
    pub(crate) fn claim(
        &self,
        key: &Key,
        size: u64,
        me: Owner,
        moment: Moment,
        alive: &dyn Fn(Owner) -> bool,
    ) -> Claimed {
        let words = key.words();
        for _ in 0..ATTEMPTS {
            let (slot, old, known) = match self.look(&words, alive) {
                Look::Taken(claimed) => return claimed,
                Look::Room(slot, old, known) => (slot, old, known),
                Look::Again => continue,
            };
            let claimed = State::new(Phase::Claimed, old.generation().wrapping_add(1), me);
            if !self.replace(slot, STATE, old.0, claimed.0) {
                continue;
            }
            // Release: see `unchanged`.
            fence(Ordering::Release);
            self.occupy(slot);
            self.name(slot, &words, size, claimed, known.then(|| self.access(slot)), moment);
            let named = claimed.with_phase(Phase::Named);
            // Sequentially consistent, as the loads of `rival`: of two who do this, one sees the other.
            self.word(slot, STATE).store(named.0, Ordering::SeqCst);
            let at = SlotRef { slot: slot as u32, state: named };
            match self.rival(slot, &words, me, alive) {
                None => return Claimed::Mine(self.advance(at, named.with_phase(Phase::Filling))),
                Some(rival) => {
                    self.vacate(at, known);
                    return rival;
                }
            }
        }
        Claimed::Busy(me)
    }

    /// Writes identity and fresh fields into a claimed slot.
    fn name(
        &self,
        slot: usize,
        words: &[u64; 4],
        size: u64,
        claimed: State,
        known: Option<Access>,
        moment: Moment,
    ) {
        for (i, word) in words.iter().enumerate() {
            self.set(slot, KEY + i, *word);
        }
        self.set(slot, SIZE, size);
        self.set(slot, CHARGE, slot::charge(claimed, 0));
        for word in [INO, DEV, MTIME, CRC, BOOT] {
            self.set(slot, word, 0);
        }
        let access = match known {
            Some(before) => before.again(moment.now, moment.seconds),
            None => Access::first(moment.now, moment.seconds, size),
        };
        self.set_access(slot, &access);
    }

    fn look(&self, words: &[u64; 4], alive: &dyn Fn(Owner) -> bool) -> Look {
        let (mut known, mut empty, mut ghost, mut abandoned) =
            (None, None, None::<(u64, usize, State)>, None);
        for slot in self.places(words) {
            let state = self.state(slot, Ordering::Acquire);
            let same = self.has_key(slot, words);
            if !self.unchanged(slot, state) {
                return Look::Again;
            }
            let at = SlotRef { slot: slot as u32, state };
            match state.phase() {
                Phase::Live if same => return Look::Taken(Claimed::Live(at)),
                Phase::Filling | Phase::Removing if same => {
                    let busy = alive(state.owner());
                    return Look::Taken(if busy { Claimed::Busy(state.owner()) } else { Claimed::Dead(at) });
                }
                Phase::Ghost if same => known = Some((slot, state)),
                Phase::Ghost => {
                    let last = self.get(slot, ACCESS);
                    if ghost.is_none_or(|(oldest, ..)| last < oldest) {
                        ghost = Some((last, slot, state));
                    }
                }
                Phase::Empty => empty = empty.or(Some((slot, state))),
                Phase::Live => {}
                Phase::Claimed | Phase::Named | Phase::Filling | Phase::Removing => {
                    if abandoned.is_none() && !alive(state.owner()) {
                        abandoned = Some(at);
                    }
                }
            }
        }
        if let Some((slot, state)) = known {
            return Look::Room(slot, state, true);
        }
        if let Some((slot, state)) = empty.or(ghost.map(|(_, slot, state)| (slot, state))) {
            return Look::Room(slot, state, false);
        }
        match abandoned {
            // Nothing but the slot itself was taken: it may be claimed as it is.
            Some(at) if matches!(at.phase(), Phase::Claimed | Phase::Named) => {
                Look::Room(at.number(), at.state, false)
            }
            Some(at) => Look::Taken(Claimed::Dead(at)),
            None => Look::Taken(Claimed::Full),
        }
    }

    /// Another slot with the same key that keeps `mine` from being filled.
    fn rival(
        &self,
        mine: usize,
        words: &[u64; 4],
        me: Owner,
        alive: &dyn Fn(Owner) -> bool,
    ) -> Option<Claimed> {
        for slot in self.places(words).filter(|slot| *slot != mine) {
            let mut patience = PATIENCE;
            loop {
                let state = self.state(slot, Ordering::SeqCst);
                if !state.phase().has_key() || !self.has_key(slot, words) {
                    if self.unchanged(slot, state) {
                        break;
                    }
                    continue;
                }
                if !self.unchanged(slot, state) {
                    continue;
                }
                let at = SlotRef { slot: slot as u32, state };
                if state.phase() == Phase::Live {
                    return Some(Claimed::Live(at));
                }
                let living = alive(state.owner());
                if state.phase() != Phase::Named {
                    return Some(if living { Claimed::Busy(state.owner()) } else { Claimed::Dead(at) });
                }
                if !living {
                    // It may be gone by now; the next look tells.
                    self.free_dead(at, me);
                } else if slot < mine || patience == 0 {
                    return Some(Claimed::Busy(state.owner()));
                } else {
                    patience -= 1;
                    pause();
                }
            }
        }
        None
    }

    /// Empties a slot whose owner died before it had more than the slot itself.
    fn free_dead(&self, at: SlotRef, me: Owner) {
        let taken = State::new(Phase::Claimed, at.state.generation().wrapping_add(1), me);
        if self.replace(at.number(), STATE, at.state.0, taken.0) {
            self.vacate(SlotRef { slot: at.slot, state: taken }, false);
        }
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

/// Lets others run while this thread waits for one of them.
fn pause() {
    #[cfg(feature = "shuttle")]
    shuttle::thread::yield_now();
    #[cfg(not(feature = "shuttle"))]
    std::thread::yield_now();
}

#[cfg(all(test, feature = "shuttle"))]
mod schedules;
#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
