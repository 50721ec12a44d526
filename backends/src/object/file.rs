//! [`S3File`]: one version of one object, read in ranges.

mod counted;
mod proof;

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, StreamExt, TryStreamExt};
use http::{HeaderName, Method, header};

use super::Shared;
use super::error::Refusal;
use super::wire::list::version;
use super::wire::request::{Answer, Request};
use super::wire::xml::malformed;
use crate::error::{Error, ErrorKind, Result};
use crate::file::{ByteStream, File};
use crate::io::Buffer;
use crate::metadata::{Metadata, Version};
use crate::options::OpenOptions;
use crate::path::FsPath;
use crate::range::clamp;
use counted::{Counted, Proofs};
use proof::Proof;

/// Asks for the checksum that the store keeps of an object; it goes out with whole objects only, as it is of those.
const CHECKSUM_MODE: HeaderName = HeaderName::from_static("x-amz-checksum-mode");

/// Opens `path`, asking the store only for what is not known.
pub(crate) async fn open(shared: Arc<Shared>, path: &FsPath, options: OpenOptions) -> Result<S3File> {
    let mut metadata = match options.metadata {
        Some(known) => known,
        None => shared.stat(path).await?,
    };
    if metadata.is_dir() {
        return Err(Error::new(ErrorKind::IsADirectory, "a directory, expected a file"));
    }
    let key = shared.key(path)?;
    if metadata.archived {
        // A listing may not know that it has been restored: worth one question, because the answer is final.
        let now = shared.wire.head(&key).await?;
        if now.archived {
            return Err(archived());
        }
        if metadata.version.is_known() && now.version != metadata.version {
            return Err(stale());
        }
        metadata = now;
    }
    let file = FileState {
        shared,
        path: path.clone(),
        key,
        metadata,
        learned: OnceLock::new(),
        stale: AtomicBool::new(false),
        proofs: Proofs::default(),
    };
    Ok(S3File(Arc::new(file)))
}

/// An open object.
#[derive(Debug)]
pub(crate) struct S3File(Arc<FileState>);

#[derive(Debug)]
struct FileState {
    shared: Arc<Shared>,
    path: FsPath,
    key: String,
    metadata: Metadata,
    /// The version of the first answer, where none was known at open.
    learned: OnceLock<Version>,
    /// Once gone, gone for ever: what comes back later under this name is another object.
    stale: AtomicBool,
    proofs: Proofs,
}

impl FileState {
    fn pinned(&self) -> &Version {
        if self.metadata.version.is_known() {
            return &self.metadata.version;
        }
        self.learned.get().unwrap_or(&Version::Unknown)
    }

    fn stale(&self) -> Error {
        self.stale.store(true, Ordering::Relaxed);
        stale()
    }

    fn is_whole(&self, range: &Range<u64>) -> bool {
        *range == (0..self.metadata.size)
    }

    /// Asks for `range` (inside the object, not empty) and checks what the answer claims to be.
    async fn fetch(&self, range: &Range<u64>) -> Result<Answer> {
        if self.stale.load(Ordering::Relaxed) {
            return Err(stale());
        }
        let request = Request::new(Method::GET, &*self.key);
        let mut request = if self.is_whole(range) {
            // Without a range, because a store may tell the checksum only then.
            request.header(CHECKSUM_MODE, "ENABLED")?
        } else {
            request.header(header::RANGE, &format!("bytes={}-{}", range.start, range.end - 1))?
        };
        if let Version::Tag(tag) = self.pinned() {
            request = request.header(header::IF_MATCH, &format!("\"{tag}\""))?;
        }
        match self.shared.wire.send(request).await {
            Ok(answer) => {
                self.check(&answer, range)?;
                Ok(answer)
            }
            Err(refusal) => Err(self.refused(refusal).await),
        }
    }

    async fn refused(&self, refusal: Refusal) -> Error {
        match refusal.status {
            412 => self.stale(),
            404 if refusal.is_absent() => self.stale(),
            // No byte at this offset of what is there now: another object, or a confused server?
            416 => match self.shared.wire.head(&self.key).await {
                Ok(now) if now.size == self.metadata.size && now.version == *self.pinned() => {
                    malformed("refuses a range that the object has")
                }
                Ok(_) => self.stale(),
                Err(gone) if gone.is_absent() => self.stale(),
                Err(other) => other.into(),
            },
            _ => refusal.into(),
        }
    }

    /// Compares the answer with the version pinned and the range asked for. Servers exist that ignore conditions or
    /// ranges: what a status promises is not enough.
    fn check(&self, answer: &Answer, range: &Range<u64>) -> Result<()> {
        let size = self.metadata.size;
        let now = version(answer.header("etag"));
        match self.pinned() {
            Version::Unknown => {
                let _ = self.learned.set(now);
            }
            pinned if *pinned == now => {}
            _ if !now.is_known() => return Err(malformed("does not say which version it is")),
            _ => return Err(self.stale()),
        }
        let length =
            answer.header("content-length").map(|l| l.parse::<u64>().map_err(|_| malformed("has no length")));
        let length = length.transpose()?;
        if answer.status.as_u16() == 206 {
            let said = answer.header("content-range").and_then(parse_content_range);
            let Some((start, end, total)) = said else {
                return Err(malformed("has no usable Content-Range"));
            };
            if total.is_some_and(|t| t != size) {
                // The same version cannot have another size: where the store ignores conditions this tells.
                return Err(self.stale());
            }
            if start != range.start || end != range.end {
                let text = format!("is for bytes {start}..{end}, expected {}..{}", range.start, range.end);
                return Err(malformed(&text));
            }
            return expect_length(length, range.end - range.start);
        }
        if self.is_whole(range) && length.is_some_and(|l| l != size && l > 0) {
            // As above. An answer without any bytes is something else: servers in trouble give it.
            return Err(self.stale());
        }
        // The whole object instead of a part of it: of use only from the beginning.
        if range.start > 0 {
            return Err(malformed("is the whole object, expected a part of it"));
        }
        expect_length(length, size)
    }
}

