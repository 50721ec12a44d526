//! What several test programs of the local filesystem share.
#![allow(dead_code, unreachable_pub)] // each program uses its part of it

use std::path::Path;
use std::time::{Duration, Instant};

use nearfs_backends::config::LocalConfig;
use nearfs_backends::io::EngineChoice;
use nearfs_backends::{
    Bytes, Condition, CreateOptions, FileSystem, FsPath, LocalFileSystem, Metadata, Result,
};

pub mod hung_fuse;
pub mod mounted;

/// Far beyond any wait that is right.
pub const SLACK: Duration = Duration::from_secs(30);

pub const ENGINES: [EngineChoice; 2] = [EngineChoice::Uring, EngineChoice::Psync];

pub fn path(text: impl AsRef<[u8]>) -> FsPath {
    FsPath::parse(text).unwrap()
}

pub async fn local(root: &Path, engine: EngineChoice) -> LocalFileSystem {
    let fs = LocalFileSystem::open(LocalConfig { engine, ..LocalConfig::new(root) }).await.unwrap();
    assert_eq!(fs.describe().engine, engine, "{:?}", fs.describe());
    fs
}

/// Bytes of which any range tells the offset and the key it came from.
pub fn stamped(key: u32, version: u32, size: usize) -> Vec<u8> {
    let records = (0..size.div_ceil(16) as u64).map(|n| (n * 16).to_le_bytes());
    let mut data: Vec<u8> =
        records.flat_map(|o| [&key.to_le_bytes()[..], &version.to_le_bytes(), &o].concat()).collect();
    data.truncate(size);
    data
}

pub async fn put(fs: &dyn FileSystem, name: &str, data: impl Into<Bytes>) -> Result<Metadata> {
    put_if(fs, name, data, Condition::None).await
}

pub async fn put_if(
    fs: &dyn FileSystem,
    name: &str,
    data: impl Into<Bytes>,
    condition: Condition,
) -> Result<Metadata> {
    let mut writer = fs.create(&path(name), CreateOptions { condition, ..Default::default() }).await?;
    writer.write(data.into()).await?;
    writer.finish().await
}

/// Writes the file out and drops it from the page cache, so that the next read asks the disk.
pub fn make_cold(file: &Path) {
    let file = std::fs::File::open(file).unwrap();
    rustix::fs::fsync(&file).unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
}

/// Names in `dir` as the kernel tells them, hidden ones too.
pub fn raw_names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

pub async fn until(what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + SLACK;
    while !condition() {
        assert!(Instant::now() < end, "never happened: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
