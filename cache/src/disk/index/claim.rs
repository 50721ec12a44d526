//! How a key gets a slot, and only one.

use std::sync::atomic::{Ordering, fence};

use super::slot::{self, ACCESS, BOOT, CHARGE, CRC, DEV, INO, KEY, MTIME, SIZE, STATE};
use super::{Index, Key, Memory, Moment, Phase, SlotRef, State};
use crate::disk::policy::Access;
use crate::disk::process::Owner;
use crate::disk::words::Word;

/// How often an inserter looks whether a rival in a higher slot has backed off before it reports it as busy.
const PATIENCE: u32 = 64;
/// How often an inserter starts again because slots changed under it before it reports the key as busy.
const ATTEMPTS: u32 = 64;

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
    pub(super) fn name(
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
    pub(super) fn free_dead(&self, at: SlotRef, me: Owner) {
        let taken = State::new(Phase::Claimed, at.state.generation().wrapping_add(1), me);
        if self.replace(at.number(), STATE, at.state.0, taken.0) {
            self.vacate(SlotRef { slot: at.slot, state: taken }, false);
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
