//! Object storage: S3 and what speaks its protocol.
//!
//! A bucket has keys, not directories. What is shown: a directory exists while any key begins with its name and `/`, or
//! a marker key `name/` exists; a name that is both is the directory. See [`S3FileSystem`].

mod connect;
mod credentials;
mod endpoint;
mod error;
mod file;
mod http;
mod list;
mod listing_order;
mod namespace;
mod stat;
mod task;
mod upload;
mod wire;
mod writer;

use std::sync::Arc;

use async_trait::async_trait;
use futures::stream::BoxStream;

use crate::capability::Capabilities;
use crate::error::{Error, ErrorKind, Result};
use crate::file::{File, FileWriter};
use crate::fs::{EntryStream, FileSystem, Identity};
use crate::io::{BufferPool, BufferPoolConfig};
use crate::metadata::Metadata;
use crate::options::{CopyOptions, CreateOptions, ListOptions, OpenOptions};
use crate::path::FsPath;
use wire::request::Wire;

pub use credentials::{CredentialInfo, Credentials};

/// A bucket, or a directory in one, as a filesystem.
///
/// Each call makes at most one attempt at each request (but for one correction of the region and one renewal of expired
/// credentials): the retry layer belongs above.
///
/// * `stat` and a first `open` cost one latency: HEAD of the key and LIST of what is below it, side by side.
/// * Reads are pinned: `If-Match` goes out with every request, and every answer's ETag, range and length are compared.
/// * A read of a whole object is compared with the checksum that the store keeps of it, if any: the end is reached only
///   with the right bytes, else the error is `Corrupt`. Streams have given out bytes by then.
/// * Keys are taken byte for byte. Those that no [`FsPath`] can name are skipped by listings and counted
///   (`nearfs_list_skipped_total`).
/// * Permission bits, links and owners are not kept.
#[derive(Debug)]
pub struct S3FileSystem {
    shared: Arc<Shared>,
}

/// What open files and running listings share with the filesystem.
#[derive(Debug)]
pub(crate) struct Shared {
    wire: Arc<Wire>,
    prefix: FsPath,
    /// Memory of what `read_at` gives out: fresh pages would cost more than the bytes in them.
    buffers: BufferPool,
}

impl Shared {
    fn new(wire: Arc<Wire>, prefix: FsPath) -> Self {
        Shared { wire, prefix, buffers: BufferPool::new(BufferPoolConfig::default()) }
    }

    /// The key of the file `path`.
    ///
    /// # Errors
    /// `InvalidInput` if it is not UTF-8: such keys do not exist in S3.
    fn key(&self, path: &FsPath) -> Result<String> {
        let full = self.prefix.join_path(path);
        String::from_utf8(full.as_bytes().to_vec()).map_err(|_| {
            Error::new(ErrorKind::InvalidInput, "the name is not UTF-8, expected because S3 keys are")
                .at(path)
        })
    }

    /// What the keys below the directory `path` begin with; empty for the whole bucket.
    fn dir_key(&self, path: &FsPath) -> Result<String> {
        let mut key = self.key(path)?;
        if !key.is_empty() {
            key.push('/');
        }
        Ok(key)
    }
}

impl S3FileSystem {
    /// Where the credentials come from.
    pub fn credentials(&self) -> &Arc<Credentials> {
        &self.shared.wire.credentials
    }

    /// The region that requests are signed for now.
    pub fn region(&self) -> String {
        self.shared.wire.endpoint().region.clone()
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl FileSystem for S3FileSystem {
    fn identity(&self) -> Identity {
        let config = &self.shared.wire.config;
        let separator = if self.shared.prefix.is_root() { "" } else { "/" };
        let endpoint = self.shared.wire.endpoint();
        Identity {
            url: format!("s3://{}{separator}{}", config.bucket, self.shared.prefix),
            // The region of a store of Amazon's may be corrected later; bucket names are unique without it.
            endpoint: if endpoint.is_custom() { endpoint.display() } else { String::new() },
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            write: true,
            empty_dirs: true,
            server_side_copy: true,
            conditional_write: true,
            pinned_reads: true,
            remote: true,
            list_resume: true,
            ..Capabilities::default()
        }
    }

    async fn stat(&self, path: &FsPath) -> Result<Metadata> {
        self.shared.stat(path).await.map_err(|e| e.during("stat").at(path))
    }

    fn list(&self, dir: &FsPath, options: ListOptions) -> EntryStream {
        list::stream(Arc::clone(&self.shared), dir.clone(), options)
    }

    async fn open(&self, path: &FsPath, options: OpenOptions) -> Result<Arc<dyn File>> {
        let file = file::open(Arc::clone(&self.shared), path, options).await;
        Ok(Arc::new(file.map_err(|e| e.during("open").at(path))?))
    }

    async fn create(&self, path: &FsPath, options: CreateOptions) -> Result<Box<dyn FileWriter>> {
        let writer = writer::create(&self.shared, path, options);
        Ok(Box::new(writer.map_err(|e| e.during("create").at(path))?))
    }

    fn delete(&self, paths: BoxStream<'static, FsPath>) -> BoxStream<'static, (FsPath, Result<()>)> {
        namespace::delete(Arc::clone(&self.shared), paths)
    }

    async fn rename(&self, from: &FsPath, to: &FsPath, options: CopyOptions) -> Result<()> {
        self.shared.rename(from, to, options).await.map_err(|e| e.during("rename"))
    }

    async fn copy(&self, from: &FsPath, to: &FsPath, options: CopyOptions) -> Result<()> {
        self.shared.copy(from, to, options).await.map_err(|e| e.during("copy"))
    }

    async fn create_dir(&self, path: &FsPath) -> Result<()> {
        self.shared.create_dir(path).await.map_err(|e| e.during("create directory").at(path))
    }

    async fn remove_dir(&self, path: &FsPath) -> Result<()> {
        self.shared.remove_dir(path).await.map_err(|e| e.during("remove directory").at(path))
    }
}
