//! Carrying requests out: from the store's stream into extents, each byte copied once.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::StreamExt;
use nearfs_backends::{Error, ErrorKind, Result};

use super::blocks::FileBlocks;
use super::extent::{Extent, Filler, MAX_EXTENT, Purpose};
use super::flight::Flight;
use super::map::ExtentMap;
use super::{cost, extent::Home};
use crate::budget::Charge;
use crate::prefetch::connections::{Measured, Permit};
use crate::prefetch::window;

/// Bytes after which arrivals are shown to readers.
const UNIT: u64 = 64 << 10;

/// How long the bytes of a whole object are kept from readers until its end has come: only then can the store's
/// checksum tell whether they are right. What is slower (8 MiB at less than 4 MB/s) is shown as it arrives, because
/// readers would wait, up to their deadlines, for bytes that are here.
const PROOF: Duration = Duration::from_secs(2);

/// What a request made ahead of readers has got before it starts, since it never waits.
#[derive(Debug)]
pub(crate) struct Grant {
    /// None if the disk is known to have the bytes.
    pub(crate) turn: Option<Turn>,
    pub(crate) charge: Charge,
}

/// The right to ask the store, as far as this file and the connections are concerned.
#[derive(Debug)]
pub(crate) struct Turn {
    _slot: Slot,
    _permit: Permit,
}

/// The right of one file to one more request.
#[derive(Debug)]
pub(crate) struct Slot(Arc<FileBlocks>);

impl Drop for Slot {
    fn drop(&mut self) {
        if self.0.in_flight.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.engine.stopped(&self.0);
        }
        self.0.slot_freed.notify_one();
    }
}

/// `range` in pieces of extents: one if it fits, else cut where reads of a MiB end.
pub(crate) fn extents(range: &Range<u64>, phase: u64) -> Vec<Range<u64>> {
    let mut pieces = Vec::with_capacity(4);
    let mut at = range.start;
    while range.end - at > MAX_EXTENT {
        let end = window::cut(at, MAX_EXTENT, phase);
        pieces.push(at..end);
        at = end;
    }
    pieces.push(at..range.end);
    pieces
}

/// What the extents of `range` cost.
pub(crate) fn cost_of(range: &Range<u64>, phase: u64) -> u64 {
    extents(range, phase).iter().map(|r| cost(r.end - r.start)).sum()
}

impl FileBlocks {
    /// Enters `range`, a gap of `map`, as being fetched. The request must then be launched.
    pub(super) fn claim(
        self: &Arc<Self>,
        map: &mut ExtentMap,
        range: Range<u64>,
        purpose: Purpose,
        phase: u64,
    ) -> (Arc<Flight>, Vec<Filler>) {
        let now = self.engine.clock.now();
        let flight = Flight::new(range.clone(), purpose != Purpose::Demand, now);
        let home: std::sync::Weak<dyn Home> = Arc::downgrade(&(self.clone() as Arc<dyn Home>));
        let fillers = extents(&range, phase)
            .into_iter()
            .map(|piece| {
                let len = (piece.end - piece.start) as u32;
                let (extent, filler) = Extent::new(home.clone(), self.tag(purpose), piece.start, len, now);
                map.insert(extent, flight.clone());
                filler
            })
            .collect();
        (flight, fillers)
    }

    /// Claims the start of the first gap in `range` and launches it ahead of readers. Returns the offset up to which
    /// the range is then had or asked for; `None` if a limit does not allow it now.
    pub(crate) fn fetch_ahead(
        self: &Arc<Self>,
        range: Range<u64>,
        most: impl Fn(&Range<u64>) -> Range<u64>,
        purpose: Purpose,
        phase: u64,
    ) -> Option<u64> {
        let range = self.aligned(range);
        let Some(gap) = self.gap(range.clone()) else { return Some(range.end) };
        let part = self.cut_on_disk(&gap, most(&gap));
        let turn = match self.stretch_on_disk(part.start, part.end) {
            Some(_) => None,
            None => {
                let slot = self.try_slot()?;
                Some(Turn { _slot: slot, _permit: self.engine.connections.try_ahead()? })
            }
        };
        let charge = self.engine.memory.reserve_ahead(cost_of(&part, phase), self.engine.clock.now())?;
        let mut map = self.map.lock();
        if map.first_gap(part.clone()) != Some(part.clone()) {
            // A reader was faster; what is left is found by the next call.
            return Some(part.start);
        }
        let (flight, fillers) = self.claim(&mut map, part.clone(), purpose, phase);
        drop(map);
        self.engine.stats.prefetch_bytes.add(part.end - part.start);
        self.launch(flight, fillers, Some(Grant { turn, charge }));
        Some(part.end)
    }

