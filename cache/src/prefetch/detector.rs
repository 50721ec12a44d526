//! [`Detector`]: how one file is being read, told from the reads alone.
//!
//! Reads of one file come from any number of threads and processes, and the kernel delivers the requests of its
//! readahead out of order and side by side. So streams are recognised by where reads lie, not by who makes them.

use std::collections::VecDeque;
use std::ops::Range;

/// Streams told apart in one file.
const MAX_STREAMS: usize = 16;
/// Single reads remembered that may turn out to begin a stream.
const MAX_SINGLES: usize = 32;
/// How far two reads may lie apart and still begin a stream. Small: among random reads some are near by chance.
const NEAR: u64 = 64 << 10;
/// How far reads of an established stream may stray: readahead delivers this much out of order.
const STRAY: u64 = 8 << 20;
/// Reads ahead of a stream, with a gap before them, that show that the gap is left out on purpose.
const LEAPS: usize = 8;
/// A read ahead of a stream is forgotten after so many reads of the file: it was there by chance.
const LEAP_AGE: u64 = 64;
/// Equal steps in a row that make a stride.
const STRIDE_STEPS: u32 = 3;

/// A run of reads that follow one another.
#[derive(Debug, Clone)]
pub(crate) struct Stream {
    /// The part of the file it has gone over.
    pub(crate) low: u64,
    pub(crate) high: u64,
    /// Bytes read in it.
    pub(crate) bytes: u64,
    pub(crate) direction: Direction,
    /// Up to here (from here, going backward) everything has been asked for.
    pub(crate) planned: u64,
    /// What lies before was given back.
    pub(crate) dropped: u64,
    /// Nothing from here on will be read, as far as the reader said.
    pub(crate) limit: u64,
    /// Where in a MiB its large reads end, so that one of them is one extent.
    pub(crate) phase: u64,
    /// Reads beyond `high` that came out of order, and when.
    leaps: Vec<(u64, Range<u64>)>,
    used: u64,
}

/// Which way a stream goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Forward,
    Backward,
    /// Two reads, the later one before the earlier: going backward, or forward and out of order.
    Unsure,
}

/// What one read turned out to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// Part of the stream with this index.
    Stream(usize),
    /// One of several reads of this length with this distance from each to the next.
    Strided { stride: i64, steps: u32 },
    /// None of these.
    Random,
}

/// The memory of reads of one file.
#[derive(Debug, Default)]
pub(crate) struct Detector {
    streams: Vec<Stream>,
    singles: VecDeque<Range<u64>>,
    last: Range<u64>,
    stride: i64,
    steps: u32,
    clock: u64,
}

impl Stream {
    /// Bytes it has gone over without holes.
    pub(crate) fn run(&self) -> u64 {
        self.bytes.min(self.high - self.low)
    }

    fn stray(&self) -> u64 {
        (self.run() / 2).clamp(NEAR, STRAY)
    }
}

impl Detector {
    /// Takes note of a read.
    pub(crate) fn record(&mut self, range: &Range<u64>) -> Pattern {
        self.clock += 1;
        let steps = self.step(range);
        if let Some(i) = self.follow(range) {
            return Pattern::Stream(i);
        }
        if let Some(i) = self.begin(range) {
            return Pattern::Stream(i);
        }
        if self.singles.len() == MAX_SINGLES {
            self.singles.pop_front();
        }
        self.singles.push_back(range.clone());
        if steps >= STRIDE_STEPS { Pattern::Strided { stride: self.stride, steps } } else { Pattern::Random }
    }

    /// Takes the reader's word that it will read `range` from front to back.
    pub(crate) fn expect(&mut self, range: &Range<u64>) -> usize {
        self.clock += 1;
        let stream = Stream {
            low: range.start,
            high: range.start,
            bytes: 0,
            direction: Direction::Forward,
            planned: range.start,
            dropped: range.start,
            limit: range.end,
            phase: 0,
            leaps: Vec::new(),
            used: self.clock,
        };
        self.insert(stream)
    }

    pub(crate) fn streams(&mut self) -> &mut [Stream] {
        &mut self.streams
    }

    /// True before the first read.
    pub(crate) fn is_new(&self) -> bool {
        self.clock == 0
    }

    fn step(&mut self, range: &Range<u64>) -> u32 {
        let stride = range.start.wrapping_sub(self.last.start) as i64;
        let same = stride != 0
            && stride == self.stride
            && range.end - range.start == self.last.end - self.last.start;
        self.steps = if same { self.steps.saturating_add(1) } else { 1 };
        self.stride = stride;
        self.last = range.clone();
        self.steps
    }

    /// The stream that this read goes on with, brought up to date.
    fn follow(&mut self, range: &Range<u64>) -> Option<usize> {
        let clock = self.clock;
        let distance = |s: &Stream| {
            let stray = s.stray();
            let ahead = range.start.abs_diff(s.high);
            let behind = range.end.abs_diff(s.low);
            // A read inside of what the stream went over lately is one that was late.
            let late = range.end <= s.high && s.high - range.end <= stray && range.start >= s.low;
            match s.direction {
                Direction::Forward if late => Some(0),
                Direction::Forward => (ahead <= stray && range.end > s.high).then_some(ahead),
                Direction::Backward => (behind <= NEAR && range.start < s.low).then_some(behind),
                Direction::Unsure => Some(ahead.min(behind)).filter(|d| *d <= NEAR),
            }
        };
        let found = self.streams.iter().enumerate().filter_map(|(i, s)| Some((distance(s)?, i))).min()?;
        let stream = &mut self.streams[found.1];
        if stream.direction == Direction::Unsure {
            let forward = range.end > stream.high;
            stream.direction = if forward { Direction::Forward } else { Direction::Backward };
            stream.planned = if forward { range.end } else { range.start };
        }
        match stream.direction {
            Direction::Forward => stream.go_on(range, clock),
            _ => stream.low = stream.low.min(range.start),
        }
        stream.bytes += range.end - range.start;
        stream.used = clock;
        stream.keep_phase(range);
        Some(found.1)
    }

