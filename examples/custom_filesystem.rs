//! A filesystem of your own: a map from names to bytes that can do everything and passes the public suite.
//!
//! ```sh
//! cargo run --example custom_filesystem     # runs the suite and prints its report
//! ```
//!
//! Whatever implements [`FileSystem`] can be cached, layered, mounted and registered under a URL scheme like the
//! stores that come with nearfs. All methods are yours: there are no defaults to inherit by mistake.

use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, RwLock};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures::stream::{self, BoxStream, StreamExt};
use nearfs::{
    ByteStream, Capabilities, Condition, CopyOptions, CreateOptions, DirEntry, EntryStream, Error, ErrorKind,
    File, FileSystem, FileWriter, FsPath, Identity, ListOptions, Metadata, OpenOptions, Result, Version,
};
use nearfs_backends::io::Buffer;

/// Contents and generation of every file. Directories exist as prefixes of names alone.
type Files = Arc<RwLock<BTreeMap<FsPath, (u64, Bytes)>>>;

#[derive(Debug, Default, Clone)]
struct MapFileSystem {
    files: Files,
}

fn fail<T>(kind: ErrorKind, text: &str, operation: &'static str, path: &FsPath) -> Result<T> {
    Err(Error::new(kind, text).during(operation).at(path))
}

impl MapFileSystem {
    fn look_up(&self, path: &FsPath, operation: &'static str) -> Result<Metadata> {
        let files = self.files.read().unwrap();
        let below = |name: &FsPath| name != path && name.strip_prefix(path).is_some();
        match files.get(path) {
            _ if path.is_root() || files.keys().any(below) => Ok(Metadata::dir()),
            Some((generation, data)) => {
                Ok(Metadata::file(data.len() as u64, Version::Generation(*generation)))
            }
            None => Err(Error::not_found(path).during(operation)),
        }
    }

    /// Copies or moves a file in one step.
    fn relocate(
        &self,
        operation: &'static str,
        from: &FsPath,
        to: &FsPath,
        options: CopyOptions,
    ) -> Result<()> {
        let source_is_dir = self.look_up(from, operation)?.is_dir();
        let target = self.look_up(to, operation).ok();
        if source_is_dir || target.as_ref().is_some_and(Metadata::is_dir) {
            return fail(ErrorKind::IsADirectory, "a directory has this name", operation, from);
        }
        if options.no_replace && target.is_some() {
            return fail(ErrorKind::AlreadyExists, "the target exists", operation, to);
        }
        let mut files = self.files.write().unwrap();
        let Some((_, data)) = files.get(from).cloned() else {
            return Err(Error::not_found(from).during(operation));
        };
        if operation == "rename" {
            files.remove(from);
        }
        let generation = next_generation();
        files.insert(to.clone(), (generation, data));
        Ok(())
    }
}

