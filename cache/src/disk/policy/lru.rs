//! [`Lru`]: what was not accessed for longest goes first.

use super::{Access, Policy, Scene};

/// Least recently used. Every newcomer gets in. Exact LRU but for the sampling.
#[derive(Debug, Clone, Copy)]
pub struct Lru;

impl Policy for Lru {
    fn worth(&self, access: &Access, scene: &Scene<'_>) -> f64 {
        -(access.age(scene.now) as f64)
    }

    fn admits(&self, _newcomer: &Access, _victim: &Access, _scene: &Scene<'_>) -> bool {
        true
    }
}
