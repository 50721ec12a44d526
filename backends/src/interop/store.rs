//! [`FileSystemObjectStore`]: a nearfs filesystem as an `object_store::ObjectStore`.

mod upload;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt, future};
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, CopyMode, CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult,
    MultipartUpload, ObjectMeta, ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, RenameOptions, RenameTargetMode, Result, TagSet,
};

use super::error::{NAME, is_version, location_of, object_of, tag_of, to_store};
use crate::error::ErrorKind;
use crate::fs::FileSystem;
use crate::metadata::{DirEntry, Metadata};
use crate::metrics::LIST_SKIPPED;
use crate::options::{self, Condition, CreateOptions, ListOptions, OpenOptions};
use crate::path::FsPath;
use upload::Upload;

/// Any nearfs filesystem as an `object_store::ObjectStore`.
///
/// ```
/// # use std::sync::Arc;
/// # use nearfs_backends::{MemoryFileSystem, interop::FileSystemObjectStore};
/// let filesystem = Arc::new(MemoryFileSystem::new());
/// let store: Arc<dyn object_store::ObjectStore> = Arc::new(FileSystemObjectStore::new(filesystem));
/// ```
///
/// Differences to a store of plain keys: a name cannot be an object and a prefix at once where the filesystem has real
/// directories, and an empty directory is a common prefix. Of attributes only the content type is kept, for stores
/// that have one; others, and tags, are refused. ETags are made from versions; a file without one cannot be the
/// subject of a condition. Old versions cannot be read by their id. Must be used inside a tokio runtime, as the
/// filesystem itself (or over a [`SpawnedLayer`](crate::layer::SpawnedLayer)).
#[derive(Clone)]
pub struct FileSystemObjectStore {
    inner: Arc<dyn FileSystem>,
}

impl FileSystemObjectStore {
    /// `filesystem` as a store; its root is the root of all keys.
    pub fn new(filesystem: Arc<dyn FileSystem>) -> Self {
        FileSystemObjectStore { inner: filesystem }
    }
}

impl fmt::Display for FileSystemObjectStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{NAME}({})", self.inner.identity())
    }
}

impl fmt::Debug for FileSystemObjectStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FileSystemObjectStore").field(&self.inner).finish()
    }
}

/// The path of an object.
fn path_of(location: &Path) -> Result<FsPath> {
    FsPath::parse(location.as_ref()).map_err(|e| to_store(e, location))
}

fn not_implemented(operation: &str) -> Error {
    Error::NotImplemented { operation: operation.into(), implementer: NAME.into() }
}

/// The content type, the one attribute that filesystems know.
fn content_type(attributes: &Attributes, tags: &TagSet) -> Result<Option<String>> {
    if !tags.encoded().is_empty() {
        return Err(not_implemented("put with tags"));
    }
    let mut found = None;
    for (attribute, value) in attributes {
        match attribute {
            Attribute::ContentType => found = Some(value.as_ref().to_owned()),
            _ => return Err(not_implemented("put with attributes other than the content type")),
        }
    }
    Ok(found)
}

