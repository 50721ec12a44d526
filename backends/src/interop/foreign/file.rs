//! Reads of one version, each answer of which is compared with it.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, StreamExt};
use futures::{FutureExt, TryStreamExt};
use object_store::path::Path;
use object_store::{DynObjectStore, GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt};

use crate::error::{Error, ErrorKind, Result};
use crate::ext::{collect, failed, fill};
use crate::file::{ByteStream, File};
use crate::interop::error::{cut_short, from_store, version_of};
use crate::io::Buffer;
use crate::metadata::Metadata;
use crate::path::FsPath;
use crate::range::{clamp, coalesce};

/// Ranges at most so far apart are fetched in one request: at a usual speed the gap costs less than a round trip.
const MERGE_GAP: u64 = 1 << 20;

/// Requests of one `read_ranges` under way at a time.
const SIDE_BY_SIDE: usize = 8;

#[derive(Debug)]
pub(super) struct ObjectFile(Arc<Inner>);

struct Inner {
    store: Arc<DynObjectStore>,
    location: Path,
    path: FsPath,
    metadata: Metadata,
    /// Once stale, always stale, also if the old version came back.
    stale: AtomicBool,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} at {}", self.path, self.metadata.version)
    }
}

impl ObjectFile {
    pub(super) fn new(store: Arc<DynObjectStore>, location: Path, path: FsPath, metadata: Metadata) -> Self {
        ObjectFile(Arc::new(Inner { store, location, path, metadata, stale: AtomicBool::new(false) }))
    }
}

impl Inner {
    fn stale(&self) -> Error {
        self.stale.store(true, Ordering::Relaxed);
        Error::new(ErrorKind::Stale, "the object is no longer the version that was opened")
            .during("read")
            .at(&self.path)
    }

    fn is_pinned(&self, found: &ObjectMeta) -> bool {
        let pinned = &self.metadata;
        let same = match &pinned.version {
            version if version.is_known() => version_of(found) == *version,
            // Without an identity at least what else was seen must hold.
            _ => pinned.modified.is_none_or(|m| m == SystemTime::from(found.last_modified)),
        };
        same && found.size == pinned.size
    }

    /// Whether a failed read failed because the version is gone: a range that a shorter object does not have is
    /// reported in no way that could be told from other failures.
    async fn is_gone(&self, e: &Error) -> bool {
        match e.kind() {
            ErrorKind::NotFound => true,
            ErrorKind::Unavailable => match self.store.head(&self.location).await {
                Ok(found) => !self.is_pinned(&found),
                Err(e) => matches!(e, object_store::Error::NotFound { .. }),
            },
            _ => false,
        }
    }

    /// One request for a range that is not empty and lies inside the object.
    async fn fetch(self: Arc<Self>, range: Range<u64>) -> Result<ByteStream> {
        if self.stale.load(Ordering::Relaxed) {
            return Err(self.stale());
        }
        let options = GetOptions { range: Some(GetRange::Bounded(range.clone())), ..Default::default() };
        let answer = match self.store.get_opts(&self.location, options).await {
            Ok(answer) => answer,
            Err(e) => {
                let e = from_store(e, "read", &self.path);
                return Err(if self.is_gone(&e).await { self.stale() } else { e });
            }
        };
        if !self.is_pinned(&answer.meta) {
            return Err(self.stale());
        }
        if answer.range != range {
            let text = format!("bytes {:?} came where {range:?} were asked for", answer.range);
            return Err(Error::new(ErrorKind::Corrupt, text).during("read").at(&self.path));
        }
        Ok(counted(self, answer.into_stream(), range.end - range.start))
    }

    fn stream(self: Arc<Self>, range: Range<u64>) -> ByteStream {
        let range = clamp(range, self.metadata.size);
        if range.is_empty() {
            return stream::empty().boxed();
        }
        let fetched = async move { self.fetch(range).await.unwrap_or_else(failed) };
        fetched.flatten_stream().boxed()
    }
}

/// Exactly `expected` bytes, or an error.
fn counted(
    file: Arc<Inner>,
    body: futures::stream::BoxStream<'static, object_store::Result<Bytes>>,
    expected: u64,
) -> ByteStream {
    stream::unfold(Some((body, expected)), move |state| {
        let file = file.clone();
        async move {
            let (mut body, missing) = state?;
            match body.next().await {
                Some(Ok(chunk)) if chunk.len() as u64 > missing => {
                    let e = Error::new(ErrorKind::Corrupt, "more bytes came than were asked for");
                    Some((Err(e.during("read").at(&file.path)), None))
                }
                Some(Ok(chunk)) => {
                    let missing = missing - chunk.len() as u64;
                    Some((Ok(chunk), Some((body, missing))))
                }
                Some(Err(e)) => Some((Err(from_store(e, "read", &file.path)), None)),
                None if missing == 0 => None,
                None => Some((Err(cut_short(missing, &file.path)), None)),
            }
        }
    })
    .boxed()
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl File for ObjectFile {
    fn path(&self) -> &FsPath {
        &self.0.path
    }

    fn metadata(&self) -> &Metadata {
        &self.0.metadata
    }

    async fn read_at(&self, range: Range<u64>) -> Result<Bytes> {
        let range = clamp(range, self.0.metadata.size);
        let length = range.end - range.start;
        collect(self.read_stream(range), length as usize).await
    }

    async fn read_ranges(&self, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let size = self.0.metadata.size;
        let ranges: Vec<_> = ranges.iter().map(|r| clamp(r.clone(), size)).collect();
        let merged = coalesce(&ranges, MERGE_GAP);
        let fetched: Vec<Bytes> = stream::iter(merged.clone())
            .map(|range| self.read_at(range))
            .buffered(SIDE_BY_SIDE)
            .try_collect()
            .await?;
        Ok(ranges
            .into_iter()
            .map(|range| {
                let at = merged.partition_point(|m| m.end < range.end);
                match merged.get(at) {
                    Some(whole) if !range.is_empty() => {
                        let from = (range.start - whole.start) as usize;
                        fetched[at].slice(from..from + (range.end - range.start) as usize)
                    }
                    _ => Bytes::new(),
                }
            })
            .collect())
    }

    fn read_stream(&self, range: Range<u64>) -> ByteStream {
        self.0.clone().stream(range)
    }

    async fn read_into(&self, offset: u64, buf: Buffer) -> (Result<usize>, Buffer) {
        fill(self.read_stream(offset..offset.saturating_add(buf.remaining() as u64)), buf).await
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
