//! How far ahead of a stream, in what parts, and how much of a miss to fetch: pure arithmetic.

use std::ops::Range;

use nearfs_backends::range;

use super::detector::Stream;
use crate::memory::extent::MAX_EXTENT;

/// Objects up to this size are fetched as a whole in one request.
pub(crate) const WHOLE: u64 = 8 << 20;
/// Largest window, in bytes.
pub(crate) const MAX_WINDOW: u64 = 160 << 20;
/// Largest part, in bytes. With 30 ms to the first byte and 90 MB/s per connection, a window of 160 MiB in parts of
/// 4, 3 and 2 MiB gives 2.2, 2.6 and 3.2 GB/s over 40, 53 and 80 connections; smaller parts cost more requests.
pub(crate) const MAX_PART: u64 = 4 << 20;
/// Window over bytes that come from the disk tier: what keeps a fast disk busy while a reader copies.
pub(crate) const DISK_WINDOW: u64 = 32 << 20;
/// Most parts that a window is cut into, if they are not too small or too large then.
const PARTS: u64 = 40;
/// Smallest window worth a request.
const MIN_WINDOW: u64 = 512 << 10;
/// First reads up to this size get a request of their own.
const FRONT: u64 = 256 << 10;
/// What that is rounded up to.
const FRONT_UNIT: u64 = 16 << 10;
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

/// The size of a request that begins `distance` bytes ahead of the reader in a window of `window` bytes, at most
/// `part`: what is needed first comes in small ones. So when a window opens all at once, its requests end one after
/// the other and in the order in which they are read, and the next ones begin one after the other too, instead of all
/// in step.
pub(crate) fn near(distance: u64, window: u64, part: u64) -> u64 {
    // A quarter more, so that the last request of the window is a whole part.
    let size = part * distance.min(window) / window.max(1) * 5 / 4;
    (size / MAX_EXTENT * MAX_EXTENT).max(MAX_EXTENT).min(part)
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

/// What to fetch for the very first read of a large object, if it begins at the front: what was asked for alone, so
/// that it is here as soon as can be, and beside it the rest of the first MiB, since whoever reads the start mostly
/// reads on. The cut is at a multiple of `unit`, a power of two.
pub(crate) fn front(wanted: &Range<u64>, size: u64, unit: u64) -> (Range<u64>, Range<u64>) {
    let end = if wanted.end <= FRONT {
        wanted.end.next_multiple_of(FRONT_UNIT.max(unit))
    } else {
        MAX_EXTENT.max(wanted.end).next_multiple_of(unit)
    };
    (0..end.min(size), end.min(size)..MAX_EXTENT.max(end).min(size))
}

/// What to fetch for a read of `wanted` of which `gap` is missing, in an object of `size` bytes.
pub(crate) fn demand(wanted: &Range<u64>, gap: Range<u64>, size: u64) -> Range<u64> {
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
            let got = demand(&wanted, wanted.clone(), 4 << 30);
            assert!(got.start <= wanted.start && got.end >= wanted.end);
            assert!((got.end - got.start) * 4 <= (128 << 10) * 5, "{got:?}");
        }
        assert_eq!(demand(&(70_000..70_100), 70_000..70_100, 4 << 30), 65_536..131_072);
        assert_eq!(demand(&(70_000..70_100), 70_000..70_100, 70_100), 65_536..70_100);
        assert_eq!(front(&(0..4096), 1 << 30, 1), (0..16_384, 16_384..1 << 20));
        assert_eq!(front(&(0..1 << 20), 1 << 30, 1), (0..1 << 20, 1 << 20..1 << 20));
    }

    #[test]
    fn requests_grow_with_their_distance_and_with_the_window() {
        let mib = 1 << 20;
        assert_eq!(
            [part(mib, 32), part(16 * mib, 32), part(160 * mib, 64), part(32 * mib, 4)],
            [mib, mib, 4 * mib, 4 * mib]
        );
        assert_eq!(part(700_000, 32), 700_000);
        let sizes = [0, 40, 80, 120, 156].map(|d| near(d * mib, 160 * mib, 4 * mib) / mib);
        assert_eq!(sizes, [1, 1, 2, 3, 4]);
        assert_eq!(near(0, 0, mib), mib);
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
