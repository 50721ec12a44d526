//! [`Large`]: an open object of more than 1 MiB: its data file, and the state that all processes share.

use std::fmt;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use nearfs_backends::io::Source;
use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::claims::{Piece, Waiter};
use super::direct::Direct;
use super::files;
pub(crate) use super::files::discard;
use super::host::Ground;
use super::index::SlotRef;
use super::key::Key;
use super::mapping::Mapping;
use super::state::{Layout, State, UNIT};

/// Bytes on disk are counted in blocks of this length.
const BLOCK: u64 = 4096;

/// An open large object. Shared by everybody in the process who uses it; it stays readable after its names are gone.
///
/// All methods that take ranges take bytes of the object, and none of them blocks but where it says so.
pub(crate) struct Large {
    pub(super) ground: Arc<Ground>,
    pub(super) key: Key,
    /// Its place in the index, which carries its charge.
    pub(super) slot: SlotRef,
    size: u64,
    layout: Layout,
    mapping: Mapping,
    /// Read and written through the page cache.
    pub(super) data: Source,
    /// For reads past the page cache, once one was wanted; nothing where they are refused.
    pub(super) direct: OnceLock<Option<Direct>>,
    /// The filesystem cannot give back parts of a file.
    pub(super) unpunchable: AtomicBool,
    /// The count of its bytes as lent, while anybody in this process has them.
    pub(super) lending: Mutex<Weak<dyn Send + Sync>>,
}

/// A promise that the units of a range were there: what was read since is right if [`Large::finish`] says so.
#[derive(Debug)]
#[must_use = "bytes that were read are right only if `finish` says so"]
pub(crate) struct Token {
    units: Range<usize>,
    epoch: u64,
}

impl Large {
    /// Bytes that the state file of an object of `size` bytes takes up on disk.
    pub(crate) fn overhead(size: u64) -> u64 {
        Layout::new(size).file_len()
    }

    pub(super) fn assemble(
        ground: &Arc<Ground>,
        key: &Key,
        slot: SlotRef,
        size: u64,
        mapping: Mapping,
        data: OwnedFd,
    ) -> Large {
        Large {
            ground: ground.clone(),
            key: *key,
            slot,
            size,
            layout: Layout::new(size),
            mapping,
            data: ground.engine.adopt(data),
            direct: OnceLock::new(),
            unpunchable: AtomicBool::new(false),
            lending: Mutex::new(Weak::<()>::new()),
        }
    }

    /// Size of the object in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// The entry of the index that it was opened for.
    pub(crate) fn slot(&self) -> SlotRef {
        self.slot
    }

