//! [`ReadOnlyLayer`]: refuses everything that would change the store.

use std::sync::Arc;

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;

use crate::capability::Capabilities;
use crate::error::{Error, ErrorKind, Result};
use crate::file::{File, FileWriter};
use crate::fs::{EntryStream, FileSystem, Identity};
use crate::metadata::Metadata;
use crate::options::{CopyOptions, CreateOptions, ListOptions, OpenOptions};
use crate::path::FsPath;

/// Passes reads on and answers `ReadOnly` to every call that would write, without asking the store.
///
/// Place: near the top, where the user's wish is known; everything below sees reads alone.
#[derive(Debug, Clone)]
pub struct ReadOnlyLayer {
    inner: Arc<dyn FileSystem>,
}

impl ReadOnlyLayer {
    /// `inner` without the right to write.
    pub fn new(inner: Arc<dyn FileSystem>) -> Self {
        ReadOnlyLayer { inner }
    }
}

fn refuse(operation: &'static str, path: &FsPath) -> Error {
    Error::new(ErrorKind::ReadOnly, "the filesystem is open for reading only").during(operation).at(path)
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl FileSystem for ReadOnlyLayer {
    fn identity(&self) -> Identity {
        self.inner.identity()
    }

    fn capabilities(&self) -> Capabilities {
        let mut c = self.inner.capabilities();
        c.write = false;
        c.empty_dirs = false;
        c.atomic_rename = false;
        c.server_side_copy = false;
        c.conditional_write = false;
        c
    }

    async fn stat(&self, path: &FsPath) -> Result<Metadata> {
        self.inner.stat(path).await
    }

    fn list(&self, dir: &FsPath, options: ListOptions) -> EntryStream {
        self.inner.list(dir, options)
    }

    async fn open(&self, path: &FsPath, options: OpenOptions) -> Result<Arc<dyn File>> {
        self.inner.open(path, options).await
    }

    async fn create(&self, path: &FsPath, _: CreateOptions) -> Result<Box<dyn FileWriter>> {
        Err(refuse("create", path))
    }

    fn delete(&self, paths: BoxStream<'static, FsPath>) -> BoxStream<'static, (FsPath, Result<()>)> {
        paths
            .map(|path| {
                let refused = Err(refuse("delete", &path));
                (path, refused)
            })
            .boxed()
    }

    async fn rename(&self, from: &FsPath, _: &FsPath, _: CopyOptions) -> Result<()> {
        Err(refuse("rename", from))
    }

    async fn copy(&self, _: &FsPath, to: &FsPath, _: CopyOptions) -> Result<()> {
        Err(refuse("copy", to))
    }

    async fn create_dir(&self, path: &FsPath) -> Result<()> {
        Err(refuse("create_dir", path))
    }

    async fn remove_dir(&self, path: &FsPath) -> Result<()> {
        Err(refuse("remove_dir", path))
    }
}