    /// A new stream, if this read lies next to a single one.
    fn begin(&mut self, range: &Range<u64>) -> Option<usize> {
        let after = |s: &Range<u64>| range.start >= s.end && range.start - s.end <= NEAR;
        let before = |s: &Range<u64>| range.end <= s.start && s.start - range.end <= NEAR;
        let at = self.singles.iter().position(|s| after(s) || before(s))?;
        let single = self.singles.remove(at)?;
        let forward = after(&single);
        let (low, high) = (single.start.min(range.start), single.end.max(range.end));
        let mut stream = Stream {
            low,
            high,
            bytes: (single.end - single.start) + (range.end - range.start),
            direction: if forward { Direction::Forward } else { Direction::Unsure },
            planned: high,
            dropped: low,
            limit: u64::MAX,
            phase: 0,
            leaps: Vec::new(),
            used: self.clock,
        };
        stream.keep_phase(range);
        Some(self.insert(stream))
    }

    fn insert(&mut self, stream: Stream) -> usize {
        if self.streams.len() < MAX_STREAMS {
            self.streams.push(stream);
            return self.streams.len() - 1;
        }
        let oldest = (0..self.streams.len()).min_by_key(|i| self.streams[*i].used).unwrap_or(0);
        self.streams[oldest] = stream;
        oldest
    }
}

impl Stream {
    /// Moves on to the end of `range`, if nothing is left out before it.
    fn go_on(&mut self, range: &Range<u64>, clock: u64) {
        if range.start > self.high + NEAR {
            self.leaps.retain(|(at, _)| clock - at < LEAP_AGE);
            self.leaps.push((clock, range.clone()));
            if self.leaps.len() < LEAPS {
                return;
            }
            self.high = self.leaps.drain(..).map(|(_, r)| r.end).fold(self.high, u64::max);
            return;
        }
        self.high = self.high.max(range.end);
        while let Some(i) = self.leaps.iter().position(|(_, r)| r.start <= self.high + NEAR) {
            self.high = self.high.max(self.leaps.swap_remove(i).1.end);
        }
    }

    fn keep_phase(&mut self, range: &Range<u64>) {
        if range.end - range.start >= 512 << 10 {
            self.phase = range.end % (1 << 20);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const K: u64 = 1 << 10;
    const M: u64 = 1 << 20;

    fn read(d: &mut Detector, at: u64, len: u64) -> Pattern {
        d.record(&(at..at + len))
    }

    #[test]
    fn a_stream_is_seen_at_its_second_read_and_through_disorder() {
        let mut d = Detector::default();
        assert!(d.is_new());
        assert_eq!(read(&mut d, 0, 128 * K), Pattern::Random);
        assert_eq!(read(&mut d, 128 * K, 128 * K), Pattern::Stream(0));
        // As readahead delivers: side by side and out of order.
        for at in [3, 2, 4, 7, 6, 5, 8, 9, 11, 10] {
            assert_eq!(read(&mut d, at * 128 * K, 128 * K), Pattern::Stream(0), "{at}");
        }
        let stream = &d.streams()[0];
        assert_eq!((stream.direction, stream.high), (Direction::Forward, 12 * 128 * K));
    }

    #[test]
    fn interleaved_streams_are_told_apart() {
        let mut d = Detector::default();
        for i in 0..20 {
            for s in 0..5u64 {
                let pattern = read(&mut d, s * 100 * M + i * 256 * K, 256 * K);
                assert_eq!(matches!(pattern, Pattern::Stream(_)), i > 0, "stream {s}, read {i}");
            }
        }
        let highs: Vec<u64> = d.streams().iter().map(|s| s.high % (100 * M)).collect();
        assert_eq!(highs, [20 * 256 * K; 5]);
    }

    #[test]
    fn backward_and_strided_reads_are_recognised() {
        let mut d = Detector::default();
        for i in (0..20).rev() {
            read(&mut d, i * 256 * K, 256 * K);
        }
        assert_eq!((d.streams()[0].direction, d.streams()[0].low), (Direction::Backward, 0));
        let mut d = Detector::default();
        let patterns: Vec<_> = (0..8).map(|i| read(&mut d, i * M, 64 * K)).collect();
        assert_eq!(patterns[7], Pattern::Strided { stride: M as i64, steps: 7 });
        assert_eq!(patterns[1], Pattern::Random);
    }

    #[test]
    fn random_reads_near_a_stream_do_not_carry_it_on() {
        let mut d = Detector::default();
        for i in 0..200 {
            read(&mut d, i * M, M);
        }
        let mut seed = 9u64;
        for _ in 0..500 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            read(&mut d, (seed >> 20) % (1 << 18) * 4096, 64 * K);
        }
        assert!(d.streams()[0].high < 201 * M, "{}", d.streams()[0].high);
        // But somebody who leaves out much on purpose is followed.
        let high = d.streams()[0].high;
        for i in 1..20 {
            read(&mut d, high + i * 400 * K, 100 * K);
        }
        assert!(d.streams()[0].high > high + 3 * M);
    }
}