fn put_result(metadata: &Metadata) -> PutResult {
    PutResult { e_tag: tag_of(&metadata.version), version: None, extensions: Default::default() }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl ObjectStore for FileSystemObjectStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        let path = path_of(location)?;
        let content_type = content_type(&opts.attributes, &opts.tags)?;
        let condition = match &opts.mode {
            PutMode::Overwrite => Condition::None,
            PutMode::Create => Condition::Absent,
            PutMode::Update(wanted) => self.condition(location, &path, wanted).await?,
        };
        let size_hint = Some(payload.content_length() as u64);
        let options = CreateOptions { condition, content_type, size_hint };
        let written = async {
            let mut writer = self.inner.create(&path, options).await?;
            for piece in payload {
                if let Err(e) = writer.write(piece).await {
                    // The failure of the write is the one to report.
                    let _ = writer.abort().await;
                    return Err(e);
                }
            }
            writer.finish().await
        };
        Ok(put_result(&written.await.map_err(|e| to_store(e, location))?))
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let path = path_of(location)?;
        let content_type = content_type(&opts.attributes, &opts.tags)?;
        let options = CreateOptions { content_type, ..Default::default() };
        let writer = self.inner.create(&path, options).await.map_err(|e| to_store(e, location))?;
        Ok(Box::new(Upload::new(writer, location.clone())))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        if options.version.is_some() {
            return Err(not_implemented("get of an old version"));
        }
        let path = path_of(location)?;
        let failed = |e| to_store(e, location);
        let (metadata, file) = if options.head {
            (self.inner.stat(&path).await.map_err(failed)?, None)
        } else {
            let file = self.inner.open(&path, OpenOptions::default()).await.map_err(failed)?;
            (file.metadata().clone(), Some(file))
        };
        if metadata.is_dir() {
            return Err(failed(crate::Error::not_found(&path)));
        }
        let meta = object_of(location.clone(), &metadata);
        options.check_preconditions(&meta)?;
        let range = match &options.range {
            Some(range) => {
                range.as_range(meta.size).map_err(|e| Error::Generic { store: NAME, source: Box::new(e) })?
            }
            None => 0..meta.size,
        };
        let payload = match file {
            Some(file) => {
                let location = location.clone();
                file.read_stream(range.clone()).map_err(move |e| to_store(e, &location)).boxed()
            }
            None => stream::empty().boxed(),
        };
        Ok(GetResult {
            payload: GetResultPayload::Stream(payload),
            meta,
            range,
            attributes: Attributes::default(),
            extensions: Default::default(),
        })
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let path = path_of(location)?;
        let failed = |e| to_store(e, location);
        let file = self.inner.open(&path, OpenOptions::default()).await.map_err(failed)?;
        let size = file.metadata().size;
        // Here an empty range is an error, or one that starts after the end.
        for range in ranges {
            object_store::GetRange::Bounded(range.clone())
                .as_range(size)
                .map_err(|e| Error::Generic { store: NAME, source: Box::new(e) })?;
        }
        file.read_ranges(ranges).await.map_err(failed)
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let inner = self.inner.clone();
        // Locations that are errors, or no path at all, are answered in passing, in bounded batches.
        locations
            .ready_chunks(1_000)
            .flat_map(move |batch| {
                let (mut paths, mut answers) = (Vec::new(), Vec::new());
                for location in batch {
                    match location.and_then(|l| path_of(&l)) {
                        Ok(path) => paths.push(path),
                        Err(e) => answers.push(Err(e)),
                    }
                }
                let deleted = inner.delete(stream::iter(paths).boxed()).map(|(path, result)| {
                    let location = location_of(&path, "delete").map_err(|e| to_store(e, &Path::default()))?;
                    result.map(|()| location.clone()).map_err(|e| to_store(e, &location))
                });
                stream::iter(answers).chain(deleted).boxed()
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.objects(prefix, true)
            .try_filter_map(|(location, entry)| {
                let object = entry.metadata.is_file().then(|| object_of(location, &entry.metadata));
                future::ready(Ok(object))
            })
            .boxed()
    }

    /// By skipping: keys are ordered otherwise than our listings.
    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let offset = offset.clone();
        self.list(prefix).try_filter(move |object| future::ready(object.location > offset)).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let mut result =
            ListResult { common_prefixes: Vec::new(), objects: Vec::new(), extensions: Default::default() };
        let mut entries = self.objects(prefix, false);
        while let Some((location, entry)) = entries.try_next().await? {
            if entry.metadata.is_dir() {
                result.common_prefixes.push(location);
            } else {
                result.objects.push(object_of(location, &entry.metadata));
            }
        }
        Ok(result)
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let no_replace = options.mode == CopyMode::Create;
        let (source, target) = (path_of(from)?, path_of(to)?);
        let copied = self.inner.copy(&source, &target, options::CopyOptions { no_replace }).await;
        copied.map_err(|e| to_store(e, if no_replace { to } else { from }))
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        let no_replace = options.target_mode == RenameTargetMode::Create;
        let (source, target) = (path_of(from)?, path_of(to)?);
        let renamed = self.inner.rename(&source, &target, options::CopyOptions { no_replace }).await;
        renamed.map_err(|e| to_store(e, if no_replace { to } else { from }))
    }
}

impl FileSystemObjectStore {
    /// The condition for replacing the version that an ETag names: looked up, as an ETag is not a version. Should the
    /// file change in between, the condition fails as it should.
    async fn condition(
        &self,
        location: &Path,
        path: &FsPath,
        wanted: &object_store::UpdateVersion,
    ) -> Result<Condition> {
        if !self.inner.capabilities().conditional_write {
            return Err(not_implemented("conditional put"));
        }
        let changed = |text: &str| {
            let e = crate::Error::new(ErrorKind::Stale, text).during("create").at(path);
            Err(to_store(e, location))
        };
        match self.inner.stat(path).await {
            Ok(found) if is_version(&found.version, wanted) => Ok(Condition::Version(found.version)),
            Ok(_) => changed("the file has another version"),
            Err(e) if e.kind() == ErrorKind::NotFound => changed("there is no such file"),
            Err(e) => Err(to_store(e, location)),
        }
    }

    /// Entries below a prefix, as keys; none if there is nothing.
    fn objects(
        &self,
        prefix: Option<&Path>,
        recursive: bool,
    ) -> BoxStream<'static, Result<(Path, DirEntry)>> {
        let at = prefix.cloned().unwrap_or_default();
        let dir = match path_of(&at) {
            Ok(dir) => dir,
            // What no path can name is not there.
            Err(_) => return stream::empty().boxed(),
        };
        let entries = self.inner.list(&dir, ListOptions { recursive, start_after: None });
        entries
            .take_while(|item| {
                let absent =
                    |e: &crate::Error| matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory);
                future::ready(!item.as_ref().is_err_and(absent))
            })
            .map_err(move |e| to_store(e, &at))
            .try_filter_map(|entry| {
                let location = location_of(&entry.path, "list");
                if location.is_err() {
                    LIST_SKIPPED.counter(["interop", "name"]).increment(1);
                }
                future::ready(Ok(location.ok().map(|location| (location, entry))))
            })
            .boxed()
    }
}
