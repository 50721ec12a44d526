//! The cache over an S3 store with faults and latency: right bytes, bounded requests, bounded memory.

mod children;
mod disk;
mod freshness;
mod integrity;
mod memory;
mod requests;

use std::sync::Arc;

use bytes::Bytes;
use nearfs_backends::config::RetryConfig;
use nearfs_backends::layer::{RetryLayer, TimeoutConfig, TimeoutLayer};
use nearfs_backends::{FsPath, Registry, Result, Spawner, StoreOptions, StoreUrl};
use nearfs_cache::{CacheConfig, CachedFile, CachedFileSystem, DiskConfig, DiskSize, DiskTier};
use nearfs_lab::{Lab, stamp};

const MIB: u64 = 1 << 20;
const BUCKET: &str = "b";

/// A store and a cache over it, with the layers that a program would have below it.
struct World {
    lab: Lab,
    cache: Arc<CachedFileSystem>,
}

impl World {
    async fn new(change: impl FnOnce(&mut CacheConfig)) -> Self {
        let lab = Lab::builder().bucket(BUCKET).start().unwrap();
        let cache = cache(&lab, change).await;
        World { lab, cache }
    }

    /// A synthetic object; its stamps carry the key's id and the version.
    fn put(&self, key: &str, size: u64) -> u32 {
        self.lab.put_synthetic(BUCKET, key, size, stamp::key_id(key))
    }

    async fn open(&self, key: &str) -> Arc<CachedFile> {
        let metadata = self.cache.lookup(&path(key)).await.unwrap().metadata.expect("the object is there");
        self.cache.file(&path(key), &metadata)
    }

    async fn names(&self, dir: &str) -> Vec<String> {
        let listing = self.cache.read_dir(&path(dir)).await.unwrap();
        let mut names = Vec::new();
        loop {
            let page = listing.entries(names.len(), 1000).await.unwrap();
            names.extend(page.entries.iter().map(|e| String::from_utf8_lossy(&e.name).into_owned()));
            if page.end {
                return names;
            }
        }
    }
}

async fn cache(lab: &Lab, change: impl FnOnce(&mut CacheConfig)) -> Arc<CachedFileSystem> {
    over(&lab.endpoint(), None, change).await
}

/// A cache over the store at `endpoint`.
async fn over(
    endpoint: &str,
    disk: Option<Arc<DiskTier>>,
    change: impl FnOnce(&mut CacheConfig),
) -> Arc<CachedFileSystem> {
    let spawner = Spawner::current().unwrap();
    let mut options = StoreOptions::new(spawner.clone());
    options.s3.endpoint = Some(endpoint.to_owned());
    options.s3.anonymous = true;
    let url = StoreUrl::parse(format!("s3://{BUCKET}")).unwrap();
    let store = Registry::with_defaults().open(&url, &options).await.unwrap();
    let timed = Arc::new(TimeoutLayer::new(store, TimeoutConfig::default()));
    let retried = Arc::new(RetryLayer::new(timed, RetryConfig::default()).unwrap());
    let memory = if disk.is_some() { 512 << 20 } else { 64 << 20 };
    let mut config = CacheConfig { memory, ..CacheConfig::default() };
    change(&mut config);
    CachedFileSystem::with_disk(retried, config, disk, spawner)
}

/// The disk tier in `dir`, of up to `limit` bytes.
fn disk_at(dir: &std::path::Path, limit: u64) -> Arc<DiskTier> {
    let config = DiskConfig {
        dirs: vec![dir.to_owned()],
        size: Some(DiskSize::Bytes(limit)),
        free: 0.0,
        ..DiskConfig::default()
    };
    DiskTier::open(&config).unwrap()
}

fn path(text: &str) -> FsPath {
    FsPath::parse(text).unwrap()
}

/// Reads all of `file` in steps and checks every stamp. Returns the version, or the first error.
async fn read_all(file: &CachedFile, step: u64) -> Result<u32> {
    let (mut at, mut version) = (0, 0);
    let size = file.metadata().size;
    while at < size {
        let bytes = file.read(at..at + step).await?;
        assert_eq!(bytes.len() as u64, step.min(size - at), "a short read at {at}");
        version = check(file, &bytes, at, version);
        at += bytes.len() as u64;
    }
    Ok(version)
}

/// Checks the stamps of `bytes`; all must be of one version, `expected` unless that is 0.
fn check(file: &CachedFile, bytes: &Bytes, at: u64, expected: u32) -> u32 {
    let key = file.path().to_string();
    let found =
        stamp::verify(bytes, at, stamp::key_id(&key)).unwrap_or_else(|e| panic!("{key} at {at}: {e}"));
    assert!(
        expected == 0 || found == 0 || found == expected,
        "{key} at {at}: version {found} after {expected}"
    );
    found.max(expected)
}

/// Numbers that look random.
fn random(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed;
    move |below| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 24) % below.max(1)
    }
}
