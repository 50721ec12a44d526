//! An open local file: a descriptor, and the proof after each read that it is still the version it was.

use std::fmt;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::Inner;
use super::attr::{self, Found};
use crate::error::{Error, ErrorKind, Result};
use crate::file::{ByteStream, File};
use crate::io::{Buffer, Medium, Source};
use crate::metadata::Metadata;
use crate::path::FsPath;
use crate::range::{clamp, split};

/// Length of the pieces of a read stream, in bytes; one is read ahead of the one being used.
const STREAM_PIECE: u64 = 1 << 20;
/// Ranges of one `read_ranges` that are read at the same time.
const SIDE_BY_SIDE: usize = 16;

/// Opens the regular file `path`, at the version of `wanted` if that is given and known.
pub(super) fn open(
    fs: &Inner,
    shared: Arc<Inner>,
    path: &FsPath,
    wanted: Option<Metadata>,
) -> Result<LocalFile> {
    let wanted = wanted.map(|m| m.version).filter(|v| v.is_known());
    let (fd, metadata) = open_regular(fs, path).map_err(|e| match e.kind() {
        ErrorKind::NotFound if wanted.is_some() => stale("the file is gone"),
        _ => e,
    })?;
    if wanted.is_some_and(|v| v != metadata.version) {
        return Err(stale("the file has another version now"));
    }
    let source = fs.engine.adopt(fd);
    let open = Open { fs: shared, path: path.clone(), metadata, source, stale: AtomicBool::new(false) };
    Ok(LocalFile(Arc::new(open)))
}

/// Opens a regular file for reading; anything else is refused untouched.
pub(super) fn open_regular(fs: &Inner, path: &FsPath) -> Result<(std::os::fd::OwnedFd, Metadata)> {
    let name = attr::name(path);
    // Looked at before it is opened: opening a FIFO or a device is noticed on its other side.
    let stat =
        rustix::fs::statat(&fs.root, name, AtFlags::empty()).map_err(|e| attr::lookup_error(e, path))?;
    regular(attr::classify(&stat))?;
    // If it has been replaced meanwhile, NONBLOCK keeps a FIFO from holding the thread.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let fd = rustix::fs::openat(&fs.root, name, flags, Mode::empty()).map_err(|e| match e {
        Errno::NXIO => attr::special("socket or device"),
        e => attr::lookup_error(e, path),
    })?;
    let stat = rustix::fs::fstat(&fd).map_err(attr::error)?;
    let metadata = regular(attr::classify(&stat))?;
    // io_uring reads O_NONBLOCK literally where a filesystem cannot read asynchronously.
    rustix::fs::fcntl_setfl(&fd, OFlags::empty()).map_err(attr::error)?;
    Ok((fd, metadata))
}

fn regular(found: Found) -> Result<Metadata> {
    match found {
        Found::Known(metadata) if metadata.is_file() => Ok(metadata),
        Found::Known(_) => Err(Error::new(ErrorKind::IsADirectory, "a directory has this name")),
        Found::Special(kind) => Err(attr::special(kind)),
    }
}

fn stale(message: &str) -> Error {
    Error::new(ErrorKind::Stale, message)
}

/// Clones share the descriptor.
#[derive(Clone)]
pub(super) struct LocalFile(Arc<Open>);

struct Open {
    fs: Arc<Inner>,
    path: FsPath,
    metadata: Metadata,
    source: Source,
    stale: AtomicBool,
}

impl LocalFile {
    async fn read(&self, offset: u64, buf: Buffer) -> (Result<usize>, Buffer) {
        let open = &*self.0;
        let range = clamp(offset..offset.saturating_add(buf.remaining() as u64), open.metadata.size);
        let want = (range.end - range.start) as usize;
        if want == 0 {
            return (Ok(0), buf);
        }
        if open.stale.load(Ordering::Relaxed) {
            return (Err(self.changed()), buf);
        }
        let before = buf.len();
        let (result, mut buf) = open.fs.engine.read(&open.source, range.start, buf, want).await;
        let proven = match result {
            Ok(n) => self.prove().await.and(if n == want { Ok(n) } else { Err(self.changed()) }),
            Err(e) => Err(e.during("read").at(&open.path)),
        };
        if proven.is_err() {
            buf.truncate(before);
        }
        (proven, buf)
    }

    /// Fails if the file is no longer what was opened. After the read: what changes the bytes changes the time first.
    async fn prove(&self) -> Result<()> {
        let now = match self.0.source.medium() {
            Medium::Disk => attr::version_of(&self.0.source),
            Medium::Network => {
                let source = self.0.source.clone();
                self.0.fs.engine.pool().run("read", move |_| attr::version_of(&source)).await
            }
        };
        match now {
            Ok(version) if version == self.0.metadata.version => Ok(()),
            Ok(_) => Err(self.changed()),
            Err(e) => Err(e.during("read").at(&self.0.path)),
        }
    }

    fn changed(&self) -> Error {
        self.0.stale.store(true, Ordering::Relaxed);
        stale("the file was changed after it was opened").during("read").at(&self.0.path)
    }
}

impl fmt::Debug for LocalFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalFile")
            .field("path", &self.0.path)
            .field("version", &self.0.metadata.version)
            .finish()
    }
}

#[async_trait]
impl File for LocalFile {
    fn path(&self) -> &FsPath {
        &self.0.path
    }

    fn metadata(&self) -> &Metadata {
        &self.0.metadata
    }

    async fn read_at(&self, range: Range<u64>) -> Result<Bytes> {
        let range = clamp(range, self.0.metadata.size);
        let buf = self.0.fs.buffers.get((range.end - range.start) as usize);
        let (result, buf) = self.read(range.start, buf).await;
        result.map(|_| buf.freeze())
    }

    async fn read_ranges(&self, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let reads: Vec<_> = ranges.iter().map(|r| (self.clone(), r.clone())).collect();
        let reads = reads.into_iter().map(|(file, range)| async move { file.read_at(range).await });
        futures::stream::iter(reads).buffered(SIDE_BY_SIDE).try_collect().await
    }

    fn read_stream(&self, range: Range<u64>) -> ByteStream {
        let file = self.clone();
        let pieces = split(clamp(range, file.0.metadata.size), STREAM_PIECE);
        let reads = futures::stream::iter(pieces).map(move |piece| {
            let file = file.clone();
            async move { file.read_at(piece).await }
        });
        end_after_error(reads.buffered(2)).boxed()
    }

    async fn read_into(&self, offset: u64, buf: Buffer) -> (Result<usize>, Buffer) {
        self.read(offset, buf).await
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        (!self.0.stale.load(Ordering::Relaxed)).then(|| self.0.source.as_fd())
    }
}

/// The stream up to and with its first error.
pub(super) fn end_after_error<T: Send>(
    stream: impl futures::Stream<Item = Result<T>> + Send,
) -> impl futures::Stream<Item = Result<T>> + Send {
    let mut failed = false;
    stream.take_while(move |item| {
        let go_on = !failed;
        failed = item.is_err();
        std::future::ready(go_on)
    })
}
