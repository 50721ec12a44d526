//! [`Rates`]: how often objects in the cache come back, by kind and age, measured and shared by all processes.
//!
//! The measure is that of actuaries: at each age, deaths (here: hits) over the time that the living were exposed to
//! them. Hits are counted as they happen; exposure is estimated from the random samples that eviction takes anyway.
//! So an age at which nothing comes back is seen as such even if nothing is ever evicted at that age.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use super::{Access, Scene};

/// Kinds of objects: accessed once, and fourteen powers of four of the gap between accesses (the last: 2^26 and more).
const KINDS: usize = 15;

/// Behind the kinds: all of them together.
const POOL: usize = KINDS;

/// Steps of age, two to an octave: up to 2^29.5 accesses, then one for all the rest.
pub(super) const AGES: usize = 60;

/// Per kind and age the hits and the exposure, per age the time of the last fading, and the times of the last sample
/// of the cache and of ghosts.
pub(super) const WORDS: usize = SAMPLED + 2;

const FADED: usize = 2 * (KINDS + 1) * AGES;
const SAMPLED: usize = FADED + AGES;

/// Without evidence an object of age a comes back at a rate of `PRIOR / a` (of `PRIOR` over the objects in the cache
/// where it is younger than that): gaps without a scale. 2 means that three of four come back before they are twice as
/// old. Deliberately high: hope in what was not seen yet keeps old objects until it is known that they do not come
/// back, which is how the first epoch is sat out. 1 misses an epoch now and then with few objects; 4 changes nothing.
const PRIOR: f64 = 2.0;

/// Evidence that the prior counts for, in hits. Less makes one early hit decide, more makes hope last too long.
const PRIOR_HITS: f64 = 0.25;

/// Evidence that all kinds together count for where one kind is judged: the exposure of this share of the cache passing
/// the step. A kind that a few objects make up behaves as the others until it shows otherwise. With 0.01 one kind of
/// an epoch loses patience just before its first hits, with 1 popular objects are no longer told from others.
const POOL_SHARE: f64 = 0.1;

/// What was measured counts for half after as many accesses as this many times the objects in the cache …
const HALF_LIFE_LIVE: f64 = 16.0;

/// … or after this share of the age, whichever is longer: an age is not seen again before it has passed.
const HALF_LIFE_AGE: f64 = 0.5;

/// The youngest age of a step: 0, 1.41, 2, 2.83, 4 …
pub(super) fn step_start(step: usize) -> f64 {
    if step == 0 { 0.0 } else { (step as f64 * 0.5).exp2() }
}

/// The step that an age falls into.
pub(super) fn step_of(age: u64) -> usize {
    // The square has whole octaves where the age has halves: no logarithm of floating point needed.
    let square = u128::from(age) * u128::from(age);
    (square.max(1).ilog2() as usize).min(AGES - 1)
}

/// The kind of an object.
pub(super) fn kind_of(access: &Access) -> usize {
    if access.count <= 1 { 0 } else { (1 + access.gap.max(1).ilog2() as usize / 2).min(KINDS - 1) }
}

/// The table in shared memory. Floating point numbers as bits; of two additions at once one may get lost.
#[derive(Clone, Copy)]
pub(super) struct Rates<'a>(&'a [AtomicU64]);

impl<'a> Rates<'a> {
    pub(super) fn of(scene: &Scene<'a>) -> Self {
        assert!(scene.learned.len() >= WORDS, "words for what the policy learned: expected {WORDS}");
        Rates(scene.learned)
    }

    /// An object of this kind, in the cache or a ghost, was accessed at this age.
    pub(super) fn back(self, kind: usize, age: u64) {
        for kind in [kind, POOL] {
            self.add(cell(kind, step_of(age)), 1.0);
        }
    }

