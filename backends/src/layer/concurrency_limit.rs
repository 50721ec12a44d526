//! [`ConcurrencyLimitLayer`]: so many requests in flight, shared out fairly.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, Stream, StreamExt};

use super::limit::{Limit, Place};
use crate::capability::Capabilities;
use crate::error::{Error, ErrorKind, Result};
use crate::file::{ByteStream, File, FileWriter};
use crate::fs::{EntryStream, FileSystem, Identity};
use crate::io::Buffer;
use crate::metadata::Metadata;
use crate::options::{CopyOptions, CreateOptions, ListOptions, OpenOptions};
use crate::path::FsPath;

/// Settings of [`ConcurrencyLimitLayer`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConcurrencyLimitConfig {
    /// Requests in flight that move contents, at least 1. Default: 128.
    pub data: usize,
    /// Other requests in flight, at least 1. Their own, so that look-ups never wait for transfers. Default: 64.
    pub metadata: usize,
    /// Longest wait for a place; then `TimedOut`. Default: 60 s.
    pub max_wait: Duration,
}

impl Default for ConcurrencyLimitConfig {
    fn default() -> Self {
        ConcurrencyLimitConfig { data: 128, metadata: 64, max_wait: Duration::from_secs(60) }
    }
}

/// Speed at which a read in one piece, whose progress cannot be seen, counts as alive, in bytes per second.
const SLOW: u64 = 1 << 20;

/// Lets a bounded number of requests run at a time; the others wait.
///
/// Places are shared out by file: none takes all of them, and requests that the store keeps waiting for two seconds
/// give theirs back, so that objects which have fallen silent do not hold up the others. What is in flight, silent
/// requests included, is at most twice the limit. A stream holds its place from its first poll to its end, except
/// while its reader is busy elsewhere for longer.
///
/// Place: below retries, so that a pause between attempts holds no place; above time-outs, so that waiting is not
/// taken for silence of the store.
#[derive(Debug, Clone)]
pub struct ConcurrencyLimitLayer {
    inner: Arc<dyn FileSystem>,
    gates: Arc<Gates>,
}

struct Gates {
    data: Limit,
    metadata: Limit,
    config: ConcurrencyLimitConfig,
}

impl std::fmt::Debug for Gates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.config.fmt(f)
    }
}

impl ConcurrencyLimitLayer {
    /// `inner`, limited.
    pub fn new(inner: Arc<dyn FileSystem>, config: ConcurrencyLimitConfig) -> Self {
        let data = Limit::new(config.data, "data");
        let metadata = Limit::new(config.metadata, "metadata");
        ConcurrencyLimitLayer { inner, gates: Arc::new(Gates { data, metadata, config }) }
    }

    async fn metadata<T>(
        &self,
        operation: &'static str,
        path: &FsPath,
        call: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        let _place = self.gates.enter(&self.gates.metadata, operation, path, Duration::ZERO).await?;
        call.await
    }
}

impl Gates {
    async fn enter(
        &self,
        limit: &Limit,
        operation: &'static str,
        path: &FsPath,
        extra: Duration,
    ) -> Result<Place> {
        tokio::time::timeout(self.config.max_wait, limit.take(path, extra)).await.map_err(|_| {
            let text = format!("no place among the requests in flight for {:?}", self.config.max_wait);
            Error::new(ErrorKind::TimedOut, text).during(operation).at(path)
        })
    }

    /// A place for a read in one piece.
    async fn enter_read(&self, path: &FsPath, bytes: u64) -> Result<Place> {
        self.enter(&self.data, "read", path, Duration::from_millis(bytes.saturating_mul(1_000) / SLOW)).await
    }

    /// A stream that starts once it has a place.
    fn stream<T: Send + 'static>(
        self: &Arc<Self>,
        data: bool,
        operation: &'static str,
        path: &FsPath,
        inner: BoxStream<'static, Result<T>>,
    ) -> BoxStream<'static, Result<T>> {
        let (gates, path) = (self.clone(), path.clone());
        let started = async move {
            let limit = if data { &gates.data } else { &gates.metadata };
            match gates.enter(limit, operation, &path, Duration::ZERO).await {
                Ok(place) => Placed { inner, place: Some(place) }.boxed(),
                Err(e) => crate::ext::failed(e),
            }
        };
        started.flatten_stream().boxed()
    }
}

/// A stream with its place, which it gives back at its end.
struct Placed<T> {
    inner: BoxStream<'static, Result<T>>,
    place: Option<Place>,
}

