//! [`Window`]: quantiles of the last samples.

use std::time::Duration;

/// Samples kept. With 2 % of all requests slow, the chance that more than a twentieth of so many are (which would move
/// the 95th percentile to the slow ones) is below 1 in 500.
pub(super) const KEPT: usize = 256;

/// Samples after which quantiles are computed anew: one computation takes about a microsecond.
const EVERY: usize = 16;

/// The last [`KEPT`] times that something took, in microseconds, however long ago: what has changed meanwhile is learned
/// within as many requests, at the price of a few hedges.
#[derive(Debug, Default)]
pub(super) struct Window {
    samples: Vec<u32>,
    next: usize,
    fresh: usize,
    known: Option<Quantiles>,
}

/// The median and the 95th percentile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Quantiles {
    pub(super) p50: Duration,
    pub(super) p95: Duration,
}

impl Window {
    pub(super) fn add(&mut self, took: Duration) {
        let micros = u32::try_from(took.as_micros()).unwrap_or(u32::MAX);
        if self.samples.len() < KEPT {
            self.samples.push(micros);
        } else {
            self.samples[self.next] = micros;
            self.next = (self.next + 1) % KEPT;
        }
        self.fresh += 1;
    }

    /// What they were lately; `None` with fewer than `least` samples.
    pub(super) fn quantiles(&mut self, least: usize) -> Option<Quantiles> {
        if self.samples.len() < least.clamp(1, KEPT) {
            return None;
        }
        if self.known.is_none() || self.fresh >= EVERY {
            self.known = Some(compute(&self.samples));
            self.fresh = 0;
        }
        self.known
    }
}

fn compute(samples: &[u32]) -> Quantiles {
    let mut scratch = [0; KEPT];
    let scratch = &mut scratch[..samples.len()];
    scratch.copy_from_slice(samples);
    let (at50, at95) = (samples.len() / 2, samples.len() * 95 / 100);
    let (lower, p95, _) = scratch.select_nth_unstable(at95);
    let p95 = *p95;
    let p50 = if at50 < at95 { *lower.select_nth_unstable(at50).1 } else { p95 };
    Quantiles { p50: Duration::from_micros(u64::from(p50)), p95: Duration::from_micros(u64::from(p95)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn quantiles_are_those_of_the_sorted_samples() {
        let mut window = Window::default();
        assert_eq!(window.quantiles(0), None);
        // 1..=100 in an order that is not theirs.
        (0..100).for_each(|i| window.add(ms(1 + i * 37 % 100)));
        assert_eq!(window.quantiles(100), Some(Quantiles { p50: ms(51), p95: ms(96) }));
        assert_eq!(window.quantiles(101), None);
        let mut one = Window::default();
        one.add(ms(7));
        assert_eq!(one.quantiles(1), Some(Quantiles { p50: ms(7), p95: ms(7) }));
    }

    #[test]
    fn old_samples_go_and_memory_is_bounded() {
        let mut window = Window::default();
        (0..10_000).for_each(|_| window.add(ms(1_000)));
        (0..KEPT).for_each(|_| window.add(ms(10)));
        window.add(Duration::from_secs(1 << 40));
        assert_eq!(window.quantiles(KEPT), Some(Quantiles { p50: ms(10), p95: ms(10) }));
        assert!(window.samples.capacity() <= 2 * KEPT);
    }
}
