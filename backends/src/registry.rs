//! [`Registry`]: from a URL to a filesystem, by scheme.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use futures::FutureExt;
use futures::future::BoxFuture;

use crate::config::{LocalConfig, S3Config};
use crate::error::{Error, ErrorKind, Result};
use crate::fs::FileSystem;
use crate::layer::PrefixLayer;
use crate::local::LocalFileSystem;
use crate::memory::MemoryFileSystem;
use crate::object::S3FileSystem;
use crate::path::FsPath;
use crate::spawner::Spawner;
use crate::url::StoreUrl;

/// What every store is opened with: settings of the known kinds, and the runtime.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// The runtime on which the store's work runs.
    pub spawner: Spawner,
    /// Settings of S3 stores; bucket and prefix come from the URL. Default: `S3Config::default()`.
    pub s3: S3Config,
    /// Settings of local stores; the root comes from the URL. Default: `LocalConfig::default()`.
    pub local: LocalConfig,
}

impl StoreOptions {
    /// Defaults for everything, work on `spawner`.
    pub fn new(spawner: Spawner) -> Self {
        StoreOptions { spawner, s3: S3Config::default(), local: LocalConfig::default() }
    }
}

/// Opens the store that a URL names, rooted at the URL's path.
pub type Factory =
    dyn Fn(StoreUrl, StoreOptions) -> BoxFuture<'static, Result<Arc<dyn FileSystem>>> + Send + Sync;

/// The schemes that URLs may have, and how each is opened.
///
/// The filesystems come bare, without retry, limits or caches: stacking layers is the caller's part.
#[derive(Clone, Default)]
pub struct Registry {
    factories: BTreeMap<String, Arc<Factory>>,
}

impl Registry {
    /// Knows no scheme.
    pub fn new() -> Self {
        Registry::default()
    }

    /// Knows `file` (and plain paths), `memory`, `s3` and `s3a`.
    pub fn with_defaults() -> Self {
        let mut registry = Registry::new();
        registry.register("file", |url, options| open_local(url, options).boxed());
        registry.register("memory", |url, _| open_memory(url).boxed());
        registry.register("s3", |url, options| open_s3(url, options).boxed());
        registry.register("s3a", |url, options| open_s3(url, options).boxed());
        registry
    }

    /// Opens URLs `scheme://…` with `factory` from now on, also where the scheme was known.
    ///
    /// # Panics
    /// If `scheme` is not a URL scheme in lower case (letters, digits, `+`, `-`, `.`, a letter first).
    pub fn register<F>(&mut self, scheme: &str, factory: F)
    where
        F: Fn(StoreUrl, StoreOptions) -> BoxFuture<'static, Result<Arc<dyn FileSystem>>>
            + Send
            + Sync
            + 'static,
    {
        let legal = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"+-.".contains(&b);
        assert!(
            scheme.starts_with(|c: char| c.is_ascii_lowercase()) && scheme.bytes().all(legal),
            "`{scheme}` is not a URL scheme in lower case"
        );
        self.factories.insert(scheme.to_owned(), Arc::new(factory));
    }

    /// The known schemes, sorted.
    pub fn schemes(&self) -> impl Iterator<Item = &str> {
        self.factories.keys().map(String::as_str)
    }

    /// The filesystem whose root is the place that `url` names.
    ///
    /// # Errors
    /// `InvalidInput` for an unknown scheme (the message lists the known ones and names the nearest) or a path that
    /// cannot be a root; those of the store.
    ///
    /// # Cancellation
    /// Dropping the future gives up the attempt.
    pub async fn open(&self, url: &StoreUrl, options: &StoreOptions) -> Result<Arc<dyn FileSystem>> {
        let factory = self.factories.get(url.scheme()).ok_or_else(|| self.unknown(url.scheme()))?;
        factory(url.clone(), options.clone()).await
    }

    /// The filesystem of the whole store (bucket, disk) and the place in it that `url` names: for commands whose
    /// operand may be a file, a directory, or nothing yet.
    ///
    /// For a local path, links and `..` in its directory part are resolved by the system first; a last component that
    /// is a link stays, so that what is read is what the link points to.
    ///
    /// # Errors
    /// As [`Registry::open`].
    pub async fn resolve(
        &self,
        url: &StoreUrl,
        options: &StoreOptions,
    ) -> Result<(Arc<dyn FileSystem>, FsPath)> {
        let path = match url.local_path() {
            // Looking a path up can block for as long as a hung network disk likes: not on a worker.
            Some(local) => {
                let located = options.spawner.handle().spawn_blocking(move || locate(&local));
                located.await.map_err(|e| {
                    Error::new(ErrorKind::Interrupted, "the runtime shut down").with_source(e)
                })??
            }
            None => url.path()?,
        };
        Ok((self.open(&url.root(), options).await?, path))
    }

    fn unknown(&self, scheme: &str) -> Error {
        let known: Vec<_> = self.schemes().map(|s| format!("{s}://")).collect();
        let e = Error::new(
            ErrorKind::InvalidInput,
            format!("unknown scheme `{scheme}://`, expected one of {}, or a path", known.join(", ")),
        );
        match self.schemes().map(|s| (distance(s, scheme), s)).min() {
            Some((d, nearest)) if d <= 1 || d * 3 <= scheme.len() => {
                e.with_context("hint", format!("did you mean `{nearest}://`?"))
            }
            _ => e.with_context("hint", format!("write ./{scheme}:// for a local path of that name")),
        }
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Registry").field(&self.factories.keys()).finish()
    }
}

