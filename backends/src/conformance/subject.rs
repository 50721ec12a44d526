//! The filesystem under test with the short calls that checks are written in.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures::{StreamExt, TryStreamExt};

use super::Options;
use crate::error::{Error, ErrorKind, Result};
use crate::file::{ByteStream, File};
use crate::fs::FileSystem;
use crate::metadata::{DirEntry, Metadata};
use crate::options::{CreateOptions, ListOptions, OpenOptions};
use crate::path::FsPath;

/// Why a check ended early.
#[derive(Debug)]
pub(super) enum Problem {
    NotApplicable(String),
    Failed(String),
}

/// A call that a check expects to work did not.
impl From<Error> for Problem {
    fn from(e: Error) -> Self {
        Problem::Failed(format!("{:?} where success was expected: {e:#}", e.kind()))
    }
}

pub(super) type Verdict = std::result::Result<(), Problem>;

/// Ends the check with a failure unless the condition holds.
macro_rules! require {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err($crate::conformance::subject::Problem::Failed(format!($($text)+)));
        }
    };
}
pub(super) use require;

pub(super) struct Subject {
    pub(super) fs: Arc<dyn FileSystem>,
    pub(super) options: Options,
}

/// A path from text that is known to be legal.
pub(super) fn path(text: impl AsRef<[u8]>) -> FsPath {
    FsPath::parse(text).expect("the suite uses legal paths")
}

/// `size` bytes of which any range tells the key, the version and the offset it came from.
pub(super) fn stamped(key: u32, version: u32, size: usize) -> Bytes {
    let mut data = BytesMut::with_capacity(size + 16);
    for offset in (0..size as u64).step_by(16) {
        data.extend_from_slice(&key.to_le_bytes());
        data.extend_from_slice(&version.to_le_bytes());
        data.extend_from_slice(&offset.to_le_bytes());
    }
    data.truncate(size);
    data.freeze()
}

/// All bytes of a stream.
pub(super) async fn drain(stream: ByteStream) -> Result<Bytes> {
    let all = stream.try_fold(BytesMut::new(), |mut all, chunk| async move {
        all.extend_from_slice(&chunk);
        Ok(all)
    });
    Ok(all.await?.freeze())
}

/// Fails unless `result` is an error of one of `kinds`.
pub(super) fn expect_error<T>(what: impl fmt::Display, result: Result<T>, kinds: &[ErrorKind]) -> Verdict {
    match result {
        Ok(_) => Err(Problem::Failed(format!("{what} succeeded, expected one of {kinds:?}"))),
        Err(e) if kinds.contains(&e.kind()) => Ok(()),
        Err(e) => Err(Problem::Failed(format!("{what}: {:?}, expected one of {kinds:?}: {e:#}", e.kind()))),
    }
}

/// Fails unless both are equal; says where they differ first.
pub(super) fn expect_bytes(what: impl fmt::Display, found: &[u8], expected: &[u8]) -> Verdict {
    if found == expected {
        return Ok(());
    }
    let at = found.iter().zip(expected).position(|(a, b)| a != b).unwrap_or(found.len().min(expected.len()));
    Err(Problem::Failed(format!(
        "{what}: {} bytes instead of {}, different from byte {at} on",
        found.len(),
        expected.len()
    )))
}

impl Subject {
    pub(super) fn new(fs: Arc<dyn FileSystem>, options: Options) -> Self {
        Subject { fs, options }
    }

    /// Ends the check where files cannot be written.
    pub(super) fn needs_write(&self) -> Verdict {
        if self.fs.capabilities().write {
            return Ok(());
        }
        Err(Problem::NotApplicable(
            "the filesystem cannot write, so the check cannot prepare its files".into(),
        ))
    }

    /// Ends the check where empty directories are not kept.
    pub(super) fn needs_empty_dirs(&self) -> Verdict {
        self.needs_write()?;
        if self.fs.capabilities().empty_dirs {
            return Ok(());
        }
        Err(Problem::NotApplicable("the filesystem does not keep empty directories".into()))
    }

    pub(super) async fn put(&self, name: impl AsRef<[u8]>, data: impl Into<Bytes>) -> Result<Metadata> {
        self.put_with(&path(name), data.into(), CreateOptions::default()).await
    }

    pub(super) async fn put_with(
        &self,
        path: &FsPath,
        data: Bytes,
        options: CreateOptions,
    ) -> Result<Metadata> {
        let mut writer = self.fs.create(path, options).await?;
        if let Err(e) = writer.write(data).await {
            let _ = writer.abort().await;
            return Err(e);
        }
        writer.finish().await
    }

    pub(super) async fn open(&self, name: impl AsRef<[u8]>) -> Result<Arc<dyn File>> {
        self.fs.open(&path(name), OpenOptions::default()).await
    }

    pub(super) async fn get(&self, name: impl AsRef<[u8]>) -> Result<Bytes> {
        let file = self.open(name).await?;
        drain(file.read_stream(0..u64::MAX)).await
    }

    pub(super) async fn stat(&self, name: impl AsRef<[u8]>) -> Result<Metadata> {
        self.fs.stat(&path(name)).await
    }

    pub(super) async fn entries(&self, dir: impl AsRef<[u8]>, recursive: bool) -> Result<Vec<DirEntry>> {
        self.fs.list(&path(dir), ListOptions { recursive, start_after: None }).try_collect().await
    }

    /// The paths of a listing as text, directories with a trailing `/`.
    pub(super) async fn names(&self, dir: impl AsRef<[u8]>, recursive: bool) -> Result<Vec<String>> {
        Ok(self.entries(dir, recursive).await?.iter().map(label).collect())
    }

    pub(super) async fn delete(&self, name: impl AsRef<[u8]>) -> Result<()> {
        let path = path(name);
        let mut results = self.fs.delete(futures::stream::iter([path]).boxed());
        match results.next().await {
            Some((_, result)) => result,
            None => Err(Error::new(ErrorKind::Other, "delete gave no result for a path")),
        }
    }
}

/// The path of an entry as text, with a trailing `/` for a directory.
pub(super) fn label(entry: &DirEntry) -> String {
    format!("{}{}", entry.path, if entry.metadata.is_dir() { "/" } else { "" })
}

/// The bytes that a read of `range` must give.
pub(super) fn slice(data: &[u8], range: Range<u64>) -> &[u8] {
    let range = crate::range::clamp(range, data.len() as u64);
    &data[range.start as usize..range.end as usize]
}
