//! [`TimeoutLayer`]: every attempt ends.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use tokio::time::{Instant, Sleep};

use crate::capability::Capabilities;
use crate::error::{Error, ErrorKind, Result};
use crate::file::{ByteStream, File, FileWriter};
use crate::fs::{EntryStream, FileSystem, Identity};
use crate::io::Buffer;
use crate::metadata::Metadata;
use crate::options::{CopyOptions, CreateOptions, ListOptions, OpenOptions};
use crate::path::FsPath;

/// Settings of [`TimeoutLayer`]. All above zero.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimeoutConfig {
    /// Limit of a whole call that moves no contents: `stat`, `open`, `create`, `create_dir`, `remove_dir`, `abort`.
    /// Default: 60 s.
    pub operation: Duration,
    /// Limit for the first item of a listing or of bytes. Default: 60 s.
    pub first_item: Duration,
    /// Limit between two items, while somebody waits for the next one. Default: 60 s.
    pub gap: Duration,
    /// Limit of `copy` and `rename`, in which a store may move gigabytes by itself. Default: 15 min.
    pub relocate: Duration,
}

impl Default for TimeoutConfig {
    fn default() -> Self {
        TimeoutConfig {
            operation: Duration::from_secs(60),
            first_item: Duration::from_secs(60),
            gap: Duration::from_secs(60),
            relocate: Duration::from_secs(15 * 60),
        }
    }
}

/// Slowest transfer that counts as alive where progress cannot be seen, in bytes per second.
const CRAWL: u64 = 64 << 10;

impl TimeoutConfig {
    /// Limit of a call that moves `bytes` in one piece.
    fn transfer(&self, bytes: u64) -> Duration {
        self.first_item + Duration::from_millis(bytes.saturating_mul(1_000) / CRAWL)
    }
}

/// Ends a call with `TimedOut` (which may be tried again) when nothing has come for too long.
///
/// There is no limit on a whole transfer: reads from remote stores are streamed underneath, and what is limited is
/// the wait for the next bytes. Only `read_ranges`, `write` and `finish`, and reads in one piece from local stores,
/// show no progress; they get one second more for every 64 KiB they move. The reader's own pauses never count.
///
/// Place: below retries and the limit on requests, so that each attempt has its own time and waiting for a place
/// costs none; above the store.
#[derive(Debug, Clone)]
pub struct TimeoutLayer {
    inner: Arc<dyn FileSystem>,
    config: Arc<TimeoutConfig>,
}

impl TimeoutLayer {
    /// `inner`, with limits.
    pub fn new(inner: Arc<dyn FileSystem>, config: TimeoutConfig) -> Self {
        TimeoutLayer { inner, config: Arc::new(config) }
    }
}

fn timed_out(operation: &'static str, path: &FsPath, limit: Duration) -> Error {
    Error::new(ErrorKind::TimedOut, format!("nothing came for {limit:?}")).during(operation).at(path)
}

async fn call<T>(
    limit: Duration,
    operation: &'static str,
    path: &FsPath,
    call: impl Future<Output = Result<T>> + Send,
) -> Result<T> {
    tokio::time::timeout(limit, call).await.unwrap_or_else(|_| Err(timed_out(operation, path, limit)))
}

/// A stream that ends with an error when it keeps its reader waiting for too long.
struct Limited<T> {
    inner: Option<BoxStream<'static, T>>,
    /// When the reader's present wait is too long; `None` while it does not wait.
    until: Option<Instant>,
    /// Goes off at `until` or earlier. It is not set anew for every item (that would cost more than the item), but
    /// when it goes off too early.
    alarm: Option<Pin<Box<Sleep>>>,
    limit: Duration,
    gap: Duration,
    failure: Option<Box<dyn FnOnce(Duration) -> T + Send>>,
}

impl<T> Limited<T> {
    fn new(
        inner: BoxStream<'static, T>,
        config: &TimeoutConfig,
        failure: impl FnOnce(Duration) -> T + Send + 'static,
    ) -> Self {
        let failure: Box<dyn FnOnce(Duration) -> T + Send> = Box::new(failure);
        Limited {
            inner: Some(inner),
            until: None,
            alarm: None,
            limit: config.first_item,
            gap: config.gap,
            failure: Some(failure),
        }
    }
}

