//! Writing through `put` for small files and multipart uploads for large ones.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use object_store::path::Path;
use object_store::{
    Attribute, AttributeValue, Attributes, DynObjectStore, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode,
    PutMultipartOptions, PutOptions, PutPayload, PutPayloadMut, UpdateVersion, WriteMultipart,
};

use super::{ObjectStoreFileSystem, ObjectStoreOptions};
use crate::error::{Error, ErrorKind, Result};
use crate::file::FileWriter;
use crate::interop::error::{from_store, metadata_of, version_of};
use crate::metadata::Metadata;
use crate::options::{Condition, CreateOptions};
use crate::path::FsPath;

/// Parts of one upload in flight.
const PARTS_IN_FLIGHT: usize = 8;

/// How the condition is put to the store, after a first look at what is there.
///
/// # Errors
/// `AlreadyExists` or `Stale` if the condition does not even hold now.
pub(super) fn mode(path: &FsPath, condition: &Condition, found: Option<&ObjectMeta>) -> Result<PutMode> {
    let failed = |kind, text| Err(Error::new(kind, text).during("create").at(path));
    match (condition, found) {
        (Condition::None, _) => Ok(PutMode::Overwrite),
        (Condition::Absent, None) => Ok(PutMode::Create),
        (Condition::Absent, Some(_)) => failed(ErrorKind::AlreadyExists, "the name is taken"),
        (Condition::Version(version), _) if !version.is_known() => {
            failed(ErrorKind::InvalidInput, "an unknown version cannot be a condition")
        }
        (Condition::Version(version), Some(meta)) if version_of(meta) == *version => {
            // In the store's own spelling, quotes and all.
            let (e_tag, version) = (meta.e_tag.clone(), meta.version.clone());
            Ok(PutMode::Update(UpdateVersion { e_tag, version }))
        }
        (Condition::Version(_), _) => failed(ErrorKind::Stale, "the object is not the version asked for"),
    }
}

pub(super) struct ObjectWriter {
    store: Arc<DynObjectStore>,
    location: Path,
    path: FsPath,
    options: ObjectStoreOptions,
    mode: PutMode,
    attributes: Attributes,
    /// What has come and is not part of an upload.
    gathered: PutPayloadMut,
    upload: Option<WriteMultipart>,
}

impl ObjectWriter {
    pub(super) fn new(
        fs: &ObjectStoreFileSystem,
        location: Path,
        path: FsPath,
        options: CreateOptions,
        mode: PutMode,
    ) -> Self {
        let content_type = options
            .content_type
            .filter(|_| fs.options.content_type)
            .map(|t| (Attribute::ContentType, AttributeValue::from(t)));
        ObjectWriter {
            store: fs.store.clone(),
            location,
            path,
            options: fs.options.clone(),
            mode,
            attributes: content_type.into_iter().collect(),
            gathered: PutPayloadMut::new(),
            upload: None,
        }
    }

    fn failed(&self, e: object_store::Error, operation: &'static str) -> Error {
        from_store(e, operation, &self.path)
    }
}

impl fmt::Debug for ObjectWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ObjectWriter({:?})", self.path)
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl FileWriter for ObjectWriter {
    async fn write(&mut self, data: Bytes) -> Result<()> {
        if let Some(upload) = &mut self.upload {
            upload.put(data);
            let ready = upload.wait_for_capacity(PARTS_IN_FLIGHT).await;
            return ready.map_err(|e| from_store(e, "write", &self.path));
        }
        self.gathered.push(data);
        if !matches!(self.mode, PutMode::Overwrite) {
            let limit = self.options.conditional_limit;
            if self.gathered.content_length() > limit {
                let text = format!("a conditional write of more than {limit} bytes through this bridge");
                return Err(Error::unsupported(text).during("write").at(&self.path));
            }
            return Ok(());
        }
        if self.gathered.content_length() > self.options.part_size {
            let options = PutMultipartOptions { attributes: self.attributes.clone(), ..Default::default() };
            let started = self.store.put_multipart_opts(&self.location, options).await;
            let started = started.map_err(|e| self.failed(e, "write"))?;
            let mut upload = WriteMultipart::new_with_chunk_size(started, self.options.part_size);
            for piece in PutPayload::from(std::mem::take(&mut self.gathered)) {
                upload.put(piece);
            }
            self.upload = Some(upload);
        }
        Ok(())
    }

    async fn finish(mut self: Box<Self>) -> Result<Metadata> {
        let put = match self.upload.take() {
            Some(upload) => upload.finish().await,
            None => {
                let payload = PutPayload::from(std::mem::take(&mut self.gathered));
                let attributes = std::mem::take(&mut self.attributes);
                let options = PutOptions { mode: self.mode.clone(), attributes, ..Default::default() };
                self.store.put_opts(&self.location, payload, options).await
            }
        };
        put.map_err(|e| self.failed(e, "finish"))?;
        // The answer to a put lacks size and time. What is there now may already be a later version: then that one is
        // reported, as by any other `stat`.
        let meta = self.store.head(&self.location).await.map_err(|e| self.failed(e, "finish"))?;
        Ok(metadata_of(&meta))
    }

    async fn abort(mut self: Box<Self>) -> Result<()> {
        match self.upload.take() {
            Some(upload) => upload.abort().await.map_err(|e| self.failed(e, "abort")),
            None => Ok(()),
        }
    }
}

impl Drop for ObjectWriter {
    fn drop(&mut self) {
        // Parts that are not cleaned up cost money. Without a runtime there is nothing that could do it; the store's
        // own rules for incomplete uploads are the remedy then.
        if let (Some(upload), Ok(runtime)) = (self.upload.take(), tokio::runtime::Handle::try_current()) {
            let path = self.path.clone();
            runtime.spawn(async move {
                if let Err(e) = upload.abort().await {
                    tracing::warn!(%path, error = %e, "an incomplete upload could not be removed");
                }
            });
        }
    }
}
