//! [`MetricsLayer`]: counts, bytes and times of every call.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt};

use crate::capability::Capabilities;
use crate::error::{Error, ErrorKind, Result};
use crate::file::{ByteStream, File, FileWriter};
use crate::fs::{EntryStream, FileSystem, Identity};
use crate::io::Buffer;
use crate::metadata::{DirEntry, Metadata};
use crate::metrics::{
    STORE_BYTES, STORE_CALL_SECONDS, STORE_CALLS, STORE_ENTRIES, STORE_FIRST_SECONDS, STORE_RUNNING,
};
use crate::options::{CopyOptions, CreateOptions, ListOptions, OpenOptions};
use crate::path::FsPath;

/// Writes the `nearfs_store_*` metrics (see [`METRICS`](crate::metrics::METRICS)) through the `metrics` facade.
/// Without a recorder installed it costs next to nothing.
///
/// Place: above retries, to measure what callers get. A second one below them would count attempts under the same
/// names: do not.
#[derive(Debug, Clone)]
pub struct MetricsLayer {
    inner: Arc<dyn FileSystem>,
}

impl MetricsLayer {
    /// `inner`, measured.
    pub fn new(inner: Arc<dyn FileSystem>) -> Self {
        MetricsLayer { inner }
    }
}

/// The label of a kind of error.
pub(super) fn kind_label(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::NotFound => "not_found",
        ErrorKind::PermissionDenied => "permission_denied",
        ErrorKind::Unauthenticated => "unauthenticated",
        ErrorKind::AlreadyExists => "already_exists",
        ErrorKind::NotADirectory => "not_a_directory",
        ErrorKind::IsADirectory => "is_a_directory",
        ErrorKind::NotEmpty => "not_empty",
        ErrorKind::Stale => "stale",
        ErrorKind::Archived => "archived",
        ErrorKind::InvalidInput => "invalid_input",
        ErrorKind::NameTooLong => "name_too_long",
        ErrorKind::Unsupported => "unsupported",
        ErrorKind::ReadOnly => "read_only",
        ErrorKind::NoSpace => "no_space",
        ErrorKind::Throttled => "throttled",
        ErrorKind::Unavailable => "unavailable",
        ErrorKind::TimedOut => "timed_out",
        ErrorKind::Interrupted => "interrupted",
        ErrorKind::Corrupt => "corrupt",
        ErrorKind::Other => "other",
    }
}

/// A call under way; records its end, as cancelled if nobody says otherwise.
struct Running {
    operation: &'static str,
    started: Instant,
    outcome: &'static str,
}

impl Running {
    fn new(operation: &'static str) -> Self {
        STORE_RUNNING.gauge([operation]).increment(1.0);
        Running { operation, started: Instant::now(), outcome: "cancelled" }
    }

    fn ended(&mut self, error: Option<&Error>) {
        self.outcome = error.map_or("ok", |e| kind_label(e.kind()));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        STORE_RUNNING.gauge([self.operation]).decrement(1.0);
        STORE_CALLS.counter([self.operation, self.outcome]).increment(1);
        let took = self.started.elapsed().as_secs_f64();
        STORE_CALL_SECONDS.histogram([self.operation, self.outcome]).record(took);
    }
}

async fn call<T>(operation: &'static str, call: impl Future<Output = Result<T>> + Send) -> Result<T> {
    let mut running = Running::new(operation);
    let result = call.await;
    running.ended(result.as_ref().err());
    result
}

struct Measured<T> {
    inner: BoxStream<'static, Result<T>>,
    operation: &'static str,
    running: Option<Running>,
    first_seen: bool,
    weigh: fn(&T) -> u64,
    report: fn(u64),
    /// Weight not reported yet: streams move many small items, and a counter costs a look-up.
    pending: u64,
}

/// Weight after which a running stream reports, so that long transfers show while they run.
const REPORT_EVERY: u64 = 4 << 20;

impl<T> Drop for Measured<T> {
    fn drop(&mut self) {
        (self.report)(self.pending);
    }
}

impl<T> Stream for Measured<T> {
    type Item = Result<T>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<T>>> {
        let this = self.get_mut();
        if this.running.is_none() && !this.first_seen {
            this.running = Some(Running::new(this.operation));
        }
        let polled = this.inner.poll_next_unpin(cx);
        if let Poll::Ready(item) = &polled {
            if let (false, Some(running)) = (this.first_seen, &this.running) {
                let took = running.started.elapsed().as_secs_f64();
                STORE_FIRST_SECONDS.histogram([this.operation]).record(took);
            }
            this.first_seen = true;
            match item {
                Some(Ok(item)) => {
                    this.pending += (this.weigh)(item);
                    if this.pending >= REPORT_EVERY {
                        (this.report)(std::mem::take(&mut this.pending));
                    }
                }
                Some(Err(e)) => this.end(Some(e)),
                None => this.end(None),
            }
        }
        polled
    }
}

