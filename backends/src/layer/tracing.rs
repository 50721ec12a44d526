//! [`TracingLayer`]: a span for every call, and a word about slow ones.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use tracing::{Instrument, Span, debug, debug_span, warn};

use crate::capability::Capabilities;
use crate::error::Result;
use crate::file::{ByteStream, File, FileWriter};
use crate::fs::{EntryStream, FileSystem, Identity};
use crate::io::Buffer;
use crate::metadata::Metadata;
use crate::options::{CopyOptions, CreateOptions, ListOptions, OpenOptions};
use crate::path::FsPath;

/// Settings of [`TracingLayer`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracingConfig {
    /// A call, or the wait for one item of a stream, that takes longer is reported as a warning. Default: 10 s.
    pub slow: Duration,
    /// At most one such warning in this time; the next one says how many were left out. Default: 10 s.
    pub warn_every: Duration,
}

impl Default for TracingConfig {
    fn default() -> Self {
        TracingConfig { slow: Duration::from_secs(10), warn_every: Duration::from_secs(10) }
    }
}

/// Opens a debug span (`operation`, `path`) around every call, logs failures at debug level, and warns of slow calls.
/// Failures are reported to people by whoever shows them, so that each is reported once.
///
/// Place: at the top of the stack.
#[derive(Debug, Clone)]
pub struct TracingLayer {
    inner: Arc<dyn FileSystem>,
    watch: Arc<Watch>,
}

impl TracingLayer {
    /// `inner`, watched.
    pub fn new(inner: Arc<dyn FileSystem>, config: TracingConfig) -> Self {
        let watch =
            Watch { config, start: Instant::now(), next: AtomicU64::new(0), left_out: AtomicU64::new(0) };
        TracingLayer { inner, watch: Arc::new(watch) }
    }
}

#[derive(Debug)]
struct Watch {
    config: TracingConfig,
    start: Instant,
    /// Milliseconds since `start` before which no further warning is written.
    next: AtomicU64,
    left_out: AtomicU64,
}

impl Watch {
    fn took(&self, operation: &'static str, path: &FsPath, took: Duration) {
        if took < self.config.slow {
            return;
        }
        let now = self.start.elapsed().as_millis() as u64;
        let next = self.next.load(Ordering::Relaxed);
        let then = now + self.config.warn_every.as_millis() as u64;
        // Losing the race means that another thread writes the line of this moment.
        if now < next || self.next.compare_exchange(next, then, Ordering::Relaxed, Ordering::Relaxed).is_err()
        {
            self.left_out.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let left_out = self.left_out.swap(0, Ordering::Relaxed);
        warn!(operation, %path, ?took, left_out, "slow call");
    }

    async fn call<T>(
        &self,
        operation: &'static str,
        path: &FsPath,
        call: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        let started = Instant::now();
        let span = debug_span!("nearfs", operation, %path);
        let result = call.instrument(span.clone()).await;
        self.took(operation, path, started.elapsed());
        if let Err(e) = &result {
            span.in_scope(|| debug!(error = %e.chain(), kind = ?e.kind(), "failed"));
        }
        result
    }

    fn stream<T: Send + 'static>(
        self: &Arc<Self>,
        operation: &'static str,
        path: &FsPath,
        inner: BoxStream<'static, Result<T>>,
    ) -> BoxStream<'static, Result<T>> {
        let span = debug_span!("nearfs", operation, %path);
        let (watch, path) = (self.clone(), path.clone());
        Watched { inner, span, watch, operation, path, waiting: None }.boxed()
    }
}

struct Watched<T> {
    inner: BoxStream<'static, Result<T>>,
    span: Span,
    watch: Arc<Watch>,
    operation: &'static str,
    path: FsPath,
    waiting: Option<Instant>,
}