impl<T> Stream for Placed<T> {
    type Item = Result<T>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<T>>> {
        let this = self.get_mut();
        let polled = this.inner.poll_next_unpin(cx);
        if let Some(place) = &this.place {
            match &polled {
                Poll::Pending => place.store_moves(),
                Poll::Ready(Some(Ok(_))) => place.reader_moves(),
                Poll::Ready(_) => this.place = None,
            }
        }
        polled
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl FileSystem for ConcurrencyLimitLayer {
    fn identity(&self) -> Identity {
        self.inner.identity()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn stat(&self, path: &FsPath) -> Result<Metadata> {
        self.metadata("stat", path, self.inner.stat(path)).await
    }

    fn list(&self, dir: &FsPath, options: ListOptions) -> EntryStream {
        self.gates.stream(false, "list", dir, self.inner.list(dir, options))
    }

    async fn open(&self, path: &FsPath, options: OpenOptions) -> Result<Arc<dyn File>> {
        // With known metadata nothing is asked of the store, so nothing waits either.
        let file = match options.metadata {
            Some(_) => self.inner.open(path, options).await?,
            None => self.metadata("open", path, self.inner.open(path, options)).await?,
        };
        Ok(Arc::new(LimitedFile { file, gates: self.gates.clone() }))
    }

    async fn create(&self, path: &FsPath, options: CreateOptions) -> Result<Box<dyn FileWriter>> {
        let writer = self.metadata("create", path, self.inner.create(path, options)).await?;
        Ok(Box::new(LimitedWriter { writer, path: path.clone(), gates: self.gates.clone() }))
    }

    fn delete(&self, paths: BoxStream<'static, FsPath>) -> BoxStream<'static, (FsPath, Result<()>)> {
        let (inner, gates) = (self.inner.clone(), self.gates.clone());
        let started = async move {
            // One place for the whole stream: its requests are few and large, and the store's own affair.
            let place = gates.enter(&gates.metadata, "delete", &FsPath::root(), Duration::ZERO).await;
            match place {
                Ok(place) => {
                    let mut results = inner.delete(paths);
                    stream::poll_fn(move |cx| {
                        let polled = results.poll_next_unpin(cx);
                        if polled.is_pending() {
                            place.store_moves()
                        } else {
                            place.reader_moves()
                        }
                        polled
                    })
                    .boxed()
                }
                Err(e) => paths
                    .map(move |path| {
                        let e = e.duplicate().with_path(&path);
                        (path, Err(e))
                    })
                    .boxed(),
            }
        };
        started.flatten_stream().boxed()
    }

    async fn rename(&self, from: &FsPath, to: &FsPath, options: CopyOptions) -> Result<()> {
        self.metadata("rename", from, self.inner.rename(from, to, options)).await
    }

    async fn copy(&self, from: &FsPath, to: &FsPath, options: CopyOptions) -> Result<()> {
        self.metadata("copy", from, self.inner.copy(from, to, options)).await
    }

    async fn create_dir(&self, path: &FsPath) -> Result<()> {
        self.metadata("create_dir", path, self.inner.create_dir(path)).await
    }

    async fn remove_dir(&self, path: &FsPath) -> Result<()> {
        self.metadata("remove_dir", path, self.inner.remove_dir(path)).await
    }
}

#[derive(Debug)]
struct LimitedFile {
    file: Arc<dyn File>,
    gates: Arc<Gates>,
}

impl LimitedFile {
    fn size_of(&self, range: &Range<u64>) -> u64 {
        let range = crate::range::clamp(range.clone(), self.file.metadata().size);
        range.end - range.start
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl File for LimitedFile {
    fn path(&self) -> &FsPath {
        self.file.path()
    }

    fn metadata(&self) -> &Metadata {
        self.file.metadata()
    }

    async fn read_at(&self, range: Range<u64>) -> Result<Bytes> {
        let _place = self.gates.enter_read(self.file.path(), self.size_of(&range)).await?;
        self.file.read_at(range).await
    }

    async fn read_ranges(&self, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let size = ranges.iter().map(|r| self.size_of(r)).sum();
        let _place = self.gates.enter_read(self.file.path(), size).await?;
        self.file.read_ranges(ranges).await
    }

    fn read_stream(&self, range: Range<u64>) -> ByteStream {
        self.gates.stream(true, "read", self.file.path(), self.file.read_stream(range))
    }

    async fn read_into(&self, offset: u64, buf: Buffer) -> (Result<usize>, Buffer) {
        let size = self.size_of(&(offset..offset.saturating_add(buf.remaining() as u64)));
        match self.gates.enter_read(self.file.path(), size).await {
            Ok(_place) => self.file.read_into(offset, buf).await,
            Err(e) => (Err(e), buf),
        }
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_fd()
    }
}

/// Writers bound their own parts in flight; here each of their calls takes one place.
#[derive(Debug)]
struct LimitedWriter {
    writer: Box<dyn FileWriter>,
    path: FsPath,
    gates: Arc<Gates>,
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl FileWriter for LimitedWriter {
    async fn write(&mut self, data: Bytes) -> Result<()> {
        let extra = Duration::from_millis(data.len() as u64 * 1_000 / SLOW);
        let _place = self.gates.enter(&self.gates.data, "write", &self.path, extra).await?;
        self.writer.write(data).await
    }

    async fn finish(self: Box<Self>) -> Result<Metadata> {
        let _place = self.gates.enter(&self.gates.data, "finish", &self.path, Duration::ZERO).await?;
        self.writer.finish().await
    }

    async fn abort(self: Box<Self>) -> Result<()> {
        self.writer.abort().await
    }
}
