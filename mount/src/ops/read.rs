//! READ: bytes of one version.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use nearfs_backends::{Error, ErrorKind, Result};
use nearfs_cache::CachedFile;

use crate::failures::{RecentFailures, Subject};
use crate::inode::Node;
use crate::vfs::{Now, Vfs};

/// A read that must wait for bytes.
#[derive(Debug)]
pub(crate) struct ReadAsk {
    ino: u64,
    /// Never empty, never beyond the end.
    range: Range<u64>,
    file: Arc<CachedFile>,
    failures: Arc<RecentFailures>,
}

impl ReadAsk {
    /// What it asks for.
    pub(crate) fn subject(&self) -> Subject {
        Subject::Bytes(self.ino, self.range.clone())
    }

    /// Reads.
    ///
    /// # Errors
    /// Those of [`CachedFile::read`]; `Corrupt` if it gives fewer or more bytes than were asked for.
    ///
    /// # Cancellation
    /// Loses nothing; what is being fetched may stay in the cache.
    pub(crate) async fn run(self) -> Result<Bytes> {
        let (started, subject) = (Instant::now(), self.subject());
        let result = self.file.read(self.range.clone()).await;
        let result = result.and_then(|bytes| checked(bytes, &self.range));
        result.map_err(|e| {
            let now = Instant::now();
            self.failures.note(&subject, e.kind(), now - started, now);
            e.during("read").at(self.file.path())
        })
    }
}

impl Vfs {
    /// The bytes of `ino` from `offset` on, `size` of them or fewer at the end of the file, if they are there.
    ///
    /// # Errors
    /// `Stale` if the inode is not known, `IsADirectory`; the error of a read of the same bytes that failed slowly a
    /// moment ago.
    pub(crate) fn read(&self, ino: u64, offset: u64, size: u32) -> Result<Now<Bytes, ReadAsk>> {
        let inode = self.table.get(ino)?;
        let node = match &inode.node {
            Node::File(node) => node,
            Node::Control(text) => {
                let start = offset.min(text.len() as u64) as usize;
                let end = start.saturating_add(size as usize).min(text.len());
                return Ok(Now::Done(text.slice(start..end)));
            }
            _ => return Err(Error::new(ErrorKind::IsADirectory, "a directory was read as a file")),
        };
        let file = self.files.get(&self.roots, &inode, node);
        let end = offset.saturating_add(u64::from(size)).min(file.metadata().size);
        if offset >= end {
            return Ok(Now::Done(Bytes::new()));
        }
        let range = offset..end;
        if let Some(bytes) = file.try_read(range.clone()) {
            return checked(bytes, &range).map(Now::Done).map_err(|e| e.during("read").at(file.path()));
        }
        if let Some(kind) = self.failures.of_bytes(ino, offset, Instant::now()) {
            return Err(Error::new(kind, "the same read has just failed").during("read").at(file.path()));
        }
        Ok(Now::Ask(ReadAsk { ino, range, file, failures: Arc::clone(&self.failures) }))
    }
}

/// A short answer would read as the end of the file: it must never leave here.
fn checked(bytes: Bytes, range: &Range<u64>) -> Result<Bytes> {
    let expected = range.end - range.start;
    match bytes.len() as u64 == expected {
        true => Ok(bytes),
        false => {
            let text = format!("expected {expected} bytes, got {}", bytes.len());
            Err(Error::new(ErrorKind::Corrupt, text))
        }
    }
}
