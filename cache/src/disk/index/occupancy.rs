//! Which slots are worth looking at: one bit per slot behind the slots.
//!
//! A bit is set by the owner of a slot right after claiming it and cleared by the owner right before giving it up, so
//! every live object has its bit. A bit without an object is possible (somebody died) and costs a look.

use std::sync::atomic::Ordering;

use super::slot::{STATE, WORDS};
use super::{Entry, Index, Key, Memory, Phase, SlotRef, State};
use crate::disk::process::Owner;
use crate::disk::words::Word;

impl<M: Memory> Index<M> {
    fn bits(&self, word: usize) -> &M::Word {
        &self.words()[self.slots * WORDS + word]
    }

    pub(super) fn occupy(&self, slot: usize) {
        self.bits(slot / 64).fetch_or(1 << (slot % 64), Ordering::SeqCst);
    }

    pub(super) fn leave(&self, slot: usize) {
        self.bits(slot / 64).fetch_and(!(1 << (slot % 64)), Ordering::SeqCst);
    }

    /// The occupied slots from the one after `start` (any number) once around the table.
    fn occupied(&self, start: u64) -> impl Iterator<Item = usize> + '_ {
        let words = self.slots / 64;
        let start = (start % self.slots as u64) as usize;
        let (first, bit) = (start / 64, start % 64);
        // The first word comes twice: its upper part at the beginning, its lower part at the end.
        (0..=words).flat_map(move |i| {
            let word = (first + i) % words;
            let mask = match i {
                0 => u64::MAX << bit,
                _ if i == words => !(u64::MAX << bit),
                _ => u64::MAX,
            };
            let mut bits = self.bits(word).load(Ordering::Relaxed) & mask;
            std::iter::from_fn(move || {
                let next = (bits != 0).then(|| word * 64 + bits.trailing_zeros() as usize);
                bits &= bits.wrapping_sub(1);
                next
            })
        })
    }

    /// All live objects, from a slot on (any number) once around the table. What comes and goes meanwhile may be
    /// missing.
    pub(crate) fn live_from(&self, start: u64) -> impl Iterator<Item = Entry> + '_ {
        self.occupied(start).filter_map(|slot| self.live_at(slot))
    }

    /// All live objects.
    pub(crate) fn live(&self) -> impl Iterator<Item = Entry> + '_ {
        self.live_from(0)
    }

    /// The live objects in the bucket of `key`.
    pub(crate) fn neighbours(&self, key: &Key) -> impl Iterator<Item = Entry> + '_ {
        self.places(&key.words()).filter_map(|slot| self.live_at(slot))
    }

    fn live_at(&self, slot: usize) -> Option<Entry> {
        let state = State(self.word(slot, STATE).load(Ordering::Acquire));
        if state.phase() != Phase::Live {
            return None;
        }
        self.entry(SlotRef { slot: slot as u32, state })
    }

    /// Slots among `range` (clipped to the table) that somebody dead was filling or removing. Those that were only
    /// claimed are emptied on the way, in the name of `me`.
    pub(crate) fn abandoned(
        &self,
        range: std::ops::Range<usize>,
        me: Owner,
        alive: &dyn Fn(Owner) -> bool,
    ) -> Vec<SlotRef> {
        let range = range.start.min(self.slots)..range.end.min(self.slots);
        let mut found = Vec::new();
        for slot in range {
            let state = State(self.word(slot, STATE).load(Ordering::Acquire));
            let owned = !matches!(state.phase(), Phase::Empty | Phase::Live | Phase::Ghost);
            if !owned || alive(state.owner()) {
                continue;
            }
            let at = SlotRef { slot: slot as u32, state };
            match state.phase() {
                Phase::Filling | Phase::Removing => found.push(at),
                _ => self.free_dead(at, me),
            }
        }
        found
    }

    /// The key of a slot that the caller has adopted.
    pub(crate) fn key_of(&self, at: SlotRef) -> Key {
        Key::from_words(std::array::from_fn(|i| self.get(at.number(), super::KEY + i)))
    }

    /// Whether any slot stands for `key`: live, or on its way in or out.
    pub(crate) fn knows(&self, key: &Key) -> bool {
        let words = key.words();
        self.places(&words).any(|slot| {
            let state = State(self.word(slot, STATE).load(Ordering::Acquire));
            state.phase().has_key() && self.has_key(slot, &words)
        })
    }

    /// The sum of all charges, in bytes.
    pub(crate) fn charged(&self) -> u64 {
        self.occupied(0).map(|slot| self.charge(slot, State(self.word(slot, STATE).load(Ordering::Acquire)))).sum()
    }

    /// Number of occupied slots: live objects, and what is on its way in or out.
    pub(crate) fn len(&self) -> u64 {
        (0..self.slots / 64).map(|i| u64::from(self.bits(i).load(Ordering::Relaxed).count_ones())).sum()
    }

    /// Numbers of live objects and of remembered ones, and the sum of all charges, by a look at every slot.
    pub(crate) fn count(&self) -> Counts {
        let mut counts = Counts::default();
        for slot in 0..self.slots {
            let state = State(self.word(slot, STATE).load(Ordering::Acquire));
            match state.phase() {
                Phase::Live => counts.live += 1,
                Phase::Ghost => counts.ghosts += 1,
                _ => {}
            }
            counts.charged += self.charge(slot, state);
        }
        counts
    }
}

/// What [`Index::count`] finds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) live: u64,
    pub(crate) ghosts: u64,
    /// Bytes.
    pub(crate) charged: u64,
}
