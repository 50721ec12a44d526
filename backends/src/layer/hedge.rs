//! [`HedgeLayer`]: a second request for a read that is slow.

mod judge;
mod race;
mod window;

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;

use crate::capability::Capabilities;
use crate::error::Result;
use crate::ext::fill;
use crate::file::{ByteStream, File, FileWriter};
use crate::fs::{EntryStream, FileSystem, Identity};
use crate::io::Buffer;
use crate::metadata::Metadata;
use crate::options::{CopyOptions, CreateOptions, ListOptions, OpenOptions};
use crate::path::FsPath;
use judge::Judge;
use race::Race;

/// Settings of [`HedgeLayer`].
#[derive(Debug, Clone, PartialEq)]
pub struct HedgeConfig {
    /// Whether there are second requests at all. Default: `true`.
    pub enabled: bool,
    /// Second requests as a share of all requests that read, 0 to 1: never more than this and one. Default: 0.03, the
    /// few percent for which hedging after the 95th percentile cuts the tail (Dean and Barroso, 2013).
    pub share: f64,
    /// A read is not slow before it takes the median and so much longer: less is scheduling and the network's own
    /// jitter. Default: 50 ms.
    pub slack: Duration,
    /// Requests of a size that must have been seen before one of that size can be slow, at most 256. Default: 32, the
    /// fewest of which the 95th percentile is not the slowest.
    pub least_samples: usize,
    /// Time without second requests after the store has asked to be called less often (`Throttled`). Default: 5 s.
    pub quiet: Duration,
}

impl Default for HedgeConfig {
    fn default() -> Self {
        HedgeConfig {
            enabled: true,
            share: 0.03,
            slack: Duration::from_millis(50),
            least_samples: 32,
            quiet: Duration::from_secs(5),
        }
    }
}

/// What a [`HedgeLayer`] has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HedgeStats {
    /// Requests that read, second ones not included.
    pub requests: u64,
    /// Second requests.
    pub started: u64,
    /// Second requests that were faster than the first.
    pub won: u64,
    /// Slow reads that got none, because too many others had.
    pub refused_budget: u64,
    /// Slow reads that got none, because the store asked for fewer requests.
    pub refused_throttled: u64,
}

/// Makes a second request for a read that is slow, and takes the bytes of whichever answers first ("hedged requests",
/// Dean and Barroso, The Tail at Scale, CACM 56(2), 2013). The other one is dropped, which closes its connection.
///
/// A read is slow when its first byte, or all that follows it, takes more than twice the 95th percentile of the last 256
/// requests of like size (of the same power of two), and at least the median and 50 ms. Waiting for the body counts only
/// while the reader waits. A read is hedged once at most, and only while few are slow: second requests are a bounded
/// share of all, and there are none for some seconds after the store has asked to be called less often. When one of two
/// requests fails the other one counts; when both do, the error is the first's.
///
/// All bytes are those of one version: both requests are made of the same opened file.
///
/// Every read goes through `read_stream` of the file underneath (`read_at`, `read_into` and `read_ranges` are put
/// together here, each byte copied once), so this layer is for remote stores, where that is how bytes come anyway.
///
/// Place: below retries, so that a failure of both is one failed attempt, retried once; above the retries, each of the
/// two would bring its own. Above the limit on requests, so that what is in flight stays bounded with second requests
/// included, and above the time-outs of attempts, so that each request has its own.
#[derive(Debug, Clone)]
pub struct HedgeLayer {
    inner: Arc<dyn FileSystem>,
    judge: Arc<Judge>,
    enabled: bool,
}

impl HedgeLayer {
    /// `inner`, with second requests for slow reads.
    pub fn new(inner: Arc<dyn FileSystem>, config: HedgeConfig) -> Self {
        HedgeLayer { inner, enabled: config.enabled, judge: Arc::new(Judge::new(config)) }
    }

    /// What it has done so far.
    pub fn stats(&self) -> HedgeStats {
        self.judge.stats()
    }

