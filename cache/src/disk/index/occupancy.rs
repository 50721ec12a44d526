//! Which slots are worth looking at: one bit per slot behind the slots.
//!
//! A bit is set by the owner of a slot right after claiming it and cleared by the owner right before giving it up, so
//! every live object has its bit. A bit without an object is possible (somebody died) and costs a look.

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::slot::{CHARGE, STATE, WORDS};
use super::{Entry, Index, Key, Memory, Phase, SlotRef, State};
use crate::disk::policy::Access;
use crate::disk::process::Owner;
use crate::disk::words::Word;

/// Slots to look at for ghosts: two buckets, 4 KiB of memory.
const GHOST_SLOTS: usize = 32;

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

    /// What is remembered of the objects that left, in the [`GHOST_SLOTS`] slots of a random place (`start` may be any
    /// number), and how many ghosts of the table each of them stands for.
    pub(crate) fn ghosts_at(&self, start: u64) -> (Vec<Access>, f64) {
        let looked = GHOST_SLOTS.min(self.slots);
        let start = (start % self.slots as u64) as usize;
        let ghosts = (start..start + looked).filter_map(|slot| {
            let slot = slot % self.slots;
            let state = State(self.word(slot, STATE).load(Ordering::Acquire));
            let access = (state.phase() == Phase::Ghost).then(|| self.access(slot))?;
            self.unchanged(slot, state).then_some(access)
        });
        (ghosts.collect(), self.slots as f64 / looked as f64)
    }

    fn live_at(&self, slot: usize) -> Option<Entry> {
        let state = State(self.word(slot, STATE).load(Ordering::Acquire));
        if state.phase() != Phase::Live {
            return None;
        }
        self.entry(SlotRef { slot: slot as u32, state })
    }

    /// Looks for what is not as it should be among the slots in `range` (clipped to the table). Slots that somebody
    /// dead had only claimed are emptied on the way, in the name of `me`.
    pub(crate) fn inspect(&self, range: Range<usize>, me: Owner, alive: &dyn Fn(Owner) -> bool) -> Found {
        let mut found = Found::default();
        for slot in range.start.min(self.slots)..range.end.min(self.slots) {
            let state = State(self.word(slot, STATE).load(Ordering::Acquire));
            let at = SlotRef { slot: slot as u32, state };
            match state.phase() {
                Phase::Empty | Phase::Ghost => {}
                Phase::Live => self.inspect_live(at, &mut found),
                Phase::Filling | Phase::Removing if !alive(state.owner()) => found.dead.push(at),
                Phase::Claimed | Phase::Named if !alive(state.owner()) => self.free_dead(at, me),
                Phase::Filling | Phase::Removing | Phase::Claimed | Phase::Named => {}
            }
        }
        found
    }

    /// A power cut may have left the page of the slot on disk and not the one of its bit, or the other way round.
    fn inspect_live(&self, at: SlotRef, found: &mut Found) {
        let slot = at.number();
        let charge = super::slot::charged(self.get(slot, CHARGE), at.state);
        let key = self.key_of(at);
        if charge.is_none() || !self.places(&key.words()).any(|place| place == slot) {
            // What cannot be: it is in the wrong bucket, or has the charge of another.
            if self.is_current(at) {
                found.odd.push(at);
            }
            return;
        }
        let bit = 1 << (slot % 64);
        if self.bits(slot / 64).load(Ordering::SeqCst) & bit != 0 {
            return;
        }
        // Live objects have their bit from before they are live until after they are not. So if this one is still
        // live when the bit is there again, it was missing, and whoever set it counts the charge.
        let before = self.bits(slot / 64).fetch_or(bit, Ordering::SeqCst);
        if before & bit == 0 && self.is_current(at) {
            found.unlisted += charge.unwrap_or(0);
        }
    }

    /// Makes everything in the occupied slots that was being done the work of nobody, and returns the sum of all
    /// charges. For whoever has the directory alone: after a power cut its own number may be that of a dead owner.
    pub(crate) fn disown(&self) -> u64 {
        let mut charged = 0u64;
        for slot in self.occupied(0) {
            let state = State(self.word(slot, STATE).load(Ordering::Acquire));
            charged = charged.saturating_add(self.charge(slot, state));
            if state.owner() != Owner(0) {
                let nobody = State::new(state.phase(), state.generation(), Owner(0));
                self.replace(slot, STATE, state.0, nobody.0);
            }
        }
        charged
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
        self.occupied(0)
            .map(|slot| self.charge(slot, State(self.word(slot, STATE).load(Ordering::Acquire))))
            .fold(0, u64::saturating_add)
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
            counts.charged = counts.charged.saturating_add(self.charge(slot, state));
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

/// What [`Index::inspect`] finds.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Slots that somebody dead was filling or removing: to be adopted, and their files removed.
    pub(crate) dead: Vec<SlotRef>,
    /// Slots of live objects that cannot be: to be removed.
    pub(crate) odd: Vec<SlotRef>,
    /// Bytes of objects that nobody knew of: to be counted as used.
    pub(crate) unlisted: u64,
}