impl<T> Stream for Watched<T> {
    type Item = Result<T>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<T>>> {
        let this = self.get_mut();
        let _inside = this.span.enter();
        let polled = this.inner.poll_next_unpin(cx);
        match &polled {
            Poll::Pending => {
                this.waiting.get_or_insert_with(Instant::now);
            }
            Poll::Ready(item) => {
                if let Some(since) = this.waiting.take() {
                    this.watch.took(this.operation, &this.path, since.elapsed());
                }
                if let Some(Err(e)) = item {
                    debug!(error = %e.chain(), kind = ?e.kind(), "failed");
                }
            }
        }
        polled
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl FileSystem for TracingLayer {
    fn identity(&self) -> Identity {
        self.inner.identity()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn stat(&self, path: &FsPath) -> Result<Metadata> {
        self.watch.call("stat", path, self.inner.stat(path)).await
    }

    fn list(&self, dir: &FsPath, options: ListOptions) -> EntryStream {
        self.watch.stream("list", dir, self.inner.list(dir, options))
    }

    async fn open(&self, path: &FsPath, options: OpenOptions) -> Result<Arc<dyn File>> {
        let file = self.watch.call("open", path, self.inner.open(path, options)).await?;
        Ok(Arc::new(TracingFile { file, watch: self.watch.clone() }))
    }

    async fn create(&self, path: &FsPath, options: CreateOptions) -> Result<Box<dyn FileWriter>> {
        let writer = self.watch.call("create", path, self.inner.create(path, options)).await?;
        Ok(Box::new(TracingWriter { writer, path: path.clone(), watch: self.watch.clone() }))
    }

    fn delete(&self, paths: BoxStream<'static, FsPath>) -> BoxStream<'static, (FsPath, Result<()>)> {
        self.inner
            .delete(paths)
            .inspect(|(path, result)| {
                if let Err(e) = result {
                    debug!(operation = "delete", %path, error = %e.chain(), kind = ?e.kind(), "failed");
                }
            })
            .boxed()
    }

    async fn rename(&self, from: &FsPath, to: &FsPath, options: CopyOptions) -> Result<()> {
        self.watch.call("rename", from, self.inner.rename(from, to, options)).await
    }

    async fn copy(&self, from: &FsPath, to: &FsPath, options: CopyOptions) -> Result<()> {
        self.watch.call("copy", from, self.inner.copy(from, to, options)).await
    }

    async fn create_dir(&self, path: &FsPath) -> Result<()> {
        self.watch.call("create_dir", path, self.inner.create_dir(path)).await
    }

    async fn remove_dir(&self, path: &FsPath) -> Result<()> {
        self.watch.call("remove_dir", path, self.inner.remove_dir(path)).await
    }
}

#[derive(Debug)]
struct TracingFile {
    file: Arc<dyn File>,
    watch: Arc<Watch>,
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl File for TracingFile {
    fn path(&self) -> &FsPath {
        self.file.path()
    }

    fn metadata(&self) -> &Metadata {
        self.file.metadata()
    }

    async fn read_at(&self, range: Range<u64>) -> Result<Bytes> {
        self.watch.call("read", self.file.path(), self.file.read_at(range)).await
    }

    async fn read_ranges(&self, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.watch.call("read", self.file.path(), self.file.read_ranges(ranges)).await
    }

    fn read_stream(&self, range: Range<u64>) -> ByteStream {
        self.watch.stream("read", self.file.path(), self.file.read_stream(range))
    }

    async fn read_into(&self, offset: u64, buf: Buffer) -> (Result<usize>, Buffer) {
        let started = Instant::now();
        let span = debug_span!("nearfs", operation = "read", path = %self.file.path());
        let (result, buf) = self.file.read_into(offset, buf).instrument(span.clone()).await;
        self.watch.took("read", self.file.path(), started.elapsed());
        if let Err(e) = &result {
            span.in_scope(|| debug!(error = %e.chain(), kind = ?e.kind(), "failed"));
        }
        (result, buf)
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_fd()
    }
}

#[derive(Debug)]
struct TracingWriter {
    writer: Box<dyn FileWriter>,
    path: FsPath,
    watch: Arc<Watch>,
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl FileWriter for TracingWriter {
    async fn write(&mut self, data: Bytes) -> Result<()> {
        self.watch.call("write", &self.path, self.writer.write(data)).await
    }

    async fn finish(self: Box<Self>) -> Result<Metadata> {
        self.watch.call("finish", &self.path, self.writer.finish()).await
    }

    async fn abort(self: Box<Self>) -> Result<()> {
        self.watch.call("abort", &self.path, self.writer.abort()).await
    }
}
