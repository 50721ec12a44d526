//! Names: delete, copy, rename, directories.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};
use http::{HeaderName, Method, header};
use md5::{Digest, Md5};

use super::Shared;
use super::endpoint::Endpoint;
use super::error::Refusal;
use super::upload::{put, refused};
use super::wire::list::Query;
use super::wire::request::Request;
use super::wire::xml::{escape, malformed, walk};
use crate::error::{Error, ErrorKind, Result};
use crate::metadata::{Metadata, Version};
use crate::options::{Condition, CopyOptions};
use crate::path::FsPath;

/// Most keys of one DeleteObjects.
const DELETE_BATCH: usize = 1000;

/// Requests of one batch at once.
const PARALLEL: usize = 32;

/// Batches of one stream at once.
const PARALLEL_BATCHES: usize = 2;

/// Largest object that one CopyObject takes.
const COPY_LIMIT: u64 = 5 * 1024 * 1024 * 1024;

const ANSWER_LIMIT: usize = 8 * 1024 * 1024;

pub(crate) fn delete(
    shared: Arc<Shared>,
    paths: BoxStream<'static, FsPath>,
) -> BoxStream<'static, (FsPath, Result<()>)> {
    paths
        .ready_chunks(DELETE_BATCH)
        .map(move |batch| {
            let shared = Arc::clone(&shared);
            async move { stream::iter(shared.delete_batch(batch).await) }
        })
        .buffer_unordered(PARALLEL_BATCHES)
        .flatten()
        .map(|(path, result)| {
            let named = result.map_err(|e: Error| e.during("delete").at(&path));
            (path, named)
        })
        .boxed()
}

impl Shared {
    /// Deletes files, after asking for each whether a directory hides it.
    async fn delete_batch(&self, paths: Vec<FsPath>) -> Vec<(FsPath, Result<()>)> {
        let checks: Vec<_> = paths
            .into_iter()
            .map(|path| async move {
                let key = match self.is_dir(&path).await {
                    Ok(true) => Err(Error::new(ErrorKind::IsADirectory, "a directory, expected a file")),
                    Ok(false) => self.key(&path),
                    Err(e) => Err(e),
                };
                (path, key)
            })
            .collect();
        let checked: Vec<_> = stream::iter(checks).buffer_unordered(PARALLEL).collect().await;
        let mut results = Vec::with_capacity(checked.len());
        let mut bulk = Vec::new();
        let mut single = Vec::new();
        for (path, key) in checked {
            match key {
                Err(e) => results.push((path, Err(e))),
                Ok(key) if escape(&key).is_some() => bulk.push((path, key)),
                // XML cannot say this key.
                Ok(key) => single.push((path, key)),
            }
        }
        if bulk.len() > 1 {
            match self.delete_bulk(&bulk).await {
                Ok(answers) => results.extend(bulk.into_iter().map(|(path, key)| {
                    let result = match answers.get(&key) {
                        Some(Ok(())) => Ok(()),
                        Some(Err(e)) => Err(e.duplicate()),
                        None => Err(malformed("does not tell whether the file was deleted")),
                    };
                    (path, result)
                })),
                // A store without this call.
                Err(refusal) if refusal.error.kind() == ErrorKind::Unsupported => single.append(&mut bulk),
                Err(refusal) => {
                    let error = Error::from(refusal);
                    results.extend(bulk.into_iter().map(|(path, _)| (path, Err(error.duplicate()))));
                }
            }
        } else {
            single.append(&mut bulk);
        }
        let deletes: Vec<_> = single
            .into_iter()
            .map(|(path, key)| async move {
                let result = self.delete_key(&key).await;
                (path, result)
            })
            .collect();
        results.extend(stream::iter(deletes).buffer_unordered(PARALLEL).collect::<Vec<_>>().await);
        results
    }

