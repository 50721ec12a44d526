//! The pleasant calls: [`FileSystemExt`] and [`FileExt`], written once over the traits and available on everything.

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures::stream::{self, StreamExt, TryStreamExt};

use crate::error::{Error, ErrorKind, Result};
use crate::file::File;
use crate::fs::{EntryStream, FileSystem};
use crate::io::Buffer;
use crate::metadata::{DirEntry, Metadata};
use crate::options::{CopyOptions, CreateOptions, ListOptions, OpenOptions};
use crate::path::FsPath;
use crate::range::{clamp, coalesce};
use crate::reader::FileReader;

/// Calls for users of a [`FileSystem`]. Implemented for every filesystem, `dyn FileSystem` included; nobody else can.
#[async_trait]
pub trait FileSystemExt: FileSystem {
    /// Whether a file or directory has this name: `false` only when the store said `NotFound`.
    ///
    /// # Errors
    /// Everything else that `stat` reports: a refusal or an outage is not absence.
    async fn exists(&self, path: &FsPath) -> Result<bool> {
        match self.stat(path).await {
            Ok(_) => Ok(true),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// The whole file in one piece of memory. `limit` is the largest size, in bytes, that is accepted.
    ///
    /// # Errors
    /// `InvalidInput` if the file is larger than `limit` (nothing is read then); those of `open` and reads.
    ///
    /// # Cancellation
    /// Dropping the future cancels the request.
    async fn read(&self, path: &FsPath, limit: u64) -> Result<Bytes> {
        self.open(path, OpenOptions::default()).await?.read_all(limit).await
    }

    /// Replaces the file by `data`, in one step, and reports its new version.
    ///
    /// # Errors
    /// Those of `create`, [`write`](crate::FileWriter::write) and [`finish`](crate::FileWriter::finish).
    ///
    /// # Cancellation
    /// A dropped call may or may not have written the file; it never leaves a part of it.
    async fn write(&self, path: &FsPath, data: Bytes) -> Result<Metadata> {
        let size_hint = Some(data.len() as u64);
        let mut writer = self.create(path, CreateOptions { size_hint, ..Default::default() }).await?;
        if let Err(e) = writer.write(data).await {
            // The error of the write is the one to report; nothing is visible whatever the clean-up says.
            let _ = writer.abort().await;
            return Err(e);
        }
        writer.finish().await
    }

    /// Everything `list` yields, at most `limit` entries.
    ///
    /// # Errors
    /// `InvalidInput` if there are more than `limit` entries; those of `list`.
    async fn list_all(&self, dir: &FsPath, options: ListOptions, limit: usize) -> Result<Vec<DirEntry>> {
        let mut entries = Vec::new();
        let mut stream = self.list(dir, options);
        while let Some(entry) = stream.next().await {
            if entries.len() == limit {
                return Err(Error::new(
                    ErrorKind::InvalidInput,
                    format!("the listing has more than {limit} entries"),
                )
                .during("list")
                .at(dir));
            }
            entries.push(entry?);
        }
        Ok(entries)
    }

    /// The entries of one directory, one level, as a stream in listing order.
    fn read_dir(&self, dir: &FsPath) -> EntryStream {
        self.list(dir, ListOptions::default())
    }

    /// The whole subtree below `dir` as a stream in listing order, directories before what is in them.
    fn walk(&self, dir: &FsPath) -> EntryStream {
        self.list(dir, ListOptions { recursive: true, start_after: None })
    }

    /// Copies `from` (a file, or a directory with everything below it) to `to` on `target`.
    ///
    /// At most [`TreeCopyOptions::parallel`] files move at a time, each streamed, so memory stays bounded; inside
    /// one store that can copy by itself no bytes pass through here. Files keep the version the listing saw: one
    /// that changes meanwhile fails with `Stale` instead of being mixed. Empty directories are made where `target`
    /// keeps them. Times and permissions are not copied.
    ///
    /// # Errors
    /// `InvalidInput` when `to` lies inside `from` on the same store; `NotFound`; those of reads and writes. The
    /// first failure ends the copy: files that are there by then stay, each of them whole.
    ///
    /// # Cancellation
    /// Dropping the future stops the copy, as a failure does.
    async fn copy_tree(
        &self,
        from: &FsPath,
        target: &dyn FileSystem,
        to: &FsPath,
        options: TreeCopyOptions,
    ) -> Result<TreeCopied> {
        let same_store = self.identity() == target.identity();
        if same_store && to.strip_prefix(from).is_some() {
            return Err(Error::new(ErrorKind::InvalidInput, "a tree cannot be copied into itself")
                .during("copy")
                .at(from)
                .with_context("target", to));
        }
        let in_store = same_store && target.capabilities().server_side_copy;
        let root = self.stat(from).await?;
        if root.is_file() {
            let entry = DirEntry { path: from.clone(), metadata: root };
            let bytes = copy_one(self, &entry, target, to, in_store, options.no_replace).await?;
            return Ok(TreeCopied { files: 1, directories: 0, bytes });
        }
        if target.capabilities().empty_dirs {
            make_dir(target, to).await?;
        }
        self.walk(from)
            .map(|entry| async {
                let entry = entry?;
                let tail = entry.path.strip_prefix(from).ok_or_else(|| {
                    Error::new(ErrorKind::Corrupt, "the listing left its directory")
                        .during("list")
                        .at(&entry.path)
                })?;
                let path = to.join_path(&tail);
                if entry.metadata.is_dir() {
                    if target.capabilities().empty_dirs {
                        make_dir(target, &path).await?;
                    }
                    return Ok(TreeCopied { files: 0, directories: 1, bytes: 0 });
                }
                let bytes = copy_one(self, &entry, target, &path, in_store, options.no_replace).await?;
                Ok(TreeCopied { files: 1, directories: 0, bytes })
            })
            .buffer_unordered(options.parallel.max(1))
            .try_fold(TreeCopied::default(), |sum, one| async move {
                Ok(TreeCopied {
                    files: sum.files + one.files,
                    directories: sum.directories + one.directories,
                    bytes: sum.bytes + one.bytes,
                })
            })
            .await
    }
}

impl<T: FileSystem + ?Sized> FileSystemExt for T {}

/// Options of [`FileSystemExt::copy_tree`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeCopyOptions {
    /// Files under way at a time, at least 1. Default: 16.
    pub parallel: usize,
    /// Fail with `AlreadyExists` instead of replacing a file of the target. Default: `false`.
    pub no_replace: bool,
}

impl Default for TreeCopyOptions {
    fn default() -> Self {
        TreeCopyOptions { parallel: 16, no_replace: false }
    }
}

/// What [`FileSystemExt::copy_tree`] did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TreeCopied {
    /// Files copied.
    pub files: u64,
    /// Directories seen below the one copied.
    pub directories: u64,
    /// Bytes of those files.
    pub bytes: u64,
}