    /// Starts the request of `flight`. Without a grant it waits for its turn.
    pub(super) fn launch(self: &Arc<Self>, flight: Arc<Flight>, fillers: Vec<Filler>, grant: Option<Grant>) {
        self.engine.watch();
        let extents = fillers.iter().map(|f| f.extent().clone()).collect();
        let landing = Landing { blocks: self.clone(), flight: flight.clone(), extents, over: false };
        let task = self.engine.spawner.spawn(async move {
            let result = landing.blocks.carry(&landing.flight, fillers, grant).await;
            landing.over(result);
        });
        flight.carried_by(task.abort_handle());
    }

    /// Waits for the right to ask the store.
    ///
    /// # Errors
    /// As [`FileBlocks::slot`].
    pub(super) async fn turn(self: &Arc<Self>) -> Result<Turn> {
        let slot = self.slot().await?;
        Ok(Turn { _slot: slot, _permit: self.engine.connections.demand().await })
    }

    /// Fetches `range` of `flight`, which is what comes next in `fillers`, and shows it to readers: a part of an object
    /// as it arrives, a whole one when its end has come.
    pub(super) async fn pour(
        self: &Arc<Self>,
        flight: &Flight,
        fillers: &mut [Filler],
        range: Range<u64>,
    ) -> Result<()> {
        let engine = &self.engine;
        let started = engine.clock.now();
        let mut first_byte = None;
        engine.stats.fetches.inc();
        let mut stream = self.inner().await?.read_stream(range.clone());
        let whole = range == (0..self.size());
        let (mut at, mut noted) = (range.start, range.start);
        // The filler that is written to, and the first one that has something to show.
        let mut filling = fillers.iter().position(|f| !f.is_full()).unwrap_or(fillers.len());
        let mut hidden = filling;
        while let Some(chunk) = stream.next().await {
            let chunk = chunk?;
            let now = engine.clock.now();
            first_byte.get_or_insert_with(|| now.since(started));
            engine.stats.bytes_fetched.add(chunk.len() as u64);
            let before = filling;
            let mut data = &chunk[..];
            if data.len() as u64 > range.end - at {
                return Err(self.wrong_length(&range));
            }
            while let Some(filler) = fillers.get_mut(filling).filter(|_| !data.is_empty()) {
                let n = filler.write(data);
                data = &data[n..];
                at += n as u64;
                filling += usize::from(filler.is_full());
            }
            if filling == before && at - noted < UNIT {
                continue;
            }
            noted = at;
            if whole && now.since(started) < PROOF {
                self.arrived(flight, range.start, now);
                continue;
            }
            fillers[hidden..].iter().take(filling + 1 - hidden).for_each(Filler::publish);
            hidden = filling;
            self.arrived(flight, at, now);
        }
        if at != range.end {
            return Err(self.wrong_length(&range));
        }
        if flight.arrived() < at {
            fillers[hidden..].iter().for_each(Filler::publish);
            self.arrived(flight, at, engine.clock.now());
        }
        self.engine.names.rights.shown(&self.path);
        let bytes = range.end - range.start;
        let total = engine.clock.now().since(started);
        let first_byte = first_byte.unwrap_or(total);
        engine.connections.finished(Measured { started, first_byte, total, bytes });
        Ok(())
    }

