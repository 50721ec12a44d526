//! [`Backlog`]: what has come from the store and waits in memory for its turn to be written.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use parking_lot::Mutex;

use super::refill::Piece;
use super::tier::{Claim, Written};
use crate::engine::Engine;
use crate::memory::blocks::FileBlocks;
use crate::memory::extent::Extent;

/// Bytes that may wait; more are dropped. Memory that waits is not used again at once, and fresh memory costs a reader
/// more time than the disk's leftovers are worth.
const MAX: u64 = 192 << 20;

/// Stretches of files that are in memory anyway and are written when the quota has room again, in order. They do not
/// keep their memory: what is evicted before its turn is dropped.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    deliveries: VecDeque<Delivery>,
    bytes: u64,
}

/// Bytes that are to be written.
#[derive(Debug)]
pub(crate) struct Delivery {
    blocks: Arc<FileBlocks>,
    claim: Claim,
    range: Range<u64>,
    extents: Vec<Weak<Extent>>,
}

impl Backlog {
    /// Has the bytes of `claim`, which are in `extents` and proven, written now or later, or not at all.
    pub(crate) fn deliver(&self, blocks: &Arc<FileBlocks>, claim: Claim, extents: &[Arc<Extent>]) {
        let range = claim.range();
        let waiting = extents.iter().map(Arc::downgrade).collect();
        let delivery = Delivery { blocks: blocks.clone(), claim, range, extents: waiting };
        let dropped = {
            let mut queue = self.queue.lock();
            let bytes = queue.bytes + delivery.len();
            if bytes <= MAX {
                extents.iter().for_each(|extent| extent.set_waiting(true));
                queue.bytes = bytes;
                queue.deliveries.push_back(delivery);
                None
            } else {
                Some(delivery)
            }
        };
        dropped.into_iter().for_each(Delivery::drop_it);
        self.go_on(&blocks.engine);
    }

    /// Hands over as much as the quota has room for.
    fn go_on(&self, engine: &Arc<Engine>) {
        loop {
            let next = {
                let mut queue = self.queue.lock();
                let Some(bytes) = queue.deliveries.front().map(Delivery::len) else { return };
                let place = engine.quota.take(bytes);
                // What is larger than all of the quota never gets there.
                if place.is_none() && bytes <= engine.quota.limit() {
                    return;
                }
                queue.bytes -= bytes;
                queue.deliveries.pop_front().map(|first| (first, place))
            };
            let Some((delivery, place)) = next else { return };
            match (delivery.bytes(), place) {
                (Some(data), Some(place)) => {
                    let Delivery { blocks, claim, range, extents } = delivery;
                    claim.fill(place, data, move |written| done(&blocks, range, &extents, written));
                }
                _ => delivery.drop_it(),
            }
        }
    }
}

impl Delivery {
    fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Its bytes, if none of them has been evicted.
    fn bytes(&self) -> Option<Vec<Bytes>> {
        let slice = |extent: &Weak<Extent>| {
            let extent = extent.upgrade().filter(|e| e.is_charged())?;
            let (from, to) = (self.range.start.max(extent.start), self.range.end.min(extent.end()));
            Some(extent.slice(from, to))
        };
        self.extents.iter().map(slice).collect()
    }

    fn drop_it(self) {
        let Delivery { blocks, claim, range, extents } = self;
        drop(claim);
        no_longer_waiting(&extents);
        blocks.engine.stats.disk_dropped.add(range.end - range.start);
        let piece = Piece { path: blocks.path.clone(), metadata: blocks.metadata.clone(), range };
        blocks.engine.refill.push(piece);
    }
}

/// A write is over.
fn done(blocks: &Arc<FileBlocks>, range: Range<u64>, extents: &[Weak<Extent>], written: Written) {
    let (engine, bytes) = (&blocks.engine, range.end - range.start);
    match written {
        Written::Yes => {
            engine.stats.disk_written.add(bytes);
            let whole = |e: &Arc<Extent>| range.start <= e.start && e.end() <= range.end;
            extents.iter().filter_map(Weak::upgrade).filter(whole).for_each(|extent| extent.set_backed());
        }
        Written::No => engine.stats.disk_dropped.add(bytes),
    }
    no_longer_waiting(extents);
    engine.backlog.go_on(engine);
}

fn no_longer_waiting(extents: &[Weak<Extent>]) {
    extents.iter().filter_map(Weak::upgrade).for_each(|extent| extent.set_waiting(false));
}
