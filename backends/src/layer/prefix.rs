//! [`PrefixLayer`]: a directory of a filesystem as a filesystem of its own.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::task::Poll;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt, future};

use crate::capability::Capabilities;
use crate::error::{Error, ErrorKind, Result};
use crate::file::{ByteStream, File, FileWriter};
use crate::fs::{EntryStream, FileSystem, Identity};
use crate::io::Buffer;
use crate::metadata::Metadata;
use crate::options::{CopyOptions, CreateOptions, ListOptions, OpenOptions};
use crate::path::FsPath;

/// Shows the directory `prefix` of a filesystem as the root. The directory need not exist: the root is then empty,
/// and the first file makes it. Nothing outside of it can be reached, and errors name paths as this root sees them.
///
/// Place: directly above the store, so that every other layer and cache speaks of the paths that users see.
#[derive(Debug, Clone)]
pub struct PrefixLayer {
    inner: Arc<dyn FileSystem>,
    prefix: FsPath,
}

impl PrefixLayer {
    /// The directory `prefix` of `inner`.
    pub fn new(inner: Arc<dyn FileSystem>, prefix: FsPath) -> Self {
        PrefixLayer { inner, prefix }
    }

    fn inside(&self, path: &FsPath) -> FsPath {
        self.prefix.join_path(path)
    }
}

