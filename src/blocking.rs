//! The same filesystems for threads that do not speak async.
//!
//! Every call here may be made from any thread: plain threads, and also threads of a tokio runtime of the caller,
//! current-thread ones included (which then wait, as for any blocking call). The work itself runs on the runtime of
//! nearfs.
//!
//! ```no_run
//! use std::io::Read;
//!
//! let fs = nearfs::blocking::open("s3://bucket/prefix")?;
//! for entry in fs.list("images")? {
//!     println!("{} {}", entry.path, entry.metadata.size);
//! }
//! let mut text = String::new();
//! fs.reader("labels.txt")?.read_to_string(&mut text)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::future::Future;
use std::ops::Range;
use std::sync::Arc;

use futures::StreamExt;
use nearfs_backends::{
    BlockingReader, Bytes, DirEntry, Error, ErrorKind, File, FileExt, FileSystem, FileSystemExt, FsPath,
    ListOptions, Metadata, OpenOptions, Result,
};

use crate::runtime::{runtime, spawner};

/// Entries that wait between the listing and its reader.
const LISTED_AHEAD: usize = 1024;

/// Runs `work` on the runtime of nearfs and waits for it, on whatever thread this is. Never panics.
///
/// # Errors
/// Those of `work`; `Interrupted` if it panicked.
pub fn wait<F, T>(work: F) -> Result<T>
where
    F: Future<Output = Result<T>> + Send + 'static,
    T: Send + 'static,
{
    let runtime = runtime()?;
    // A plain channel, not tokio's: its waiting is allowed everywhere.
    let (tx, rx) = std::sync::mpsc::sync_channel(1);
    runtime.spawn(async move {
        // Nobody waits any more only if the waiting thread is gone.
        let _ = tx.send(work.await);
    });
    let receive = || {
        rx.recv().unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Interrupted, "the work of a blocking call panicked"))
        })
    };
    match tokio::runtime::Handle::try_current() {
        // A task of our own runtime: its thread is given up meanwhile, or all of them could end up waiting here.
        Ok(handle) if handle.id() == runtime.handle().id() => tokio::task::block_in_place(receive),
        _ => receive(),
    }
}

/// [`nearfs::open`](crate::open), waiting.
///
/// # Errors
/// As there.
pub fn open(url: &str) -> Result<Directory> {
    let url = url.to_owned();
    wait(async move { crate::open(&url).await }).map(Directory)
}

/// [`nearfs::Client`](crate::Client), waiting.
#[derive(Debug, Clone)]
pub struct Client(crate::Client);

impl Client {
    /// A client whose calls wait.
    pub fn new(client: crate::Client) -> Self {
        Client(client)
    }

    /// The filesystem that `url` names.
    ///
    /// # Errors
    /// As [`Client::filesystem`](crate::Client::filesystem).
    pub fn filesystem(&self, url: &str) -> Result<Directory> {
        let (client, url) = (self.0.clone(), url.to_owned());
        wait(async move { client.filesystem(&url).await }).map(Directory)
    }

    /// The file that `url` names.
    ///
    /// # Errors
    /// As [`Client::open_file`](crate::Client::open_file).
    pub fn open_file(&self, url: &str) -> Result<OpenFile> {
        let (client, url) = (self.0.clone(), url.to_owned());
        wait(async move { client.open_file(&url).await }).map(OpenFile)
    }
}

/// A filesystem whose calls wait. Paths are text or bytes, relative to its root; leading and doubled `/` are dropped.
#[derive(Debug, Clone)]
pub struct Directory(Arc<dyn FileSystem>);

impl Directory {
    /// Any filesystem, waiting.
    pub fn new(fs: Arc<dyn FileSystem>) -> Self {
        Directory(fs)
    }

    /// The filesystem underneath.
    pub fn inner(&self) -> &Arc<dyn FileSystem> {
        &self.0
    }

    /// Metadata of `path`.
    ///
    /// # Errors
    /// As [`FileSystem::stat`].
    pub fn stat(&self, path: impl AsRef<[u8]>) -> Result<Metadata> {
        let (fs, path) = (self.0.clone(), FsPath::parse_lenient(path)?);
        wait(async move { fs.stat(&path).await })
    }

    /// Whether something has this name.
    ///
    /// # Errors
    /// Everything but absence.
    pub fn exists(&self, path: impl AsRef<[u8]>) -> Result<bool> {
        let (fs, path) = (self.0.clone(), FsPath::parse_lenient(path)?);
        wait(async move { fs.exists(&path).await })
    }

    /// The entries of `dir`, one level, in listing order. Stays incomplete only with an error.
    ///
    /// # Errors
    /// As [`FileSystem::list`]. The whole listing is held in memory; [`Directory::walk`] is not so.
    pub fn list(&self, dir: impl AsRef<[u8]>) -> Result<Vec<DirEntry>> {
        let (fs, dir) = (self.0.clone(), FsPath::parse_lenient(dir)?);
        wait(async move {
            let mut entries = Vec::new();
            let mut stream = fs.read_dir(&dir);
            while let Some(entry) = stream.next().await {
                entries.push(entry?);
            }
            Ok(entries)
        })
    }

