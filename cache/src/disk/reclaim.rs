//! Taking bytes of large objects away: single units, by their use, and whole objects.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;

use super::files::changed;
use super::key::Key;
use super::locks::{self, Lock};
use super::mapping::Mapping;
use super::object::{Large, blocks};
use super::state::{Layout, State, UNIT};

/// Nobody has the object lent while this lives, in any process, nor can anybody get it.
#[derive(Debug)]
pub(super) struct Alone(OwnedFd);

impl Drop for Alone {
    fn drop(&mut self) {
        // A child that was forked meanwhile has a copy of the descriptor, and would keep the lock.
        locks::unlock(&self.0);
    }
}

impl Large {
    /// Excludes lending, if nothing is lent. The lock is on an open file of its own: this process's other
    /// descriptors, and those of its children, do not count as the same holder.
    pub(super) fn exclude(&self) -> io::Result<Option<Alone>> {
        let Some(file) = self.open_again(OFlags::RDWR)? else { return Ok(None) };
        Ok(locks::try_lock(&file, Lock::Exclusive)?.then_some(Alone(file)))
    }

    /// Takes units of about `bytes` away, those first that have not been used for longest, and returns how many bytes
    /// of disk that gave back: they are off the object's charge already. Nothing while it is lent, or where the
    /// filesystem cannot do this; then only the whole object can go. Blocks.
    pub(crate) fn evict_units(&self, bytes: u64) -> u64 {
        if self.is_dead() || self.unpunchable.load(Ordering::Relaxed) {
            return 0;
        }
        match self.exclude() {
            Ok(Some(_alone)) => self.take_away(bytes),
            Ok(None) => 0,
            Err(e) => {
                tracing::debug!(object = ?self.key, error = %e, "no units taken away");
                0
            }
        }
    }

    /// As [`Large::evict_units`]; the caller has the object [`Alone`].
    fn take_away(&self, bytes: u64) -> u64 {
        let (state, me) = (self.state(), self.ground.host.me());
        let mut alive = self.liveness();
        let want = usize::try_from(bytes.div_ceil(UNIT)).unwrap_or(usize::MAX);
        let mut units = Vec::new();
        state.sweep(want, |unit| {
            let mine = state.claim_resident(unit, me, &mut alive);
            if mine {
                units.push(unit);
            }
            mine
        });
        if units.is_empty() {
            return 0;
        }
        let runs = runs(units);
        state.withdraw(&runs);
        let mut freed = 0;
        for (i, run) in runs.iter().enumerate() {
            let range = self.range_of(run.clone());
            match self.punch(&range) {
                Ok(()) => freed += blocks(&range),
                Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                    // Nothing was destroyed.
                    self.unpunchable.store(true, Ordering::Relaxed);
                    state.restore(&runs[i..]);
                    break;
                }
                // Whether anything was destroyed is unknown: the bytes stay charged until the whole object goes.
                Err(e) => {
                    tracing::debug!(object = ?self.key, error = %e, "a hole could not be punched");
                    self.ground.host.failed(&e);
                    break;
                }
            }
        }
        self.settle(runs, freed);
        freed
    }

    /// Takes the units of `range` away because of what is wrong with their bytes. Under a lent descriptor the bytes stay
    /// where they are, until others are written over them. Blocks.
    pub(super) fn drop_units(&self, range: &Range<u64>, why: &str) {
        let (state, me) = (self.state(), self.ground.host.me());
        let mut alive = self.liveness();
        let units: Vec<_> =
            self.units(range).filter(|unit| state.claim_resident(*unit, me, &mut alive)).collect();
        if units.is_empty() {
            return;
        }
        self.ground.host.count_wrong(&self.key, why);
        let runs = runs(units);
        state.withdraw(&runs);
        if let Ok(Some(_alone)) = self.exclude() {
            // Where it fails, the bytes stay as well.
            runs.iter().for_each(|run| drop(self.punch(&self.range_of(run.clone()))));
        }
        let bytes = runs.iter().map(|run| blocks(&self.range_of(run.clone()))).sum();
        self.settle(runs, bytes);
    }

    /// The end of taking `units` away: what it did to the file is accounted for, and the claims go.
    fn settle(&self, units: Vec<Range<usize>>, freed: u64) {
        let (state, me) = (self.state(), self.ground.host.me());
        // Before the claims go, as when filling.
        if let Ok(time) = changed(&self.data) {
            state.changed_at(time);
        }
        self.ground.host.discharge(self.slot, freed);
        units.into_iter().flatten().for_each(|unit| state.release(unit, me));
    }

    /// Gives the blocks of whole units back to the filesystem.
    pub(super) fn punch(&self, range: &Range<u64>) -> io::Result<()> {
        // To the end of the last block, so that it goes too.
        let len = (range.end - range.start).next_multiple_of(UNIT);
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        loop {
            match rustix::fs::fallocate(&self.data, flags, range.start, len) {
                Err(Errno::INTR) => {}
                Err(Errno::NOSYS) => return Err(Errno::OPNOTSUPP.into()),
                other => return other.map_err(io::Error::from),
            }
        }
    }

    /// What [`discard`](super::files::discard) does first: tells every process that has the object open to drop it.
    #[cfg(all(test, not(feature = "shuttle")))]
    pub(super) fn kill(&self) {
        self.state().kill();
    }
}

/// Tells everybody who has the state `file` of `key` mapped that the object is dead. Other files are left alone.
pub(super) fn kill_file(key: &Key, file: &File) {
    let Ok(len) = file.metadata().map(|m| m.len()) else { return };
    if len < Layout::new(1).file_len() {
        return;
    }
    match Mapping::open(file, len) {
        Ok(mapping) => {
            let state: State<'_> = State::header_only(mapping.u64s(0, Layout::header_words()));
            if state.is_of_key(key.bytes()) {
                state.kill();
            }
        }
        Err(e) => tracing::debug!(object = ?key, error = %e, "a state file could not be mapped"),
    }
}

/// Units as runs of neighbours, in ascending order.
fn runs(mut units: Vec<usize>) -> Vec<Range<usize>> {
    units.sort_unstable();
    let mut runs: Vec<Range<usize>> = Vec::new();
    for unit in units {
        match runs.last_mut() {
            Some(last) if last.end == unit => last.end += 1,
            _ => runs.push(unit..unit + 1),
        }
    }
    runs
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    #[test]
    #[allow(clippy::single_range_in_vec_init)]
    fn neighbours_become_runs() {
        assert!(super::runs(vec![]).is_empty());
        assert_eq!(super::runs(vec![5, 3, 4, 9]), [3..6, 9..10]);
        assert_eq!(super::runs(vec![7]), [7..8]);
    }
}
