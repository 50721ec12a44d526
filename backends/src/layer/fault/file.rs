//! Streams, files and writers on which faults act.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt, future};

use super::plan::{FaultAction, Operation, Plan, broken, throttled};
use crate::error::{Error, Result};
use crate::file::{ByteStream, File, FileWriter};
use crate::fs::EntryStream;
use crate::io::Buffer;
use crate::metadata::{DirEntry, Metadata};
use crate::path::FsPath;

/// How much of the limit of a cut or stall an item uses.
trait Item: Send + Sized + 'static {
    fn weight(&self) -> u64;
    /// The part that weighs `weight`, and the rest.
    fn split(self, weight: u64) -> (Self, Self);
}

impl Item for Bytes {
    fn weight(&self) -> u64 {
        self.len() as u64
    }

    fn split(mut self, weight: u64) -> (Self, Self) {
        let head = self.split_to(weight as usize);
        (head, self)
    }
}

impl Item for DirEntry {
    fn weight(&self) -> u64 {
        1
    }

    fn split(self, _: u64) -> (Self, Self) {
        unreachable!("an entry weighs 1 and fits as long as anything is left")
    }
}

/// What follows when the limit is reached.
enum Then {
    End,
    Fail(Error),
    Stall(Arc<Plan>),
}

struct Limited<T> {
    inner: BoxStream<'static, Result<T>>,
    /// The part of an item that came before the limit was noticed.
    held: Option<T>,
    left: u64,
    then: Option<Then>,
}

fn limited<T: Item>(
    inner: BoxStream<'static, Result<T>>,
    left: u64,
    then: Then,
) -> BoxStream<'static, Result<T>> {
    let start = Limited { inner, held: None, left, then: Some(then) };
    stream::unfold(start, |mut s| async move {
        if s.left == 0 {
            match s.then.take() {
                Some(Then::End) => return None,
                Some(Then::Fail(e)) => {
                    s.inner = stream::empty().boxed();
                    return Some((Err(e), s));
                }
                Some(Then::Stall(plan)) => plan.stall().await,
                None => {}
            }
        }
        if let Some(held) = s.held.take() {
            return Some((Ok(held), s));
        }
        let item = s.inner.next().await?;
        match item {
            Ok(item) if s.then.is_some() && item.weight() > s.left => {
                let (head, rest) = item.split(s.left);
                s.held = Some(rest);
                s.left = 0;
                Some((Ok(head), s))
            }
            Ok(item) => {
                s.left -= item.weight().min(s.left);
                Some((Ok(item), s))
            }
            Err(e) => Some((Err(e), s)),
        }
    })
    .boxed()
}

/// A stream on which the fault that it meets, when first polled, is carried out. A flip is left to the caller.
fn spoil<T: Item>(
    plan: Arc<Plan>,
    operation: Operation,
    path: FsPath,
    inner: BoxStream<'static, Result<T>>,
    flip: impl FnOnce(BoxStream<'static, Result<T>>, u64) -> BoxStream<'static, Result<T>> + Send + 'static,
) -> BoxStream<'static, Result<T>> {
    let met = async move {
        let fail = |e| stream::once(future::ready(Err(e))).boxed();
        match plan.meet(operation, &path) {
            None => inner,
            Some(FaultAction::Fail(kind)) => fail(broken(kind, operation, &path)),
            Some(FaultAction::Throttle(pause)) => fail(throttled(pause, operation, &path)),
            Some(FaultAction::LoseAnswer(kind)) => inner.chain(fail(broken(kind, operation, &path))).boxed(),
            Some(FaultAction::Delay(pause)) => slow(inner, pause, Duration::ZERO),
            Some(FaultAction::Drip(pause)) => slow(inner, pause, pause),
            Some(FaultAction::Flip(at)) => flip(inner, at),
            Some(FaultAction::Short(limit)) => limited(inner, limit, Then::End),
            Some(FaultAction::Cut(limit, kind)) => {
                limited(inner, limit, Then::Fail(broken(kind, operation, &path)))
            }
            Some(FaultAction::Stall(limit)) => limited(inner, limit, Then::Stall(plan)),
        }
    };
    met.flatten_stream().boxed()
}