    /// DeleteObjects. One result for each key that the answer names.
    async fn delete_bulk(&self, files: &[(FsPath, String)]) -> Result<HashMap<String, Result<()>>, Refusal> {
        let mut body = String::from("<Delete xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">");
        for (_, key) in files {
            body.push_str("<Object><Key>");
            body.push_str(&escape(key).ok_or_else(|| malformed("cannot be asked for this key"))?);
            body.push_str("</Key></Object>");
        }
        body.push_str("</Delete>");
        // The call is refused without a digest; MD5 is the one that every store knows.
        let digest = BASE64.encode(Md5::digest(body.as_bytes()));
        let request = Request::new(Method::POST, "")
            .query("delete", "")
            .header(HeaderName::from_static("content-md5"), &digest)?
            .header(header::CONTENT_TYPE, "application/xml")?
            .body(body.into());
        let (_, answer) = self.wire.send_and_collect(request, ANSWER_LIMIT).await?;
        let mut results = HashMap::with_capacity(files.len());
        let (mut key, mut code) = (String::new(), String::new());
        walk(&answer, |path, text| {
            match (path.get(1).map(String::as_str), path.get(2).map(String::as_str)) {
                (Some("Deleted" | "Error"), Some("Key")) => text.clone_into(&mut key),
                (Some("Error"), Some("Code")) => text.clone_into(&mut code),
                (Some("Deleted"), None) => drop(results.insert(std::mem::take(&mut key), Ok(()))),
                (Some("Error"), None) => {
                    drop(results.insert(std::mem::take(&mut key), not_deleted(&code)));
                    code.clear();
                }
                _ => {}
            }
            Ok(())
        })?;
        Ok(results)
    }

    async fn delete_key(&self, key: &str) -> Result<()> {
        match self.wire.send(Request::new(Method::DELETE, key)).await {
            Ok(_) => Ok(()),
            Err(refusal) if refusal.is_absent() => Ok(()),
            Err(refusal) => Err(refusal.into()),
        }
    }

    /// Copies inside the store.
    pub(crate) async fn copy(&self, from: &FsPath, to: &FsPath, options: CopyOptions) -> Result<()> {
        let (source, into_dir) = futures::join!(self.stat(from), self.is_dir(to));
        let source = source.map_err(|e| e.at(from))?;
        let directory = || Error::new(ErrorKind::IsADirectory, "a directory, expected a file");
        if source.is_dir() {
            return Err(directory().at(from));
        }
        if into_dir.map_err(|e| e.at(to))? {
            return Err(directory().at(to));
        }
        let exists = || Error::new(ErrorKind::AlreadyExists, "a file of this name exists already").at(to);
        if from == to {
            return if options.no_replace { Err(exists()) } else { Ok(()) };
        }
        let target = self.key(to)?;
        // Asked first for the stores that ignore the condition below.
        if options.no_replace && self.exists(&target).await.map_err(|e| e.at(to))? {
            return Err(exists());
        }
        self.copy_object(&self.key(from)?, &source, &target, options.no_replace).await.map_err(|e| {
            match e.kind() {
                ErrorKind::AlreadyExists => e.at(to),
                _ => e.at(from),
            }
        })
    }

    async fn exists(&self, key: &str) -> Result<bool> {
        match self.wire.head(key).await {
            Ok(_) => Ok(true),
            Err(refusal) if refusal.is_absent() => Ok(false),
            Err(refusal) => Err(refusal.into()),
        }
    }

    async fn copy_object(&self, from: &str, source: &Metadata, to: &str, no_replace: bool) -> Result<()> {
        if source.size > COPY_LIMIT {
            return Err(Error::unsupported(format!(
                "{} bytes, expected at most 5 GiB for a copy",
                source.size
            ))
            .with_context("hint", "read the file and write it under the new name"));
        }
        let name = Endpoint::copy_source(&self.wire.config.bucket, from);
        // The store moves some 100 MB a second and begins to answer when it is done.
        let patience = Duration::from_secs(source.size / (16 * 1024 * 1024));
        let mut request = Request::new(Method::PUT, to)
            .header(HeaderName::from_static("x-amz-copy-source"), &name)?
            .patience(patience);
        if let Version::Tag(tag) = &source.version {
            let pin = HeaderName::from_static("x-amz-copy-source-if-match");
            request = request.header(pin, &format!("\"{tag}\""))?;
        }
        if no_replace {
            request = request.header(header::IF_NONE_MATCH, "*")?;
        }
        let refusal = match self.wire.send_and_collect(request, ANSWER_LIMIT).await {
            Ok((headers, body)) => match Refusal::inside_success(&headers, &body) {
                None => return Ok(()),
                Some(refusal) => refusal,
            },
            Err(refusal) => refusal,
        };
        if refusal.status == 412 && !(no_replace && self.exists(to).await?) {
            return Err(Error::new(ErrorKind::Stale, "the file changed while it was copied"));
        }
        Err(refused(refusal, if no_replace { &Condition::Absent } else { &Condition::None }))
    }

    /// Copy, then delete. The source goes only after the target is complete.
    pub(crate) async fn rename(&self, from: &FsPath, to: &FsPath, options: CopyOptions) -> Result<()> {
        self.copy(from, to, options).await?;
        if from == to {
            return Ok(());
        }
        self.delete_key(&self.key(from)?)
            .await
            .map_err(|e| e.at(from).with_context("hint", "the new name is complete; the old one remains"))
    }

    /// Writes a marker, and those of the directories above that do not exist yet.
    pub(crate) async fn create_dir(&self, path: &FsPath) -> Result<()> {
        let exists =
            || Error::new(ErrorKind::AlreadyExists, "a file or directory of this name exists already");
        match self.stat(path).await {
            Ok(_) => return Err(exists()),
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
        // `stat` takes names that are no keys for absent.
        self.key(path)?;
        let above: Vec<_> =
            std::iter::successors(path.parent(), FsPath::parent).filter(|p| !p.is_root()).collect();
        let checks: Vec<_> = above.iter().map(|dir| self.is_dir(dir)).collect();
        let known: Vec<bool> = stream::iter(checks).buffered(PARALLEL).try_collect().await?;
        let missing = above.iter().zip(known).filter(|(_, exists)| !exists).map(|(dir, _)| dir);
        // From the top down: what is visible at any time is a directory that exists.
        for dir in missing.collect::<Vec<_>>().into_iter().rev() {
            match self.put_marker(dir).await {
                Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
                other => other?,
            }
        }
        self.put_marker(path).await
    }

    async fn put_marker(&self, dir: &FsPath) -> Result<()> {
        let marker = self.dir_key(dir)?;
        put(&self.wire, &marker, bytes::Bytes::new(), None, &Condition::Absent).await.map(drop)
    }

    /// Removes the marker of a directory that has nothing else.
    pub(crate) async fn remove_dir(&self, path: &FsPath) -> Result<()> {
        if path.is_root() {
            return Err(Error::new(ErrorKind::InvalidInput, "the root cannot be removed"));
        }
        let Ok(marker) = self.dir_key(path) else { return Err(Error::not_found(path)) };
        let others = Query {
            prefix: marker.clone(),
            start_after: Some(marker.clone()),
            page_size: Some(1),
            ..Query::default()
        };
        let (other, any) = futures::join!(self.wire.first(&others), self.wire.any_with_prefix(&marker));
        if other?.is_some() {
            return Err(Error::new(ErrorKind::NotEmpty, "the directory has entries, expected none"));
        }
        if any? {
            return self.delete_key(&marker).await;
        }
        match self.exists(&self.key(path)?).await? {
            true => Err(Error::new(ErrorKind::NotADirectory, "a file, expected a directory")),
            false => Err(Error::not_found(path)),
        }
    }
}

fn not_deleted(code: &str) -> Result<()> {
    let kind = match code {
        "NoSuchKey" => return Ok(()),
        "AccessDenied" => ErrorKind::PermissionDenied,
        "InternalError" | "ServiceUnavailable" => ErrorKind::Unavailable,
        "SlowDown" => ErrorKind::Throttled,
        _ => ErrorKind::Other,
    };
    Err(Error::new(kind, "the store did not delete the file").with_context("code", code))
}