/// What the root answers itself, because the directory it stands for may be absent underneath.
fn root_error(kind: ErrorKind, operation: &'static str) -> Error {
    let message = match kind {
        ErrorKind::AlreadyExists => "the root always exists",
        ErrorKind::IsADirectory => "the root is a directory",
        _ => "the root cannot be removed",
    };
    Error::new(kind, message).during(operation).at(&FsPath::root())
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl FileSystem for PrefixLayer {
    fn identity(&self) -> Identity {
        let mut identity = self.inner.identity();
        if !self.prefix.is_root() {
            if !identity.url.ends_with('/') {
                identity.url.push('/');
            }
            identity.url.push_str(&self.prefix.to_string());
        }
        identity
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn stat(&self, path: &FsPath) -> Result<Metadata> {
        match self.inner.stat(&self.inside(path)).await {
            Err(e) if path.is_root() && e.kind() == ErrorKind::NotFound => Ok(Metadata::dir()),
            Ok(found) if path.is_root() && found.is_file() => {
                Err(Error::new(ErrorKind::NotADirectory, "a file has the name of the root's directory")
                    .during("stat")
                    .at(path))
            }
            other => other.map_err(|e| e.with_path(path)),
        }
    }

    fn list(&self, dir: &FsPath, options: ListOptions) -> EntryStream {
        let start_after = options.start_after.map(|after| self.inside(&after));
        let entries =
            self.inner.list(&self.inside(dir), ListOptions { recursive: options.recursive, start_after });
        let (prefix, dir) = (self.prefix.clone(), dir.clone());
        let absent_root = {
            let root = dir.is_root();
            move |e: &Error| root && e.kind() == ErrorKind::NotFound
        };
        entries
            // A root whose directory does not exist is an empty one.
            .take_while(move |item| future::ready(!item.as_ref().is_err_and(&absent_root)))
            .map(move |item| {
                let mut entry = item.map_err(|e| e.with_path(&dir))?;
                entry.path = entry.path.strip_prefix(&prefix).ok_or_else(|| {
                    Error::new(ErrorKind::Corrupt, "the listing left its directory").during("list").at(&dir)
                })?;
                Ok(entry)
            })
            .boxed()
    }

    async fn open(&self, path: &FsPath, options: OpenOptions) -> Result<Arc<dyn File>> {
        if path.is_root() {
            return Err(root_error(ErrorKind::IsADirectory, "open"));
        }
        let file = self.inner.open(&self.inside(path), options).await.map_err(|e| e.with_path(path))?;
        Ok(Arc::new(PrefixFile { file, path: path.clone() }))
    }

    async fn create(&self, path: &FsPath, options: CreateOptions) -> Result<Box<dyn FileWriter>> {
        if path.is_root() {
            return Err(root_error(ErrorKind::IsADirectory, "create"));
        }
        let writer = self.inner.create(&self.inside(path), options).await.map_err(|e| e.with_path(path))?;
        Ok(Box::new(PrefixWriter { writer, path: path.clone() }))
    }

    fn delete(&self, paths: BoxStream<'static, FsPath>) -> BoxStream<'static, (FsPath, Result<()>)> {
        // The store must not be asked to delete the directory itself: the root is answered here, in passing.
        let (roots, mut answers) = futures::channel::mpsc::unbounded();
        let prefix = self.prefix.clone();
        let inside = paths.filter_map(move |path| {
            if path.is_root() {
                // The receiver lives in the stream that is polled; a failure means nobody listens any more.
                let _ = roots.unbounded_send((path, Err(root_error(ErrorKind::IsADirectory, "delete"))));
                return future::ready(None);
            }
            future::ready(Some(prefix.join_path(&path)))
        });
        let prefix = self.prefix.clone();
        let deleted = self.inner.delete(inside.boxed()).map(move |(path, result)| {
            let outer = path.strip_prefix(&prefix).unwrap_or(path);
            let result = result.map_err(|e| e.with_path(&outer));
            (outer, result)
        });
        let mut deleted = Some(deleted);
        stream::poll_fn(move |cx| {
            let polled = deleted.as_mut().map(|d| d.poll_next_unpin(cx));
            match polled {
                Some(Poll::Ready(Some(item))) => return Poll::Ready(Some(item)),
                // With the stream goes the sender, so that the answers end too.
                Some(Poll::Ready(None)) => deleted = None,
                Some(Poll::Pending) | None => {}
            }
            answers.poll_next_unpin(cx)
        })
        .boxed()
    }

    async fn rename(&self, from: &FsPath, to: &FsPath, options: CopyOptions) -> Result<()> {
        if from.is_root() || to.is_root() {
            return Err(root_error(ErrorKind::IsADirectory, "rename"));
        }
        let renamed = self.inner.rename(&self.inside(from), &self.inside(to), options).await;
        renamed.map_err(|e| e.with_path(from))
    }

    async fn copy(&self, from: &FsPath, to: &FsPath, options: CopyOptions) -> Result<()> {
        if from.is_root() || to.is_root() {
            return Err(root_error(ErrorKind::IsADirectory, "copy"));
        }
        let copied = self.inner.copy(&self.inside(from), &self.inside(to), options).await;
        copied.map_err(|e| e.with_path(from))
    }

    async fn create_dir(&self, path: &FsPath) -> Result<()> {
        if path.is_root() {
            return Err(root_error(ErrorKind::AlreadyExists, "create_dir"));
        }
        self.inner.create_dir(&self.inside(path)).await.map_err(|e| e.with_path(path))
    }

    async fn remove_dir(&self, path: &FsPath) -> Result<()> {
        if path.is_root() {
            return Err(root_error(ErrorKind::PermissionDenied, "remove_dir"));
        }
        self.inner.remove_dir(&self.inside(path)).await.map_err(|e| e.with_path(path))
    }
}

#[derive(Debug)]
struct PrefixFile {
    file: Arc<dyn File>,
    path: FsPath,
}

impl PrefixFile {
    fn outer(&self, e: Error) -> Error {
        e.with_path(&self.path)
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl File for PrefixFile {
    fn path(&self) -> &FsPath {
        &self.path
    }

    fn metadata(&self) -> &Metadata {
        self.file.metadata()
    }

    async fn read_at(&self, range: Range<u64>) -> Result<Bytes> {
        self.file.read_at(range).await.map_err(|e| self.outer(e))
    }

    async fn read_ranges(&self, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.file.read_ranges(ranges).await.map_err(|e| self.outer(e))
    }

    fn read_stream(&self, range: Range<u64>) -> ByteStream {
        let path = self.path.clone();
        self.file.read_stream(range).map_err(move |e| e.with_path(&path)).boxed()
    }

    async fn read_into(&self, offset: u64, buf: Buffer) -> (Result<usize>, Buffer) {
        let (result, buf) = self.file.read_into(offset, buf).await;
        (result.map_err(|e| self.outer(e)), buf)
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_fd()
    }
}

#[derive(Debug)]
struct PrefixWriter {
    writer: Box<dyn FileWriter>,
    path: FsPath,
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl FileWriter for PrefixWriter {
    async fn write(&mut self, data: Bytes) -> Result<()> {
        self.writer.write(data).await.map_err(|e| e.with_path(&self.path))
    }

    async fn finish(self: Box<Self>) -> Result<Metadata> {
        self.writer.finish().await.map_err(|e| e.with_path(&self.path))
    }

    async fn abort(self: Box<Self>) -> Result<()> {
        self.writer.abort().await.map_err(|e| e.with_path(&self.path))
    }
}
