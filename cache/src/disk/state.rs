//! The state of one large object: which of its units are there, and what proves them.
//!
//! Everything here works on words in memory and does no input or output, so that the protocol can be checked under
//! every schedule. The caller does the reads, writes and holes in between, in the order given here.
//!
//! # On disk
//! A state file has a fixed length: a header of 4 KiB, then five arrays over the `n` units of 64 KiB: resident bits
//! and used bits (words of 64), then per unit its CRC32C, its proof and its claim (4 bytes each), each array starting
//! at a multiple of 8 bytes. Words of the header, by index:
//! ```text
//!  0 "nearfs.s"   1 format version (32) | unit size (32)   2–5 key   6 size   7 boot   8 seed of the proofs
//!  9 inode, 10 device and 11 time of change of the data file   24 dead
//! 32 clock hand   40 when a unit was last filled (ms of this boot)   64–127 epochs
//! ```
//!
//! # Order
//! * **Fill**: claim the unit, write its bytes, then [`State::publish`]: CRC, proof, resident bit (release); then
//!   give the claim up.
//! * **Take away**: claim the unit, then [`State::withdraw`]: resident bits off, and only then their epoch up; then
//!   punch the hole and give the claim up. The claim keeps a hole from being punched into what was filled anew.
//! * **Read**: [`State::begin`] notes their epoch and looks at the units after that; read; [`State::unchanged`].
//!   Whoever notes the epoch of after a withdrawal sees the bits that it took; whoever noted an earlier one and
//!   read the hole sees that the epoch has moved on. There are 64 epochs, each for every 64th stretch of 64 units, so
//!   that what goes elsewhere in a large object does not disturb readers.
//!
//! # Proofs
//! A unit is believed without a look at its bytes if its proof is the one that follows from the boot, the seed of
//! this file, the unit's number and its CRC. A new boot, and a new seed, unprove every unit at once; so does
//! anything foreign that gets into the file, but for one chance in 2³¹ a unit. Unproven units are read and compared
//! with their CRC before their first use.

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::words::{Real, Word, Words};

/// Length of a unit in bytes: what is resident, checked and claimed as one.
pub(crate) const UNIT: u64 = 64 << 10;
/// Length of the header in bytes.
const HEADER: usize = 4096;
const MAGIC: u64 = u64::from_le_bytes(*b"nearfs.s");
const FORMAT: u64 = (1 << 32) | UNIT;

/// Number of epochs. Word `w` of the resident bits belongs to epoch `w % EPOCHS`.
const EPOCHS: usize = 64;

/// Indices of header words.
mod word {
    pub(super) const MAGIC: usize = 0;
    pub(super) const FORMAT: usize = 1;
    pub(super) const KEY: usize = 2;
    pub(super) const SIZE: usize = 6;
    pub(super) const BOOT: usize = 7;
    pub(super) const SEED: usize = 8;
    pub(super) const INODE: usize = 9;
    pub(super) const DEVICE: usize = 10;
    pub(super) const CHANGED: usize = 11;
    pub(super) const DEAD: usize = 24;
    pub(super) const HAND: usize = 32;
    pub(super) const FILLED: usize = 40;
    pub(super) const EPOCHS: usize = 64;
}

/// Where the arrays of a state file lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    units: usize,
}

impl Layout {
    /// The layout for an object of `size` bytes.
    pub(crate) fn new(size: u64) -> Self {
        Layout { units: usize::try_from(size.div_ceil(UNIT)).expect("units fit into the address space") }
    }

    pub(crate) fn units(self) -> usize {
        self.units
    }

    fn words(self) -> usize {
        self.units.div_ceil(64)
    }

    /// Length in bytes of an array of 32-bit words over the units.
    fn array(self) -> usize {
        (self.units * 4).next_multiple_of(8)
    }

    /// Length of the state file in bytes: a multiple of 4096.
    pub(crate) fn file_len(self) -> u64 {
        (HEADER + 2 * self.words() * 8 + 3 * self.array()).next_multiple_of(4096) as u64
    }

    /// Byte offset of the resident bits; the used bits follow.
    pub(crate) fn bits_at(self) -> usize {
        HEADER
    }

    /// Byte offsets of the CRCs, the proofs and the claims.
    pub(crate) fn arrays_at(self) -> [usize; 3] {
        let first = HEADER + 2 * self.words() * 8;
        [first, first + self.array(), first + 2 * self.array()]
    }

    /// Number of words of the header.
    pub(crate) const fn header_words() -> usize {
        HEADER / 8
    }

    /// The units that `range` touches.
    pub(crate) fn units_of(self, range: &Range<u64>) -> Range<usize> {
        let end = (range.end.div_ceil(UNIT) as usize).min(self.units);
        ((range.start / UNIT) as usize).min(end)..end
    }
}

