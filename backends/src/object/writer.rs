//! [`S3Writer`]: a new version, written front to back. Small files are one request, larger ones many parts.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};

use super::Shared;
use super::task::Task;
use super::upload::{ATTEMPTS, Upload, condition_header, part_size, pause, put};
use crate::error::{Error, ErrorKind, Result};
use crate::file::FileWriter;
use crate::metadata::Metadata;
use crate::options::CreateOptions;
use crate::path::FsPath;

pub(crate) fn create(shared: &Arc<Shared>, path: &FsPath, options: CreateOptions) -> Result<S3Writer> {
    if path.is_root() {
        return Err(is_a_directory());
    }
    let key = shared.key(path)?;
    condition_header(&options.condition)?;
    let (worker, name) = (Arc::clone(shared), path.clone());
    // Known before the first part is full, so that it costs the writer no time.
    let probe = Task::spawn(&shared.wire, async move { probe(&worker, &name).await });
    Ok(S3Writer {
        shared: Arc::clone(shared),
        path: path.clone(),
        key,
        options,
        probe,
        buffer: BytesMut::new(),
        upload: None,
        failed: false,
    })
}

/// Whether a directory has the name. Repeated here, like all requests of an upload: nobody above can.
async fn probe(shared: &Shared, path: &FsPath) -> Result<bool> {
    let mut attempt = 1;
    loop {
        match shared.is_dir(path).await {
            Err(e)
                if attempt < ATTEMPTS
                    && let Some(pause) = pause(&e, attempt) =>
            {
                tokio::time::sleep(pause).await
            }
            other => return other,
        }
        attempt += 1;
    }
}

fn is_a_directory() -> Error {
    Error::new(ErrorKind::IsADirectory, "a directory, expected a file or nothing")
}

/// A file being written.
#[derive(Debug)]
pub(crate) struct S3Writer {
    shared: Arc<Shared>,
    path: FsPath,
    key: String,
    options: CreateOptions,
    /// Whether a directory has the name.
    probe: Task<Result<bool>>,
    /// The part being filled.
    buffer: BytesMut,
    upload: Option<Upload>,
    failed: bool,
}

impl S3Writer {
    fn part_size(&self) -> usize {
        let number = self.upload.as_ref().map_or(0, Upload::parts);
        part_size(self.shared.wire.config.part_size, self.options.size_hint, number) as usize
    }

    async fn append(&mut self, mut data: Bytes) -> Result<()> {
        while !data.is_empty() {
            let room = self.part_size() - self.buffer.len();
            if room == 0 {
                // Sent only now that more follows: a file of exactly one part is one request.
                self.send_part().await?;
                continue;
            }
            if self.upload.is_some() {
                // More is known to come: the whole part at once, instead of by doubling.
                self.buffer.reserve(room);
            }
            let piece = data.split_to(room.min(data.len()));
            self.buffer.extend_from_slice(&piece);
        }
        Ok(())
    }

    async fn send_part(&mut self) -> Result<()> {
        let upload = match &mut self.upload {
            Some(upload) => upload,
            None => {
                if self.probe.join().await?? {
                    return Err(is_a_directory());
                }
                let kind = self.options.content_type.as_deref();
                self.upload.insert(Upload::start(&self.shared.wire, &self.key, kind).await?)
            }
        };
        upload.part(std::mem::take(&mut self.buffer).freeze()).await
    }

    async fn conclude(mut self) -> Result<Metadata> {
        if self.failed {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "the writer has failed before: it can only be aborted",
            ));
        }
        if self.upload.is_some() {
            self.send_part().await?;
            let upload = self.upload.take().expect("looked at above");
            return upload.complete(&self.options.condition).await;
        }
        if self.probe.join().await?? {
            return Err(is_a_directory());
        }
        let kind = self.options.content_type.as_deref();
        put(&self.shared.wire, &self.key, self.buffer.freeze(), kind, &self.options.condition).await
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl FileWriter for S3Writer {
    async fn write(&mut self, data: Bytes) -> Result<()> {
        if self.failed {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "the writer has failed before: it can only be aborted",
            ));
        }
        // A call dropped on the way has taken part of `data`.
        self.failed = true;
        self.append(data).await.map_err(|e| e.during("write").at(&self.path))?;
        self.failed = false;
        Ok(())
    }

    async fn finish(self: Box<Self>) -> Result<Metadata> {
        let path = self.path.clone();
        self.conclude().await.map_err(|e| e.during("write").at(&path))
    }

    async fn abort(self: Box<Self>) -> Result<()> {
        match self.upload {
            Some(upload) => upload.abort().await.map_err(|e| e.during("abort").at(&self.path)),
            None => Ok(()),
        }
    }
}
