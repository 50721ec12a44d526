//! [`Rates`]: how often objects in the cache come back, by kind and age, measured and shared by all processes.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use super::{Access, Scene};

/// Kinds of objects: accessed once, and fifteen powers of four of the gap between accesses.
const KINDS: usize = 16;

/// Steps of age, two to an octave: up to 2^29 accesses, then one for all the rest.
pub(super) const AGES: usize = 60;

/// Per kind and age the hits and the exposure, per age the time of the last fading, and the time of the last sample.
pub(super) const WORDS: usize = 2 * KINDS * AGES + AGES + 1;

const FADED: usize = 2 * KINDS * AGES;
const SAMPLED: usize = FADED + AGES;

/// Without evidence an object is taken to come back at a rate of this over its age: gaps without a scale, by which
/// the younger goes last. Half of the objects of age a come back by age 4a.
const PRIOR: f64 = 0.5;

/// Evidence that the prior counts for, in hits.
const PRIOR_HITS: f64 = 1.0;

/// What was measured at an age counts for half after this share of the age …
const HALF_LIFE: f64 = 0.5;
/// … or after as many accesses as there are objects in the cache, whichever is longer.
const HALF_LIFE_LIVE: f64 = 1.0;

/// The youngest age of a step. Steps of half an octave: 1, 1.41, 2, 2.83, 4 …; the first begins at 0.
pub(super) fn step_start(step: usize) -> f64 {
    if step == 0 { 0.0 } else { (step as f64 * 0.5).exp2() }
}

/// The step that an age falls into.
pub(super) fn step_of(age: u64) -> usize {
    // The square has its half octaves where whole octaves are: no logarithm needed.
    let square = u128::from(age) * u128::from(age);
    (square.max(1).ilog2() as usize).min(AGES - 1)
}

/// The kind of an object.
pub(super) fn kind_of(access: &Access) -> usize {
    if access.count <= 1 { 0 } else { 1 + (access.gap.max(1).ilog2() as usize / 2).min(KINDS - 2) }
}

/// The table in shared memory. Floating point numbers as bits; two writers at once may lose one's addition.
#[derive(Clone, Copy)]
pub(super) struct Rates<'a>(&'a [AtomicU64]);

impl<'a> Rates<'a> {
    pub(super) fn of(scene: &Scene<'a>) -> Self {
        assert!(
            scene.learned.len() >= WORDS,
            "{} words of learned state, expected {WORDS}",
            scene.learned.len()
        );
        Rates(scene.learned)
    }

    /// An object of this kind was accessed again at this age.
    pub(super) fn hit(self, kind: usize, age: u64) {
        self.add(cell(kind, step_of(age)), 1.0);
    }

    /// A sample of what is in the cache. Each entry stands for `live / sample` objects, which were exposed to
    /// being accessed all the time since the last sample.
    pub(super) fn sampled(self, sample: &[Access], scene: &Scene<'_>) {
        let since = scene.now.saturating_sub(self.0[SAMPLED].swap(scene.now, Relaxed)) as f64;
        if sample.is_empty() || since <= 0.0 {
            return;
        }
        let each = scene.live as f64 / sample.len() as f64;
        for access in sample {
            let kind = kind_of(access);
            let to = access.age(scene.now) as f64;
            let from = (to - since).max(0.0);
            let mut step = step_of(access.age(scene.now));
            // From the present age down to that of the last sample.
            let mut upper = to;
            loop {
                let lower = if step == 0 { 0.0 } else { step_start(step).min(upper) };
                self.add(cell(kind, step) + 1, (upper - lower.max(from)).max(0.0) * each);
                if lower <= from || step == 0 {
                    break;
                }
                upper = lower;
                step -= 1;
            }
        }
        self.fade((scene.now % AGES as u64) as usize, scene);
    }

    /// Chance of an access during one tick of an object of this kind and step of age.
    pub(super) fn rate(self, kind: usize, step: usize) -> f64 {
        let at = cell(kind, step);
        // The middle of the step stands for it.
        let age = ((step as f64 + 0.5) * 0.5).exp2();
        (self.get(at) + PRIOR_HITS) / (self.get(at + 1) + PRIOR_HITS * age / PRIOR)
    }

    /// Lets what was measured at this step of age fade, all kinds alike.
    fn fade(self, step: usize, scene: &Scene<'_>) {
        let stamp = &self.0[FADED + step];
        let then = stamp.load(Relaxed);
        let half_life = (step_start(step + 1) * HALF_LIFE).max(scene.live as f64 * HALF_LIFE_LIVE).max(1.0);
        let passed = scene.now.saturating_sub(then) as f64;
        // In steps of an eighth, so that the table is rarely written.
        if passed < half_life / 8.0 || stamp.compare_exchange(then, scene.now, Relaxed, Relaxed).is_err() {
            return;
        }
        let factor = (-passed / half_life).exp2();
        for kind in 0..KINDS {
            let at = cell(kind, step);
            self.set(at, self.get(at) * factor);
            self.set(at + 1, self.get(at + 1) * factor);
        }
    }

    fn get(self, at: usize) -> f64 {
        let value = f64::from_bits(self.0[at].load(Relaxed));
        // The words come from a file: whatever they say, no decision may become NaN.
        if value.is_finite() && value >= 0.0 { value } else { 0.0 }
    }

    fn set(self, at: usize, value: f64) {
        self.0[at].store(value.to_bits(), Relaxed);
    }

    fn add(self, at: usize, value: f64) {
        if value > 0.0 {
            self.set(at, self.get(at) + value);
        }
    }
}

fn cell(kind: usize, step: usize) -> usize {
    2 * (kind * AGES + step)
}