    /// Everything below `dir`, directories before what is in them, fetched a bounded number of entries ahead.
    /// Dropping it stops the listing.
    ///
    /// # Errors
    /// Here `InvalidInput` for the path; as items those of [`FileSystem::list`], after which it ends.
    pub fn walk(&self, dir: impl AsRef<[u8]>) -> Result<Walk> {
        let (fs, dir) = (self.0.clone(), FsPath::parse_lenient(dir)?);
        let (tx, entries) = tokio::sync::mpsc::channel(LISTED_AHEAD);
        spawner()?.spawn(async move {
            let mut stream = fs.list(&dir, ListOptions { recursive: true, start_after: None });
            while let Some(entry) = stream.next().await {
                if tx.send(entry).await.is_err() {
                    return;
                }
            }
        });
        Ok(Walk { entries: Some(entries) })
    }

    /// Opens a file, pinned to its current version.
    ///
    /// # Errors
    /// As [`FileSystem::open`].
    pub fn open(&self, path: impl AsRef<[u8]>) -> Result<OpenFile> {
        let (fs, path) = (self.0.clone(), FsPath::parse_lenient(path)?);
        wait(async move { fs.open(&path, OpenOptions::default()).await }).map(OpenFile)
    }

    /// `std::io::Read`, `Seek` and `BufRead` over a file.
    ///
    /// # Errors
    /// As [`FileSystem::open`].
    pub fn reader(&self, path: impl AsRef<[u8]>) -> Result<BlockingReader> {
        self.open(path)?.reader()
    }

    /// The whole file in memory; `limit` is the largest size, in bytes, that is accepted.
    ///
    /// # Errors
    /// As [`FileSystemExt::read`].
    pub fn read(&self, path: impl AsRef<[u8]>, limit: u64) -> Result<Bytes> {
        let (fs, path) = (self.0.clone(), FsPath::parse_lenient(path)?);
        wait(async move { fs.read(&path, limit).await })
    }

    /// Replaces the file by `data` in one step.
    ///
    /// # Errors
    /// As [`FileSystemExt::write`].
    pub fn write(&self, path: impl AsRef<[u8]>, data: impl Into<Bytes>) -> Result<Metadata> {
        let (fs, path, data) = (self.0.clone(), FsPath::parse_lenient(path)?, data.into());
        wait(async move { fs.write(&path, data).await })
    }

    /// Deletes a file; a missing one is no error.
    ///
    /// # Errors
    /// As [`FileSystem::delete`].
    pub fn delete(&self, path: impl AsRef<[u8]>) -> Result<()> {
        let (fs, path) = (self.0.clone(), FsPath::parse_lenient(path)?);
        wait(async move {
            let mut results = fs.delete(futures::stream::iter([path]).boxed());
            while let Some((_, result)) = results.next().await {
                result?;
            }
            Ok(())
        })
    }
}

/// The entries of [`Directory::walk`].
#[derive(Debug)]
pub struct Walk {
    /// Absent only while the runtime waits for the next entry.
    entries: Option<tokio::sync::mpsc::Receiver<Result<DirEntry>>>,
}

impl Iterator for Walk {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut entries = self.entries.take()?;
        if let Ok(entry) = entries.try_recv() {
            self.entries = Some(entries);
            return Some(entry);
        }
        // The receiver travels to the runtime and back: waiting inside tokio is not allowed on every thread.
        let waited = wait(async move {
            let entry = entries.recv().await;
            Ok((entries, entry))
        });
        match waited {
            Ok((entries, entry)) => {
                self.entries = Some(entries);
                entry
            }
            Err(error) => Some(Err(error)),
        }
    }
}

/// One version of a file whose reads wait.
#[derive(Debug, Clone)]
pub struct OpenFile(Arc<dyn File>);

impl OpenFile {
    /// The file underneath.
    pub fn inner(&self) -> &Arc<dyn File> {
        &self.0
    }

    /// Metadata of the pinned version.
    pub fn metadata(&self) -> &Metadata {
        self.0.metadata()
    }

    /// The bytes of `range`, clamped to the size.
    ///
    /// # Errors
    /// As [`File::read_at`].
    pub fn read_at(&self, range: Range<u64>) -> Result<Bytes> {
        let file = self.0.clone();
        wait(async move { file.read_at(range).await })
    }

    /// The whole file; `limit` is the largest size, in bytes, that is accepted.
    ///
    /// # Errors
    /// As [`FileExt::read_all`].
    pub fn read_all(&self, limit: u64) -> Result<Bytes> {
        let file = self.0.clone();
        wait(async move { file.read_all(limit).await })
    }

    /// `std::io::Read`, `Seek` and `BufRead` from the start of the file.
    ///
    /// # Errors
    /// `Other` if the runtime could not be started.
    pub fn reader(&self) -> Result<BlockingReader> {
        Ok(BlockingReader::new(self.0.clone(), spawner()?))
    }
}
