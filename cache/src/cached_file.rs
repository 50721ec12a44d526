//! [`CachedFile`]: one version of one file, read through the cache.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use nearfs_backends::io::Buffer;
use nearfs_backends::{ByteStream, File, FsPath, Metadata, Result, range};

use crate::disk::lent::LentFile;
use crate::memory::blocks::FileBlocks;

/// Ranges that lie this near to each other are read as one.
const NEAR: u64 = 64 << 10;
/// Ranges of one call that are read side by side.
const SIDE_BY_SIDE: usize = 64;
/// What a stream gives at a time, in bytes, ending at multiples of it.
const STEP: u64 = 1 << 20;

/// Steps of a long read that are asked for before they are copied.
const STEPS_AHEAD: usize = 4;

/// One version of one file, read through the cache. All handles of one path and known version share one.
///
/// Data of a filesystem that is not remote is not held (unless `CacheConfig::cache_local` says so): the kernel's page
/// cache has it. Reads and [`File::as_fd`] then go to the file of the wrapped filesystem.
#[derive(Debug)]
pub struct CachedFile {
    blocks: Arc<FileBlocks>,
    /// What [`File::as_fd`] has given out.
    lent: OnceLock<LentFile>,
}

impl CachedFile {
    pub(crate) fn new(blocks: Arc<FileBlocks>) -> Arc<Self> {
        blocks.enter();
        Arc::new(CachedFile { blocks, lent: OnceLock::new() })
    }

    /// The path it was opened by.
    pub fn path(&self) -> &FsPath {
        &self.blocks.path
    }

    /// Metadata of the pinned version.
    pub fn metadata(&self) -> &Metadata {
        &self.blocks.metadata
    }

    /// The bytes of `range` (clamped to the size) in one piece, if all of them are in memory: no input or output, no
    /// waiting. They are copied only if they lie in more than one extent (of up to 1 MiB). `None` if some are
    /// missing, or if the file is known to be stale: then [`CachedFile::read`] waits, or says so.
    pub fn try_read(&self, range: Range<u64>) -> Option<Bytes> {
        let range = range::clamp(range, self.blocks.size());
        if range.is_empty() {
            return Some(Bytes::new());
        }
        self.blocks.hit(&range)
    }

    /// The bytes of `range`, clamped to the size. What is missing is fetched once, however many readers want it.
    ///
    /// # Errors
    /// As every read of a [`File`]. A failure of a request reaches all who wait for its bytes and is not remembered;
    /// only `Stale` is final.
    ///
    /// # Cancellation
    /// Dropping the call ends this caller's wait only: others that wait for the same bytes get them, and a request
    /// that nobody waits for any more is still finished unless its store has gone quiet.
    pub async fn read(&self, range: Range<u64>) -> Result<Bytes> {
        read(&self.blocks, range).await
    }

    /// The file's own bytes as a plain file of the disk tier, if all of them are there and proven: for passthrough,
    /// mappings and links. Nothing of it is evicted while the [`LentFile`] lives. None without a disk tier, while bytes
    /// are missing or not proven yet, if the object is kept in several files, or if half of the tier's limit is lent
    /// already. Makes a few system calls and waits for no data.
    pub fn lend(&self) -> Option<LentFile> {
        self.blocks.lend()
    }

    /// Opens the file of the wrapped filesystem, so that [`File::as_fd`] can answer.
    pub(crate) async fn open_inner(&self) -> Result<()> {
        self.blocks.inner().await.map(drop)
    }

    pub(crate) fn is_passed_through(&self) -> bool {
        !self.blocks.engine.holds_data
    }
}

impl Drop for CachedFile {
    fn drop(&mut self) {
        self.blocks.leave();
    }
}

async fn read(blocks: &Arc<FileBlocks>, range: Range<u64>) -> Result<Bytes> {
    let range = range::clamp(range, blocks.size());
    if range.is_empty() {
        return Ok(Bytes::new());
    }
    if !blocks.engine.holds_data {
        return blocks.inner().await?.read_at(range).await;
    }
    if range.end - range.start <= blocks.engine.longest_read() {
        return match blocks.hit(&range) {
            Some(bytes) => Ok(bytes),
            None => match blocks.small_on_disk(&range).await {
                Some(bytes) => Ok(bytes),
                None => Ok(blocks.hold(&range).await?.bytes()),
            },
        };
    }
    let len = usize::try_from(range.end - range.start).map_err(|_| too_long(blocks, &range))?;
    let buf = Buffer::with_capacity(len);
    let (result, buf) = fill(blocks, range, buf).await;
    result.map(|_| buf.freeze())
}

fn too_long(blocks: &FileBlocks, range: &Range<u64>) -> nearfs_backends::Error {
    nearfs_backends::Error::new(nearfs_backends::ErrorKind::InvalidInput, "the range is larger than memory")
        .at(&blocks.path)
        .with_context("range", format!("{}..{}", range.start, range.end))
}

/// Copies `range` to the end of `buf`, each byte once. On an error `buf` is as it was.
async fn fill(blocks: &Arc<FileBlocks>, range: Range<u64>, mut buf: Buffer) -> (Result<usize>, Buffer) {
    let before = buf.len();
    let mut at = range.start;
    while at < range.end {
        // Straight from disk where that has the bytes and the memory has not.
        let (read, same) = blocks.read_on_disk(&(at..range.end), buf).await;
        (buf, at) = (same, at + read);
        if read > 0 || at == range.end {
            continue;
        }
        let end = blocks.end_of_fetch(&(at..range.end));
        let (filled, same) = fill_through_memory(blocks, at..end, buf).await;
        buf = same;
        match filled {
            Ok(()) => at = end,
            Err(e) => {
                buf.truncate(before);
                return (Err(e), buf);
            }
        }
    }
    let added = buf.len() - before;
    (Ok(added), buf)
}