    pub(super) fn state(&self) -> State<'_> {
        state_in(&self.mapping, self.layout)
    }

    pub(super) fn units(&self, range: &Range<u64>) -> Range<usize> {
        self.layout.units_of(range)
    }

    pub(super) fn secret(&self) -> u64 {
        self.state().secret(self.ground.host.boot())
    }

    /// Whether its names are gone, or about to go. What is there stays readable; nothing is filled any more.
    pub(crate) fn is_dead(&self) -> bool {
        self.state().is_dead()
    }

    // ---- what is there

    /// The first stretch of `range` that is all there or all missing. What is there may still have to be proven.
    pub(crate) fn resident(&self, range: Range<u64>) -> (bool, Range<u64>) {
        let range = range.start..range.end.min(self.size);
        let (there, end) = self.state().stretch(self.units(&range));
        let end = (end as u64 * UNIT).clamp(range.start.min(range.end), range.end);
        (there, range.start..end)
    }

    /// Bytes of the object that are there.
    pub(crate) fn resident_bytes(&self) -> u64 {
        (self.state().resident_units() * UNIT).min(self.size)
    }

    /// Whether all of it is there and proven.
    pub(crate) fn is_whole(&self) -> bool {
        self.state().is_whole(self.secret())
    }

    // ---- reading

    /// Permission to read `range`, by whatever way, if all of it is there and proven.
    pub(crate) fn begin(&self, range: &Range<u64>) -> Option<Token> {
        if range.end > self.size {
            return None;
        }
        let units = self.units(range);
        let epoch = self.state().begin(units.clone(), self.secret())?;
        Some(Token { units, epoch })
    }

    /// Whether what was read since [`Large::begin`] is right: nothing was taken away meanwhile.
    pub(crate) fn finish(&self, token: Token) -> bool {
        self.state().unchanged(token.units, token.epoch)
    }

    /// The open file, for reads through the page cache.
    pub(crate) fn source(&self) -> &Source {
        &self.data
    }

    /// Compares the units of `range` that are there and unproven with their checksums, and says whether all of it is
    /// there and proven now. Units that are wrong are dropped. Blocks.
    ///
    /// # Errors
    /// Those of the disk.
    pub(crate) fn prove(&self, range: &Range<u64>) -> io::Result<bool> {
        let (state, secret) = (self.state(), self.secret());
        let mut buf = Vec::new();
        let mut whole = range.end <= self.size;
        for unit in self.units(range) {
            if !state.is_resident(unit) {
                whole = false;
            } else if !state.is_proven(unit, secret) {
                whole &= self.prove_unit(unit, secret, &mut buf)?;
            }
        }
        Ok(whole)
    }

    pub(super) fn prove_unit(&self, unit: usize, secret: u64, buf: &mut Vec<u8>) -> io::Result<bool> {
        let state = self.state();
        buf.resize(self.unit_len(unit) as usize, 0);
        // Taken away and filled anew during the read, it has been proven by who filled it: look again.
        let Some(epoch) = state.begin_unproven(unit) else { return Ok(false) };
        let crc = state.crc(unit);
        let range = self.range_of(unit..unit + 1);
        if let Err(e) = read_exactly(&self.data, buf, range.start) {
            self.drop_units(&range, "a unit cannot be read");
            return Err(e);
        }
        if !state.unchanged(unit..unit + 1, epoch) {
            return Ok(state.is_resident(unit) && state.is_proven(unit, secret));
        }
        if crc32c::crc32c(buf) == crc {
            state.prove(unit, crc, secret);
            return Ok(true);
        }
        self.drop_units(&range, "a unit is not what its checksum says");
        Ok(false)
    }

    /// Reads `buf.len()` bytes at `offset`, proving them first where need be; false if they are not there, or taken
    /// away again and again.
    #[cfg(all(test, not(feature = "shuttle")))]
    pub(crate) fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<bool> {
        let range = offset..offset.saturating_add(buf.len() as u64);
        for _ in 0..3 {
            let Some(token) = self.begin(&range) else {
                if !self.prove(&range)? {
                    return Ok(false);
                }
                continue;
            };
            read_exactly(&self.data, buf, offset)?;
            if self.finish(token) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    // ---- filling

    /// Claims what is missing of `range`, widened to whole units, and returns what became of each stretch of it. What
    /// is claimed must be filled or released. May ask the kernel who lives, which does not take long.
    pub(crate) fn claim(&self, range: Range<u64>) -> Vec<Piece> {
        let (state, me) = (self.state(), self.ground.host.me());
        let mut pieces: Vec<Piece> = Vec::new();
        let mut alive = self.liveness();
        for unit in self.units(&(range.start..range.end.min(self.size))) {
            let claimed = state.claim(unit, me, &mut alive);
            let range = self.range_of(unit..unit + 1);
            match pieces.last_mut() {
                Some(last) if last.claimed == claimed => last.range.end = range.end,
                _ => pieces.push(Piece { range, claimed }),
            }
        }
        pieces
    }

    /// Gives claims of this process on units of `range` up, filled or not.
    pub(crate) fn release(&self, range: &Range<u64>) {
        let me = self.ground.host.me();
        self.units(range).for_each(|unit| self.state().release(unit, me));
    }

    /// How long to sleep before asking again; nothing once [`Large::claim`] of `range` may find something new.
    pub(crate) fn wait(&self, waiter: &mut Waiter, range: &Range<u64>) -> Option<Duration> {
        if self.is_dead() {
            return None;
        }
        let mut alive = self.liveness();
        waiter.step(&self.state(), self.units(range), &mut alive)
    }

    /// Writes `data` at byte `start`, proven bytes of whole units that this process has claimed, and gives the claims
    /// up. False if they were not kept: no room, no such claims, or the object is dead. Blocks.
    ///
    /// # Errors
    /// Those of the disk; the directory has been told.
    ///
    /// # Panics
    /// If `data` does not start and end at the boundary of a unit, or the end of the object.
    pub(crate) fn fill(&self, start: u64, data: &[bytes::Bytes]) -> io::Result<bool> {
        let end = start + data.iter().map(|piece| piece.len() as u64).sum::<u64>();
        let whole = start.is_multiple_of(UNIT) && (end == self.size || end.is_multiple_of(UNIT));
        assert!(whole && end <= self.size, "{start}..{end} of {} bytes is not of whole units", self.size);
        let range = start..end;
        let result = self.write(&range, data);
        self.release(&range);
        if let Err(e) = &result {
            self.ground.host.failed(e);
        }
        result
    }

    fn write(&self, range: &Range<u64>, data: &[bytes::Bytes]) -> io::Result<bool> {
        let (state, host, units) = (self.state(), &self.ground.host, self.units(range));
        let me = host.me();
        if state.is_dead() || !units.clone().all(|unit| state.holds(unit, me)) {
            return Ok(false);
        }
        let sums = super::write::checksums(data);
        let mut write = || self.ground.writing.write(&self.data, range.start, self.size, data);
        let kept = host.spend(self.slot, blocks(range), &mut write);
        if !matches!(kept, Ok(true)) {
            // Part of it may be on disk, charged to nobody. Damage under a lent descriptor is left as it is.
            if self.is_lent().is_ok_and(|lent| !lent) {
                let _ = self.punch(range);
            }
        }
        // Before the claims go: an opener takes a time of change that nobody accounts for as damage.
        if let Ok(time) = files::changed(&self.data) {
            state.changed_at(time);
        }
        if kept? {
            state.set_filled_at(super::direct::now());
            state.publish(units.start, &sums, self.secret());
            return Ok(true);
        }
        Ok(false)
    }

    // ---- for the files beside this one

    /// The bytes of the object in `units`.
    pub(super) fn range_of(&self, units: Range<usize>) -> Range<u64> {
        units.start as u64 * UNIT..(units.end as u64 * UNIT).min(self.size)
    }

    fn unit_len(&self, unit: usize) -> u64 {
        let range = self.range_of(unit..unit + 1);
        range.end - range.start
    }

    /// Whether owners live, asked once each.
    pub(super) fn liveness(&self) -> impl FnMut(super::process::Owner) -> bool {
        let host = &self.ground.host;
        let mut asked: Vec<(super::process::Owner, bool)> = Vec::new();
        move |owner| match asked.iter().find(|(known, _)| *known == owner) {
            Some((_, alive)) => *alive,
            None => {
                let alive = host.is_alive(owner);
                asked.push((owner, alive));
                alive
            }
        }
    }

    /// The data file once more, as an open file of its own; nothing if its name leads elsewhere by now.
    pub(super) fn open_again(&self, flags: OFlags) -> io::Result<Option<OwnedFd>> {
        let dir = self.ground.host.objects(&self.key)?;
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = match rustix::fs::openat(dir, self.key.name(), flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT | Errno::LOOP) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        let (same, mine) = (rustix::fs::fstat(&file)?, rustix::fs::fstat(&self.data)?);
        Ok(((same.st_ino, same.st_dev) == (mine.st_ino, mine.st_dev)).then_some(file))
    }
}

impl fmt::Debug for Large {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Large").field("key", &self.key).field("size", &self.size).finish_non_exhaustive()
    }
}

/// Bytes of disk that a range of whole units takes up.
pub(super) fn blocks(range: &Range<u64>) -> u64 {
    (range.end - range.start).next_multiple_of(BLOCK)
}

pub(super) fn state_in(mapping: &Mapping, layout: Layout) -> State<'_> {
    let units = layout.units();
    State::new(
        layout,
        mapping.u64s(0, Layout::header_words()),
        mapping.u64s(layout.bits_at(), 2 * units.div_ceil(64)),
        layout.arrays_at().map(|at| mapping.u32s(at, units)),
    )
}

/// Fills `buf` from `offset` on.
fn read_exactly(file: impl AsFd, mut buf: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !buf.is_empty() {
        match rustix::io::pread(file.as_fd(), &mut *buf, offset) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => {
                buf = &mut buf[n..];
                offset += n as u64;
            }
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
