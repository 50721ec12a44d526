//! [`Client`]: opens places in stores, each store once.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use nearfs_backends::layer::PrefixLayer;
use nearfs_backends::{
    Error, ErrorKind, File, FileSystem, FsPath, ListOptions, OpenOptions, Registry, Result, StoreUrl,
};
use nearfs_cache::{CachedFileSystem, DiskConfig, DiskTier};
use parking_lot::Mutex;

use crate::builder::ClientBuilder;
use crate::config::{Config, Environment, StorePlan};
use crate::disk::{self, Disk};
use crate::runtime::spawner;
use crate::stack;

/// Stores that one client keeps open; the next one starts anew with an empty list.
const MAX_STORES: usize = 256;

/// Opens places in stores. Cloning shares stores, connections and caches.
///
/// ```no_run
/// # async fn example() -> nearfs::Result<()> {
/// let client = nearfs::Client::builder().memory(1 << 30).metadata_ttl(std::time::Duration::from_secs(600)).build()?;
/// let train = client.filesystem("s3://bucket/train").await?;
/// let shard = client.open_file("s3://bucket/shards/0001.tar").await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    config: Config,
    registry: Registry,
    stores: Mutex<HashMap<String, Arc<dyn FileSystem>>>,
    disk: Disk,
}

impl Client {
    /// A client that is told its settings; what it is not told comes from the environment and `nearfs.toml`.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::new()
    }

    /// A client with the settings of the environment and `nearfs.toml`.
    ///
    /// # Errors
    /// `InvalidInput` for a bad value, naming its place.
    pub fn from_env() -> Result<Self> {
        Ok(Client::with_config(Config::load(None, Environment::of_process())?))
    }

    /// A client with these settings and the schemes that nearfs knows by itself.
    pub fn with_config(config: Config) -> Self {
        Client::assemble(config, Registry::with_defaults())
    }

    pub(crate) fn assemble(config: Config, registry: Registry) -> Self {
        Client(Arc::new(Inner { config, registry, stores: Mutex::default(), disk: Disk::default() }))
    }

    /// The settings it works with.
    pub fn config(&self) -> &Config {
        &self.0.config
    }

    /// What the settings say of the cache on disk; `None` if nothing is to be kept there.
    ///
    /// # Errors
    /// `InvalidInput` for a bad value in the environment.
    pub fn disk_config(&self) -> Result<Option<DiskConfig>> {
        disk::disk_config(self.config())
    }

    /// The cache on disk, shared by all stores of this client and, live, by every process that uses the directory. It
    /// is opened when the first remote store is, or now; `None` if nothing is to be kept on disk, or nothing can be.
    ///
    /// # Errors
    /// If somebody named the directory: `PermissionDenied`, `InvalidInput`, `NoSpace` and what else opening meets. A
    /// default directory that cannot be used is one warning, and `None`.
    ///
    /// # Cancellation
    /// Dropping the future leaves the opening to the next caller.
    pub async fn disk_tier(&self) -> Result<Option<Arc<DiskTier>>> {
        let this = self.clone();
        spawner()?.run(async move { this.0.disk.get(&this.0.config).await }).await
    }

    /// Waits until what was fetched so far is in the cache on disk (or could not be), `patience` at most: for programs
    /// that end, and want to find it there the next time. Returns at once if nothing is kept on disk.
    ///
    /// # Cancellation
    /// Dropping the future changes nothing.
    pub async fn flush(&self, patience: Duration) {
        let Some(tier) = self.0.disk.opened().cloned() else { return };
        let Ok(spawner) = spawner() else { return };
        let flushed = async move {
            // Out of patience: the rest is fetched again one day.
            let _ = tokio::time::timeout(patience, tier.flush()).await;
            Ok(())
        };
        let _ = spawner.run(flushed).await;
    }

    /// The tier for `fs`: local stores are read where they are.
    async fn disk_for(&self, fs: &Arc<dyn FileSystem>) -> Result<Option<Arc<DiskTier>>> {
        if fs.capabilities().remote { self.0.disk.get(&self.0.config).await } else { Ok(None) }
    }

    pub(crate) fn registry(&self) -> &Registry {
        &self.0.registry
    }

    /// The filesystem whose root is the place that `url` names, with all layers, and cached if it is remote: `s3://bucket/prefix`,
    /// `file:///path` or a plain path, `memory:///`.
    ///
    /// Whether the place exists is not asked: on object stores a prefix exists as soon as something is in it.
    ///
    /// # Errors
    /// `InvalidInput` for what is no URL; those of connecting to the store.
    ///
    /// # Cancellation
    /// Dropping the future gives up the attempt.
    pub async fn filesystem(&self, url: &str) -> Result<Arc<dyn FileSystem>> {
        let url = StoreUrl::parse(url)?;
        let (fs, path) = self.locate(&url).await?;
        Ok(if path.is_root() { fs } else { Arc::new(PrefixLayer::new(fs, path)) })
    }

    /// The file that `url` names, pinned to its current version.
    ///
    /// # Errors
    /// As [`Client::filesystem`] and [`FileSystem::open`].
    pub async fn open_file(&self, url: &str) -> Result<Arc<dyn File>> {
        let url = StoreUrl::parse(url)?;
        let (fs, path) = self.locate(&url).await?;
        fs.open(&path, OpenOptions::default()).await
    }

    /// The whole store (bucket, disk) and the place in it that `url` names, which may be a file, a directory or
    /// nothing yet.
    ///
    /// # Errors
    /// As [`Client::filesystem`].
    pub async fn locate(&self, url: &StoreUrl) -> Result<(Arc<dyn FileSystem>, FsPath)> {
        let this = self.clone();
        let url = url.clone();
        // On our own runtime, whatever runtime (or none) polls this.
        spawner()?.run(async move { this.locate_here(&url).await }).await
    }

    async fn locate_here(&self, url: &StoreUrl) -> Result<(Arc<dyn FileSystem>, FsPath)> {
        let Inner { config, registry, stores, .. } = &*self.0;
        let plan = config.store_plan(url, spawner()?)?;
        // Sections may give places of one store different settings: those do not share a cache.
        let key = format!("{} {:?}", url.root(), plan.settings);
        let known = stores.lock().get(&key).cloned();
        let (root, path) = match (&known, url.local_path()) {
            (Some(fs), None) => (fs.clone(), url.path()?),
            // The system resolves links and `..` on the way to a local place, also when the disk is known already.
            _ => {
                let (fs, path) = registry.resolve(url, &plan.options).await?;
                let fs = match known {
                    Some(known) => known,
                    None => self.for_programs(fs, &plan).await?,
                };
                (fs, path)
            }
        };
        let mut stores = stores.lock();
        if stores.len() >= MAX_STORES {
            stores.clear();
        }
        // Of two that opened one store at the same time the first one stays.
        Ok((stores.entry(key).or_insert(root).clone(), path))
    }

    async fn for_programs(&self, fs: Arc<dyn FileSystem>, plan: &StorePlan) -> Result<Arc<dyn FileSystem>> {
        let disk = self.disk_for(&fs).await?;
        stack::for_programs(fs, plan, disk)
    }

    /// The place that `url` names as a filesystem of its own, to be mounted: its memory is shared with nothing else and
    /// may use `share` (above 0, at most 1) of the memory budget. The cache on disk is the one of this client.
    ///
    /// The store is asked for the first entry, so that wrong names and credentials show here and not later. Being
    /// refused the right to list is accepted: files may still be readable by name.
    ///
    /// # Errors
    /// As [`Client::filesystem`]; those of listing, except `PermissionDenied`.
    pub async fn cached(&self, url: impl AsRef<[u8]>, share: f64) -> Result<Arc<CachedFileSystem>> {
        if !(share > 0.0 && share <= 1.0) {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "a share of the memory is above 0 and at most 1",
            ));
        }
        let url = StoreUrl::parse(url)?;
        let this = self.clone();
        spawner()?
            .run(async move {
                let plan = this.0.config.store_plan(&url, spawner()?)?;
                let fs = stack::dependable(this.0.registry.open(&url, &plan.options).await?, &plan)?;
                match fs.list(&FsPath::root(), ListOptions::default()).next().await {
                    Some(Err(e)) if e.kind() == ErrorKind::PermissionDenied => {
                        tracing::warn!(%url, error = %e.chain(), "the directory may not be listed");
                    }
                    Some(Err(e)) => return Err(e),
                    _ => {}
                }
                let disk = this.disk_for(&fs).await?;
                stack::cached(fs, &plan, share, disk)
            })
            .await
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("stores", &self.0.stores.lock().len()).finish_non_exhaustive()
    }
}

/// The filesystem that `url` names, with the settings of the environment and `nearfs.toml`, cached and with all
/// layers. All calls of a process share one [`Client`].
///
/// # Errors
/// As [`Client::from_env`] and [`Client::filesystem`].
pub async fn open(url: &str) -> Result<Arc<dyn FileSystem>> {
    static SHARED: Mutex<Option<Client>> = Mutex::new(None);
    let client = {
        let mut shared = SHARED.lock();
        match &*shared {
            Some(client) => client.clone(),
            // A bad file is not remembered: it may be corrected while the process runs.
            None => shared.insert(Client::from_env()?).clone(),
        }
    };
    client.filesystem(url).await
}
