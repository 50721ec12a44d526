//! The S3 filesystem against the lab's server: names, listings, reads, checksums, faults, writes, refusals, credentials.

mod checksums;
mod credentials;
mod faults;
mod hedging;
mod listing;
#[path = "../moto/mod.rs"]
mod moto;
mod names;
mod network;
mod reads;
mod refusals;
mod writes;

use std::sync::Arc;
use std::time::Duration;

use futures::TryStreamExt;
use nearfs_backends::config::{ClientConfig, S3Config, S3Keys};
use nearfs_backends::{
    Bytes, DirEntry, Error, ErrorKind, File, FileSystem, FsPath, ListOptions, OpenOptions, Result,
    S3FileSystem, Spawner,
};
use nearfs_lab::Lab;

/// Long enough for a loaded machine, short enough to show that something waits for a timeout meant to be shorter.
const SOON: Duration = Duration::from_secs(20);

fn p(path: &str) -> FsPath {
    FsPath::parse(path).unwrap()
}

fn lab() -> Lab {
    Lab::builder().bucket("b").start().unwrap()
}

/// Settings for bucket `b` of `lab`.
fn config(lab: &Lab) -> S3Config {
    S3Config {
        endpoint: Some(lab.endpoint()),
        region: Some("us-east-1".to_owned()),
        credentials: Some(S3Keys::new("id", "secret", None)),
        ..S3Config::new("b")
    }
}

/// The same with time limits of a second, for tests about those.
fn hasty(lab: &Lab) -> S3Config {
    let second = Duration::from_secs(1);
    let client =
        ClientConfig { first_byte_timeout: second, read_gap_timeout: second, ..ClientConfig::default() };
    S3Config { client, ..config(lab) }
}

async fn connect(config: S3Config) -> Arc<S3FileSystem> {
    S3FileSystem::connect(config, Spawner::current().unwrap()).await.unwrap()
}

async fn fs(lab: &Lab) -> Arc<S3FileSystem> {
    connect(config(lab)).await
}

async fn list(fs: &S3FileSystem, dir: &str, recursive: bool) -> Result<Vec<DirEntry>> {
    fs.list(&p(dir), ListOptions { recursive, start_after: None }).try_collect().await
}

/// Names as a person reads them, directories with a final `/`.
fn shown(entries: &[DirEntry]) -> Vec<String> {
    let name = |e: &DirEntry| String::from_utf8_lossy(e.path.as_bytes()).into_owned();
    entries.iter().map(|e| if e.metadata.is_dir() { name(e) + "/" } else { name(e) }).collect()
}

async fn open(fs: &S3FileSystem, path: &str) -> Result<Arc<dyn File>> {
    fs.open(&p(path), OpenOptions::default()).await
}

async fn read(fs: &S3FileSystem, path: &str) -> Result<Bytes> {
    open(fs, path).await?.read_at(0..u64::MAX).await
}

async fn write(fs: &S3FileSystem, path: &str, data: impl Into<Bytes>) -> Result<nearfs_backends::Metadata> {
    let mut writer = fs.create(&p(path), Default::default()).await?;
    writer.write(data.into()).await?;
    writer.finish().await
}

#[track_caller]
fn kind<T: std::fmt::Debug>(result: Result<T>) -> ErrorKind {
    result.unwrap_err().kind()
}

/// The error, which must say that trying again may help.
#[track_caller]
fn retryable<T: std::fmt::Debug>(result: Result<T>) -> Error {
    let e = result.unwrap_err();
    assert!(e.is_retryable(), "expected an error worth another try: {e:#}");
    e
}