/// What identifies an object and its data file, as the header says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Label {
    pub(crate) key: [u8; 32],
    pub(crate) size: u64,
}

/// The data file as it is known: another one in its place has other numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) inode: u64,
    pub(crate) device: u64,
    /// Time of the last change of its bytes, in nanoseconds.
    pub(crate) changed: u64,
}

/// The words of one state file.
#[derive(Debug)]
pub(crate) struct State<'a, A: Words = Real> {
    header: &'a [A::U64],
    resident: &'a [A::U64],
    used: &'a [A::U64],
    crcs: &'a [A::U32],
    proofs: &'a [A::U32],
    claims: &'a [A::U32],
}

impl<A: Words> Clone for State<'_, A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A: Words> Copy for State<'_, A> {}

impl<'a, A: Words> State<'a, A> {
    /// The state in these words; `arrays` are the CRCs, the proofs and the claims.
    ///
    /// # Panics
    /// When a length does not fit the layout.
    pub(crate) fn new(
        layout: Layout,
        header: &'a [A::U64],
        bits: &'a [A::U64],
        arrays: [&'a [A::U32]; 3],
    ) -> Self {
        assert!(header.len() == Layout::header_words() && bits.len() == 2 * layout.words());
        assert!(arrays.iter().all(|a| a.len() == layout.units));
        let (resident, used) = bits.split_at(layout.words());
        let [crcs, proofs, claims] = arrays;
        State { header, resident, used, crcs, proofs, claims }
    }

    fn units(&self) -> usize {
        self.crcs.len()
    }

    /// The claims of the units, for [`claims`](super::claims).
    pub(super) fn claims(&self) -> &'a [A::U32] {
        self.claims
    }

    // ---- the header

    /// Writes the header of a new file that nobody else can see yet.
    pub(crate) fn initialise(&self, label: &Label, boot: u64, seed: u64, known: Known) {
        let set = |at: usize, value: u64| self.header[at].store(value, Ordering::Relaxed);
        for (i, value) in key_words(&label.key).into_iter().enumerate() {
            set(word::KEY + i, value);
        }
        set(word::SIZE, label.size);
        set(word::BOOT, boot);
        set(word::SEED, seed);
        set(word::FORMAT, FORMAT);
        self.set_known(known);
        self.header[word::MAGIC].store(MAGIC, Ordering::Release);
    }

    /// Only the header of a state file of any size; the state has no units.
    pub(crate) fn header_only(header: &'a [A::U64]) -> Self {
        Self::new(Layout { units: 0 }, header, &[], [&[]; 3])
    }

    /// Whether this is the state of some object of this key, in the format of this program.
    pub(crate) fn is_of_key(&self, key: &[u8; 32]) -> bool {
        self.is_of(&Label { key: *key, size: self.header[word::SIZE].load(Ordering::Relaxed) })
    }

    /// Whether this is the state of `label` in the format of this program.
    pub(crate) fn is_of(&self, label: &Label) -> bool {
        let get = |at: usize| self.header[at].load(Ordering::Acquire);
        get(word::MAGIC) == MAGIC
            && get(word::FORMAT) == FORMAT
            && get(word::SIZE) == label.size
            && key_words(&label.key).into_iter().enumerate().all(|(i, value)| get(word::KEY + i) == value)
    }

    pub(crate) fn boot(&self) -> u64 {
        self.header[word::BOOT].load(Ordering::Acquire)
    }

    /// Takes the file over into a new boot: nothing is proven, claimed or young any more. The caller holds the
    /// lock under which this is done once, and nobody of this boot has used the file yet.
    pub(crate) fn take_over(&self, boot: u64) {
        self.claims.iter().for_each(|c| c.store(0, Ordering::Relaxed));
        self.header[word::FILLED].store(0, Ordering::Relaxed);
        self.header[word::BOOT].store(boot, Ordering::Release);
    }

    pub(crate) fn known(&self) -> Known {
        let get = |at: usize| self.header[at].load(Ordering::Acquire);
        Known { inode: get(word::INODE), device: get(word::DEVICE), changed: get(word::CHANGED) }
    }

    fn set_known(&self, known: Known) {
        self.header[word::INODE].store(known.inode, Ordering::Relaxed);
        self.header[word::DEVICE].store(known.device, Ordering::Relaxed);
        self.header[word::CHANGED].store(known.changed, Ordering::Release);
    }

    /// Notes the time of a change that this process made to the data file.
    pub(crate) fn changed_at(&self, time: u64) {
        self.header[word::CHANGED].fetch_max(time, Ordering::AcqRel);
    }

