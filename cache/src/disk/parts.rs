//! [`Parts`]: how an object too large for one file is cut.

use std::ops::Range;

/// Smallest and largest part, in bytes.
const PART: Range<u64> = 1 << 20..64 << 20;
/// Parts that fit into the limit, about: so many are lost or pinned at a time at least.
const SHARE: u64 = 16;

/// The cut of an object into parts of equal length, the last one shorter. Each is an object of its own in the cache.
///
/// The length of a part is in the key of each. So a change of the limit never mixes parts of two lengths; those of
/// the old one are evicted in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Parts {
    size: u64,
    part: u64,
}

impl Parts {
    /// The cut of an object of `size` bytes, if it is larger than 90 % of `limit`.
    pub(crate) fn of(size: u64, limit: u64) -> Option<Parts> {
        let small_enough = u128::from(size) * 10 <= u128::from(limit) * 9;
        let part = prev_power_of_two(limit / SHARE).clamp(PART.start, PART.end);
        (!small_enough && size > 0).then_some(Parts { size, part })
    }

    /// Bytes of each part but perhaps the last: a power of two from 1 MiB to 64 MiB.
    pub(crate) fn part_size(self) -> u64 {
        self.part
    }

    /// Number of parts.
    pub(crate) fn count(self) -> u64 {
        self.size.div_ceil(self.part)
    }

    /// The bytes of the object that part `number` has; empty behind the last one.
    pub(crate) fn range_of(self, number: u64) -> Range<u64> {
        let start = number.saturating_mul(self.part).min(self.size);
        start..start.saturating_add(self.part).min(self.size)
    }

    /// The parts that `range` of the object touches, and which of their own bytes, in order.
    pub(crate) fn split(self, range: Range<u64>) -> impl Iterator<Item = (u64, Range<u64>)> {
        let range = range.start..range.end.min(self.size);
        let numbers = match range.is_empty() {
            true => 0..0,
            false => range.start / self.part..(range.end - 1) / self.part + 1,
        };
        numbers.map(move |number| {
            let part = self.range_of(number);
            (number, range.start.max(part.start) - part.start..range.end.min(part.end) - part.start)
        })
    }
}

fn prev_power_of_two(n: u64) -> u64 {
    1 << n.max(1).ilog2()
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_objects_above_nine_tenths_of_the_limit_are_cut() {
        assert_eq!(Parts::of(900, 1000), None);
        assert!(Parts::of(901, 1000).is_some());
        assert_eq!(Parts::of(0, 0), None);
        assert!(Parts::of(u64::MAX, 1 << 30).is_some());
        assert_eq!(Parts::of(u64::MAX / 2, u64::MAX), None);
    }

    #[test]
    fn parts_are_a_sixteenth_of_the_limit_within_bounds() {
        let part = |limit: u64| Parts::of(1 << 50, limit).unwrap().part_size();
        assert_eq!(part(1 << 20), 1 << 20);
        assert_eq!(part(1 << 30), 64 << 20);
        assert_eq!(part(300 << 20), 16 << 20);
        assert_eq!(part(1 << 40), 64 << 20);
        assert_eq!(part(0), 1 << 20);
    }

    proptest! {
        #[test]
        fn every_byte_is_in_one_part_and_in_order(
            size in 1u64..500 << 20,
            limit in 0u64..400 << 20,
            start in 0u64..500 << 20,
            len in 0u64..300 << 20,
        ) {
            let Some(parts) = Parts::of(size, limit) else { return Ok(()) };
            let mut at = start;
            for (number, own) in parts.split(start..start + len) {
                let part = parts.range_of(number);
                prop_assert!(own.end <= part.end - part.start && !own.is_empty());
                prop_assert_eq!(part.start + own.start, at);
                prop_assert!(number < parts.count());
                at = part.start + own.end;
            }
            prop_assert_eq!(at, (start + len).min(size).max(start));
        }
    }
}
