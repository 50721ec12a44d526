//! How far ahead of a stream, in what parts, and how much of a miss to fetch: pure arithmetic.

use std::ops::Range;

use nearfs_backends::range;

use super::detector::Stream;
use crate::memory::extent::MAX_EXTENT;

/// Objects up to this size are fetched as a whole in one request.
pub(crate) const WHOLE: u64 = 8 << 20;
/// Largest window, in bytes.
pub(crate) const MAX_WINDOW: u64 = 128 << 20;
/// Largest part, in bytes. With 30 ms to the first byte and 90 MB/s per connection, a window of 128 MiB in parts of
/// 4, 3 and 2 MiB gives 1.7, 2.1 and 2.5 GB/s over 32, 42 and 64 connections; smaller parts cost more requests.
pub(crate) const MAX_PART: u64 = 4 << 20;
/// Most parts that a window is cut into, if they are not too small or too large then.
const PARTS: u64 = 40;
/// Smallest window worth a request.
const MIN_WINDOW: u64 = 512 << 10;
/// Least that a small random read fetches.
const UNIT: u64 = 64 << 10;

/// How far ahead of its last read a stream is fetched. `most` is its share of the budget.
///
/// It grows with what has been read, so that the cost of a wrong guess stays in proportion; a stream that began at
/// the front of its file is believed sooner, since that is how whole files are read.
pub(crate) fn ahead(stream: &Stream, most: u64) -> u64 {
    let run = stream.run();
    let factor = match run {
        _ if stream.limit != u64::MAX => return MAX_WINDOW.min(most),
        _ if stream.low == 0 => 16,
        0..0x10_0000 => 2,
        0x10_0000..0x40_0000 => 8,
        _ => 16,
    };
    (run * factor).clamp(MIN_WINDOW, MAX_WINDOW).min(most)
}

/// The size of the requests that fill a window of `window` bytes over `connections`: many small ones while it is
/// small, few large ones where few connections do.
pub(crate) fn part(window: u64, connections: usize) -> u64 {
    let part = (window / PARTS.min(connections.max(1) as u64)).clamp(MAX_EXTENT.min(window.max(1)), MAX_PART);
    if part > MAX_EXTENT { part / MAX_EXTENT * MAX_EXTENT } else { part }
}

/// Where to cut after `at`, in steps of `step` bytes (a power of two up to a MiB, or whole MiBs): such that reads of
/// a MiB that end at `phase` fall on one extent.
pub(crate) fn cut(at: u64, step: u64, phase: u64) -> u64 {
    let end = at + step;
    if step < MAX_EXTENT {
        return end;
    }
    // The last boundary up to `end` that is `phase` past a whole MiB; it lies after `at` except when `at` is one.
    let aligned = (end + MAX_EXTENT - phase) / MAX_EXTENT * MAX_EXTENT;
    let aligned = (aligned + phase).saturating_sub(MAX_EXTENT);
    if aligned > at { aligned } else { end }
}

/// What to fetch for a read of `wanted` of which `gap` is missing, in an object of `size` bytes. `front`: it is the
/// very first read and begins at the start of the object.
pub(crate) fn demand(wanted: &Range<u64>, gap: Range<u64>, size: u64, front: bool) -> Range<u64> {
    if front && gap.start == 0 {
        // The bytes asked for come first all the same, and whoever reads the start mostly reads on.
        return 0..size.min(gap.end.next_multiple_of(UNIT).max(MAX_EXTENT));
    }
    let len = wanted.end - wanted.start;
    // Alignment costs at most an eighth of a read of 64 KiB and more at either end.
    let unit = if len < UNIT { UNIT } else { (len / 8).next_power_of_two().clamp(4096, UNIT) };
    let aligned = range::align(gap.clone(), unit, size);
    // Only outward where the read itself ends: the rest is somebody else's extent.
    let start = if gap.start == wanted.start { aligned.start } else { gap.start };
    let end = if gap.end == wanted.end { aligned.end } else { gap.end };
    start..end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_random_read_costs_at_most_a_quarter_more() {
        for start in [0u64, 4096, 12_288, 65_536 - 4096, 1 << 30] {
            let wanted = start..start + (128 << 10);
            let got = demand(&wanted, wanted.clone(), 4 << 30, false);
            assert!(got.start <= wanted.start && got.end >= wanted.end);
            assert!((got.end - got.start) * 4 <= (128 << 10) * 5, "{got:?}");
        }
        assert_eq!(demand(&(70_000..70_100), 70_000..70_100, 4 << 30, false), 65_536..131_072);
        assert_eq!(demand(&(70_000..70_100), 70_000..70_100, 70_100, false), 65_536..70_100);
        assert_eq!(demand(&(0..4096), 0..4096, 1 << 30, true), 0..1 << 20);
    }

    #[test]
    fn cuts_follow_the_phase_of_the_reader() {
        assert_eq!(cut(0, 1 << 20, 0), 1 << 20);
        assert_eq!(cut(1 << 20, 4 << 20, 768 << 10), (4 << 20) + (768 << 10));
        assert_eq!(cut(768 << 10, 1 << 20, 768 << 10), (1 << 20) + (768 << 10));
        assert_eq!(cut(100, 512 << 10, 5), 100 + (512 << 10));
        for (at, phase) in [(0, 0), (5, 0), (5, 5), (1 << 20, 77), ((1 << 20) - 1, 4096)] {
            let end = cut(at, 1 << 20, phase);
            assert!(end > at && end <= at + (1 << 20), "{at} {phase}: {end}");
        }
    }
}
