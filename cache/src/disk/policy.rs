//! What goes first when room is needed: pure rules over what an index slot remembers of an object.
//!
//! There are no lists. Whoever needs room takes up to [`SAMPLE`] entries at random and asks [`choose`] for the one
//! that is worth least, and whether the newcomer is worth more than it. A sample of 32 loses little against looking
//! at all entries: the chosen one is among the lowest 9 % with 95 % certainty (1 − 0.91³²), and Redis
//! and LHD (Beckmann, Chen and Cidon, NSDI 2018) do the same with 5 to 64.
//!
//! Times are logical: the number of accesses of the whole cache so far. An access is one visit of an object by a reader
//! (an open, a pass from its beginning), not one read: a stream's own reads would look like the hottest object of all.

use std::fmt::Debug;
use std::sync::atomic::AtomicU64;

use crate::config::PolicyKind;

mod epochs;
mod lru;
mod rates;
mod score;
mod tiny_lfu;

#[cfg(test)]
mod tests;

pub use epochs::Epochs;
pub use lru::Lru;
pub use score::Score;
pub use tiny_lfu::TinyLfu;

/// Entries to hand to [`choose`], if there are as many.
pub const SAMPLE: usize = 32;

/// Words of shared memory in which a policy keeps what it learned ([`Scene::learned`]). All zero at the beginning.
/// Every process of the cache uses the same, so that what one job does is not judged by what another one sees.
pub const LEARNED_WORDS: usize = rates::WORDS;

/// What the index remembers of an object, also after its bytes are gone (a ghost), until the slot is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// Logical time of the last access.
    pub last: u64,
    /// Accesses between two accesses of this object, smoothed over the last few; 0 after a single one.
    pub gap: u64,
    /// Accesses so far.
    pub count: u32,
    /// Wall time of the last access, seconds since 1970.
    pub seconds: u32,
    /// Bytes that go when this goes.
    pub size: u64,
}

impl Access {
    /// An object that is seen for the first time.
    pub fn first(now: u64, seconds: u32, size: u64) -> Self {
        Access { last: now, gap: 0, count: 1, seconds, size }
    }

    /// This object after one more access.
    ///
    /// The gap is smoothed by one half: one gap of a reshuffled epoch says little (0 to 2 epochs), a mean of many
    /// is slow to see that a popular object is popular no more.
    #[must_use]
    pub fn again(self, now: u64, seconds: u32) -> Self {
        let latest = now.saturating_sub(self.last).max(1);
        let gap = if self.count <= 1 { latest } else { self.gap.midpoint(latest).max(1) };
        Access {
            last: now.max(self.last),
            gap,
            count: self.count.saturating_add(1),
            seconds,
            size: self.size,
        }
    }

    /// The three words that a slot stores; [`Access::from_words`] is the way back. The size is the slot's own.
    pub fn words(&self) -> [u64; 3] {
        [self.last, self.gap, u64::from(self.count) << 32 | u64::from(self.seconds)]
    }

    /// What [`Access::words`] stored.
    pub fn from_words([last, gap, counts]: [u64; 3], size: u64) -> Self {
        Access { last, gap, count: (counts >> 32) as u32, seconds: counts as u32, size }
    }

    /// Accesses of the cache since this object was accessed last.
    pub fn age(&self, now: u64) -> u64 {
        now.saturating_sub(self.last)
    }
}

/// The cache at the moment of a decision.
#[derive(Debug, Clone, Copy)]
pub struct Scene<'a> {
    /// The logical clock.
    pub now: u64,
    /// The wall clock, seconds since 1970.
    pub seconds: u32,
    /// Objects in the cache.
    pub live: u64,
    /// [`LEARNED_WORDS`] words, shared by all processes. Lost updates between them do no harm.
    pub learned: &'a [AtomicU64],
}

/// An order of what to keep.
pub trait Policy: Debug + Send + Sync {
    /// How much this object is worth keeping; the least goes first. Only the order means something.
    fn worth(&self, access: &Access, scene: &Scene<'_>) -> f64;

    /// True if `newcomer`, just accessed and not in the cache, may push `victim` out.
    fn admits(&self, newcomer: &Access, victim: &Access, scene: &Scene<'_>) -> bool;

    /// An object that is remembered was accessed, be it in the cache or a ghost; `before` is what was known until then.
    fn back(&self, before: &Access, scene: &Scene<'_>) {
        let _ = (before, scene);
    }

    /// Entries taken at random from those in the cache, whenever room is needed.
    fn sampled(&self, sample: &[Access], scene: &Scene<'_>) {
        let _ = (sample, scene);
    }

    /// Ghosts found in slots taken at random, each of which stands for `each` ghosts. To be called as often as room is
    /// needed, also when no ghost was found: that says something too.
    fn ghosts(&self, found: &[Access], each: f64, scene: &Scene<'_>) {
        let _ = (found, each, scene);
    }
}

/// The rules that a user chose.
pub fn policy(kind: PolicyKind) -> Box<dyn Policy> {
    match kind {
        PolicyKind::Epochs => Box::new(Epochs),
        PolicyKind::Lru => Box::new(Lru),
        PolicyKind::TinyLfu => Box::new(TinyLfu),
        PolicyKind::Score => Box::new(Score),
    }
}

/// What to do to make room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// Evict this entry of the sample.
    Evict(usize),
    /// All of them are worth more than the newcomer: it is read without being kept.
    Reject,
    /// There was nothing in the sample.
    Nothing,
}

/// Picks what goes among `sample`, random entries that may go (not pinned, not lent). Without a newcomer
/// (the limit was lowered, the filesystem is filling up) something always goes.
pub fn choose(
    policy: &dyn Policy,
    sample: &[Access],
    newcomer: Option<&Access>,
    scene: &Scene<'_>,
) -> Choice {
    policy.sampled(sample, scene);
    let least = sample
        .iter()
        .map(|access| policy.worth(access, scene))
        .enumerate()
        .min_by(|(_, a), (_, b)| a.total_cmp(b))
        .map(|(i, _)| i);
    match (least, newcomer) {
        (None, _) => Choice::Nothing,
        (Some(i), Some(newcomer)) if !policy.admits(newcomer, &sample[i], scene) => Choice::Reject,
        (Some(i), _) => Choice::Evict(i),
    }
}