async fn make_dir(target: &dyn FileSystem, path: &FsPath) -> Result<()> {
    if path.is_root() {
        return Ok(());
    }
    match target.create_dir(path).await {
        Err(e) if e.kind() == ErrorKind::AlreadyExists => match target.stat(path).await? {
            found if found.is_dir() => Ok(()),
            _ => Err(Error::new(ErrorKind::NotADirectory, "a file has the name of a directory to be made")
                .during("copy")
                .at(path)),
        },
        other => other,
    }
}

async fn copy_one<S: FileSystem + ?Sized>(
    source: &S,
    entry: &DirEntry,
    target: &dyn FileSystem,
    to: &FsPath,
    in_store: bool,
    no_replace: bool,
) -> Result<u64> {
    let size = entry.metadata.size;
    if in_store {
        target.copy(&entry.path, to, CopyOptions { no_replace }).await?;
        return Ok(size);
    }
    let file = source.open(&entry.path, OpenOptions { metadata: Some(entry.metadata.clone()) }).await?;
    let condition = if no_replace { crate::Condition::Absent } else { crate::Condition::None };
    let options = CreateOptions { condition, size_hint: Some(size), content_type: None };
    let mut writer = target.create(to, options).await?;
    let mut stream = file.read_stream(0..size);
    let moved = async {
        while let Some(chunk) = stream.next().await {
            writer.write(chunk?).await?;
        }
        Ok(())
    };
    match moved.await {
        Ok(()) => writer.finish().await.map(|_| size),
        Err(e) => {
            // Nothing is visible whatever the clean-up says: the failure of the copy is the one to report.
            let _ = writer.abort().await;
            Err(e)
        }
    }
}

