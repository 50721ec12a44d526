//! [`ObjectStoreFileSystem`]: an `object_store::ObjectStore` as a filesystem.

mod file;
mod list;
mod writer;

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use object_store::path::Path;
use object_store::{CopyMode, DynObjectStore, ObjectMeta, ObjectStore, ObjectStoreExt};

use super::error::{from_store, location_of, metadata_of};
use crate::capability::Capabilities;
use crate::error::{Error, ErrorKind, Result};
use crate::file::{File, FileWriter};
use crate::fs::{EntryStream, FileSystem, Identity};
use crate::metadata::Metadata;
use crate::options::{Condition, CopyOptions, CreateOptions, ListOptions, OpenOptions};
use crate::path::FsPath;
use file::ObjectFile;
use writer::ObjectWriter;

/// Paths in one round of deletions.
const DELETE_BATCH: usize = 1_000;

/// What cannot be asked of an `ObjectStore` itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectStoreOptions {
    /// Requests cost a network round trip. Default: `true`.
    pub remote: bool,
    /// The store carries out conditional puts, `PutMode::Update` included. Default: `true`; it is `false` for the
    /// crate's own `LocalFileSystem`.
    pub conditional_write: bool,
    /// Copies happen inside the store. Default: `true`.
    pub server_side_copy: bool,
    /// The store has real directories, and an empty one is a common prefix in its listings. A look-up that finds
    /// nothing then looks at the listing of the parent too. Default: `false`; it is `true` for the crate's own
    /// `LocalFileSystem`.
    pub real_directories: bool,
    /// The store keeps a content type; without it the one of `CreateOptions` is not handed on. Default: `true`; it is
    /// `false` for the crate's own `LocalFileSystem`.
    pub content_type: bool,
    /// Size of the parts of large uploads, in bytes, at least 5 MiB for most stores. Smaller files are one request.
    /// Default: 8 MiB.
    pub part_size: usize,
    /// Largest file written under a condition, in bytes: the crate has no conditional multipart uploads, so such a
    /// file is gathered in memory. Default: 256 MiB.
    pub conditional_limit: usize,
}

impl Default for ObjectStoreOptions {
    fn default() -> Self {
        ObjectStoreOptions {
            remote: true,
            conditional_write: true,
            server_side_copy: true,
            real_directories: false,
            content_type: true,
            part_size: 8 << 20,
            conditional_limit: 256 << 20,
        }
    }
}

/// Any `object_store::ObjectStore` as a filesystem.
///
/// What the crate's interface cannot carry stays impossible: names with control characters or invalid UTF-8 are
/// refused; objects with such names spoil the listing of their directory, and empty directories do not exist. Objects
/// that a directory of the same name hides are skipped and counted. A whole level of a listing is held in memory, and
/// a recursive one asks once per directory. Reads are pinned by comparing the version of every answer.
///
/// For S3 prefer [`S3FileSystem`](crate::S3FileSystem), which has none of these limits.
#[derive(Clone)]
pub struct ObjectStoreFileSystem {
    store: Arc<DynObjectStore>,
    identity: Identity,
    options: ObjectStoreOptions,
}

impl ObjectStoreFileSystem {
    /// `store`, known as `url`, which must be different for different stores: caches believe it.
    pub fn new(store: Arc<DynObjectStore>, url: impl Into<String>, options: ObjectStoreOptions) -> Self {
        let identity = Identity { url: url.into(), endpoint: store.to_string() };
        ObjectStoreFileSystem { store, identity, options }
    }

