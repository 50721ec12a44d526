//! [`CachedFileSystem`]: any filesystem, remembered.

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use nearfs_backends::{
    Capabilities, CopyOptions, CreateOptions, DirEntry, EntryStream, Error, ErrorKind, File, FileSystem,
    FileWriter, FsPath, Identity, ListOptions, Metadata, OpenOptions, Result, Spawner,
};

use crate::cached_file::CachedFile;
use crate::clock::Clock;
use crate::config::CacheConfig;
use crate::disk::tier::DiskTier;
use crate::engine::Engine;
use crate::metadata::{Listing, Names};
use crate::stats::{CacheStats, Counters};

/// What is known of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lookup {
    /// Its metadata; `None` if the store said that nothing has this name.
    pub metadata: Option<Metadata>,
    /// When this stops being good: the remaining lifetime is `expires - now`. Not after now if nothing may be
    /// remembered; about 100 years away for [`Lifetime::Forever`](crate::Lifetime::Forever).
    pub expires: Instant,
}

/// A filesystem that remembers what another one said and sent.
///
/// It stands on top of the layers (retry, timeout, limits) and below whoever serves readers: it makes no retries of
/// its own, and an error is never remembered. Metadata is remembered for every filesystem; data only for remote ones
/// (see [`CacheConfig::cache_local`]). Its own changes (`create`, `delete`, …) are seen at once by every call.
///
/// Dropping it ends its background work; files that are open go on.
#[derive(Debug)]
pub struct CachedFileSystem {
    inner: Arc<dyn FileSystem>,
    clock: Clock,
    names: Arc<Names>,
    engine: Arc<Engine>,
}

impl CachedFileSystem {
    /// Puts a cache over `inner`. Work goes on `spawner`'s runtime, which must have timers.
    pub fn new(inner: Arc<dyn FileSystem>, config: CacheConfig, spawner: Spawner) -> Arc<Self> {
        Self::with_disk(inner, config, None, spawner)
    }

    /// As [`CachedFileSystem::new`], with data kept on disk as well, where other processes and later ones find it.
    /// Any number of filesystems may share one `disk`. Local filesystems, whose data is not held, do not use it.
    ///
    /// What has come from the store and is not on disk yet lives in at most 64 MiB of [`CacheConfig::memory`], an
    /// eighth of it where that is less; [`DiskTier::flush`] waits for it.
    pub fn with_disk(
        inner: Arc<dyn FileSystem>,
        config: CacheConfig,
        disk: Option<Arc<DiskTier>>,
        spawner: Spawner,
    ) -> Arc<Self> {
        Self::with_clock(inner, &config, disk, spawner, Clock::system())
    }

    pub(crate) fn with_clock(
        inner: Arc<dyn FileSystem>,
        config: &CacheConfig,
        disk: Option<Arc<DiskTier>>,
        spawner: Spawner,
        clock: Clock,
    ) -> Arc<Self> {
        let stats = Arc::<Counters>::default();
        let names = Names::new(inner.clone(), config, spawner.clone(), clock.clone(), stats.clone());
        let engine = Engine::new(inner.clone(), config, disk, spawner, clock.clone(), stats, names.clone());
        Arc::new(CachedFileSystem { inner, clock, names, engine })
    }

    /// What is known of `path` now, without any input or output. `None`: the store must be asked.
    pub fn peek(&self, path: &FsPath) -> Option<Lookup> {
        let known = self.names.peek(path)?;
        Some(Lookup { metadata: known.metadata, expires: self.clock.instant(known.expires) })
    }

    /// Metadata of `path`, from memory while its lifetime lasts. Lookups in a directory whose listing has expired
    /// share one new listing of it; many that want one name at once share one request.
    ///
    /// # Errors
    /// As `stat`, except that absence is an answer and not an error.
    ///
    /// # Cancellation
    /// Dropping the call leaves what it asked for to others.
    pub async fn lookup(&self, path: &FsPath) -> Result<Lookup> {
        let known = self.names.lookup(path).await?;
        Ok(Lookup { metadata: known.metadata, expires: self.clock.instant(known.expires) })
    }

    /// The listing of `dir`: remembered, or on its way and growing while pages arrive (one at a time for each
    /// directory). When the renewal of a small directory finds nothing changed, the same [`Listing`] goes on.
    ///
    /// # Errors
    /// As the items of `list`; where entries may already be shown, errors come from [`Listing::entries`].
    pub async fn read_dir(&self, dir: &FsPath) -> Result<Arc<Listing>> {
        self.names.read_dir(dir).await
    }

    /// The file `path` at the version that `metadata` names. No input or output. All handles of one path and known
    /// version share one [`CachedFile`].
    pub fn file(&self, path: &FsPath, metadata: &Metadata) -> Arc<CachedFile> {
        self.names.file_used(path);
        self.engine.file(path, metadata)
    }

    /// Bytes of the file `path`, at the version that `metadata` names, that are in memory now. Not a use of the file:
    /// nothing is fetched or kept because of it.
    pub fn cached_bytes(&self, path: &FsPath, metadata: &Metadata) -> u64 {
        self.engine.cached_bytes(path, metadata)
    }

    /// Where data is kept on disk; none for filesystems whose data is not held.
    pub fn disk(&self) -> Option<&Arc<DiskTier>> {
        self.engine.disk.as_ref()
    }