/// Calls for users of a [`File`]. Implemented for every file, `dyn File` included; nobody else can.
#[async_trait]
pub trait FileExt: File {
    /// The whole file in one piece of memory. `limit` is the largest size, in bytes, that is accepted.
    ///
    /// # Errors
    /// `InvalidInput` if the file is larger than `limit` (nothing is read then); those of reads.
    async fn read_all(&self, limit: u64) -> Result<Bytes> {
        let size = self.metadata().size;
        if size > limit {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!("the file has {size} bytes, more than the {limit} allowed"),
            )
            .during("read")
            .at(self.path()));
        }
        self.read_exact_at(0..size).await
    }

    /// The bytes of `range`, all of them.
    ///
    /// # Errors
    /// `InvalidInput` if the range does not lie inside the file; those of reads.
    async fn read_exact_at(&self, range: Range<u64>) -> Result<Bytes> {
        let size = self.metadata().size;
        if range.start > range.end || range.end > size {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!("bytes {}..{} do not lie inside a file of {size} bytes", range.start, range.end),
            )
            .during("read")
            .at(self.path()));
        }
        let wanted = range.end - range.start;
        let data = self.read_at(range).await?;
        if data.len() as u64 != wanted {
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!("{} bytes arrived, {wanted} were asked for", data.len()),
            )
            .during("read")
            .at(self.path()));
        }
        Ok(data)
    }

    /// A reader with a position: tokio `AsyncRead`, `AsyncSeek` and `AsyncBufRead`, from the start of the file.
    fn reader(self: &Arc<Self>) -> FileReader<Self> {
        FileReader::new(self.clone())
    }
}

impl<T: File + ?Sized> FileExt for T {}

/// The bytes of `stream` in one piece; a single chunk is passed on without a copy.
///
/// # Errors
/// The first error of the stream.
pub(crate) async fn collect(mut stream: crate::ByteStream, size_hint: usize) -> Result<Bytes> {
    let Some(first) = stream.next().await else { return Ok(Bytes::new()) };
    let first = first?;
    let Some(second) = stream.next().await else { return Ok(first) };
    let mut all = BytesMut::with_capacity(size_hint.max(first.len()));
    all.extend_from_slice(&first);
    all.extend_from_slice(&second?);
    while let Some(chunk) = stream.next().await {
        all.extend_from_slice(&chunk?);
    }
    Ok(all.freeze())
}

/// Appends the bytes of `stream`, which are no more than there is room for, to `buf`. After an error it is as it was.
pub(crate) async fn fill(mut stream: crate::ByteStream, mut buf: Buffer) -> (Result<usize>, Buffer) {
    let before = buf.len();
    while let Some(chunk) = stream.next().await {
        match chunk {
            Ok(chunk) => buf.append(&chunk),
            Err(e) => {
                buf.truncate(before);
                return (Err(e), buf);
            }
        };
    }
    let added = buf.len() - before;
    (Ok(added), buf)
}

/// Ranges no further apart are one request: below this, bytes are cheaper than another round trip.
const COALESCE_GAP: u64 = 128 * 1024;

/// Requests of one [`File::read_ranges`] at once.
const PARALLEL_RANGES: usize = 16;

/// Several ranges of a file of `size` bytes by way of `read`, which gives one: near ones together, side by side.
///
/// # Errors
/// The first error of `read`.
pub(crate) async fn read_merged<F: Future<Output = Result<Bytes>> + Send>(
    ranges: &[Range<u64>],
    size: u64,
    read: impl Fn(Range<u64>) -> F,
) -> Result<Vec<Bytes>> {
    let wanted: Vec<_> = ranges.iter().map(|r| clamp(r.clone(), size)).collect();
    let merged = coalesce(&wanted, COALESCE_GAP);
    let reads: Vec<_> = merged.iter().map(|r| read(r.clone())).collect();
    let pieces = stream::iter(reads).buffered(PARALLEL_RANGES).try_collect::<Vec<Bytes>>().await?;
    let cut = |range: &Range<u64>| {
        if range.is_empty() {
            return Bytes::new();
        }
        // The last merged range that starts no later holds it.
        let at = merged.partition_point(|m| m.start <= range.start) - 1;
        let offset = |position: u64| (position - merged[at].start) as usize;
        pieces[at].slice(offset(range.start)..offset(range.end))
    };
    Ok(wanted.iter().map(cut).collect())
}

/// A stream that yields `error` and ends.
pub(crate) fn failed<T: Send + 'static>(error: Error) -> stream::BoxStream<'static, Result<T>> {
    stream::once(std::future::ready(Err(error))).boxed()
}

#[cfg(test)]
mod tests;