    /// Unproves every unit and accepts the data file as it is `known` now.
    pub(crate) fn distrust(&self, seed: u64, known: Known) {
        self.header[word::SEED].store(seed, Ordering::Release);
        self.set_known(known);
    }

    /// What the proofs of this file are computed from, in the boot `boot`.
    pub(crate) fn secret(&self, boot: u64) -> u64 {
        let key = self.header[word::KEY].load(Ordering::Relaxed);
        mix(boot ^ mix(self.header[word::SEED].load(Ordering::Acquire) ^ key.rotate_left(17)))
    }

    pub(crate) fn filled_at(&self) -> u64 {
        self.header[word::FILLED].load(Ordering::Relaxed)
    }

    pub(crate) fn set_filled_at(&self, ms: u64) {
        self.header[word::FILLED].fetch_max(ms, Ordering::Relaxed);
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.header[word::DEAD].load(Ordering::Acquire) != 0
    }

    /// Tells everybody who has the object open to drop it; true for the first who does.
    pub(crate) fn kill(&self) -> bool {
        self.header[word::DEAD].swap(1, Ordering::AcqRel) == 0
    }

    // ---- residency

    /// The first stretch of `units` that is all there or all missing, as (there, end). An empty range is there.
    pub(crate) fn stretch(&self, units: Range<usize>) -> (bool, usize) {
        if units.is_empty() {
            return (true, units.end);
        }
        let there = self.is_resident(units.start);
        let mut at = units.start;
        while at < units.end {
            let word = self.resident[at / 64].load(Ordering::Acquire);
            // Bits that differ from the first, from `at` on.
            let differing = (if there { !word } else { word }) >> (at % 64);
            if differing != 0 {
                return (there, units.end.min(at + differing.trailing_zeros() as usize));
            }
            at = (at / 64 + 1) * 64;
        }
        (there, units.end)
    }

    pub(crate) fn is_resident(&self, unit: usize) -> bool {
        self.resident[unit / 64].load(Ordering::Acquire) >> (unit % 64) & 1 != 0
    }

    /// Whether the bytes of a resident unit are believed unread.
    pub(crate) fn is_proven(&self, unit: usize, secret: u64) -> bool {
        self.proofs[unit].load(Ordering::Relaxed)
            == proof(secret, unit, self.crcs[unit].load(Ordering::Relaxed))
    }

    /// The CRC32C of a resident unit.
    pub(crate) fn crc(&self, unit: usize) -> u32 {
        self.crcs[unit].load(Ordering::Relaxed)
    }

    /// Number of resident units.
    pub(crate) fn resident_units(&self) -> u64 {
        (0..self.resident.len()).map(|w| u64::from(self.resident_word(w).count_ones())).sum()
    }

    /// Whether every unit is there and proven.
    pub(crate) fn is_whole(&self, secret: u64) -> bool {
        // From the end: a file that is being filled in order is told apart at once.
        (0..self.resident.len()).rev().all(|w| self.resident_word(w) == self.mask(w))
            && (0..self.units()).all(|u| self.is_proven(u, secret))
    }

    /// The units that a word of bits has.
    fn mask(&self, word: usize) -> u64 {
        match self.units() - word * 64 {
            rest if rest >= 64 => u64::MAX,
            rest => (1 << rest) - 1,
        }
    }

    /// A word of resident bits; whatever stands behind the last unit does not count.
    fn resident_word(&self, word: usize) -> u64 {
        self.resident[word].load(Ordering::Acquire) & self.mask(word)
    }

    /// Publishes units whose bytes have been written, from `first` on, with their CRCs. The caller holds their
    /// claims.
    pub(crate) fn publish(&self, first: usize, crcs: &[u32], secret: u64) {
        for (unit, &crc) in (first..).zip(crcs) {
            self.crcs[unit].store(crc, Ordering::Relaxed);
            self.proofs[unit].store(proof(secret, unit, crc), Ordering::Relaxed);
        }
        for (word, bits) in words_of(first..first + crcs.len()) {
            self.used[word].fetch_or(bits, Ordering::Relaxed);
            self.resident[word].fetch_or(bits, Ordering::Release);
        }
    }

    /// Notes that the bytes of a resident unit have been compared with `crc`. Nothing happens if it has another CRC by
    /// now.
    pub(crate) fn prove(&self, unit: usize, crc: u32, secret: u64) {
        // The proof names the CRC, so one that comes late for what was filled anew proves nothing.
        self.proofs[unit].store(proof(secret, unit, crc), Ordering::Relaxed);
    }