fn expect_length(said: Option<u64>, expected: u64) -> Result<()> {
    match said {
        Some(length) if length != expected => {
            Err(malformed(&format!("has {length} bytes, expected {expected}")))
        }
        _ => Ok(()),
    }
}

/// `bytes 0-9/100` as 0, 10, 100.
fn parse_content_range(text: &str) -> Option<(u64, u64, Option<u64>)> {
    let (range, total) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
    let (start, last) = range.split_once('-')?;
    let total = match total {
        "*" => None,
        total => Some(total.parse().ok()?),
    };
    Some((start.parse().ok()?, last.parse::<u64>().ok()?.checked_add(1)?, total))
}

fn stale() -> Error {
    Error::new(ErrorKind::Stale, "the object is no longer the version that was opened")
        .with_context("hint", "open it again")
}

fn archived() -> Error {
    Error::new(ErrorKind::Archived, "the object is archived and must be restored first")
        .with_context("hint", "restore it at the store, then open it again")
}

impl FileState {
    /// The bytes of `range`; `streamed` if somebody may go on where they break off.
    async fn counted(self: Arc<Self>, range: Range<u64>, streamed: bool) -> Result<Counted> {
        if range.is_empty() {
            return Err(Error::new(ErrorKind::InvalidInput, "an empty range needs no request"));
        }
        let answer = self.fetch(&range).await?;
        let proof = if self.is_whole(&range) { Proof::promised(&answer.headers) } else { None };
        Ok(Counted::new(self, answer.body, range, proof, streamed))
    }

    /// Appends the bytes of `range` (not empty) to `buf`, which has the room.
    async fn fill(self: &Arc<Self>, range: Range<u64>, buf: &mut Buffer) -> Result<()> {
        let mut counted = Arc::clone(self).counted(range, false).await?;
        while let Some(chunk) = counted.next().await {
            buf.append(&chunk?);
        }
        Ok(())
    }

    async fn read(self: &Arc<Self>, range: Range<u64>) -> Result<Bytes> {
        let range = clamp(range, self.metadata.size);
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let len = usize::try_from(range.end - range.start)
            .map_err(|_| Error::new(ErrorKind::InvalidInput, "the range does not fit into memory"))?;
        // Copied even if it came in one piece: a piece keeps alive the larger buffer that it was received in.
        let mut buf = self.shared.buffers.get(len);
        self.fill(range, &mut buf).await?;
        Ok(buf.freeze())
    }

    fn named(&self, e: Error) -> Error {
        e.during("read").at(&self.path)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl File for S3File {
    fn path(&self) -> &FsPath {
        &self.0.path
    }

    fn metadata(&self) -> &Metadata {
        &self.0.metadata
    }

    async fn read_at(&self, range: Range<u64>) -> Result<Bytes> {
        self.0.read(range).await.map_err(|e| self.0.named(e))
    }

    async fn read_ranges(&self, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let read = |range| {
            let file = Arc::clone(&self.0);
            async move { file.read(range).await }
        };
        let read = crate::ext::read_merged(ranges, self.0.metadata.size, read).await;
        read.map_err(|e| self.0.named(e))
    }

    fn read_stream(&self, range: Range<u64>) -> ByteStream {
        let range = clamp(range, self.0.metadata.size);
        if range.is_empty() {
            return stream::empty().boxed();
        }
        let file = Arc::clone(&self.0);
        let named = Arc::clone(&self.0);
        let body = file.counted(range, true);
        stream::once(body).try_flatten().map_err(move |e| named.named(e)).boxed()
    }

    async fn read_into(&self, offset: u64, mut buf: Buffer) -> (Result<usize>, Buffer) {
        let range = clamp(offset..offset.saturating_add(buf.remaining() as u64), self.0.metadata.size);
        if range.is_empty() {
            return (Ok(0), buf);
        }
        let before = buf.len();
        let filled = self.0.fill(range, &mut buf).await;
        match filled {
            Ok(()) => (Ok(buf.len() - before), buf),
            Err(e) => {
                buf.truncate(before);
                (Err(self.0.named(e)), buf)
            }
        }
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_range_is_read_strictly() {
        assert_eq!(parse_content_range("bytes 0-9/100"), Some((0, 10, Some(100))));
        assert_eq!(parse_content_range("bytes 5-5/*"), Some((5, 6, None)));
        for bad in
            ["", "bytes */100", "bytes 0-9", "0-9/100", "bytes 0-18446744073709551615/1", "bytes a-b/c"]
        {
            assert_eq!(parse_content_range(bad), None, "{bad}");
        }
    }
}