    /// What the cache did and holds now.
    pub fn stats(&self) -> CacheStats {
        self.engine.stats()
    }
}

impl Drop for CachedFileSystem {
    fn drop(&mut self) {
        self.engine.close();
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl FileSystem for CachedFileSystem {
    fn identity(&self) -> Identity {
        self.inner.identity()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn stat(&self, path: &FsPath) -> Result<Metadata> {
        let known = self.names.lookup(path).await?;
        known.metadata.ok_or_else(|| Error::not_found(path).during("stat"))
    }

    /// Whole directories come from the cache; subtrees and the rest of a directory from the wrapped filesystem.
    fn list(&self, dir: &FsPath, options: ListOptions) -> EntryStream {
        if options != ListOptions::default() {
            return self.inner.list(dir, options);
        }
        let (names, dir) = (self.names.clone(), dir.clone());
        let listing = async move { Ok::<_, Error>((names.read_dir(&dir).await?, dir)) };
        futures::stream::once(listing).map_ok(|(listing, dir)| entries(listing, dir)).try_flatten().boxed()
    }

    async fn open(&self, path: &FsPath, options: OpenOptions) -> Result<Arc<dyn File>> {
        let metadata = match options.metadata {
            Some(metadata) => metadata,
            None => self.stat(path).await.map_err(|e| e.during("open"))?,
        };
        if metadata.is_dir() {
            return Err(Error::new(ErrorKind::IsADirectory, "a directory cannot be read")
                .during("open")
                .at(path));
        }
        if metadata.archived {
            return Err(Error::new(ErrorKind::Archived, "the object is archived and not restored")
                .during("open")
                .at(path));
        }
        let file = self.file(path, &metadata);
        if file.is_passed_through() {
            // Now, so that the version is held and `as_fd` can answer.
            file.open_inner().await?;
        }
        Ok(file)
    }

    async fn create(&self, path: &FsPath, options: CreateOptions) -> Result<Box<dyn FileWriter>> {
        let inner = self.inner.create(path, options).await?;
        Ok(Box::new(Writer { inner, names: self.names.clone(), path: path.clone() }))
    }

    fn delete(&self, paths: BoxStream<'static, FsPath>) -> BoxStream<'static, (FsPath, Result<()>)> {
        let names = self.names.clone();
        // Whatever the result: a failed call may have been carried out.
        self.inner.delete(paths).inspect(move |(path, _)| names.changed(path)).boxed()
    }

    async fn rename(&self, from: &FsPath, to: &FsPath, options: CopyOptions) -> Result<()> {
        let _changed = Changed { names: &self.names, paths: [Some(from), Some(to)], tree: true };
        self.inner.rename(from, to, options).await
    }

    async fn copy(&self, from: &FsPath, to: &FsPath, options: CopyOptions) -> Result<()> {
        let _changed = Changed { names: &self.names, paths: [Some(to), None], tree: false };
        self.inner.copy(from, to, options).await
    }

    async fn create_dir(&self, path: &FsPath) -> Result<()> {
        let _changed = Changed { names: &self.names, paths: [Some(path), None], tree: false };
        self.inner.create_dir(path).await
    }

    async fn remove_dir(&self, path: &FsPath) -> Result<()> {
        let _changed = Changed { names: &self.names, paths: [Some(path), None], tree: false };
        self.inner.remove_dir(path).await
    }
}

/// Voids what is known of changed paths when a call ends: also when it failed or was dropped, since it may have been
/// carried out all the same.
struct Changed<'a> {
    names: &'a Names,
    paths: [Option<&'a FsPath>; 2],
    /// A directory may have moved with all that is in it.
    tree: bool,
}

impl Drop for Changed<'_> {
    fn drop(&mut self) {
        self.paths.iter().flatten().for_each(|path| self.names.changed(path));
        if self.tree {
            self.names.tree_changed();
        }
    }
}

/// A writer whose end is seen at once.
#[derive(Debug)]
struct Writer {
    inner: Box<dyn FileWriter>,
    names: Arc<Names>,
    path: FsPath,
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl FileWriter for Writer {
    async fn write(&mut self, data: Bytes) -> Result<()> {
        self.inner.write(data).await
    }

    async fn finish(self: Box<Self>) -> Result<Metadata> {
        let Writer { inner, names, path } = *self;
        let _changed = Changed { names: &names, paths: [Some(&path), None], tree: false };
        inner.finish().await
    }

    async fn abort(self: Box<Self>) -> Result<()> {
        self.inner.abort().await
    }
}

/// Entries taken from a listing at a time.
const PAGE: usize = 1024;

fn entries(listing: Arc<Listing>, dir: FsPath) -> BoxStream<'static, Result<DirEntry>> {
    let pages = futures::stream::try_unfold((listing, 0, false), |(listing, from, end)| async move {
        if end {
            return Ok(None);
        }
        let page = listing.entries(from, PAGE).await?;
        let next = (listing, from + page.entries.len(), page.end);
        Ok::<_, Error>(Some((page.entries, next)))
    });
    let entry = move |page: crate::ListedEntries| {
        let entry =
            |e: &crate::ListedEntry| Ok(DirEntry { path: dir.join(&e.name)?, metadata: e.metadata.clone() });
        futures::stream::iter(page.iter().map(entry).collect::<Vec<Result<DirEntry>>>())
    };
    pages.map_ok(entry).try_flatten().boxed()
}
