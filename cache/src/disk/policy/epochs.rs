//! [`Epochs`]: the default.

use super::rates::{AGES, Rates, kind_of, step_of, step_start};
use super::{Access, Policy, Scene};

/// A newcomer must be worth this much more than what it pushes out.
const CLEARLY: f64 = 1.25;

/// One newcomer of so many gets in whatever it is worth.
const TRIAL: u64 = 32;

/// Epoch-aware.
#[derive(Debug, Clone, Copy)]
pub struct Epochs;

impl Epochs {
    fn index(access: &Access, scene: &Scene<'_>) -> f64 {
        let rates = Rates::of(scene);
        let kind = kind_of(access);
        let age = access.age(scene.now);
        let first = step_of(age);
        let (mut best, mut survival, mut time) = (0.0_f64, 1.0_f64, 0.0_f64);
        let mut from = age as f64;
        for step in first..AGES {
            let width = (step_start(step + 1) - from).max(1.0);
            let expected = rates.rate(kind, step) * width;
            // Survives one step: exp(-x) would be exact for a constant rate, 1/(1+x) is near and cheaper.
            let next = survival / (1.0 + expected);
            time += width * (survival + next) * 0.5;
            survival = next;
            best = best.max((1.0 - survival) / time);
            if 1.0 < best * time {
                break;
            }
            from = step_start(step + 1);
        }
        best
    }
}

/// Bytes that cost as much as one request.
const REQUEST: f64 = (5u64 << 19) as f64;

impl Policy for Epochs {
    fn worth(&self, access: &Access, scene: &Scene<'_>) -> f64 {
        let size = access.size.max(4096) as f64;
        Self::index(access, scene) * (size + REQUEST) / size
    }

    fn admits(&self, newcomer: &Access, victim: &Access, scene: &Scene<'_>) -> bool {
        scene.now.is_multiple_of(TRIAL) || self.worth(newcomer, scene) > self.worth(victim, scene) * CLEARLY
    }

    fn hit(&self, before: &Access, scene: &Scene<'_>) {
        Rates::of(scene).hit(kind_of(before), before.age(scene.now));
    }

    fn sampled(&self, sample: &[Access], scene: &Scene<'_>) {
        Rates::of(scene).sampled(sample, scene);
    }
}