    /// Takes the residency of `units` away, whose claims the caller holds, and returns how many had it. Their bytes
    /// may be destroyed afterwards.
    pub(crate) fn withdraw(&self, units: &[Range<usize>]) -> u64 {
        let mut taken = 0;
        for (word, bits) in units.iter().flat_map(|run| words_of(run.clone())) {
            taken += u64::from((self.resident[word].fetch_and(!bits, Ordering::AcqRel) & bits).count_ones());
        }
        // After the bits: a reader that notes the new epoch sees them gone.
        for (word, _) in units.iter().flat_map(|run| words_of(run.clone())) {
            self.header[word::EPOCHS + word % EPOCHS].fetch_add(1, Ordering::AcqRel);
        }
        taken
    }

    /// The epochs of `units`, as one number: each of them only grows, so the sum stays the same only if all do.
    fn epoch(&self, units: Range<usize>) -> u64 {
        let epoch = |word: usize| self.header[word::EPOCHS + word % EPOCHS].load(Ordering::Acquire);
        words_of(units).take(EPOCHS).map(|(word, _)| epoch(word)).fold(0, u64::wrapping_add)
    }

    /// Gives residency back to what was withdrawn and not destroyed. The caller still holds the claims.
    pub(crate) fn restore(&self, units: &[Range<usize>]) {
        for (word, bits) in units.iter().flat_map(|run| words_of(run.clone())) {
            self.resident[word].fetch_or(bits, Ordering::Release);
        }
    }

    // ---- reading

    /// The epoch to read a unit under in order to prove it, if it is there.
    pub(crate) fn begin_unproven(&self, unit: usize) -> Option<u64> {
        let epoch = self.epoch(unit..unit + 1);
        self.is_resident(unit).then_some(epoch)
    }

    /// The epoch to read under, if all of `units` are there and proven.
    pub(crate) fn begin(&self, units: Range<usize>, secret: u64) -> Option<u64> {
        let epoch = self.epoch(units.clone());
        let ready = self.stretch(units.clone()) == (true, units.end)
            && units.clone().all(|unit| self.is_proven(unit, secret));
        if !ready {
            return None;
        }
        for (word, bits) in words_of(units) {
            // Most are marked already; looking does not take the cache line from other processors.
            if self.used[word].load(Ordering::Relaxed) & bits != bits {
                self.used[word].fetch_or(bits, Ordering::Relaxed);
            }
        }
        Some(epoch)
    }

    /// Whether nothing of `units` was taken away since `epoch` was noted for them. Called after the bytes have been
    /// read.
    pub(crate) fn unchanged(&self, units: Range<usize>, epoch: u64) -> bool {
        A::fence(Ordering::Acquire);
        self.epoch(units) == epoch
    }

    // ---- the clock

    /// Goes on with the clock for at most two turns until `give` has taken `want` units, and returns how many it took.
    /// Units used since the hand last passed are spared once. `give` says whether it took a unit.
    pub(crate) fn sweep(&self, want: usize, mut give: impl FnMut(usize) -> bool) -> usize {
        let words = self.resident.len();
        let mut taken = 0;
        if words == 0 {
            return 0;
        }
        let start = self.header[word::HAND].load(Ordering::Relaxed) as usize % words;
        for step in 0..2 * words + 1 {
            let word = (start + step) % words;
            if taken >= want {
                self.header[word::HAND].store(word as u64, Ordering::Relaxed);
                break;
            }
            let there = self.resident_word(word);
            if there == 0 {
                continue;
            }
            let spared = self.used[word].fetch_and(!there, Ordering::Relaxed);
            let mut idle = there & !spared;
            while idle != 0 && taken < want {
                let bit = idle.trailing_zeros() as usize;
                idle &= idle - 1;
                taken += usize::from(give(word * 64 + bit));
            }
        }
        taken
    }
}

/// The words and bits of a run of units.
fn words_of(units: Range<usize>) -> impl Iterator<Item = (usize, u64)> {
    let words = if units.is_empty() { 0..0 } else { units.start / 64..(units.end - 1) / 64 + 1 };
    words.map(move |word| {
        let from = units.start.max(word * 64) % 64;
        let count = units.end.min((word + 1) * 64) - word * 64 - from;
        (word, (u64::MAX >> (64 - count)) << from)
    })
}

fn key_words(key: &[u8; 32]) -> [u64; 4] {
    std::array::from_fn(|i| u64::from_ne_bytes(std::array::from_fn(|b| key[i * 8 + b])))
}

/// The proof of a unit; never 0, which is what stands where nothing was written.
fn proof(secret: u64, unit: usize, crc: u32) -> u32 {
    (mix(secret ^ ((unit as u64) << 32 | u64::from(crc))) as u32).max(1)
}

/// The finaliser of splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
pub(super) mod memory;
#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
