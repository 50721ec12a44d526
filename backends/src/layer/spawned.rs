//! [`SpawnedLayer`]: every call runs on our runtime, whoever polls.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use tokio::sync::{Mutex, mpsc};
use tokio::task::AbortHandle;

use crate::capability::Capabilities;
use crate::error::{Error, ErrorKind, Result};
use crate::file::{ByteStream, File, FileWriter};
use crate::fs::{EntryStream, FileSystem, Identity};
use crate::io::Buffer;
use crate::metadata::Metadata;
use crate::options::{CopyOptions, CreateOptions, ListOptions, OpenOptions};
use crate::path::FsPath;
use crate::spawner::Spawner;

/// Items of a stream that may wait for their reader.
const QUEUE: usize = 4;

/// Runs every call as a task on a [`Spawner`]'s runtime: its futures and streams may be polled from any runtime, of
/// any kind, or from none (`futures::executor::block_on`).
///
/// Dropping a future or stream aborts its task. Files and writers may be dropped anywhere.
///
/// Place: at the very top, between foreign callers and everything that needs our runtime.
#[derive(Debug, Clone)]
pub struct SpawnedLayer {
    inner: Arc<dyn FileSystem>,
    spawner: Spawner,
}

impl SpawnedLayer {
    /// `inner`, with all its work on `spawner`.
    pub fn new(inner: Arc<dyn FileSystem>, spawner: Spawner) -> Self {
        SpawnedLayer { inner, spawner }
    }
}

/// Runs the stream that `make` gives on `spawner`, at most [`QUEUE`] items ahead. Nothing starts before the first
/// poll, as with any other stream.
fn run_stream<T: Send + 'static>(
    spawner: Spawner,
    make: impl FnOnce() -> BoxStream<'static, T> + Send + 'static,
) -> BoxStream<'static, T> {
    let start = async move {
        let (send, items) = mpsc::channel(QUEUE);
        let task = spawner.spawn(async move {
            let mut stream = make();
            while let Some(item) = stream.next().await {
                if send.send(item).await.is_err() {
                    return;
                }
            }
        });
        let guard = AbortOnDrop(task.abort_handle());
        stream::unfold((items, guard), |(mut items, guard)| async move {
            let item = items.recv().await?;
            Some((item, (items, guard)))
        })
    };
    stream::once(start).flatten().boxed()
}

struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A stream that stops because the runtime is gone must not look complete: it ends with this after its last item.
fn closed(operation: &'static str, path: &FsPath) -> Error {
    Error::new(ErrorKind::Interrupted, "the runtime shut down").during(operation).at(path)
}

