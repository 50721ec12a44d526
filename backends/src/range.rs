//! Arithmetic of byte ranges: clamp, align, split, coalesce. Ranges are half-open, in bytes.

use std::ops::Range;

/// `range` cut to an object of `size` bytes; empty (at `size`) when it starts at or after the end.
pub fn clamp(range: Range<u64>, size: u64) -> Range<u64> {
    let start = range.start.min(size);
    start..range.end.clamp(start, size)
}

/// The smallest range of whole `unit`s that covers `range`, cut to `size`. `unit` is a power of two.
pub fn align(range: Range<u64>, unit: u64, size: u64) -> Range<u64> {
    debug_assert!(unit.is_power_of_two());
    if range.start >= range.end {
        return clamp(range.start..range.start, size);
    }
    let end = range.end.checked_next_multiple_of(unit).unwrap_or(u64::MAX);
    clamp(range.start & !(unit - 1)..end, size)
}

/// `range` in pieces that end at multiples of `unit` (the last one at its end).
pub fn split(range: Range<u64>, unit: u64) -> impl Iterator<Item = Range<u64>> {
    assert!(unit > 0, "a range is split into pieces of at least one byte");
    let mut start = range.start;
    std::iter::from_fn(move || {
        if start >= range.end {
            return None;
        }
        let end = ((start / unit + 1).saturating_mul(unit)).min(range.end);
        let piece = start..end;
        start = end;
        Some(piece)
    })
}

/// Sorts `ranges` and merges those that overlap or lie at most `gap` bytes apart. Empty ranges vanish.
pub fn coalesce(ranges: &[Range<u64>], gap: u64) -> Vec<Range<u64>> {
    let mut sorted: Vec<_> = ranges.iter().filter(|r| r.start < r.end).cloned().collect();
    sorted.sort_unstable_by_key(|r| r.start);
    let mut merged: Vec<Range<u64>> = Vec::with_capacity(sorted.len());
    for range in sorted {
        match merged.last_mut() {
            Some(last) if range.start <= last.end.saturating_add(gap) => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::reversed_empty_ranges, reason = "a reversed range is one without bytes")]
    fn clamp_and_align_stay_inside_the_object() {
        assert_eq!(clamp(5..100, 10), 5..10);
        assert_eq!(clamp(10..20, 10), 10..10);
        assert_eq!(clamp(50..20, 100), 50..50);
        assert_eq!(align(5..9, 8, 100), 0..16);
        assert_eq!(align(5..9, 8, 12), 0..12);
        assert_eq!(align(5..u64::MAX, 8, 12), 0..12);
        assert_eq!(align(5..5, 8, 12), 5..5);
    }

    #[test]
    #[expect(clippy::single_range_in_vec_init, reason = "the expected list has one range")]
    fn split_and_coalesce_lose_nothing() {
        assert_eq!(split(3..17, 8).collect::<Vec<_>>(), [3..8, 8..16, 16..17]);
        assert_eq!(split(3..3, 8).count(), 0);
        assert_eq!(split(u64::MAX - 1..u64::MAX, 8).count(), 1);
        assert_eq!(coalesce(&[9..12, 0..4, 4..4, 5..7], 1), [0..7, 9..12]);
        assert_eq!(coalesce(&[0..10, 2..3], 0), [0..10]);
    }
}