/// As [`fill`], by way of the memory: from there, or from the store. On an error there may be more in `buf`.
async fn fill_through_memory(
    blocks: &Arc<FileBlocks>,
    range: Range<u64>,
    mut buf: Buffer,
) -> (Result<()>, Buffer) {
    let longest = blocks.engine.longest_read();
    if range.end - range.start > longest {
        blocks.expect(&range);
    }
    // Steps of a MiB: each is copied as soon as it is here, while the ones behind it arrive.
    let steps = range::split(range, STEP.min(longest)).map(|step| async move { blocks.hold(&step).await });
    let mut steps = futures::stream::iter(steps).buffered(STEPS_AHEAD);
    while let Some(held) = steps.next().await {
        match held {
            Ok(held) => held.copy_to(&mut buf),
            Err(e) => return (Err(e), buf),
        }
    }
    (Ok(()), buf)
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl File for CachedFile {
    fn path(&self) -> &FsPath {
        self.path()
    }

    fn metadata(&self) -> &Metadata {
        self.metadata()
    }

    async fn read_at(&self, range: Range<u64>) -> Result<Bytes> {
        self.read(range).await
    }

    async fn read_ranges(&self, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let blocks = &self.blocks;
        if !blocks.engine.holds_data {
            return blocks.inner().await?.read_ranges(ranges).await;
        }
        let clamped: Vec<_> = ranges.iter().map(|r| range::clamp(r.clone(), blocks.size())).collect();
        let longest = blocks.engine.longest_read();
        // Chains of near ranges that are too long to be held at once would only be copied: those go one by one.
        let mut wanted: Vec<_> = range::coalesce(&clamped, NEAR);
        wanted.retain(|r| r.end - r.start <= longest);
        let alone = |r: &&Range<u64>| !r.is_empty() && holder(&wanted, r).is_none();
        let mut rest: Vec<_> = clamped.iter().filter(alone).cloned().collect();
        wanted.append(&mut rest);
        wanted.sort_unstable_by_key(|r| (r.start, std::cmp::Reverse(r.end)));
        let reads = wanted.iter().cloned().map(|range| read(blocks, range));
        let got: Vec<Bytes> = futures::stream::iter(reads).buffered(SIDE_BY_SIDE).try_collect().await?;
        let cut = |r: &Range<u64>| {
            let i = holder(&wanted, r)?;
            let from = (r.start - wanted[i].start) as usize;
            Some(got[i].slice(from..from + (r.end - r.start) as usize))
        };
        Ok(clamped
            .iter()
            .map(|r| if r.is_empty() { Bytes::new() } else { cut(r).unwrap_or_default() })
            .collect())
    }

    fn read_stream(&self, range: Range<u64>) -> ByteStream {
        let blocks = self.blocks.clone();
        let range = range::clamp(range, blocks.size());
        if !blocks.engine.holds_data {
            let open =
                async move { Ok::<_, nearfs_backends::Error>(blocks.inner().await?.read_stream(range)) };
            return futures::stream::once(open).try_flatten().boxed();
        }
        if range.end - range.start > STEP {
            blocks.expect(&range);
        }
        let step = STEP.min(blocks.engine.longest_read());
        let reader = Reader::new(blocks);
        futures::stream::try_unfold((reader, range), move |(reader, range)| async move {
            let Some(piece) = range::split(range.clone(), step).next() else { return Ok(None) };
            let rest = piece.end..range.end;
            let bytes = read(&reader.0, piece).await?;
            Ok(Some((bytes, (reader, rest))))
        })
        .boxed()
    }

    async fn read_into(&self, offset: u64, buf: Buffer) -> (Result<usize>, Buffer) {
        let range = range::clamp(offset..offset.saturating_add(buf.remaining() as u64), self.blocks.size());
        if range.is_empty() {
            return (Ok(0), buf);
        }
        if self.blocks.engine.holds_data {
            return fill(&self.blocks, range, buf).await;
        }
        match self.blocks.inner().await {
            Ok(inner) => inner.read_into(offset, buf).await,
            Err(e) => (Err(e), buf),
        }
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        if self.is_passed_through() {
            return self.blocks.opened().and_then(|inner| inner.as_fd());
        }
        if let Some(lent) = self.lent.get() {
            return Some(lent.as_fd());
        }
        let lent = self.blocks.lend()?;
        Some(self.lent.get_or_init(|| lent).as_fd())
    }
}

/// Index of a range in `sorted` that has all of `range`.
fn holder(sorted: &[Range<u64>], range: &Range<u64>) -> Option<usize> {
    let after = sorted.partition_point(|r| r.start <= range.start);
    (0..after).rev().take(2).chain(0..after).find(|i| sorted[*i].end >= range.end)
}

/// A stream that is being read counts as a reader of its file.
struct Reader(Arc<FileBlocks>);

impl Reader {
    fn new(blocks: Arc<FileBlocks>) -> Self {
        blocks.enter();
        Reader(blocks)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.0.leave();
    }
}