/// Like [`run_stream`] for streams of results, which end with an error if their task does not come to its end.
fn run_results<T: Send + 'static>(
    spawner: Spawner,
    operation: &'static str,
    path: FsPath,
    make: impl FnOnce() -> BoxStream<'static, Result<T>> + Send + 'static,
) -> BoxStream<'static, Result<T>> {
    // `None` marks the end that the task itself saw.
    let marked =
        run_stream(spawner, move || make().map(Some).chain(stream::once(std::future::ready(None))).boxed());
    let finish = Some(closed(operation, &path));
    stream::unfold((marked, finish), |(mut marked, finish)| async move {
        match marked.next().await {
            Some(Some(item)) => Some((item, (marked, finish))),
            Some(None) => None,
            None => Some((Err(finish?), (marked, None))),
        }
    })
    .boxed()
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl FileSystem for SpawnedLayer {
    fn identity(&self) -> Identity {
        self.inner.identity()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn stat(&self, path: &FsPath) -> Result<Metadata> {
        let (inner, path) = (self.inner.clone(), path.clone());
        self.spawner.run(async move { inner.stat(&path).await }).await
    }

    fn list(&self, dir: &FsPath, options: ListOptions) -> EntryStream {
        let (inner, at) = (self.inner.clone(), dir.clone());
        run_results(self.spawner.clone(), "list", dir.clone(), move || inner.list(&at, options))
    }

    async fn open(&self, path: &FsPath, options: OpenOptions) -> Result<Arc<dyn File>> {
        let (inner, path) = (self.inner.clone(), path.clone());
        let file = self.spawner.run(async move { inner.open(&path, options).await }).await?;
        Ok(Arc::new(SpawnedFile { file, spawner: self.spawner.clone() }))
    }

    async fn create(&self, path: &FsPath, options: CreateOptions) -> Result<Box<dyn FileWriter>> {
        let (inner, at) = (self.inner.clone(), path.clone());
        let writer = self.spawner.run(async move { inner.create(&at, options).await }).await?;
        Ok(Box::new(SpawnedWriter {
            writer: Arc::new(Mutex::new(Some(writer))),
            broken: false,
            path: path.clone(),
            spawner: self.spawner.clone(),
        }))
    }

    fn delete(&self, paths: BoxStream<'static, FsPath>) -> BoxStream<'static, (FsPath, Result<()>)> {
        let inner = self.inner.clone();
        run_stream(self.spawner.clone(), move || inner.delete(paths))
    }

    async fn rename(&self, from: &FsPath, to: &FsPath, options: CopyOptions) -> Result<()> {
        let (inner, from, to) = (self.inner.clone(), from.clone(), to.clone());
        self.spawner.run(async move { inner.rename(&from, &to, options).await }).await
    }

    async fn copy(&self, from: &FsPath, to: &FsPath, options: CopyOptions) -> Result<()> {
        let (inner, from, to) = (self.inner.clone(), from.clone(), to.clone());
        self.spawner.run(async move { inner.copy(&from, &to, options).await }).await
    }

    async fn create_dir(&self, path: &FsPath) -> Result<()> {
        let (inner, path) = (self.inner.clone(), path.clone());
        self.spawner.run(async move { inner.create_dir(&path).await }).await
    }

    async fn remove_dir(&self, path: &FsPath) -> Result<()> {
        let (inner, path) = (self.inner.clone(), path.clone());
        self.spawner.run(async move { inner.remove_dir(&path).await }).await
    }
}

#[derive(Debug)]
struct SpawnedFile {
    file: Arc<dyn File>,
    spawner: Spawner,
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl File for SpawnedFile {
    fn path(&self) -> &FsPath {
        self.file.path()
    }

    fn metadata(&self) -> &Metadata {
        self.file.metadata()
    }

    async fn read_at(&self, range: Range<u64>) -> Result<Bytes> {
        let file = self.file.clone();
        self.spawner.run(async move { file.read_at(range).await }).await
    }

    async fn read_ranges(&self, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let (file, ranges) = (self.file.clone(), ranges.to_vec());
        self.spawner.run(async move { file.read_ranges(&ranges).await }).await
    }

    fn read_stream(&self, range: Range<u64>) -> ByteStream {
        let file = self.file.clone();
        run_results(self.spawner.clone(), "read", self.file.path().clone(), move || file.read_stream(range))
    }

    async fn read_into(&self, offset: u64, buf: Buffer) -> (Result<usize>, Buffer) {
        let file = self.file.clone();
        // Only needed if the task dies with the buffer, and nearly always empty.
        let (lead, capacity) = (buf.to_vec(), buf.capacity());
        let task = self.spawner.run(async move { Ok(file.read_into(offset, buf).await) });
        task.await.unwrap_or_else(|e| {
            let mut buf = Buffer::with_capacity(capacity);
            buf.append(&lead);
            (Err(e.during("read").at(self.file.path())), buf)
        })
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_fd()
    }
}

/// A writer whose calls run elsewhere; it is away while one does, and a dropped call takes it along (which aborts).
#[derive(Debug)]
struct SpawnedWriter {
    /// Shared with the call under way: whoever drops that call can still abort the writer and wait for it.
    writer: Arc<Mutex<Option<Box<dyn FileWriter>>>>,
    /// A call was dropped or has failed: nobody knows what of it was taken.
    broken: bool,
    path: FsPath,
    spawner: Spawner,
}

impl SpawnedWriter {
    fn check(&self, operation: &'static str) -> Result<()> {
        match self.broken {
            true => Err(broken(operation, &self.path)),
            false => Ok(()),
        }
    }
}

fn broken(operation: &'static str, path: &FsPath) -> Error {
    Error::new(
        ErrorKind::Interrupted,
        "one of the writer's calls was dropped or failed: it can only be aborted",
    )
    .during(operation)
    .at(path)
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl FileWriter for SpawnedWriter {
    async fn write(&mut self, data: Bytes) -> Result<()> {
        self.check("write")?;
        self.broken = true;
        let (writer, path) = (self.writer.clone(), self.path.clone());
        let task = self.spawner.run(async move {
            match &mut *writer.lock().await {
                Some(writer) => writer.write(data).await,
                None => Err(broken("write", &path)),
            }
        });
        task.await?;
        self.broken = false;
        Ok(())
    }

    async fn finish(self: Box<Self>) -> Result<Metadata> {
        self.check("finish")?;
        match self.writer.lock().await.take() {
            Some(writer) => self.spawner.run(writer.finish()).await,
            None => Err(broken("finish", &self.path)),
        }
    }

    async fn abort(self: Box<Self>) -> Result<()> {
        // A call that was dropped lets go as soon as the runtime gets to it.
        match self.writer.lock().await.take() {
            Some(writer) => self.spawner.run(writer.abort()).await,
            None => Ok(()),
        }
    }
}

impl Drop for SpawnedWriter {
    fn drop(&mut self) {
        // Aborting may start a task, which needs the runtime, and this thread may have none.
        let _inside = self.spawner.handle().enter();
        self.writer = Arc::default();
    }
}