    /// A sample of what is in the cache. Each entry stands for `live / sample` objects.
    pub(super) fn sampled(self, sample: &[Access], scene: &Scene<'_>) {
        if !sample.is_empty() {
            self.seen(SAMPLED, sample, scene.live as f64 / sample.len() as f64, scene);
            self.fade((scene.now % AGES as u64) as usize, scene);
        }
    }

    /// Ghosts found in slots taken at random, each of which stands for `each`.
    pub(super) fn ghosts(self, found: &[Access], each: f64, scene: &Scene<'_>) {
        self.seen(SAMPLED + 1, found, each, scene);
    }

    /// Those in `sample` were exposed to being accessed since the last sample, the time of which is in word `stamp`.
    fn seen(self, stamp: usize, sample: &[Access], each: f64, scene: &Scene<'_>) {
        let since = scene.now.saturating_sub(self.0[stamp].swap(scene.now, Relaxed)) as f64;
        if since > 0.0 {
            for access in sample {
                self.exposed(kind_of(access), access.age(scene.now), since, each);
            }
        }
    }

    /// `each` objects of this age were exposed for `since`, or since their last access if that is shorter.
    fn exposed(self, kind: usize, age: u64, since: f64, each: f64) {
        let (mut upper, from) = (age as f64, (age as f64 - since).max(0.0));
        for step in (0..=step_of(age)).rev() {
            let lower = step_start(step).min(upper);
            let time = upper - lower.max(from);
            for kind in [kind, POOL] {
                self.add(cell(kind, step) + 1, time * each);
            }
            if lower <= from {
                break;
            }
            upper = lower;
        }
    }

    /// Chance of an access during one tick of an object of this kind and step of age.
    pub(super) fn rate(self, kind: usize, step: usize, live: u64) -> f64 {
        let live = live as f64;
        // The middle of the step stands for it.
        let age = ((step as f64 + 0.5) * 0.5).exp2().max(live);
        let (hits, exposure) = self.get(cell(POOL, step));
        let all = (hits + PRIOR_HITS) / (exposure + PRIOR_HITS * age / PRIOR);
        let weight = POOL_SHARE * live.max(1.0) * (step_start(step + 1) - step_start(step));
        let (hits, exposure) = self.get(cell(kind, step));
        (hits + weight * all) / (exposure + weight)
    }

    /// Lets what was measured at this step of age fade, all kinds alike.
    fn fade(self, step: usize, scene: &Scene<'_>) {
        let stamp = &self.0[FADED + step];
        let then = stamp.load(Relaxed);
        let half_life =
            (step_start(step + 1) * HALF_LIFE_AGE).max(scene.live as f64 * HALF_LIFE_LIVE).max(1.0);
        let passed = scene.now.saturating_sub(then) as f64;
        // A time of the future is damage. Eighths of a half-life, so that the table is rarely written.
        let due = passed >= half_life / 8.0 || then > scene.now;
        if !due || stamp.compare_exchange(then, scene.now, Relaxed, Relaxed).is_err() {
            return;
        }
        let factor = (-passed / half_life).exp2();
        for kind in 0..=POOL {
            let at = cell(kind, step);
            let (hits, exposure) = self.get(at);
            self.set(at, hits * factor);
            self.set(at + 1, exposure * factor);
        }
    }

    fn get(self, at: usize) -> (f64, f64) {
        (self.word(at), self.word(at + 1))
    }

    fn word(self, at: usize) -> f64 {
        let value = f64::from_bits(self.0[at].load(Relaxed));
        // The words come from a file: whatever they say, no decision may become NaN or stay that way.
        if (0.0..1e18).contains(&value) { value } else { 0.0 }
    }

    fn set(self, at: usize, value: f64) {
        self.0[at].store(value.to_bits(), Relaxed);
    }

    fn add(self, at: usize, value: f64) {
        if value > 0.0 {
            self.set(at, self.word(at) + value);
        }
    }
}

/// Where the hits of a kind at a step of age are; its exposure follows.
fn cell(kind: usize, step: usize) -> usize {
    2 * (kind * AGES + step)
}
