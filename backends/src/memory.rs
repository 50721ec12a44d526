//! [`MemoryFileSystem`]: everything in memory, and the reference for what every [`FileSystem`] call means.

use std::fmt;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use futures::stream::BoxStream;
use parking_lot::RwLock;

use crate::capability::Capabilities;
use crate::error::{Error, ErrorKind, Result};
use crate::file::{ByteStream, File, FileWriter};
use crate::fs::{EntryStream, FileSystem, Identity};
use crate::io::Buffer;
use crate::metadata::{DirEntry, Metadata};
use crate::options::{CopyOptions, CreateOptions, ListOptions, OpenOptions};
use crate::path::FsPath;
use crate::range::clamp;

mod tree;

use tree::Tree;

/// Entries taken under one lock by a listing.
const LIST_PAGE: usize = 1000;
/// Length of the pieces of a read stream, in bytes.
const STREAM_PIECE: u64 = 1 << 20;

/// A filesystem in memory. It is empty at first and gone with its last clone; clones show the same files.
///
/// Versions are [`Version::Generation`](crate::Version::Generation), directories are real, conditions are checked in
/// the same step in which a file becomes visible. An open handle keeps the bytes of its version alive and goes on
/// reading them whatever happens to the name. There is no limit on size: it is for tests, examples and small data.
#[derive(Clone, Default)]
pub struct MemoryFileSystem {
    tree: Arc<RwLock<Tree>>,
}

impl MemoryFileSystem {
    /// An empty filesystem.
    pub fn new() -> Self {
        MemoryFileSystem::default()
    }
}

impl fmt::Debug for MemoryFileSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MemoryFileSystem")
    }
}

#[async_trait]
impl FileSystem for MemoryFileSystem {
    fn identity(&self) -> Identity {
        // Two memory filesystems are different stores; the address tells them apart while both live.
        Identity { url: "memory:///".into(), endpoint: format!("{:p}", Arc::as_ptr(&self.tree)) }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            write: true,
            empty_dirs: true,
            atomic_rename: true,
            server_side_copy: true,
            conditional_write: true,
            pinned_reads: true,
            list_resume: true,
            ..Capabilities::default()
        }
    }

    async fn stat(&self, path: &FsPath) -> Result<Metadata> {
        self.tree.read().stat(path).map_err(|e| e.during("stat").at(path))
    }

    fn list(&self, dir: &FsPath, options: ListOptions) -> EntryStream {
        let (tree, dir) = (self.tree.clone(), dir.clone());
        let pages = futures::stream::unfold(Some(options.start_after), move |after| {
            let (tree, dir) = (tree.clone(), dir.clone());
            async move {
                let after = after?;
                let page = tree.read().list(&dir, options.recursive, after.as_ref(), LIST_PAGE);
                match page {
                    Ok(page) => {
                        let next = (page.len() == LIST_PAGE).then(|| page.last().map(|e| e.path.clone()));
                        Some((page.into_iter().map(Ok).collect::<Vec<Result<DirEntry>>>(), next))
                    }
                    Err(e) => Some((vec![Err(e.during("list").at(&dir))], None)),
                }
            }
        });
        pages.flat_map(futures::stream::iter).boxed()
    }

    async fn open(&self, path: &FsPath, options: OpenOptions) -> Result<Arc<dyn File>> {
        let found = self.tree.read().file(path);
        let (metadata, data) = match (found, &options.metadata) {
            (Ok(found), None) => found,
            (Ok(found), Some(given)) if !given.version.is_known() || given.version == found.0.version => {
                found
            }
            // The bytes of the wanted version are gone, and so is every handle that could have kept them.
            (Ok(_), Some(_)) => {
                return Err(stale("the file has another version now").during("open").at(path));
            }
            (Err(e), Some(given)) if e.kind() == ErrorKind::NotFound && given.version.is_known() => {
                return Err(stale("the file is gone").during("open").at(path));
            }
            (Err(e), _) => return Err(e.during("open").at(path)),
        };
        Ok(Arc::new(MemoryFile { path: path.clone(), metadata, data }))
    }

    async fn create(&self, path: &FsPath, options: CreateOptions) -> Result<Box<dyn FileWriter>> {
        self.tree.read().check_create(path, &options.condition).map_err(|e| e.during("create").at(path))?;
        let data = BytesMut::new();
        Ok(Box::new(MemoryWriter { tree: self.tree.clone(), path: path.clone(), options, data }))
    }

    fn delete(&self, paths: BoxStream<'static, FsPath>) -> BoxStream<'static, (FsPath, Result<()>)> {
        let tree = self.tree.clone();
        paths
            .map(move |path| {
                let result = tree.write().delete(&path).map_err(|e| e.during("delete").at(&path));
                (path, result)
            })
            .boxed()
    }

    async fn rename(&self, from: &FsPath, to: &FsPath, options: CopyOptions) -> Result<()> {
        self.tree.write().rename(from, to, options.no_replace).map_err(|e| e.during("rename").at(from))
    }

    async fn copy(&self, from: &FsPath, to: &FsPath, options: CopyOptions) -> Result<()> {
        self.tree.write().copy(from, to, options.no_replace).map_err(|e| e.during("copy").at(from))
    }

    async fn create_dir(&self, path: &FsPath) -> Result<()> {
        self.tree.write().create_dir(path).map_err(|e| e.during("create_dir").at(path))
    }

    async fn remove_dir(&self, path: &FsPath) -> Result<()> {
        self.tree.write().remove_dir(path).map_err(|e| e.during("remove_dir").at(path))
    }
}

fn stale(message: &str) -> Error {
    Error::new(ErrorKind::Stale, message)
}

#[derive(Debug)]
struct MemoryFile {
    path: FsPath,
    metadata: Metadata,
    data: Bytes,
}

impl MemoryFile {
    fn slice(&self, range: Range<u64>) -> Bytes {
        let range = clamp(range, self.data.len() as u64);
        self.data.slice(range.start as usize..range.end as usize)
    }
}

#[async_trait]
impl File for MemoryFile {
    fn path(&self) -> &FsPath {
        &self.path
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    async fn read_at(&self, range: Range<u64>) -> Result<Bytes> {
        Ok(self.slice(range))
    }

    async fn read_ranges(&self, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        Ok(ranges.iter().map(|r| self.slice(r.clone())).collect())
    }

    fn read_stream(&self, range: Range<u64>) -> ByteStream {
        let data = self.slice(range);
        let pieces = crate::range::split(0..data.len() as u64, STREAM_PIECE);
        futures::stream::iter(pieces.map(move |p| Ok(data.slice(p.start as usize..p.end as usize)))).boxed()
    }

    async fn read_into(&self, offset: u64, mut buf: Buffer) -> (Result<usize>, Buffer) {
        let n = buf.append(&self.slice(offset..u64::MAX));
        (Ok(n), buf)
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

struct MemoryWriter {
    tree: Arc<RwLock<Tree>>,
    path: FsPath,
    options: CreateOptions,
    data: BytesMut,
}

impl fmt::Debug for MemoryWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryWriter({:?}, {} bytes)", self.path, self.data.len())
    }
}

#[async_trait]
impl FileWriter for MemoryWriter {
    async fn write(&mut self, data: Bytes) -> Result<()> {
        self.data.extend_from_slice(&data);
        Ok(())
    }

    async fn finish(self: Box<Self>) -> Result<Metadata> {
        let MemoryWriter { tree, path, options, data } = *self;
        let made = tree.write().create(&path, data.freeze(), &options.condition);
        made.map_err(|e| e.during("finish").at(&path))
    }

    async fn abort(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}
