//! What a name is: HEAD of the key and LIST of what is below it, side by side.

use std::pin::pin;
use std::sync::Arc;

use futures::future::{Either, select};
use http::{HeaderMap, Method, header};

use super::Shared;
use super::error::Refusal;
use super::wire::list::{http_time, is_archive, version};
use super::wire::request::{Request, Wire};
use super::wire::xml::malformed;
use crate::error::{Error, ErrorKind, Result};
use crate::metadata::Metadata;
use crate::path::FsPath;

impl Shared {
    /// Metadata of `path`; a directory wins over a file of the same name.
    pub(crate) async fn stat(&self, path: &FsPath) -> Result<Metadata> {
        if path.is_root() {
            return Ok(Metadata::dir());
        }
        let Ok(key) = self.key(path) else { return Err(Error::not_found(path)) };
        let below = self.dir_key(path)?;
        // The HEAD runs to its end even if nobody needs it any more: giving up an answer costs the connection.
        let wire = Arc::clone(&self.wire);
        let head = self.wire.spawner.spawn(async move { wire.head(&key).await });
        let head = async { head.await.unwrap_or_else(|e| Err(lost(e).into())) };
        let (head, probe) = (pin!(head), pin!(self.wire.any_with_prefix(&below)));
        let (file, dir) = match select(probe, head).await {
            // Nothing the HEAD could say changes this.
            Either::Left((Ok(true), _)) => return Ok(Metadata::dir()),
            Either::Left((dir, head)) => (head.await, dir),
            Either::Right((file, probe)) => (file, probe.await),
        };
        match (&file, &dir) {
            // The right to list, but not to read this one: the listing knows it, or that it is not there.
            (Err(refusal), Ok(false)) if refusal.is_refused() => {
                self.listed_file(path).await?.ok_or_else(|| Error::not_found(path))
            }
            _ => self.judge(file, dir),
        }
    }

    /// Whether `path` is a directory. A refused LIST counts as no: without the right to list, nothing shows one.
    pub(crate) async fn is_dir(&self, path: &FsPath) -> Result<bool> {
        if path.is_root() {
            return Ok(true);
        }
        match self.wire.any_with_prefix(&self.dir_key(path)?).await {
            Err(refusal) if refusal.is_refused() => Ok(false),
            other => Ok(other?),
        }
    }

    fn judge(&self, file: Result<Metadata, Refusal>, dir: Result<bool, Refusal>) -> Result<Metadata> {
        let absent = || Error::new(ErrorKind::NotFound, "no such file or directory");
        match (file, dir) {
            (_, Ok(true)) => Ok(Metadata::dir()),
            (Ok(metadata), Ok(false)) => Ok(metadata),
            // Readable without the right to list. Whether a directory hides it cannot be known.
            (Ok(metadata), Err(dir)) if dir.is_refused() => Ok(metadata),
            (Err(file), Ok(false)) if file.is_absent() => Err(absent()),
            (Err(file), Err(dir)) if dir.is_refused() && (file.is_refused() || file.is_absent()) => {
                Err(self.refused(dir))
            }
            (_, Err(dir)) if !dir.is_refused() => Err(dir.into()),
            (Err(file), _) => Err(file.into()),
            (Ok(_), Err(dir)) => Err(dir.into()),
        }
    }

    /// What a refused look-up means, by the setting.
    pub(crate) fn refused(&self, refusal: Refusal) -> Error {
        if self.wire.config.refusal_means_absent {
            return Error::new(ErrorKind::NotFound, "no such file or directory (the store refuses to say)");
        }
        let refused =
            "the store refused access; without the right to list, absence cannot be told from refusal";
        let mut error = Error::new(ErrorKind::PermissionDenied, refused)
            .with_context("status", refusal.status)
            .with_context("hint", "ask for s3:ListBucket, or set refusal_means_absent");
        if let Some(request) = refusal.error.context("request") {
            error = error.with_context("request", request);
        }
        error
    }
}

fn lost(e: tokio::task::JoinError) -> Error {
    Error::new(ErrorKind::Interrupted, "the runtime shut down or the task panicked").with_source(e)
}

impl Wire {
    /// Metadata of the object `key`.
    pub(crate) async fn head(self: &Arc<Self>, key: &str) -> Result<Metadata, Refusal> {
        match self.send(Request::new(Method::HEAD, key)).await {
            Ok(answer) => Ok(parse(&answer.headers, length(&answer.headers))?),
            // A refused HEAD has no text: it may be a matter of rights, of the region, of the credentials, or this
            // address may not be asked by HEAD. The first byte's GET tells, and may even succeed.
            Err(refusal) if refusal.is_mute() => self.head_by_get(key).await,
            Err(refusal) => Err(refusal),
        }
    }

    async fn head_by_get(self: &Arc<Self>, key: &str) -> Result<Metadata, Refusal> {
        let first = Request::new(Method::GET, key).header(header::RANGE, "bytes=0-0")?;
        match self.send(first).await {
            Ok(answer) if answer.status.as_u16() == 206 => {
                let total = answer.header("content-range").and_then(|r| r.rsplit('/').next()?.parse().ok());
                Ok(parse(&answer.headers, total)?)
            }
            Ok(answer) => Ok(parse(&answer.headers, length(&answer.headers))?),
            // An empty object has no first byte.
            Err(refusal) if refusal.status == 416 => {
                let answer = self.send(Request::new(Method::GET, key)).await?;
                Ok(parse(&answer.headers, length(&answer.headers))?)
            }
            Err(refusal) => Err(refusal),
        }
    }
}

fn length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Metadata as the headers of HEAD and GET tell it.
fn parse(headers: &HeaderMap, size: Option<u64>) -> Result<Metadata> {
    let size = size.ok_or_else(|| malformed("does not tell the object's size"))?;
    let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok());
    let mut metadata = Metadata::file(size, version(text("etag")));
    metadata.modified = text("last-modified").and_then(http_time);
    let restored = text("x-amz-restore").is_some_and(|r| r.contains("ongoing-request=\"false\""));
    metadata.archived = text("x-amz-archive-status").is_some()
        || text("x-amz-storage-class").is_some_and(is_archive) && !restored;
    Ok(metadata)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::Version;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(n, v)| (n.parse().unwrap(), http::HeaderValue::from_static(v))).collect()
    }

    #[test]
    fn headers_become_metadata() {
        let h = headers(&[("etag", "\"a-3\""), ("last-modified", "Mon, 06 May 2024 07:08:09 GMT")]);
        let m = parse(&h, Some(5)).unwrap();
        assert_eq!((m.size, m.version, m.archived), (5, Version::Tag("a-3".into()), false));
        assert!(m.modified.is_some());
        assert_eq!(parse(&h, None).unwrap_err().kind(), ErrorKind::Corrupt);
    }

    #[test]
    fn d2_archived_unless_restored() {
        let archived = |pairs: &[_]| parse(&headers(pairs), Some(1)).unwrap().archived;
        let glacier = ("x-amz-storage-class", "GLACIER");
        assert!(archived(&[glacier]));
        assert!(archived(&[glacier, ("x-amz-restore", "ongoing-request=\"true\"")]));
        assert!(!archived(&[glacier, ("x-amz-restore", "ongoing-request=\"false\", expiry-date=\"x\"")]));
        assert!(archived(&[("x-amz-archive-status", "ARCHIVE_ACCESS")]));
        assert!(!archived(&[("x-amz-storage-class", "GLACIER_IR")]));
    }
}