    pub(super) fn arrived(self: &Arc<Self>, flight: &Flight, to: u64, now: crate::clock::Tick) {
        self.progress_at.store(now.0, Ordering::Relaxed);
        let first = !self.proven.swap(true, Ordering::AcqRel);
        flight.advance(to, now);
        if first {
            // More may be in flight from now on.
            self.slot_freed.notify_waiters();
            self.pump();
        }
    }

    fn wrong_length(&self, range: &Range<u64>) -> Error {
        Error::new(ErrorKind::Corrupt, "the store sent another number of bytes than asked for")
            .during("read")
            .at(&self.path)
            .with_context("range", format!("{}..{}", range.start, range.end))
    }

    fn try_slot(self: &Arc<Self>) -> Option<Slot> {
        let slots = self.slots();
        let before = self
            .in_flight
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| (n < slots).then_some(n + 1));
        let before = before.ok()?;
        if before == 0 {
            self.progress_at.store(self.engine.clock.now().0, Ordering::Relaxed);
            self.engine.started(self);
        }
        Some(Slot(self.clone()))
    }

    /// Waits for the right to one more request of this file.
    ///
    /// # Errors
    /// `TimedOut` if a request of this file has timed out meanwhile and nothing arrived: it stands for all that wait
    /// behind it, which would otherwise time out one after the other.
    async fn slot(self: &Arc<Self>) -> Result<Slot> {
        let since = self.engine.clock.now();
        loop {
            let freed = self.slot_freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            let failed =
                self.timed_out.lock().as_ref().filter(|(at, _)| *at > since).map(|(_, e)| e.duplicate());
            match failed {
                Some(e) if self.progress_at.load(Ordering::Relaxed) <= since.0 => return Err(e),
                _ => {}
            }
            if let Some(slot) = self.try_slot() {
                return Ok(slot);
            }
            freed.await;
        }
    }
}

/// The end of a request, however it comes: also when its task is aborted or panics.
struct Landing {
    blocks: Arc<FileBlocks>,
    flight: Arc<Flight>,
    extents: Vec<Arc<Extent>>,
    over: bool,
}

impl Landing {
    fn over(mut self, result: Result<()>) {
        self.over = true;
        self.land(result);
    }

    fn land(&mut self, result: Result<()>) {
        let engine = &self.blocks.engine;
        if let Err(e) = &result {
            engine.names.rights.refused(&self.blocks.path, e);
            match e.kind() {
                ErrorKind::Stale => self.blocks.set_stale(e),
                ErrorKind::Throttled => engine.connections.throttled(),
                ErrorKind::TimedOut => {
                    *self.blocks.timed_out.lock() = Some((engine.clock.now(), e.duplicate()));
                    self.blocks.slot_freed.notify_waiters();
                }
                _ => {}
            }
            match e.kind() {
                ErrorKind::Interrupted => engine.stats.fetches_cancelled.inc(),
                _ => engine.stats.fetch_errors.inc(),
            }
        }
        // What came before the failure is proven, except where the failure is that it is not.
        let keep =
            self.blocks.check().is_ok() && !matches!(&result, Err(e) if e.kind() == ErrorKind::Corrupt);
        let mut landed = Vec::with_capacity(self.extents.len());
        {
            let mut map = self.blocks.map.lock();
            for extent in &self.extents {
                if map.land(extent) && keep {
                    landed.push(extent.clone());
                } else {
                    map.remove(extent);
                    engine.memory.wasted(extent);
                    extent.discharge();
                }
            }
        }
        engine.memory.settle(&landed, engine.clock.now());
        let failed = result.is_err();
        self.flight.finish(result);
        engine.forget_if_unused(&self.blocks);
        if !failed && self.flight.ahead {
            if self.blocks.is_large() {
                self.blocks.pump();
            } else {
                engine.siblings.landed(engine, &self.blocks.path);
            }
        }
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        if !self.over {
            self.land(Err(
                Error::new(ErrorKind::Interrupted, "the request was given up").at(&self.blocks.path)
            ));
        }
    }
}
