//! [`Refill`]: what was dropped because the disk was slower than the network is fetched again when nothing else is
//! going on, so that the next epoch finds it.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use nearfs_backends::{FsPath, Metadata};
use parking_lot::Mutex;

use super::tier::{Claim, Segment, Written};
use crate::engine::Engine;
use crate::memory::blocks::FileBlocks;

/// Stretches remembered; of more, the oldest are forgotten.
const MAX: usize = 4096;

/// Stretches fetched at the same time.
const AT_ONCE: usize = 8;
/// How long to wait before asking again for room to write.
const PAUSE: Duration = Duration::from_millis(20);

/// A stretch of a file that is not on disk although it was fetched.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) path: FsPath,
    pub(crate) metadata: Metadata,
    pub(crate) range: Range<u64>,
}

/// The stretches that are to be fetched again.
#[derive(Debug, Default)]
pub(crate) struct Refill {
    queue: Mutex<VecDeque<Piece>>,
    running: AtomicBool,
}

impl Refill {
    pub(crate) fn push(&self, piece: Piece) {
        let mut queue = self.queue.lock();
        if queue.len() == MAX {
            queue.pop_front();
        }
        queue.push_back(piece);
    }

    /// Begins to work the queue off, one stretch at a time, unless that is going on. To be called when no request is
    /// in flight.
    pub(crate) fn start(&self, engine: &Arc<Engine>) {
        if self.queue.lock().is_empty() || self.running.swap(true, Ordering::AcqRel) {
            return;
        }
        let running = Running(Arc::clone(engine));
        engine.spawner.spawn(async move {
            let engine = &running.0;
            let pieces = std::iter::from_fn(|| {
                // A reader comes first, also before what is left.
                if engine.is_quiet() { engine.refill.queue.lock().pop_front() } else { None }
            });
            futures::stream::iter(pieces).for_each_concurrent(AT_ONCE, |piece| piece.fetch(engine)).await;
        });
    }
}

/// Says that the work has ended, however it did.
struct Running(Arc<Engine>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.refill.running.store(false, Ordering::Release);
    }
}

impl Piece {
    /// Fetches it, if the file is still what it was. Failures are left to the next reader.
    async fn fetch(self, engine: &Arc<Engine>) {
        let known = engine.names.known(&self.path).and_then(|known| known.metadata);
        if known.is_none_or(|m| m.version != self.metadata.version || m.size != self.metadata.size) {
            return;
        }
        let _permit = loop {
            match engine.connections.try_ahead() {
                Some(permit) => break permit,
                None if engine.is_quiet() => tokio::time::sleep(PAUSE).await,
                None => return engine.refill.push(self),
            }
        };
        let Some(blocks) = engine.blocks(&self.path, &self.metadata) else { return };
        if let Some(disk) = blocks.disk() {
            for segment in disk.plan(self.range.clone()).await {
                if let Segment::Mine(claim) = segment {
                    claim.refill(&blocks).await;
                }
            }
        }
        engine.forget_if_unused(&blocks);
    }
}

impl Claim {
    /// Fills the claim from the store.
    async fn refill(self, blocks: &Arc<FileBlocks>) {
        let (engine, range) = (&blocks.engine, self.range());
        let bytes = range.end - range.start;
        // What is fetched lives in the memory of what waits for the disk.
        let place = loop {
            match engine.quota.take(bytes) {
                Some(place) => break place,
                None if bytes > engine.quota.limit() => return,
                None => tokio::time::sleep(PAUSE).await,
            }
        };
        let Some(data) = fetch(blocks, &range).await else { return };
        let counted = engine.clone();
        self.fill(place, data, move |written| {
            if written == Written::Yes {
                counted.stats.disk_written.add(bytes);
                counted.stats.disk_refetched.add(bytes);
            }
        });
    }
}

/// All bytes of `range` from the store, or none.
async fn fetch(blocks: &Arc<FileBlocks>, range: &Range<u64>) -> Option<Vec<Bytes>> {
    let engine = &blocks.engine;
    engine.stats.fetches.inc();
    let mut stream = blocks.inner().await.ok()?.read_stream(range.clone());
    let (mut data, mut len) = (Vec::new(), 0);
    while let Some(chunk) = stream.next().await {
        let chunk = match chunk {
            Ok(chunk) => chunk,
            Err(e) => {
                engine.names.rights.refused(&blocks.path, &e);
                engine.stats.fetch_errors.inc();
                return None;
            }
        };
        len += chunk.len() as u64;
        engine.stats.bytes_fetched.add(chunk.len() as u64);
        if len > range.end - range.start {
            return None;
        }
        data.push(chunk);
    }
    (len == range.end - range.start).then_some(data)
}
