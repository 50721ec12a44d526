//! Claims of units: who fills or destroys which, across processes, and what becomes of them when a process dies.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::process::Owner;
use super::state::State;
use super::words::{Word, Words};

/// First and longest pause between two looks at a unit that somebody else has claimed.
const PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(20));
/// How often it is asked whether the claimant still lives: a system call.
const LIVENESS: Duration = Duration::from_millis(100);

/// What a claim of one unit came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claimed {
    /// Its bytes are there; nothing was claimed.
    Resident,
    /// The caller fills it now, and gives it up with [`State::release`].
    Mine,
    /// Somebody alive is at it; perhaps another thread of this process.
    Theirs(Owner),
    /// It is not there and cannot be filled by this process, which nobody could tell to be alive.
    Refused,
}

/// A stretch of an object and what a claim of it came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Bytes of the object, from the start of a unit to the end of one or of the object.
    pub(crate) range: Range<u64>,
    pub(crate) claimed: Claimed,
}

impl<A: Words> State<'_, A> {
    /// Claims a unit for filling it. `alive` judges other owners; a dead one's claim is taken over.
    pub(crate) fn claim(&self, unit: usize, me: Owner, alive: &mut dyn FnMut(Owner) -> bool) -> Claimed {
        if self.is_resident(unit) {
            return Claimed::Resident;
        }
        if me == Owner::NO_SLOT {
            return Claimed::Refused;
        }
        if let Err(other) = self.seize(unit, me, alive) {
            // Filled meanwhile, and the claim just not given up yet?
            return if self.is_resident(unit) { Claimed::Resident } else { Claimed::Theirs(other) };
        }
        // Whoever had it before may have filled it, or died right after that.
        if self.is_resident(unit) {
            self.release(unit, me);
            return Claimed::Resident;
        }
        Claimed::Mine
    }

    /// Claims a resident unit in order to destroy it. False if it is not resident or somebody is at it.
    pub(crate) fn claim_resident(
        &self,
        unit: usize,
        me: Owner,
        alive: &mut dyn FnMut(Owner) -> bool,
    ) -> bool {
        // Whoever took over the claim of somebody thought dead could fill what is being destroyed.
        if me == Owner::NO_SLOT || self.seize(unit, me, alive).is_err() {
            return false;
        }
        let resident = self.is_resident(unit);
        if !resident {
            self.release(unit, me);
        }
        resident
    }

    /// Makes `me` the claimant, or tells who is.
    fn seize(&self, unit: usize, me: Owner, alive: &mut dyn FnMut(Owner) -> bool) -> Result<(), Owner> {
        let claim = &self.claims()[unit];
        let mut expected = 0;
        loop {
            match claim.compare_exchange(expected, me.0, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok(()),
                Err(0) => expected = 0,
                Err(now) if now == me.0 || alive(Owner(now)) => return Err(Owner(now)),
                Err(now) => expected = now,
            }
        }
    }

    /// Whether `me` holds the claim of a unit.
    pub(crate) fn holds(&self, unit: usize, me: Owner) -> bool {
        self.claims()[unit].load(Ordering::Acquire) == me.0
    }

    /// Gives a claim up; nothing happens if `me` does not hold it. A forked child is somebody else.
    pub(crate) fn release(&self, unit: usize, me: Owner) {
        let _ = self.claims()[unit].compare_exchange(me.0, 0, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Whether any unit is claimed by somebody alive.
    pub(crate) fn is_busy(&self, alive: &mut dyn FnMut(Owner) -> bool) -> bool {
        let (mut living, mut gone) = (0, 0);
        self.claims().iter().any(|claim| match claim.load(Ordering::Acquire) {
            0 => false,
            owner if owner == gone => false,
            owner if owner == living || alive(Owner(owner)) => {
                living = owner;
                true
            }
            owner => {
                gone = owner;
                false
            }
        })
    }
}

/// Somebody who waits for units that others fill. The waiting itself is up to the caller, so that it may sleep in
/// whatever way it likes.
///
/// It never gives up: a claimant that lives and hangs is not told from a slow one here.
#[derive(Debug)]
pub(crate) struct Waiter {
    pause: Duration,
    since_asked: Duration,
}

impl Waiter {
    pub(crate) fn new() -> Self {
        Waiter { pause: PAUSES.0, since_asked: Duration::ZERO }
    }

    /// How long to sleep before the next call; nothing once something about `units` has changed that a new claim of
    /// them should find out: one is there, is claimed by nobody, or by somebody dead.
    pub(crate) fn step<A: Words>(
        &mut self,
        state: &State<'_, A>,
        units: Range<usize>,
        alive: &mut dyn FnMut(Owner) -> bool,
    ) -> Option<Duration> {
        if units.is_empty() {
            return None;
        }
        let ask = self.since_asked >= LIVENESS;
        let mut last = 0;
        for unit in units {
            let owner = state.claims()[unit].load(Ordering::Acquire);
            if owner == 0 || state.is_resident(unit) {
                return None;
            }
            // Neighbours mostly have one claimant.
            if ask && owner != last && !alive(Owner(owner)) {
                return None;
            }
            last = owner;
        }
        if ask {
            self.since_asked = Duration::ZERO;
        }
        let pause = self.pause;
        self.since_asked += pause;
        self.pause = (pause * 2).min(PAUSES.1);
        Some(pause)
    }
}
