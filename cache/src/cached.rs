//! [`CachedFileSystem`]: any filesystem, remembered.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use nearfs_backends::{
    Capabilities, CopyOptions, CreateOptions, DirEntry, EntryStream, Error, ErrorKind, File, FileSystem,
    FileWriter, FsPath, Identity, ListOptions, Metadata, OpenOptions, Result, Spawner,
};
use parking_lot::Mutex;

use crate::cached_file::CachedFile;
use crate::clock::{Clock, Tick};
use crate::config::{CacheConfig, Lifetime};
use crate::metadata::{ListedEntry, Listing, name_in};
use crate::stats::{CacheStats, Counters};

/// What is known of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lookup {
    /// Its metadata; `None` if the store said that nothing has this name.
    pub metadata: Option<Metadata>,
    /// When this stops being good: the remaining lifetime is `expires - now`. Not after now if nothing may be
    /// remembered; about 100 years away for [`Lifetime::Forever`].
    pub expires: Instant,
}

/// A filesystem that remembers what another one said and sent.
#[derive(Debug)]
pub struct CachedFileSystem {
    inner: Arc<dyn FileSystem>,
    config: CacheConfig,
    spawner: Spawner,
    clock: Clock,
    stats: Arc<Counters>,
    next_id: AtomicU64,
    known: Mutex<HashMap<FsPath, (Option<Metadata>, Tick)>>,
    listings: Mutex<HashMap<FsPath, Arc<Listing>>>,
}

impl CachedFileSystem {
    /// Puts a cache over `inner`. Work goes on `spawner`'s runtime.
    pub fn new(inner: Arc<dyn FileSystem>, config: CacheConfig, spawner: Spawner) -> Arc<Self> {
        Arc::new(CachedFileSystem {
            inner,
            config,
            spawner,
            clock: Clock::system(),
            stats: Arc::default(),
            next_id: AtomicU64::new(1),
            known: Mutex::default(),
            listings: Mutex::default(),
        })
    }

    fn lifetime(&self, ttl: Lifetime, from: Tick) -> Tick {
        match ttl {
            Lifetime::For(d) => from.after(d),
            Lifetime::Forever => Tick::FOREVER,
        }
    }

    /// What is known of `path` now, without any input or output. `None`: the store must be asked.
    pub fn peek(&self, path: &FsPath) -> Option<Lookup> {
        let known = self.known.lock();
        let (metadata, expires) = known.get(path)?;
        if *expires <= self.clock.now() {
            return None;
        }
        Some(Lookup { metadata: metadata.clone(), expires: self.clock.instant(*expires) })
    }

    /// Metadata of `path`, from memory while its lifetime lasts.
    ///
    /// # Errors
    /// As `stat`, except that absence is an answer and not an error.
    pub async fn lookup(&self, path: &FsPath) -> Result<Lookup> {
        if let Some(lookup) = self.peek(path) {
            return Ok(lookup);
        }
        let seen = self.clock.now();
        let (metadata, ttl) = match self.inner.stat(path).await {
            Ok(metadata) => (Some(metadata), self.config.metadata_ttl),
            Err(e) if e.kind() == ErrorKind::NotFound => (None, self.config.negative_ttl),
            Err(e) => return Err(e),
        };
        let expires = self.lifetime(ttl, seen);
        self.known.lock().insert(path.clone(), (metadata.clone(), expires));
        Ok(Lookup { metadata, expires: self.clock.instant(expires) })
    }

    /// The listing of `dir`: remembered, or begun now and growing while pages arrive.
    ///
    /// # Errors
    /// As the items of `list`; errors may also show in [`Listing::entries`].
    pub async fn read_dir(&self, dir: &FsPath) -> Result<Arc<Listing>> {
        let now = self.clock.now();
        let mut listings = self.listings.lock();
        if let Some(listing) =
            listings.get(dir).filter(|l| l.expires_at() > now && !matches!(l.end(), Some(Err(_))))
        {
            return Ok(listing.clone());
        }
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let expires = self.lifetime(self.config.metadata_ttl, now);
        let listing = Arc::new(Listing::new(id, &self.clock, now, expires, 0, usize::MAX));
        listings.insert(dir.clone(), listing.clone());
        let mut stream = self.inner.list(dir, ListOptions::default()).ready_chunks(1024);
        let (dir, target) = (dir.clone(), listing.clone());
        self.spawner.spawn(async move {
            while let Some(items) = stream.next().await {
                let mut entries = Vec::with_capacity(items.len());
                for item in items {
                    match item {
                        Ok(DirEntry { path, metadata }) => {
                            entries.extend(name_in(&dir, &path).map(|name| ListedEntry { name, metadata }));
                        }
                        Err(e) => {
                            target.push(std::mem::take(&mut entries));
                            target.finish(Err(e));
                            return;
                        }
                    }
                }
                target.push(entries);
            }
            target.finish(Ok(()));
        });
        Ok(listing)
    }

    /// The file `path` at the version that `metadata` names. No input or output. All handles of one path and known
    /// version share one [`CachedFile`].
    pub fn file(&self, path: &FsPath, metadata: &Metadata) -> Arc<CachedFile> {
        Arc::new(CachedFile::new(self.inner.clone(), path.clone(), metadata.clone(), self.stats.clone()))
    }

    /// What the cache did and holds now.
    pub fn stats(&self) -> CacheStats {
        self.stats.snapshot()
    }

    fn forget(&self, path: &FsPath) {
        self.known.lock().remove(path);
        let mut listings = self.listings.lock();
        let mut at = Some(path.clone());
        while let Some(dir) = at {
            listings.remove(&dir);
            self.known.lock().remove(&dir);
            at = dir.parent();
        }
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
        self.lookup(path).await?.metadata.ok_or_else(|| Error::not_found(path).during("stat"))
    }

    fn list(&self, dir: &FsPath, options: ListOptions) -> EntryStream {
        self.inner.list(dir, options)
    }

    async fn open(&self, path: &FsPath, options: OpenOptions) -> Result<Arc<dyn File>> {
        let metadata = match options.metadata {
            Some(metadata) => metadata,
            None => self.stat(path).await?,
        };
        Ok(self.file(path, &metadata))
    }

    async fn create(&self, path: &FsPath, options: CreateOptions) -> Result<Box<dyn FileWriter>> {
        self.forget(path);
        self.inner.create(path, options).await
    }

    fn delete(&self, paths: BoxStream<'static, FsPath>) -> BoxStream<'static, (FsPath, Result<()>)> {
        self.inner.delete(paths)
    }

    async fn rename(&self, from: &FsPath, to: &FsPath, options: CopyOptions) -> Result<()> {
        let result = self.inner.rename(from, to, options).await;
        self.forget(from);
        self.forget(to);
        result
    }

    async fn copy(&self, from: &FsPath, to: &FsPath, options: CopyOptions) -> Result<()> {
        let result = self.inner.copy(from, to, options).await;
        self.forget(to);
        result
    }

    async fn create_dir(&self, path: &FsPath) -> Result<()> {
        let result = self.inner.create_dir(path).await;
        self.forget(path);
        result
    }

    async fn remove_dir(&self, path: &FsPath) -> Result<()> {
        let result = self.inner.remove_dir(path).await;
        self.forget(path);
        result
    }
}
