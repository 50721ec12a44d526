//! When a file is fetched ahead: at every read of a stream, and whenever a request made ahead has ended.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::detector::{Direction, Stream};
use super::window;
use crate::memory::blocks::FileBlocks;
use crate::memory::extent::{MAX_EXTENT, Purpose};

/// Farthest that a stream going backward is fetched ahead.
const BACKWARD: u64 = 8 << 20;
/// Reads of a stride that are fetched ahead.
const STRIDES: u32 = 16;

impl FileBlocks {
    /// Fills the windows of this file's streams as far as its shares of memory and connections allow.
    pub(crate) fn pump(self: &Arc<Self>) {
        if !self.engine.prefetch || !self.is_large() || self.check().is_err() {
            return;
        }
        self.engine.mark_active(self);
        let (memory, connections) = (self.engine.memory_share(), self.engine.connection_share());
        let mut reader = self.reader.lock();
        let share = memory / reader.streams().len().max(1) as u64;
        for stream in reader.streams() {
            let more = match stream.direction {
                Direction::Forward => self.fill_forward(stream, share.max(MAX_EXTENT), connections),
                Direction::Backward => self.fill_backward(stream, share.min(BACKWARD), connections),
                Direction::Unsure => Some(()),
            };
            if more.is_none() {
                return;
            }
        }
    }

    /// `None` if a limit was met.
    fn fill_forward(self: &Arc<Self>, stream: &mut Stream, share: u64, connections: usize) -> Option<()> {
        let window = window::ahead(stream, share);
        let part = window::part(window, connections);
        let last = self.size().min(stream.limit);
        let end = stream.high.saturating_add(window).min(last);
        loop {
            let from = stream.planned.max(stream.high);
            if let Some(stretch) = self.stretch_on_disk(from, last) {
                let reach = window::ahead(stream, self.engine.disk_share());
                let end = stream.high.saturating_add(reach).min(last);
                if from >= end || (end - from < MAX_EXTENT && end < last) {
                    return Some(());
                }
                if self.is_warm() {
                    // The kernel has it in memory; a copy here would only take the place of something else.
                    stream.planned = stretch.min(end);
                    continue;
                }
                let phase = self.whole_units(stream.phase);
                let most =
                    |gap: &Range<u64>| gap.start..gap.end.min(window::cut(gap.start, MAX_EXTENT, phase));
                stream.planned = self.fetch_ahead(from..stretch.min(end), most, Purpose::Ahead, phase)?;
                continue;
            }
            // A request for less than a part is only made where the stream ends.
            if from >= end || (end - from < part && end < last) {
                return Some(());
            }
            if self.running() >= connections {
                self.engine.connections.want_more();
                return None;
            }
            let part = window::near(from - stream.high, window, part);
            let phase = self.whole_units(stream.phase);
            let most = |gap: &Range<u64>| gap.start..gap.end.min(window::cut(gap.start, part, phase));
            stream.planned = self.fetch_ahead(from..end, most, Purpose::Ahead, phase)?;
        }
    }

    fn fill_backward(self: &Arc<Self>, stream: &mut Stream, share: u64, connections: usize) -> Option<()> {
        let end = stream.low.saturating_sub((stream.run() * 2).min(share));
        loop {
            let at = stream.planned.min(stream.low);
            if at <= end || (at - end < MAX_EXTENT && end > 0) {
                return Some(());
            }
            let piece = at.saturating_sub(MAX_EXTENT).max(end)..at;
            while self.gap(piece.clone()).is_some() {
                if self.running() >= connections {
                    return None;
                }
                self.fetch_ahead(piece.clone(), Range::clone, Purpose::Ahead, 0)?;
            }
            stream.planned = piece.start;
        }
    }

    /// Fetches the next reads of a stride.
    pub(crate) fn stride(self: &Arc<Self>, range: &Range<u64>, stride: i64, steps: u32) {
        if !self.engine.prefetch {
            return;
        }
        let len = range.end - range.start;
        for n in 1..=i64::from(steps.min(STRIDES)) {
            let Some(start) = stride.checked_mul(n).and_then(|by| range.start.checked_add_signed(by)) else {
                return;
            };
            let wanted = start..start.saturating_add(len).min(self.size());
            if wanted.is_empty() || self.running() >= self.engine.connection_share() {
                return;
            }
            if self.fetch_ahead(wanted, Range::clone, Purpose::Ahead, 0).is_none() {
                return;
            }
        }
    }

    fn running(&self) -> usize {
        self.requests().load(Ordering::Acquire)
    }
}
