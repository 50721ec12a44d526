//! [`CachedFile`]: one version of one file, read through the cache.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use nearfs_backends::io::Buffer;
use nearfs_backends::{ByteStream, File, FileSystem, FsPath, Metadata, OpenOptions, Result, range};
use tokio::sync::OnceCell;

use crate::stats::Counters;

/// One version of one file, read through the cache. All handles of one (path, version) share one.
#[derive(Debug)]
pub struct CachedFile {
    path: FsPath,
    metadata: Metadata,
    inner: OnceCell<Arc<dyn File>>,
    fs: Arc<dyn FileSystem>,
    stale: OnceLock<()>,
    stats: Arc<Counters>,
}

impl CachedFile {
    pub(crate) fn new(
        fs: Arc<dyn FileSystem>,
        path: FsPath,
        metadata: Metadata,
        stats: Arc<Counters>,
    ) -> Self {
        CachedFile { path, metadata, inner: OnceCell::new(), fs, stale: OnceLock::new(), stats }
    }

    /// The path it was opened by.
    pub fn path(&self) -> &FsPath {
        &self.path
    }

    /// Metadata of the pinned version.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The bytes of `range` (clamped to the size) in one piece, if all of them are in memory: no input or output, no
    /// waiting. `None` if not, or if the file is known to be stale: then [`CachedFile::read`] says so.
    pub fn try_read(&self, range: Range<u64>) -> Option<Bytes> {
        range::clamp(range, self.metadata.size).is_empty().then(Bytes::new)
    }

    /// The bytes of `range`, clamped to the size.
    ///
    /// # Errors
    /// As every read of a [`File`].
    ///
    /// # Cancellation
    /// Dropping the call gives up this caller's wait only: others that wait for the same bytes get them.
    pub async fn read(&self, range: Range<u64>) -> Result<Bytes> {
        let range = range::clamp(range, self.metadata.size);
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let bytes = self.inner().await?.read_at(range).await?;
        self.stats.bytes_served.add(bytes.len() as u64);
        Ok(bytes)
    }

    async fn inner(&self) -> Result<&Arc<dyn File>> {
        let options = OpenOptions { metadata: Some(self.metadata.clone()) };
        self.inner.get_or_try_init(|| self.fs.open(&self.path, options)).await
    }
}

#[async_trait]
impl File for CachedFile {
    fn path(&self) -> &FsPath {
        &self.path
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    async fn read_at(&self, range: Range<u64>) -> Result<Bytes> {
        self.read(range).await
    }

    async fn read_ranges(&self, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        futures::future::try_join_all(ranges.iter().map(|r| self.read(r.clone()))).await
    }

    fn read_stream(&self, range: Range<u64>) -> ByteStream {
        let (fs, path, metadata) = (self.fs.clone(), self.path.clone(), self.metadata.clone());
        let open = async move { fs.open(&path, OpenOptions { metadata: Some(metadata) }).await };
        futures::stream::once(open).map_ok(move |file| file.read_stream(range.clone())).try_flatten().boxed()
    }

    async fn read_into(&self, offset: u64, mut buf: Buffer) -> (Result<usize>, Buffer) {
        match self.read(offset..offset.saturating_add(buf.remaining() as u64)).await {
            Ok(bytes) => (Ok(buf.append(&bytes)), buf),
            Err(e) => (Err(e), buf),
        }
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