impl<T> Measured<T> {
    fn end(&mut self, error: Option<&Error>) {
        if let Some(mut running) = self.running.take() {
            running.ended(error);
        }
    }
}

fn measured<T: Send + 'static>(
    operation: &'static str,
    inner: BoxStream<'static, Result<T>>,
    weigh: fn(&T) -> u64,
    report: fn(u64),
) -> BoxStream<'static, Result<T>> {
    Measured { inner, operation, running: None, first_seen: false, weigh, report, pending: 0 }.boxed()
}

fn read(bytes: u64) {
    STORE_BYTES.counter(["read"]).increment(bytes);
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl FileSystem for MetricsLayer {
    fn identity(&self) -> Identity {
        self.inner.identity()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn stat(&self, path: &FsPath) -> Result<Metadata> {
        call("stat", self.inner.stat(path)).await
    }

    fn list(&self, dir: &FsPath, options: ListOptions) -> EntryStream {
        let report = |entries| STORE_ENTRIES.counter([]).increment(entries);
        measured("list", self.inner.list(dir, options), |_: &DirEntry| 1, report)
    }

    async fn open(&self, path: &FsPath, options: OpenOptions) -> Result<Arc<dyn File>> {
        let file = call("open", self.inner.open(path, options)).await?;
        Ok(Arc::new(MetricsFile { file }))
    }

    async fn create(&self, path: &FsPath, options: CreateOptions) -> Result<Box<dyn FileWriter>> {
        let writer = call("create", self.inner.create(path, options)).await?;
        Ok(Box::new(MetricsWriter { writer }))
    }

    fn delete(&self, paths: BoxStream<'static, FsPath>) -> BoxStream<'static, (FsPath, Result<()>)> {
        self.inner
            .delete(paths)
            .inspect(|(_, result)| {
                let outcome = result.as_ref().err().map_or("ok", |e| kind_label(e.kind()));
                STORE_CALLS.counter(["delete", outcome]).increment(1);
            })
            .boxed()
    }

    async fn rename(&self, from: &FsPath, to: &FsPath, options: CopyOptions) -> Result<()> {
        call("rename", self.inner.rename(from, to, options)).await
    }

    async fn copy(&self, from: &FsPath, to: &FsPath, options: CopyOptions) -> Result<()> {
        call("copy", self.inner.copy(from, to, options)).await
    }

    async fn create_dir(&self, path: &FsPath) -> Result<()> {
        call("create_dir", self.inner.create_dir(path)).await
    }

    async fn remove_dir(&self, path: &FsPath) -> Result<()> {
        call("remove_dir", self.inner.remove_dir(path)).await
    }
}

#[derive(Debug)]
struct MetricsFile {
    file: Arc<dyn File>,
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl File for MetricsFile {
    fn path(&self) -> &FsPath {
        self.file.path()
    }

    fn metadata(&self) -> &Metadata {
        self.file.metadata()
    }

    async fn read_at(&self, range: Range<u64>) -> Result<Bytes> {
        let result = call("read", self.file.read_at(range)).await;
        read(result.as_ref().map_or(0, |b| b.len() as u64));
        result
    }

    async fn read_ranges(&self, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let result = call("read", self.file.read_ranges(ranges)).await;
        read(result.as_ref().map_or(0, |all| all.iter().map(|b| b.len() as u64).sum()));
        result
    }

    fn read_stream(&self, range: Range<u64>) -> ByteStream {
        measured("read", self.file.read_stream(range), |b: &Bytes| b.len() as u64, read)
    }

    async fn read_into(&self, offset: u64, buf: Buffer) -> (Result<usize>, Buffer) {
        let mut running = Running::new("read");
        let (result, buf) = self.file.read_into(offset, buf).await;
        running.ended(result.as_ref().err());
        read(result.as_ref().map_or(0, |n| *n as u64));
        (result, buf)
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_fd()
    }
}

#[derive(Debug)]
struct MetricsWriter {
    writer: Box<dyn FileWriter>,
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl FileWriter for MetricsWriter {
    async fn write(&mut self, data: Bytes) -> Result<()> {
        let size = data.len() as u64;
        let result = call("write", self.writer.write(data)).await;
        if result.is_ok() {
            STORE_BYTES.counter(["written"]).increment(size);
        }
        result
    }

    async fn finish(self: Box<Self>) -> Result<Metadata> {
        call("finish", self.writer.finish()).await
    }

    async fn abort(self: Box<Self>) -> Result<()> {
        call("abort", self.writer.abort()).await
    }
}
