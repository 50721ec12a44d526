//! [`Epochs`], the default: keeps what comes back soonest, as measured.
//!
//! # The idea
//! Whether recency is good or bad depends on the job. Where popularity decides (zipf), what was just read comes back
//! soonest. In a training epoch what was just read comes back last, and what is overdue comes back any moment. Both
//! are statements on the rate at which objects come back *at their age*, so that rate is measured ([`Rates`]), for
//! objects of like history (accessed once; gap between accesses by powers of four), and used by one rule:
//!
//! **worth = the highest, over all times t, of P(comes back within t) / E(time in the cache until then or t).**
//!
//! This is the Gittins index of a job whose reward is one hit: hits per unit of time that its place in the cache can
//! earn if we may give up any time. With rates that fall with age it is the present rate (LRU, and by kinds LFU),
//! with rates that rise it looks ahead to the rise (an epoch: the youngest goes first and a newcomer is not let in),
//! and beyond the last age at which anything came back it is nothing (the data set is abandoned). LHD (Beckmann, Chen
//! and Cidon, NSDI 2018) ranks by a like "hit density", learned from evictions; exposure is measured here instead,
//! because an epoch-aware cache hardly evicts, and the index instead of the density, because it does not depend on
//! the policy.
//!
//! What was refused or evicted is watched as long as its slot remembers it: a ghost that comes back says as much
//! about objects of its kind as one that was kept. That is how a new data set gets in while the old one has not been
//! given up: it is seen to come round.
//!
//! # What can be reached
//! *Epochs of N objects, each read once, cache of C.* A hit in an epoch is of an object that was in the cache when
//! the epoch began: what enters during the epoch is not read again in it. So an epoch has at most C hits, with
//! foreknowledge or without, in the same order or reshuffled, and Belady's optimum is C / N per epoch after the
//! first. C hits are reached by whoever never evicts an object that this epoch has not read yet while there is one
//! that it has (the newcomer, for one). So 0.95 of Belady is in reach, and what is lost is what learning costs in the
//! second epoch.
//!
//! *Zipf.* Belady sees each next access and gains some 20 % over any policy that knows rates only; there the fair
//! measure is the best of LRU and W-TinyLFU.
//!
//! # Size
//! A hit saves a request's waiting and the transfer of the bytes, and a place costs its bytes, so worth is per byte:
//! index × (1 + size / 0.3 MB) / size.

use super::rates::{AGES, Rates, kind_of, step_of, step_start};
use super::{Access, Policy, Scene};

/// A newcomer must be worth this much more than what it pushes out: to exchange equals is writing for nothing.
const CLEARLY: f64 = 1.25;

/// Bytes that cost as much as one request: what 10 Gbit/s carry while one of 128 requests in flight waits 30 ms for
/// its first byte. A trainer that keeps that many in flight is bound by requests below this size and by bytes above. One
/// that waits for each single object would see 2.7 MB (90 MB/s a connection), and large objects pushed out more.
const REQUEST: f64 = 0.3e6;

/// The least that an object takes on disk.
const BLOCK: u64 = 4096;

/// Epoch-aware eviction; see the module.
#[derive(Debug, Clone, Copy)]
pub struct Epochs;

impl Epochs {
    /// Hits per access of the cache that keeping this object can earn.
    fn index(access: &Access, scene: &Scene<'_>) -> f64 {
        let rates = Rates::of(scene);
        let (kind, age) = (kind_of(access), access.age(scene.now));
        let (mut best, mut survival, mut time) = (0.0_f64, 1.0_f64, 0.0_f64);
        let mut from = age as f64;
        for step in step_of(age)..AGES {
            let to = step_start(step + 1);
            // The last step has no end; an age beyond it lives one more tick at a time.
            let width = (to - from).max(1.0);
            // exp(-x) would be exact for a constant rate; 1 / (1 + x) is near, never too small, and cheap.
            let survives = survival / (1.0 + rates.rate(kind, step, scene.live) * width);
            time += width * survival.midpoint(survives);
            survival = survives;
            best = best.max((1.0 - survival) / time);
            // Were it certain to come back now, it could not get better any more.
            if best * time >= 1.0 {
                break;
            }
            from = to;
        }
        best
    }
}

impl Policy for Epochs {
    fn worth(&self, access: &Access, scene: &Scene<'_>) -> f64 {
        let size = access.size.max(BLOCK) as f64;
        Self::index(access, scene) * (1.0 + size / REQUEST) / size
    }

    fn admits(&self, newcomer: &Access, victim: &Access, scene: &Scene<'_>) -> bool {
        self.worth(newcomer, scene) > self.worth(victim, scene) * CLEARLY
    }

    fn back(&self, before: &Access, scene: &Scene<'_>) {
        Rates::of(scene).back(kind_of(before), before.age(scene.now));
    }

    fn sampled(&self, sample: &[Access], scene: &Scene<'_>) {
        Rates::of(scene).sampled(sample, scene);
    }

    fn ghosts(&self, found: &[Access], each: f64, scene: &Scene<'_>) {
        Rates::of(scene).ghosts(found, each, scene);
    }
}