// Nothing in it is pinned in place.
impl<T> Unpin for Limited<T> {}

impl<T> Stream for Limited<T> {
    type Item = T;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let this = self.get_mut();
        let Some(inner) = &mut this.inner else { return Poll::Ready(None) };
        // Always asked first: what is there is delivered, however late the reader comes.
        if let Poll::Ready(item) = inner.poll_next_unpin(cx) {
            this.until = None;
            this.limit = this.gap;
            return Poll::Ready(item);
        }
        let limit = this.limit;
        let until = *this.until.get_or_insert_with(|| Instant::now() + limit);
        let alarm = this.alarm.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until)));
        // The first limit may have been longer than the gap.
        if alarm.deadline() > until {
            alarm.as_mut().reset(until);
        }
        while alarm.as_mut().poll(cx).is_ready() {
            if alarm.deadline() >= until {
                this.inner = None;
                this.alarm = None;
                return Poll::Ready(this.failure.take().map(|failure| failure(limit)));
            }
            alarm.as_mut().reset(until);
        }
        Poll::Pending
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl FileSystem for TimeoutLayer {
    fn identity(&self) -> Identity {
        self.inner.identity()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn stat(&self, path: &FsPath) -> Result<Metadata> {
        call(self.config.operation, "stat", path, self.inner.stat(path)).await
    }

    fn list(&self, dir: &FsPath, options: ListOptions) -> EntryStream {
        let at = dir.clone();
        let failure = move |limit| Err(timed_out("list", &at, limit));
        Limited::new(self.inner.list(dir, options), &self.config, failure).boxed()
    }

    async fn open(&self, path: &FsPath, options: OpenOptions) -> Result<Arc<dyn File>> {
        let file = call(self.config.operation, "open", path, self.inner.open(path, options)).await?;
        let streamed = self.inner.capabilities().remote;
        Ok(Arc::new(TimeoutFile { file, config: self.config.clone(), streamed }))
    }

    async fn create(&self, path: &FsPath, options: CreateOptions) -> Result<Box<dyn FileWriter>> {
        let writer = call(self.config.operation, "create", path, self.inner.create(path, options)).await?;
        Ok(Box::new(TimeoutWriter { writer, path: path.clone(), written: 0, config: self.config.clone() }))
    }

    /// A wait for the next result that is too long ends the stream: the remaining paths get no result from the store,
    /// so each is answered `TimedOut` here.
    fn delete(&self, paths: BoxStream<'static, FsPath>) -> BoxStream<'static, (FsPath, Result<()>)> {
        delete(self.inner.clone(), self.config.clone(), paths)
    }

    async fn rename(&self, from: &FsPath, to: &FsPath, options: CopyOptions) -> Result<()> {
        call(self.config.relocate, "rename", from, self.inner.rename(from, to, options)).await
    }

    async fn copy(&self, from: &FsPath, to: &FsPath, options: CopyOptions) -> Result<()> {
        call(self.config.relocate, "copy", from, self.inner.copy(from, to, options)).await
    }

    async fn create_dir(&self, path: &FsPath) -> Result<()> {
        call(self.config.operation, "create_dir", path, self.inner.create_dir(path)).await
    }

    async fn remove_dir(&self, path: &FsPath) -> Result<()> {
        call(self.config.operation, "remove_dir", path, self.inner.remove_dir(path)).await
    }
}

/// Deletes in batches, so that the paths still without a result are known when the store falls silent.
fn delete(
    inner: Arc<dyn FileSystem>,
    config: Arc<TimeoutConfig>,
    paths: BoxStream<'static, FsPath>,
) -> BoxStream<'static, (FsPath, Result<()>)> {
    const BATCH: usize = 1_000;
    const ROUNDS: usize = 4;
    paths
        .ready_chunks(BATCH)
        .map(move |batch| {
            let (inner, config) = (inner.clone(), config.clone());
            async move {
                let mut waiting = batch.clone();
                let mut done = Vec::with_capacity(batch.len());
                let mut results = inner.delete(futures::stream::iter(batch).boxed());
                let mut limit = config.operation;
                loop {
                    match tokio::time::timeout(limit, results.next()).await {
                        Ok(Some((path, result))) => {
                            if let Some(at) = waiting.iter().position(|p| *p == path) {
                                waiting.swap_remove(at);
                            }
                            done.push((path, result));
                            limit = config.gap;
                        }
                        Ok(None) => break,
                        Err(_) => {
                            done.extend(waiting.into_iter().map(|path| {
                                let e = timed_out("delete", &path, limit);
                                (path, Err(e))
                            }));
                            break;
                        }
                    }
                }
                done
            }
        })
        .buffer_unordered(ROUNDS)
        .flat_map(futures::stream::iter)
        .boxed()
}

#[derive(Debug)]
struct TimeoutFile {
    file: Arc<dyn File>,
    config: Arc<TimeoutConfig>,
    /// Reads in one piece are put together from a stream, whose progress can be seen.
    streamed: bool,
}

impl TimeoutFile {
    fn size_of(&self, range: &Range<u64>) -> u64 {
        let range = crate::range::clamp(range.clone(), self.file.metadata().size);
        range.end - range.start
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl File for TimeoutFile {
    fn path(&self) -> &FsPath {
        self.file.path()
    }

    fn metadata(&self) -> &Metadata {
        self.file.metadata()
    }

    async fn read_at(&self, range: Range<u64>) -> Result<Bytes> {
        let size = self.size_of(&range);
        if self.streamed {
            return crate::ext::collect(self.read_stream(range), size as usize).await;
        }
        call(self.config.transfer(size), "read", self.file.path(), self.file.read_at(range)).await
    }

    async fn read_ranges(&self, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let size = ranges.iter().map(|r| self.size_of(r)).sum();
        call(self.config.transfer(size), "read", self.file.path(), self.file.read_ranges(ranges)).await
    }

    fn read_stream(&self, range: Range<u64>) -> ByteStream {
        let at = self.file.path().clone();
        let failure = move |limit| Err(timed_out("read", &at, limit));
        Limited::new(self.file.read_stream(range), &self.config, failure).boxed()
    }

    async fn read_into(&self, offset: u64, mut buf: Buffer) -> (Result<usize>, Buffer) {
        let range = offset..offset.saturating_add(buf.remaining() as u64);
        if self.streamed {
            let before = buf.len();
            let mut stream = self.read_stream(range);
            while let Some(chunk) = stream.next().await {
                match chunk {
                    Ok(chunk) => buf.append(&chunk),
                    Err(e) => {
                        buf.truncate(before);
                        return (Err(e), buf);
                    }
                };
            }
            let added = buf.len() - before;
            return (Ok(added), buf);
        }
        // On a time-out the buffer is away with the operation that still owns it; the caller gets one like it, with
        // what was in it before (nearly always nothing).
        let (lead, capacity, limit) =
            (buf.to_vec(), buf.capacity(), self.config.transfer(self.size_of(&range)));
        match tokio::time::timeout(limit, self.file.read_into(offset, buf)).await {
            Ok(done) => done,
            Err(_) => {
                let mut buf = Buffer::with_capacity(capacity);
                buf.append(&lead);
                (Err(timed_out("read", self.file.path(), limit)), buf)
            }
        }
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_fd()
    }
}

#[derive(Debug)]
struct TimeoutWriter {
    writer: Box<dyn FileWriter>,
    path: FsPath,
    written: u64,
    config: Arc<TimeoutConfig>,
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl FileWriter for TimeoutWriter {
    async fn write(&mut self, data: Bytes) -> Result<()> {
        self.written += data.len() as u64;
        // Earlier bytes may still be on their way, and this call waits for room among them.
        call(self.config.transfer(self.written), "write", &self.path, self.writer.write(data)).await
    }

    async fn finish(self: Box<Self>) -> Result<Metadata> {
        call(self.config.transfer(self.written), "finish", &self.path, self.writer.finish()).await
    }

    async fn abort(self: Box<Self>) -> Result<()> {
        call(self.config.operation, "abort", &self.path, self.writer.abort()).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ext::FileSystemExt;
    use crate::layer::{Fault, FaultAction, FaultLayer, Operation};
    use crate::memory::MemoryFileSystem;

    fn path(text: &str) -> FsPath {
        FsPath::parse(text).unwrap()
    }

    async fn stack() -> (FaultLayer, TimeoutLayer) {
        let memory = MemoryFileSystem::new();
        memory.write(&path("d/f"), vec![7; 3 << 20].into()).await.unwrap();
        let fault = FaultLayer::new(Arc::new(memory));
        let timeout = TimeoutLayer::new(Arc::new(fault.clone()), TimeoutConfig::default());
        (fault, timeout)
    }

    #[tokio::test(start_paused = true)]
    async fn every_stalled_call_ends_with_timed_out_that_names_it() {
        let (fault, fs) = stack().await;
        let (f, g) = (path("d/f"), path("d/g"));
        let file = fs.open(&f, OpenOptions::default()).await.unwrap();
        let mut writer = fs.create(&g, CreateOptions::default()).await.unwrap();
        for operation in Operation::ALL {
            fault.inject(Fault::on(operation, FaultAction::Stall(0)));
        }
        let started = Instant::now();
        let mut buf = Buffer::with_capacity(10);
        buf.append(b"lead");
        let (into, buf) = file.read_into(0, buf).await;
        assert_eq!((&buf[..], buf.capacity()), (&b"lead"[..], 10));
        let deleted: Vec<_> =
            fs.delete(futures::stream::iter([f.clone(), g.clone()]).boxed()).collect().await;
        assert_eq!(deleted.len(), 2);
        let errors = [
            fs.stat(&f).await.unwrap_err(),
            fs.open(&f, OpenOptions::default()).await.unwrap_err(),
            fs.create(&g, CreateOptions::default()).await.unwrap_err(),
            fs.list(&path("d"), ListOptions::default()).next().await.unwrap().unwrap_err(),
            fs.rename(&f, &g, CopyOptions::default()).await.unwrap_err(),
            fs.copy(&f, &g, CopyOptions::default()).await.unwrap_err(),
            fs.create_dir(&g).await.unwrap_err(),
            fs.remove_dir(&g).await.unwrap_err(),
            file.read_at(0..10).await.unwrap_err(),
            file.read_ranges(&[0..10, 20..30]).await.unwrap_err(),
            file.read_stream(0..10).next().await.unwrap().unwrap_err(),
            into.unwrap_err(),
            writer.write("x".into()).await.unwrap_err(),
            writer.finish().await.unwrap_err(),
        ];
        for e in errors.iter().chain(deleted.iter().map(|(_, r)| r.as_ref().unwrap_err())) {
            assert_eq!(e.kind(), ErrorKind::TimedOut, "{e}");
            assert!(e.is_retryable() && e.operation().is_some() && e.path().is_some(), "{e}");
        }
        assert!(started.elapsed() < Duration::from_secs(16 * 60 * 3));
    }

    #[tokio::test(start_paused = true)]
    async fn e2_a_slow_transfer_and_a_slow_reader_are_both_healthy() {
        let (fault, fs) = stack().await;
        let file = fs.open(&path("d/f"), OpenOptions::default()).await.unwrap();
        fault.inject(Fault::on(Operation::Read, FaultAction::Drip(Duration::from_secs(50))));
        let started = Instant::now();
        let mut stream = file.read_stream(0..u64::MAX);
        let mut total = 0;
        while let Some(chunk) = stream.next().await {
            total += chunk.unwrap().len();
            // Ten minutes of the reader's own are nobody's business.
            tokio::time::sleep(Duration::from_secs(600)).await;
        }
        assert_eq!(total, 3 << 20);
        assert!(started.elapsed() > Duration::from_secs(3 * 650));
        fault.heal();
        fault.inject(Fault::on(Operation::Read, FaultAction::Stall(2 << 20)));
        let results: Vec<_> = file.read_stream(0..u64::MAX).collect().await;
        assert_eq!(results.len(), 3, "two pieces, then the error, then the end");
        assert_eq!(results[2].as_ref().unwrap_err().kind(), ErrorKind::TimedOut);
    }
}
