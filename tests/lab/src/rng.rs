//! A seeded source of chance that may be shared: SplitMix64 (Steele, Lea, Flood 2014) over an atomic state.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// The SplitMix64 output function.
pub(crate) fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[derive(Debug)]
pub(crate) struct Rng(AtomicU64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    pub(crate) fn next(&self) -> u64 {
        mix(self.0.fetch_add(GAMMA, Relaxed).wrapping_add(GAMMA))
    }

    /// At least 0, below 1.
    pub(crate) fn unit(&self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// True in a share `p` (0 to 1) of calls.
    pub(crate) fn chance(&self, p: f64) -> bool {
        p >= 1.0 || (p > 0.0 && self.unit() < p)
    }
}
