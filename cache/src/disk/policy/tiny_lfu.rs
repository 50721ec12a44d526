//! [`TinyLfu`]: how often counts, and newcomers get a short chance.

use super::{Access, Policy, Scene};

/// Accesses remembered, as a multiple of the objects in the cache: the sample size of Einziger, Friedman and Manes,
/// "TinyLFU" (ACM Transactions on Storage 2017), and of Caffeine.
const PERIOD: u64 = 10;

/// Highest frequency: Caffeine's counters have four bits.
const MOST: f64 = 15.0;

/// Share of the cache for newcomers: Caffeine's window before it adapts.
const WINDOW: f64 = 0.01;

/// Above every frequency: objects in the window are not compared by it.
const IN_WINDOW: f64 = 100.0;

/// W-TinyLFU as far as a sampled cache without lists can have it.
///
/// * Frequency comes from the object's own gap, live or ghost, not from a sketch that is halved now and then: the
///   accesses that such a gap makes in ten times the cache, at most 15. It fades as the object ages.
/// * The window is one of age: what came during the last 1 % of the cache's worth of accesses, by its first access,
///   cannot be the victim. There is no separate list, and the window does not adapt by hill climbing.
/// * Main is one region; where Caffeine's segmented LRU takes its oldest on probation, the least frequent of
///   the sample goes. At equal frequency the younger goes, as Caffeine's candidate does.
#[derive(Debug, Clone, Copy)]
pub struct TinyLfu;

impl TinyLfu {
    fn frequency(access: &Access, scene: &Scene<'_>) -> f64 {
        let period = (scene.live * PERIOD) as f64;
        let age = access.age(scene.now) as f64;
        if access.count <= 1 {
            return if age < period { 1.0 } else { 0.0 };
        }
        // Rounded down as a counter is, so that equals are equals.
        (period / (access.gap as f64).max(age)).floor().clamp(0.0, f64::from(access.count).min(MOST))
    }
}

impl Policy for TinyLfu {
    fn worth(&self, access: &Access, scene: &Scene<'_>) -> f64 {
        let age = access.age(scene.now) as f64;
        let live = scene.live as f64;
        if access.count <= 1 && age < live * WINDOW {
            return IN_WINDOW - age / live;
        }
        Self::frequency(access, scene) + age / (age + live)
    }

    fn admits(&self, _newcomer: &Access, _victim: &Access, _scene: &Scene<'_>) -> bool {
        true
    }
}