    /// Listens for refusals: they count wherever they come.
    async fn heard<T>(&self, call: impl Future<Output = Result<T>> + Send) -> Result<T> {
        call.await.inspect_err(|e| self.judge.hear(e))
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl FileSystem for HedgeLayer {
    fn identity(&self) -> Identity {
        self.inner.identity()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn stat(&self, path: &FsPath) -> Result<Metadata> {
        self.heard(self.inner.stat(path)).await
    }

    fn list(&self, dir: &FsPath, options: ListOptions) -> EntryStream {
        let judge = self.judge.clone();
        self.inner
            .list(dir, options)
            .inspect(move |item| {
                if let Err(e) = item {
                    judge.hear(e);
                }
            })
            .boxed()
    }

    async fn open(&self, path: &FsPath, options: OpenOptions) -> Result<Arc<dyn File>> {
        let file = self.heard(self.inner.open(path, options)).await?;
        if !self.enabled {
            return Ok(file);
        }
        Ok(Arc::new(HedgedFile { file, judge: self.judge.clone() }))
    }

    async fn create(&self, path: &FsPath, options: CreateOptions) -> Result<Box<dyn FileWriter>> {
        let writer = self.heard(self.inner.create(path, options)).await?;
        Ok(Box::new(HeardWriter { writer, judge: self.judge.clone() }))
    }

    fn delete(&self, paths: BoxStream<'static, FsPath>) -> BoxStream<'static, (FsPath, Result<()>)> {
        let judge = self.judge.clone();
        self.inner
            .delete(paths)
            .inspect(move |(_, result)| {
                if let Err(e) = result {
                    judge.hear(e);
                }
            })
            .boxed()
    }

    async fn rename(&self, from: &FsPath, to: &FsPath, options: CopyOptions) -> Result<()> {
        self.heard(self.inner.rename(from, to, options)).await
    }

    async fn copy(&self, from: &FsPath, to: &FsPath, options: CopyOptions) -> Result<()> {
        self.heard(self.inner.copy(from, to, options)).await
    }

    async fn create_dir(&self, path: &FsPath) -> Result<()> {
        self.heard(self.inner.create_dir(path)).await
    }

    async fn remove_dir(&self, path: &FsPath) -> Result<()> {
        self.heard(self.inner.remove_dir(path)).await
    }
}

#[derive(Debug)]
struct HedgedFile {
    file: Arc<dyn File>,
    judge: Arc<Judge>,
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl File for HedgedFile {
    fn path(&self) -> &FsPath {
        self.file.path()
    }

    fn metadata(&self) -> &Metadata {
        self.file.metadata()
    }

    async fn read_at(&self, range: Range<u64>) -> Result<Bytes> {
        let range = crate::range::clamp(range, self.file.metadata().size);
        let size = range.end - range.start;
        crate::ext::collect(self.read_stream(range), size as usize).await
    }

    async fn read_ranges(&self, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let read = |range| self.read_at(range);
        crate::ext::read_merged(ranges, self.file.metadata().size, read).await
    }

    fn read_stream(&self, range: Range<u64>) -> ByteStream {
        let range = crate::range::clamp(range, self.file.metadata().size);
        if range.is_empty() {
            return self.file.read_stream(range);
        }
        Race::new(self.judge.clone(), self.file.clone(), range).boxed()
    }

    async fn read_into(&self, offset: u64, buf: Buffer) -> (Result<usize>, Buffer) {
        fill(self.read_stream(offset..offset.saturating_add(buf.remaining() as u64)), buf).await
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_fd()
    }
}

/// A writer whose refusals are heard.
#[derive(Debug)]
struct HeardWriter {
    writer: Box<dyn FileWriter>,
    judge: Arc<Judge>,
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl FileWriter for HeardWriter {
    async fn write(&mut self, data: Bytes) -> Result<()> {
        self.writer.write(data).await.inspect_err(|e| self.judge.hear(e))
    }

    async fn finish(self: Box<Self>) -> Result<Metadata> {
        let HeardWriter { writer, judge } = *self;
        writer.finish().await.inspect_err(|e| judge.hear(e))
    }

    async fn abort(self: Box<Self>) -> Result<()> {
        self.writer.abort().await
    }
}

#[cfg(test)]
mod tests;