/// Grows with every write, so that no two contents share a version.
fn next_generation() -> u64 {
    static LAST: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    LAST.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

#[async_trait]
impl FileSystem for MapFileSystem {
    fn identity(&self) -> Identity {
        // Different stores must have different identities: caches believe it.
        Identity { url: "map:///".into(), endpoint: format!("{:p}", Arc::as_ptr(&self.files)) }
    }

    fn capabilities(&self) -> Capabilities {
        let mut c = Capabilities::default();
        (c.write, c.atomic_rename, c.server_side_copy) = (true, true, true);
        (c.conditional_write, c.pinned_reads) = (true, true);
        c
    }

    async fn stat(&self, path: &FsPath) -> Result<Metadata> {
        self.look_up(path, "stat")
    }

    fn list(&self, dir: &FsPath, options: ListOptions) -> EntryStream {
        let refused = match self.look_up(dir, "list") {
            Ok(found) if found.is_dir() => None,
            Ok(_) => {
                Some(Error::new(ErrorKind::NotADirectory, "a file has this name").during("list").at(dir))
            }
            Err(e) => Some(e),
        };
        if let Some(e) = refused {
            return stream::iter([Err(e)]).boxed();
        }
        // Every name below `dir`, with the directories on the way, once and in listing order.
        let mut paths: Vec<FsPath> = Vec::new();
        for name in self.files.read().unwrap().keys() {
            let mut at = Some(name.clone());
            while let Some(path) = at.filter(|p| p != dir && p.strip_prefix(dir).is_some()) {
                at = path.parent();
                if options.recursive || at.as_ref() == Some(dir) {
                    paths.push(path);
                }
            }
        }
        paths.retain(|path| options.start_after.as_ref().is_none_or(|mark| path.cmp_listing(mark).is_gt()));
        paths.sort_by(FsPath::cmp_listing);
        paths.dedup();
        // A file that went meanwhile is simply not listed.
        let entry = |path: FsPath| Some(DirEntry { metadata: self.look_up(&path, "list").ok()?, path });
        stream::iter(paths.into_iter().filter_map(entry).map(Ok).collect::<Vec<_>>()).boxed()
    }

    async fn open(&self, path: &FsPath, options: OpenOptions) -> Result<Arc<dyn File>> {
        let metadata = match options.metadata {
            Some(known) => known,
            None => self.look_up(path, "open")?,
        };
        if metadata.is_dir() {
            return fail(ErrorKind::IsADirectory, "a directory has this name", "open", path);
        }
        match self.files.read().unwrap().get(path) {
            // The handle holds the bytes of this version, whatever happens to the name later.
            Some((generation, data)) if metadata.version == Version::Generation(*generation) => {
                Ok(Arc::new(MapFile { path: path.clone(), metadata, data: data.clone() }))
            }
            _ => fail(ErrorKind::Stale, "the file has changed", "open", path),
        }
    }

    async fn create(&self, path: &FsPath, options: CreateOptions) -> Result<Box<dyn FileWriter>> {
        if self.look_up(path, "create").is_ok_and(|found| found.is_dir()) {
            return fail(ErrorKind::IsADirectory, "a directory has this name", "create", path);
        }
        let (files, path) = (self.files.clone(), path.clone());
        Ok(Box::new(MapWriter { files, path, condition: options.condition, data: BytesMut::new() }))
    }

    fn delete(&self, paths: BoxStream<'static, FsPath>) -> BoxStream<'static, (FsPath, Result<()>)> {
        let files = self.files.clone();
        paths
            .map(move |path| {
                files.write().unwrap().remove(&path);
                (path, Ok(()))
            })
            .boxed()
    }

    async fn rename(&self, from: &FsPath, to: &FsPath, options: CopyOptions) -> Result<()> {
        self.relocate("rename", from, to, options)
    }

    async fn copy(&self, from: &FsPath, to: &FsPath, options: CopyOptions) -> Result<()> {
        self.relocate("copy", from, to, options)
    }

    async fn create_dir(&self, path: &FsPath) -> Result<()> {
        match self.look_up(path, "create_dir") {
            Ok(_) => fail(ErrorKind::AlreadyExists, "the name is taken", "create_dir", path),
            Err(_) => fail(ErrorKind::Unsupported, "a map has no empty directories", "create_dir", path),
        }
    }

    async fn remove_dir(&self, path: &FsPath) -> Result<()> {
        match self.look_up(path, "remove_dir")?.is_dir() {
            true => fail(ErrorKind::NotEmpty, "the directory has entries", "remove_dir", path),
            false => fail(ErrorKind::NotADirectory, "a file has this name", "remove_dir", path),
        }
    }
}

#[derive(Debug)]
struct MapFile {
    path: FsPath,
    metadata: Metadata,
    data: Bytes,
}

impl MapFile {
    fn slice(&self, range: Range<u64>) -> Bytes {
        let range = nearfs_backends::range::clamp(range, self.metadata.size);
        self.data.slice(range.start as usize..range.end as usize)
    }
}

#[async_trait]
impl File for MapFile {
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
        Ok(ranges.iter().map(|range| self.slice(range.clone())).collect())
    }

    fn read_stream(&self, range: Range<u64>) -> ByteStream {
        stream::iter([Ok(self.slice(range))]).boxed()
    }

    async fn read_into(&self, offset: u64, mut buf: Buffer) -> (Result<usize>, Buffer) {
        let added = buf.append(&self.slice(offset..u64::MAX));
        (Ok(added), buf)
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

#[derive(Debug)]
struct MapWriter {
    files: Files,
    path: FsPath,
    condition: Condition,
    data: BytesMut,
}

#[async_trait]
impl FileWriter for MapWriter {
    async fn write(&mut self, data: Bytes) -> Result<()> {
        self.data.extend_from_slice(&data);
        Ok(())
    }

    async fn finish(self: Box<Self>) -> Result<Metadata> {
        let mut files = self.files.write().unwrap();
        let current = files.get(&self.path).map(|(generation, _)| Version::Generation(*generation));
        match (&self.condition, current) {
            (Condition::Absent, Some(_)) => {
                return fail(ErrorKind::AlreadyExists, "the name is taken", "finish", &self.path);
            }
            (Condition::Version(wanted), found) if found.as_ref() != Some(wanted) => {
                return fail(ErrorKind::Stale, "the file has another version", "finish", &self.path);
            }
            _ => {}
        }
        let (generation, data) = (next_generation(), self.data.freeze());
        let made = Metadata::file(data.len() as u64, Version::Generation(generation));
        files.insert(self.path, (generation, data));
        Ok(made)
    }

    async fn abort(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

#[tokio::main]
async fn main() {
    use nearfs_backends::conformance::{Options, run};

    let make = || async { Arc::new(MapFileSystem::default()) as Arc<dyn FileSystem> };
    // Listing looks at all files for each entry here, so the suite's largest directories are made smaller.
    let report = run(make, Options { many: 300, bulk: 300, ..Options::default() }).await;
    println!("{report}");
    report.assert_passed();
}

#[cfg(test)]
#[test]
fn passes_the_suite() {
    main();
}