fn slow<T: Item>(
    inner: BoxStream<'static, Result<T>>,
    first: Duration,
    later: Duration,
) -> BoxStream<'static, Result<T>> {
    stream::unfold((inner, first), move |(mut inner, pause)| async move {
        tokio::time::sleep(pause).await;
        Some((inner.next().await?, (inner, later)))
    })
    .boxed()
}

fn flipped(inner: ByteStream, start: u64, at: u64) -> ByteStream {
    inner
        .scan(start, move |position, item| {
            let item = item.map(|data| {
                let offset = at.checked_sub(*position).filter(|o| *o < data.len() as u64);
                *position += data.len() as u64;
                flip_byte(data, offset)
            });
            future::ready(Some(item))
        })
        .boxed()
}

fn flip_byte(data: Bytes, offset: Option<u64>) -> Bytes {
    let Some(offset) = offset else { return data };
    let mut changed = BytesMut::from(&data[..]);
    changed[offset as usize] ^= 0xff;
    changed.freeze()
}

pub(super) fn spoil_entries(plan: Arc<Plan>, dir: FsPath, inner: EntryStream) -> EntryStream {
    spoil(plan, Operation::List, dir, inner, |inner, _| inner)
}

#[derive(Debug)]
pub(super) struct FaultFile {
    pub(super) file: Arc<dyn File>,
    pub(super) plan: Arc<Plan>,
}

impl FaultFile {
    /// Reads that answer in one piece, out of the spoiled stream: so every fault acts on them the same way.
    async fn whole(&self, range: Range<u64>) -> Result<Bytes> {
        let mut all = BytesMut::new();
        let mut stream = self.read_stream(range);
        while let Some(chunk) = stream.next().await {
            all.extend_from_slice(&chunk?);
        }
        Ok(all.freeze())
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl File for FaultFile {
    fn path(&self) -> &FsPath {
        self.file.path()
    }

    fn metadata(&self) -> &Metadata {
        self.file.metadata()
    }

    async fn read_at(&self, range: Range<u64>) -> Result<Bytes> {
        self.whole(range).await
    }

    async fn read_ranges(&self, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let path = self.file.path();
        self.plan.clone().call(Operation::Read, path, self.file.read_ranges(ranges)).await
    }

    fn read_stream(&self, range: Range<u64>) -> ByteStream {
        let start = range.start;
        let inner = self.file.read_stream(range);
        spoil(self.plan.clone(), Operation::Read, self.file.path().clone(), inner, move |inner, at| {
            flipped(inner, start, at)
        })
    }

    async fn read_into(&self, offset: u64, mut buf: Buffer) -> (Result<usize>, Buffer) {
        match self.whole(offset..offset.saturating_add(buf.remaining() as u64)).await {
            Ok(data) => {
                let n = buf.append(&data);
                (Ok(n), buf)
            }
            Err(e) => (Err(e), buf),
        }
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_fd()
    }
}

#[derive(Debug)]
pub(super) struct FaultWriter {
    pub(super) writer: Box<dyn FileWriter>,
    pub(super) path: FsPath,
    pub(super) plan: Arc<Plan>,
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl FileWriter for FaultWriter {
    async fn write(&mut self, data: Bytes) -> Result<()> {
        self.plan.clone().call(Operation::Write, &self.path, self.writer.write(data)).await
    }

    async fn finish(self: Box<Self>) -> Result<Metadata> {
        self.plan.clone().call(Operation::Finish, &self.path, self.writer.finish()).await
    }

    async fn abort(self: Box<Self>) -> Result<()> {
        self.writer.abort().await
    }
}
