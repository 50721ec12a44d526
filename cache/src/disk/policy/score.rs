//! [`Score`]: the warm-up score as an order of eviction.

use super::{Access, Policy, Scene};

/// `max(0.1, 1 / (1 + hours since last access)) × log10(accesses + 1) × 1 / (1 + size in KiB)`, the project's first
/// idea of what is worth having. Small objects that are read often win; the order of magnitude of recency is bounded
/// by the 0.1, so what was popular once stays.
#[derive(Debug, Clone, Copy)]
pub struct Score;

impl Score {
    /// The score of an object at `seconds` of the wall clock.
    pub fn of(access: &Access, seconds: u32) -> f64 {
        let hours = f64::from(seconds.saturating_sub(access.seconds)) / 3600.0;
        let recency = (1.0 / (1.0 + hours)).max(0.1);
        let frequency = (f64::from(access.count) + 1.0).log10();
        let smallness = 1.0 / (1.0 + access.size as f64 / 1024.0);
        recency * frequency * smallness
    }
}

impl Policy for Score {
    fn worth(&self, access: &Access, scene: &Scene<'_>) -> f64 {
        Score::of(access, scene.seconds)
    }

    fn admits(&self, newcomer: &Access, victim: &Access, scene: &Scene<'_>) -> bool {
        self.worth(newcomer, scene) >= self.worth(victim, scene)
    }
}
