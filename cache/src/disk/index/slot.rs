//! What the words of a slot mean.

use super::CHARGE_UNIT;
use crate::disk::key::Key;
use crate::disk::policy::Access;
use crate::disk::process::Owner;

/// Words of a slot: 128 bytes.
pub(super) const WORDS: usize = 16;

/// Phase (8 bits), generation (24), owner (32).
pub(super) const STATE: usize = 0;
/// Four words.
pub(super) const KEY: usize = 1;
pub(super) const SIZE: usize = 5;
/// Generation (24), charge in [`CHARGE_UNIT`]s (40).
pub(super) const CHARGE: usize = 6;
pub(super) const INO: usize = 7;
pub(super) const MTIME: usize = 8;
/// CRC32C of the whole object (32), flags (32).
pub(super) const CRC: usize = 9;
pub(super) const BOOT: usize = 10;
/// Three words of [`Access::words`]; the first is the logical time of the last access.
pub(super) const ACCESS: usize = 11;
pub(super) const DEV: usize = 14;

/// Flag: never evicted.
pub(crate) const PINNED: u32 = 1;
/// Flag: a large object, with a state file beside its data file.
pub(crate) const HAS_STATE: u32 = 2;
/// Flag: all bytes are there, and the time of the file's last change is recorded.
pub(crate) const COMPLETE: u32 = 4;

/// A charge that belongs to no generation: states never have all bits of theirs set together with phase and owner,
/// but a charge is only ever compared by generation, so the generation after the last is left out in [`State::new`].
pub(super) const NO_CHARGE: u64 = (GENERATIONS as u64) << 40;
const GENERATIONS: u32 = (1 << 24) - 1;

/// Where a slot is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Empty = 0,
    /// The key is being written.
    Claimed = 1,
    /// The key is there; its owner looks for others who had the same idea.
    Named = 2,
    /// Its owner makes the object's files.
    Filling = 3,
    Live = 4,
    /// Its owner removes the object's files.
    Removing = 5,
    /// The object left; its accesses are remembered until somebody needs the slot.
    Ghost = 6,
}

impl Phase {
    /// True if the slot stands for its key, so that no other slot may.
    pub(super) fn has_key(self) -> bool {
        matches!(self, Phase::Named | Phase::Filling | Phase::Live | Phase::Removing)
    }
}

/// The first word of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct State(pub(super) u64);

impl State {
    pub(super) fn new(phase: Phase, generation: u32, owner: Owner) -> Self {
        State(u64::from(phase as u8) << 56 | u64::from(generation % GENERATIONS) << 32 | u64::from(owner.0))
    }

    /// A phase that no version of this program writes (a damaged page) counts as empty.
    pub(crate) fn phase(self) -> Phase {
        match self.0 >> 56 {
            1 => Phase::Claimed,
            2 => Phase::Named,
            3 => Phase::Filling,
            4 => Phase::Live,
            5 => Phase::Removing,
            6 => Phase::Ghost,
            _ => Phase::Empty,
        }
    }

    pub(super) fn generation(self) -> u32 {
        (self.0 >> 32) as u32 & 0xff_ffff
    }

    pub(crate) fn owner(self) -> Owner {
        Owner(self.0 as u32)
    }

    pub(super) fn with_phase(self, phase: Phase) -> Self {
        State::new(phase, self.generation(), self.owner())
    }
}

/// The charge word for `bytes` in the generation of `state`.
pub(super) fn charge(state: State, bytes: u64) -> u64 {
    u64::from(state.generation()) << 40 | bytes.div_ceil(CHARGE_UNIT) & 0xff_ffff_ffff
}

/// The bytes of a charge word, if it belongs to the generation of `state`.
pub(super) fn charged(word: u64, state: State) -> Option<u64> {
    (word >> 40 == u64::from(state.generation())).then_some((word & 0xff_ffff_ffff) * CHARGE_UNIT)
}

/// A slot, and the state it was seen in: good as long as the slot is in that state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SlotRef {
    pub(super) slot: u32,
    pub(super) state: State,
}

impl SlotRef {
    /// Its number in the table.
    pub(crate) fn number(self) -> usize {
        self.slot as usize
    }

    /// The phase it was seen in.
    pub(crate) fn phase(self) -> Phase {
        self.state.phase()
    }
}

/// What the index says of one object.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) at: SlotRef,
    pub(crate) key: Key,
    /// Bytes of the object.
    pub(crate) size: u64,
    /// Bytes of disk it is charged for.
    pub(crate) charged: u64,
    pub(crate) ino: u64,
    pub(crate) dev: u64,
    /// Nanoseconds since 1970 of the data file's last change; 0 while it is not complete.
    pub(crate) mtime_ns: u64,
    /// CRC32C of the whole object; only without [`HAS_STATE`].
    pub(crate) crc: u32,
    pub(crate) flags: u32,
    /// The boot tag under which its bytes are believed.
    pub(crate) boot: u64,
    pub(crate) access: Access,
}

impl Entry {
    /// True for a large object.
    pub(crate) fn has_state(&self) -> bool {
        self.flags & HAS_STATE != 0
    }

    /// True if it may not be evicted.
    pub(crate) fn is_pinned(&self) -> bool {
        self.flags & PINNED != 0
    }
}

/// What is known of an object once its files are in place.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Facts {
    pub(crate) ino: u64,
    pub(crate) dev: u64,
    /// 0 while it is not complete.
    pub(crate) mtime_ns: u64,
    /// CRC32C of the whole object; 0 with [`HAS_STATE`].
    pub(crate) crc: u32,
    pub(crate) flags: u32,
    pub(crate) boot: u64,
    /// Bytes of disk, rounded up to [`CHARGE_UNIT`].
    pub(crate) charged: u64,
}
