//! [`ExtentMap`]: which pieces of one file are in memory or on their way.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::extent::Extent;
use super::flight::Flight;

/// The extents of one file by start; they do not overlap.
#[derive(Debug, Default)]
pub(crate) struct ExtentMap {
    slots: BTreeMap<u64, Slot>,
}

#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) extent: Arc<Extent>,
    /// The request that fills it, until that ends.
    pub(crate) flight: Option<Arc<Flight>>,
}

/// A part of a wanted range.
#[derive(Debug)]
pub(crate) enum Piece {
    /// In `extent`, now or when `flight` has brought it.
    Held { extent: Arc<Extent>, flight: Option<Arc<Flight>>, range: Range<u64> },
    /// Nobody has what lies here.
    Gap,
}

impl Slot {
    /// Offset up to which it covers the file: what is meant to come counts while its request runs.
    fn end(&self) -> u64 {
        if self.flight.is_some() { self.extent.end() } else { self.extent.filled_end() }
    }
}

impl ExtentMap {
    /// The extent that has all of `range` now.
    pub(crate) fn hit(&self, range: &Range<u64>) -> Option<&Arc<Extent>> {
        let (_, slot) = self.slots.range(..=range.start).next_back()?;
        (slot.extent.filled_end() >= range.end).then_some(&slot.extent)
    }

    /// `range` in pieces, in order, without holes.
    pub(crate) fn pieces(&self, range: Range<u64>) -> Vec<Piece> {
        let mut pieces = Vec::with_capacity(2);
        let mut at = range.start;
        let first = self.slots.range(..=range.start).next_back().map_or(range.start, |(start, _)| *start);
        for (start, slot) in self.slots.range(first..range.end) {
            let (from, to) = (at.max(*start), slot.end().min(range.end));
            if from >= to {
                continue;
            }
            if at < from {
                pieces.push(Piece::Gap);
            }
            let flight = if slot.extent.filled_end() >= to { None } else { slot.flight.clone() };
            pieces.push(Piece::Held { extent: slot.extent.clone(), flight, range: from..to });
            at = to;
        }
        if at < range.end {
            pieces.push(Piece::Gap);
        }
        pieces
    }

    /// The first part of `range` that nobody has; at most up to the next extent.
    pub(crate) fn first_gap(&self, range: Range<u64>) -> Option<Range<u64>> {
        let mut at = range.start;
        while at < range.end {
            let before = self.slots.range(..=at).next_back().filter(|(_, slot)| slot.end() > at);
            match before {
                Some((_, slot)) => at = slot.end(),
                None => {
                    let next = self.slots.range(at..range.end).next().map_or(range.end, |(start, _)| *start);
                    if next > at {
                        return Some(at..next);
                    }
                    // An extent that starts here and has nothing: its request failed and it is about to go.
                    let (_, slot) = self.slots.range(at..).next()?;
                    at = slot.extent.end();
                }
            }
        }
        None
    }

    /// As much of `wide` around `gap` (a gap inside of it) as nobody has.
    pub(crate) fn gap_around(&self, gap: &Range<u64>, wide: Range<u64>) -> Range<u64> {
        let end = self.first_gap(gap.start..wide.end).map_or(gap.end, |g| g.end);
        let (mut start, mut at) = (gap.start, wide.start);
        while let Some(before) = self.first_gap(at..gap.start) {
            if before.end == gap.start {
                start = before.start;
                break;
            }
            at = before.end;
        }
        start..end
    }

    /// Adds an extent that a flight will fill, where there was a gap.
    pub(crate) fn insert(&mut self, extent: Arc<Extent>, flight: Arc<Flight>) {
        let before = self.slots.insert(extent.start, Slot { extent, flight: Some(flight) });
        debug_assert!(before.is_none_or(|slot| slot.extent.filled() == 0), "extents do not overlap");
    }

    /// Notes that the flight of `extent` is over. Returns true if the extent stays: it has bytes.
    pub(crate) fn land(&mut self, extent: &Arc<Extent>) -> bool {
        match self.slots.get_mut(&extent.start) {
            Some(slot) if Arc::ptr_eq(&slot.extent, extent) => {
                slot.flight = None;
                if extent.filled() > 0 {
                    return true;
                }
                self.slots.remove(&extent.start);
                false
            }
            _ => false,
        }
    }

    /// Takes `extent` out, if it is in here.
    pub(crate) fn remove(&mut self, extent: &Arc<Extent>) -> bool {
        let here = self.slots.get(&extent.start).is_some_and(|slot| Arc::ptr_eq(&slot.extent, extent));
        here && self.slots.remove(&extent.start).is_some()
    }

    /// The extents that lie in `range` (or reach into it) and are not being filled.
    pub(crate) fn landed(&self, range: Range<u64>) -> impl Iterator<Item = &Arc<Extent>> {
        self.slots
            .range(range)
            .map(|(_, slot)| slot)
            .filter(|slot| slot.flight.is_none())
            .map(|slot| &slot.extent)
    }

    /// Start of the first extent in `range` that is still being filled.
    pub(crate) fn first_flying(&self, range: Range<u64>) -> Option<u64> {
        self.slots.range(range).find(|(_, slot)| slot.flight.is_some()).map(|(start, _)| *start)
    }

    /// The requests that are running.
    pub(crate) fn flights(&self) -> Vec<Arc<Flight>> {
        let mut flights: Vec<Arc<Flight>> = Vec::new();
        for flight in self.slots.values().filter_map(|slot| slot.flight.as_ref()) {
            if flights.last().is_none_or(|last| !Arc::ptr_eq(last, flight)) {
                flights.push(flight.clone());
            }
        }
        flights
    }

    /// Bytes that are in memory.
    pub(crate) fn held(&self) -> u64 {
        self.slots.values().map(|slot| u64::from(slot.extent.filled())).sum()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }
}
