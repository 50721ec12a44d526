//! [`File`] and [`FileWriter`]: one version of one file, read in ranges; a new version, written front to back.

use std::fmt;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;

use crate::error::Result;
use crate::io::Buffer;
use crate::metadata::Metadata;
use crate::path::FsPath;

/// The bytes of a range, in order. Ends after exactly the (clamped) range, or with one `Err`.
pub type ByteStream = BoxStream<'static, Result<Bytes>>;

/// One version of one file. All reads give bytes of that version or fail; nothing is ever mixed.
///
/// Ranges are in bytes and clamped to the size: a read at or after the end gives no bytes and makes no request, a
/// read across the end gives what is there. A shorter answer never happens without an error.
///
/// # Errors
/// Every read: `Stale` if the store no longer has this version (also when the object is gone), `Archived`,
/// `PermissionDenied`, `Corrupt`, `TimedOut`, `Unavailable`, `Throttled`. A file that has once been `Stale` stays so.
///
/// # Cancellation
/// Dropping a future or stream cancels the request and loses nothing. Buffers handed to [`File::read_into`] belong to
/// the operation until it ends, also when its future is dropped.
#[async_trait]
pub trait File: fmt::Debug + Send + Sync + 'static {
    /// The path it was opened by.
    fn path(&self) -> &FsPath;

    /// Metadata of the pinned version.
    fn metadata(&self) -> &Metadata;

    /// The bytes of `range` in one piece.
    async fn read_at(&self, range: Range<u64>) -> Result<Bytes>;

    /// Several ranges, one result each, in the order given; fetched side by side, near ones in one request.
    /// Fails as a whole if one of them fails.
    async fn read_ranges(&self, ranges: &[Range<u64>]) -> Result<Vec<Bytes>>;

    /// The bytes of `range` as they arrive, uncopied: the way to move many bytes.
    fn read_stream(&self, range: Range<u64>) -> ByteStream;

    /// Fills the spare capacity of `buf` from `offset` on and gives it back with the number of bytes added (fewer
    /// only at the end of the file). On an error the buffer comes back as it was.
    async fn read_into(&self, offset: u64, buf: Buffer) -> (Result<usize>, Buffer);

    /// A descriptor of a plain local file that holds exactly this version's bytes, if there is one now. It stays
    /// valid while this `File` lives.
    fn as_fd(&self) -> Option<BorrowedFd<'_>>;
}

/// A new version of a file, written front to back. Dropping it without [`FileWriter::finish`] aborts.
#[async_trait]
pub trait FileWriter: fmt::Debug + Send + 'static {
    /// Appends `data`. Waits while too much is in flight.
    ///
    /// # Errors
    /// Those of the store, also of parts sent earlier. After an error the writer can only be aborted.
    ///
    /// # Cancellation
    /// A dropped call may have taken `data` or not: abort the writer.
    async fn write(&mut self, data: Bytes) -> Result<()>;

    /// Makes everything written visible in one step and durable, and reports the new version.
    ///
    /// # Errors
    /// `AlreadyExists` or `Stale` by the condition given to `create`; `NoSpace`; those of the store. The old file,
    /// if any, is then unchanged.
    async fn finish(self: Box<Self>) -> Result<Metadata>;

    /// Gives up: nothing becomes visible, temporary data is removed.
    ///
    /// # Errors
    /// Those of the store while cleaning up; nothing is visible even then.
    async fn abort(self: Box<Self>) -> Result<()>;
}
