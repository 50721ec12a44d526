//! Carrying requests out: from the store, or through the disk tier where there is one.

use std::ops::Range;
use std::sync::Arc;

use futures::StreamExt;
use nearfs_backends::{ErrorKind, Result, Retry};

use super::blocks::FileBlocks;
use super::cost;
use super::extent::{Extent, Filler};
use super::fetch::{Grant, Turn};
use super::flight::Flight;
use crate::budget::Charge;
use crate::disk::tier::{Claim, DiskObject, Segment};

/// Looks at the disk without getting any farther, after which the store is asked for the rest.
const PATIENCE: u32 = 8;

impl FileBlocks {
    pub(super) async fn carry(
        self: &Arc<Self>,
        flight: &Flight,
        fillers: Vec<Filler>,
        grant: Option<Grant>,
    ) -> Result<()> {
        let (turn, charge) = grant.map_or((None, None), |g| (g.turn, Some(g.charge)));
        let mut carrier = Carrier { blocks: self, flight, fillers, turn, charge };
        match self.disk().filter(|_| self.is_shown()) {
            None => carrier.fetch(flight.range.clone()).await,
            Some(disk) => carrier.through(disk).await,
        }
    }
}

/// One flight being carried out.
struct Carrier<'a> {
    blocks: &'a Arc<FileBlocks>,
    flight: &'a Flight,
    fillers: Vec<Filler>,
    turn: Option<Turn>,
    /// Memory for what has none yet.
    charge: Option<Charge>,
}

impl Carrier<'_> {
    /// Goes through the range from front to back: what the disk has comes from there, what somebody else is fetching
    /// is left to them, and the rest comes from the store and goes on to the disk.
    async fn through(&mut self, disk: &Arc<DiskObject>) -> Result<()> {
        let stats = &self.blocks.engine.stats;
        let Range { start: mut at, end } = self.flight.range;
        let mut idle_looks = 0;
        while at < end {
            let before = at;
            let segments = match idle_looks {
                PATIENCE.. => vec![Segment::Bare(at..end)],
                _ => disk.plan(at..end).await,
            };
            for segment in segments {
                match segment {
                    Segment::Resident(range) => {
                        at = self.load(disk, range.clone()).await;
                        if at < range.end {
                            break;
                        }
                    }
                    Segment::Mine(claim) => {
                        let range = claim.range();
                        self.fetch(range.clone()).await?;
                        at = range.end;
                        self.hand_over(claim);
                    }
                    Segment::Theirs(range) => {
                        self.turn = None;
                        if !self.fillers.iter().any(Filler::is_attached) {
                            // Who waits for others holds nothing that they may be waiting for.
                            self.charge = None;
                        }
                        stats.disk_waits.inc();
                        if !disk.wait(&range, self.blocks.engine.patience()).await {
                            self.blocks.engine.waited_in_vain();
                            self.fetch(range.clone()).await?;
                            at = range.end;
                        }
                        break;
                    }
                    Segment::Bare(range) => {
                        self.fetch(range.clone()).await?;
                        at = range.end;
                    }
                }
            }
            idle_looks = if at > before { 0 } else { idle_looks + 1 };
        }
        Ok(())
    }

    /// Memory for the whole flight, if it has none; waits its turn.
    async fn reserve(&mut self) {
        if self.charge.is_none() {
            let engine = &self.blocks.engine;
            let bytes = self.fillers.iter().map(|f| cost(u64::from(f.extent().len))).sum();
            self.charge = Some(engine.memory.reserve(bytes, engine.clock.now()).await);
        }
    }

    /// Indices of the fillers that `range` touches.
    fn touched(&self, range: &Range<u64>) -> Range<usize> {
        let first = self.fillers.partition_point(|f| f.extent().end() <= range.start);
        first..self.fillers.partition_point(|f| f.extent().start < range.end)
    }

    fn share(&mut self, len: u64) -> Charge {
        self.charge.as_mut().expect("memory is reserved before it is used").split(cost(len))
    }

    fn attach(&mut self, i: usize) {
        if !self.fillers[i].is_attached() {
            let len = self.fillers[i].extent().len;
            let charge = self.share(u64::from(len));
            self.fillers[i].attach(self.blocks.engine.memory.buffer(len as usize), charge);
        }
    }

    /// Fetches `range`, which comes next, from the store.
    async fn fetch(&mut self, range: Range<u64>) -> Result<()> {
        if self.turn.is_none() {
            self.turn = Some(self.blocks.turn().await?);
        }
        self.reserve().await;
        self.touched(&range).for_each(|i| self.attach(i));
        let poured = self.blocks.pour(self.flight, &mut self.fillers, range.clone()).await;
        match &poured {
            // Wrong, and nobody has seen any of it: all of it once more, which layers that pass bytes on cannot do.
            Err(e)
                if e.kind() == ErrorKind::Corrupt
                    && e.retry() != Retry::Exhausted
                    && range.start == self.flight.range.start
                    && self.flight.arrived() == range.start =>
            {
                self.fillers.iter_mut().for_each(Filler::restart);
                self.blocks.pour(self.flight, &mut self.fillers, range).await
            }
            _ => poured,
        }
    }

    /// Reads `range`, which comes next, from disk, all its extents side by side and each into its own memory. Returns
    /// the offset up to which that went well.
    async fn load(&mut self, disk: &Arc<DiskObject>, range: Range<u64>) -> u64 {
        self.reserve().await;
        let engine = &self.blocks.engine;
        let touched = self.touched(&range);
        let parts: Vec<_> = touched
            .clone()
            .map(|i| {
                let extent = self.fillers[i].extent();
                range.start.max(extent.start)..range.end.min(extent.end())
            })
            .collect();
        let side_by_side = parts.len().max(1);
        let reads = parts.into_iter().map(|part| async move {
            let buffer = engine.memory.buffer((part.end - part.start) as usize);
            let (there, buffer) = disk.read(part.clone(), buffer).await;
            (part, there, buffer)
        });
        let mut reads = futures::stream::iter(reads).buffered(side_by_side);
        let mut at = range.start;
        for i in touched {
            let Some((part, true, buffer)) = reads.next().await else { break };
            engine.stats.disk_read.add(part.end - part.start);
            let extent = self.fillers[i].extent().clone();
            if part == (extent.start..extent.end()) && !self.fillers[i].is_attached() {
                extent.set_backed();
                let charge = self.share(u64::from(extent.len));
                self.fillers[i].attach_full(buffer, charge);
            } else {
                // Where the disk has a part of an extent it is copied once more.
                self.attach(i);
                self.fillers[i].write(&buffer);
            }
            self.fillers[i].publish();
            at = part.end;
            self.flight.advance(at, engine.clock.now());
        }
        at
    }

    /// Hands what has come from the store over to be written to disk.
    fn hand_over(&self, claim: Claim) {
        let touched: Vec<Arc<Extent>> =
            self.fillers[self.touched(&claim.range())].iter().map(|f| f.extent().clone()).collect();
        self.blocks.engine.backlog.deliver(self.blocks, claim, &touched);
    }
}