async fn open_s3(url: StoreUrl, options: StoreOptions) -> Result<Arc<dyn FileSystem>> {
    let mut config = options.s3;
    if url.authority().is_empty() {
        return Err(Error::new(ErrorKind::InvalidInput, format!("{url} names no bucket"))
            .with_context("hint", format!("write {}://bucket/prefix", url.scheme())));
    }
    config.bucket = url.authority().to_owned();
    config.prefix = url.path()?;
    Ok(S3FileSystem::connect(config, options.spawner).await?)
}

async fn open_local(url: StoreUrl, options: StoreOptions) -> Result<Arc<dyn FileSystem>> {
    let mut config = options.local;
    config.root = url.local_path().unwrap_or_else(|| PathBuf::from("/"));
    Ok(Arc::new(LocalFileSystem::open(config).await?))
}

/// One memory filesystem per name and process, so that two calls with one URL see the same files.
async fn open_memory(url: StoreUrl) -> Result<Arc<dyn FileSystem>> {
    static STORES: OnceLock<Mutex<HashMap<String, MemoryFileSystem>>> = OnceLock::new();
    let prefix = url.path()?;
    let store = {
        let mut stores = STORES.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
        stores.entry(url.authority().to_owned()).or_default().clone()
    };
    Ok(if prefix.is_root() { Arc::new(store) } else { Arc::new(PrefixLayer::new(Arc::new(store), prefix)) })
}

/// Where a local path lies below `/`.
fn locate(path: &Path) -> Result<FsPath> {
    use std::os::unix::ffi::OsStrExt;

    let absolute = std::path::absolute(path)?;
    let resolved = match (absolute.parent(), absolute.file_name()) {
        // The directory may not exist yet (a copy makes it): then the path is taken by its text.
        (Some(parent), Some(name)) => match parent.canonicalize() {
            Ok(parent) => parent.join(name),
            Err(_) => absolute,
        },
        (_, None) if absolute.parent().is_some() => absolute.canonicalize()?,
        _ => absolute,
    };
    FsPath::parse_lenient(resolved.as_os_str().as_bytes())
}

/// Levenshtein distance, for `did you mean`.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let substitute = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = substitute.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ext::FileSystemExt;

    fn path(text: &str) -> FsPath {
        FsPath::parse(text).unwrap()
    }

    #[tokio::test]
    async fn memory_urls_of_one_name_share_their_files() {
        let registry = Registry::with_defaults();
        let options = StoreOptions::new(Spawner::current().unwrap());
        let open = async |text: &str| registry.open(&StoreUrl::parse(text).unwrap(), &options).await.unwrap();
        open("memory://shared/dir").await.write(&path("f"), "hello".into()).await.unwrap();
        assert_eq!(open("memory://shared").await.read(&path("dir/f"), 10).await.unwrap(), "hello");
        assert!(!open("memory://other").await.exists(&path("dir/f")).await.unwrap());
        let (fs, at) =
            registry.resolve(&StoreUrl::parse("memory://shared/dir/f").unwrap(), &options).await.unwrap();
        assert_eq!(at, path("dir/f"));
        assert!(fs.exists(&at).await.unwrap());
    }

    #[tokio::test]
    async fn local_operands_are_found_from_the_root_of_the_disk() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        std::fs::create_dir(real.join("sub")).unwrap();
        std::fs::write(real.join("f"), "local").unwrap();
        let registry = Registry::with_defaults();
        let options = StoreOptions::new(Spawner::current().unwrap());
        let text = format!("{}/sub/../f", real.display());
        let (fs, at) = registry.resolve(&StoreUrl::parse(text).unwrap(), &options).await.unwrap();
        assert_eq!(format!("/{at}"), real.join("f").display().to_string());
        assert_eq!(fs.read(&at, 10).await.unwrap(), "local");
        let url = StoreUrl::local(&real);
        assert_eq!(registry.open(&url, &options).await.unwrap().read(&path("f"), 10).await.unwrap(), "local");
    }

    #[tokio::test]
    async fn unknown_schemes_are_refused_by_name_and_own_ones_can_be_added() {
        let mut registry = Registry::with_defaults();
        let options = StoreOptions::new(Spawner::current().unwrap());
        let open = async |registry: &Registry, text: &str| {
            registry.open(&StoreUrl::parse(text).unwrap(), &options).await.map(|fs| fs.identity())
        };
        let e = open(&registry, "fiel:///x").await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidInput);
        assert_eq!(
            e.message(),
            "unknown scheme `fiel://`, expected one of file://, memory://, s3://, s3a://, or a path"
        );
        assert_eq!(e.context("hint"), Some("write ./fiel:// for a local path of that name"));
        let e = open(&registry, "s4://bucket").await.unwrap_err();
        assert_eq!(e.context("hint"), Some("did you mean `s3://`?"));
        let e = open(&registry, "s3:///key").await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidInput);
        registry.register("own", |url, _| open_memory(url).boxed());
        assert!(open(&registry, "own://x").await.is_ok());
    }
}