    /// The object of exactly this name, whether or not a directory hides it.
    async fn head(&self, path: &FsPath, operation: &'static str) -> Result<Option<ObjectMeta>> {
        let location = location_of(path, operation)?;
        match self.store.head(&location).await {
            Ok(meta) => Ok(Some(meta)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(e) => match from_store(e, operation, path) {
                // A local disk under the store, and a path below a file.
                e if matches!(e.kind(), ErrorKind::NotADirectory | ErrorKind::NotFound) => Ok(None),
                e => Err(e),
            },
        }
    }

    /// Whether anything lies below this name.
    async fn is_dir(&self, path: &FsPath, operation: &'static str) -> Result<bool> {
        if path.is_root() {
            return Ok(true);
        }
        let location = location_of(path, operation)?;
        match self.store.list(Some(&location)).next().await {
            Some(Ok(_)) => Ok(true),
            None | Some(Err(object_store::Error::NotFound { .. })) => Ok(false),
            Some(Err(e)) => match from_store(e, operation, path) {
                e if matches!(e.kind(), ErrorKind::NotADirectory | ErrorKind::NotFound) => Ok(false),
                e => Err(e),
            },
        }
    }

    async fn look_up(&self, path: &FsPath, operation: &'static str) -> Result<Found> {
        if path.is_root() {
            return Ok(Found::Dir);
        }
        // Side by side: a name can be both, and each answer costs a round trip.
        let (object, dir) = futures::try_join!(self.head(path, operation), self.is_dir(path, operation))?;
        Ok(match (object, dir) {
            (_, true) => Found::Dir,
            (Some(meta), false) => Found::File(meta),
            (None, false) if self.is_empty_dir(path).await? => Found::EmptyDir,
            (None, false) => Found::Nothing,
        })
    }

    /// Whether a listing of the parent shows a directory in which there is nothing.
    async fn is_empty_dir(&self, path: &FsPath) -> Result<bool> {
        let (true, Some(parent)) = (self.options.real_directories, path.parent()) else { return Ok(false) };
        match level(&*self.store, &parent).await {
            Ok(found) => Ok(found.common_prefixes.iter().any(|p| p.as_ref().as_bytes() == path.as_bytes())),
            Err(e) if matches!(e.kind(), ErrorKind::NotADirectory | ErrorKind::NotFound) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Checks source and target of a copy or rename; `false` if there is nothing to do.
    async fn check_move(
        &self,
        from: &FsPath,
        to: &FsPath,
        options: &CopyOptions,
        operation: &'static str,
    ) -> Result<bool> {
        let (source, target) = futures::try_join!(self.look_up(from, operation), self.is_dir(to, operation))?;
        match source {
            Found::Nothing => Err(Error::not_found(from).during(operation)),
            Found::Dir | Found::EmptyDir => Err(is_dir(from, operation)),
            Found::File(_) if target => Err(is_dir(to, operation)),
            // The crate would copy it onto itself and then delete it.
            Found::File(_) if from == to && options.no_replace => {
                Err(Error::new(ErrorKind::AlreadyExists, "the name is taken").during(operation).at(to))
            }
            Found::File(_) => Ok(from != to),
        }
    }
}

enum Found {
    File(ObjectMeta),
    Dir,
    /// Only with real directories.
    EmptyDir,
    Nothing,
}

fn is_dir(path: &FsPath, operation: &'static str) -> Error {
    Error::new(ErrorKind::IsADirectory, "a directory has this name").during(operation).at(path)
}

impl fmt::Debug for ObjectStoreFileSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The store's own `Debug` may show what should not be in a log.
        f.debug_tuple("ObjectStoreFileSystem").field(&self.store.to_string()).finish()
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl FileSystem for ObjectStoreFileSystem {
    fn identity(&self) -> Identity {
        self.identity.clone()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            write: true,
            server_side_copy: self.options.server_side_copy,
            conditional_write: self.options.conditional_write,
            remote: self.options.remote,
            ..Capabilities::default()
        }
    }

    async fn stat(&self, path: &FsPath) -> Result<Metadata> {
        match self.look_up(path, "stat").await? {
            Found::File(meta) => Ok(metadata_of(&meta)),
            Found::Dir | Found::EmptyDir => Ok(Metadata::dir()),
            Found::Nothing => Err(Error::not_found(path).during("stat")),
        }
    }

    fn list(&self, dir: &FsPath, options: ListOptions) -> EntryStream {
        list::list(self.clone(), dir.clone(), options)
    }

    async fn open(&self, path: &FsPath, options: OpenOptions) -> Result<Arc<dyn File>> {
        let metadata = match options.metadata {
            Some(known) if known.is_dir() => return Err(is_dir(path, "open")),
            Some(known) => known,
            None => match self.look_up(path, "open").await? {
                Found::File(meta) => metadata_of(&meta),
                Found::Dir | Found::EmptyDir => return Err(is_dir(path, "open")),
                Found::Nothing => return Err(Error::not_found(path).during("open")),
            },
        };
        let location = location_of(path, "open")?;
        Ok(Arc::new(ObjectFile::new(self.store.clone(), location, path.clone(), metadata)))
    }

    async fn create(&self, path: &FsPath, options: CreateOptions) -> Result<Box<dyn FileWriter>> {
        let location = location_of(path, "create")?;
        if self.is_dir(path, "create").await? {
            return Err(is_dir(path, "create"));
        }
        let found = match options.condition {
            Condition::None => None,
            _ => self.head(path, "create").await?,
        };
        let mode = writer::mode(path, &options.condition, found.as_ref())?;
        Ok(Box::new(ObjectWriter::new(self, location, path.clone(), options, mode)))
    }

    fn delete(&self, paths: BoxStream<'static, FsPath>) -> BoxStream<'static, (FsPath, Result<()>)> {
        let store = self.store.clone();
        paths
            .ready_chunks(DELETE_BATCH)
            .then(move |batch| delete_batch(store.clone(), batch))
            .flat_map(stream::iter)
            .boxed()
    }

    async fn rename(&self, from: &FsPath, to: &FsPath, options: CopyOptions) -> Result<()> {
        if self.check_move(from, to, &options, "rename").await? {
            self.copy_object(from, to, &options, "rename").await?;
            // The target is complete; the source goes last.
            let deleted = self.store.delete(&location_of(from, "rename")?).await;
            deleted.map_err(|e| from_store(e, "rename", from))?;
        }
        Ok(())
    }

    async fn copy(&self, from: &FsPath, to: &FsPath, options: CopyOptions) -> Result<()> {
        if self.check_move(from, to, &options, "copy").await? {
            self.copy_object(from, to, &options, "copy").await?;
        }
        Ok(())
    }

    async fn create_dir(&self, path: &FsPath) -> Result<()> {
        match self.look_up(path, "create_dir").await? {
            Found::Nothing => Err(Error::unsupported("an object store keeps no empty directories")
                .during("create_dir")
                .at(path)),
            _ => Err(Error::new(ErrorKind::AlreadyExists, "the name is taken").during("create_dir").at(path)),
        }
    }

    async fn remove_dir(&self, path: &FsPath) -> Result<()> {
        let e = match self.look_up(path, "remove_dir").await? {
            Found::Nothing => Error::not_found(path),
            Found::File(_) => Error::new(ErrorKind::NotADirectory, "a file has this name"),
            // It would not exist if it were empty.
            Found::Dir => Error::new(ErrorKind::NotEmpty, "the directory has entries"),
            Found::EmptyDir => Error::unsupported("an object store cannot remove a directory"),
        };
        Err(e.during("remove_dir").at(path))
    }
}

impl ObjectStoreFileSystem {
    async fn copy_object(
        &self,
        from: &FsPath,
        to: &FsPath,
        options: &CopyOptions,
        operation: &'static str,
    ) -> Result<()> {
        let mode = if options.no_replace { CopyMode::Create } else { CopyMode::Overwrite };
        let (source, target) = (location_of(from, operation)?, location_of(to, operation)?);
        let options = object_store::CopyOptions { mode, ..Default::default() };
        self.store.copy_opts(&source, &target, options).await.map_err(|e| from_store(e, operation, from))
    }
}

/// Deletes a batch in bulk. An answer that is an error does not say reliably for which path, so paths without a good
/// one are deleted again alone: deleting twice is deleting once.
async fn delete_batch(store: Arc<DynObjectStore>, batch: Vec<FsPath>) -> Vec<(FsPath, Result<()>)> {
    let mut done = Vec::with_capacity(batch.len());
    let mut locations: Vec<(FsPath, Path)> = Vec::with_capacity(batch.len());
    for path in batch {
        match location_of(&path, "delete") {
            Ok(_) if path.is_root() => {
                let e = is_dir(&path, "delete");
                done.push((path, Err(e)));
            }
            Ok(location) => locations.push((path, location)),
            // What cannot have a name does not exist.
            Err(_) => done.push((path, Ok(()))),
        }
    }
    let all: Vec<_> = locations.iter().map(|(_, l)| Ok(l.clone())).collect();
    let deleted: HashSet<Path> =
        store.delete_stream(stream::iter(all).boxed()).filter_map(|r| async { r.ok() }).collect().await;
    let rest = stream::iter(locations).map(|(path, location)| {
        let (store, known) = (store.clone(), deleted.contains(&location));
        async move {
            if known {
                return (path, Ok(()));
            }
            let result = match store.delete(&location).await {
                Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
                Err(e) => match from_store(e, "delete", &path) {
                    e if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(()),
                    e => Err(e),
                },
            };
            (path, result)
        }
    });
    done.extend(rest.buffer_unordered(16).collect::<Vec<_>>().await);
    done
}

/// The whole of one level, as the store tells it.
async fn level(store: &DynObjectStore, dir: &FsPath) -> Result<object_store::ListResult> {
    let location = location_of(dir, "list")?;
    let prefix = (!dir.is_root()).then_some(&location);
    store.list_with_delimiter(prefix).await.map_err(|e| from_store(e, "list", dir))
}
