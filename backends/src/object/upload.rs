//! Uploads: one request, or many parts side by side.
//!
//! Nobody above can repeat a part, because its bytes are gone from there once they are handed over. So what is safe to
//! repeat is repeated here, a few times: parts, unconditional writes, and whatever the store threw back unread.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, Method, header};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::JoinSet;

use super::error::Refusal;
use super::wire::list::version;
use super::wire::request::{Request, Wire};
use super::wire::xml::{malformed, walk};
use crate::error::{Error, ErrorKind, Result, Retry};
use crate::metadata::{Metadata, Version};
use crate::options::Condition;

const MIB: u64 = 1024 * 1024;

/// Most parts that S3 takes.
const MAX_PARTS: u64 = 10_000;

/// Largest part that S3 takes.
const MAX_PART: u64 = 5 * 1024 * MIB;

/// Largest object that S3 takes.
const MAX_SIZE: u64 = 5 * 1024 * 1024 * MIB;

/// So many parts are of one size (some stores want that); after that they grow.
const EQUAL_PARTS: u64 = 1000;

/// Answers that are not data are small.
const ANSWER_LIMIT: usize = 256 * 1024;

/// Attempts at one request.
pub(crate) const ATTEMPTS: u32 = 5;

/// The condition as a header.
///
/// # Errors
/// `InvalidInput` for a version that is no ETag.
pub(crate) fn condition_header(condition: &Condition) -> Result<Option<(HeaderName, String)>> {
    match condition {
        Condition::None => Ok(None),
        Condition::Absent => Ok(Some((header::IF_NONE_MATCH, "*".to_owned()))),
        Condition::Version(Version::Tag(tag)) => Ok(Some((header::IF_MATCH, format!("\"{tag}\"")))),
        Condition::Version(other) => Err(Error::new(
            ErrorKind::InvalidInput,
            format!("the version `{other}` is no ETag, expected one"),
        )),
    }
}

/// What a refused conditional write means.
pub(crate) fn refused(refusal: Refusal, condition: &Condition) -> Error {
    match (refusal.status, condition) {
        (412 | 409, Condition::Absent) => {
            Error::new(ErrorKind::AlreadyExists, "a file of this name exists already")
        }
        (412 | 409, Condition::Version(_)) => changed(),
        // `If-Match` where there is nothing.
        (404, Condition::Version(_)) if refusal.is_absent() => changed(),
        // A write of a new file cannot miss one: this server has no such address.
        (404, _) if refusal.code.is_empty() => {
            Error::new(ErrorKind::InvalidInput, "the store does not take this name")
                .with_source(refusal.error)
        }
        _ => refusal.into(),
    }
}

fn changed() -> Error {
    Error::new(ErrorKind::Stale, "the file is not the version that this write is for")
}

/// Repeats `request` while that is safe and may help.
async fn persist(
    wire: &Arc<Wire>,
    request: Request,
    idempotent: bool,
) -> Result<(http::HeaderMap, Bytes), Refusal> {
    let mut attempt = 0;
    loop {
        attempt += 1;
        let refusal = match wire.send_and_collect(request.clone(), ANSWER_LIMIT).await {
            Ok((headers, body)) => match Refusal::inside_success(&headers, &body) {
                None => return Ok((headers, body)),
                Some(refusal) => refusal,
            },
            Err(refusal) => refusal,
        };
        let Some(pause) = pause(&refusal.error, attempt) else { return Err(refusal) };
        if attempt == ATTEMPTS || !(idempotent || refusal.error.kind() == ErrorKind::Throttled) {
            return Err(refusal);
        }
        tracing::debug!("an upload is repeated in {pause:?}: {:#}", refusal.error);
        tokio::time::sleep(pause).await;
    }
}

/// How long to wait after `attempt` (from 1) failed; `None` if it would only fail again.
pub(crate) fn pause(error: &Error, attempt: u32) -> Option<Duration> {
    let Retry::Later(wait) = error.retry() else { return None };
    let pause = (Duration::from_millis(200) * 2u32.pow(attempt - 1)).mul_f64(rand::random_range(0.5..1.0));
    Some(pause.max(wait.unwrap_or_default()).min(Duration::from_secs(30)))
}

/// Writes an object in one request.
pub(crate) async fn put(
    wire: &Arc<Wire>,
    key: &str,
    data: Bytes,
    content_type: Option<&str>,
    condition: &Condition,
) -> Result<Metadata> {
    let size = data.len() as u64;
    let mut request = Request::new(Method::PUT, key).body(data);
    if let Some(kind) = content_type {
        request = request.header(header::CONTENT_TYPE, kind)?;
    }
    let conditional = condition_header(condition)?;
    let idempotent = conditional.is_none();
    if let Some((name, value)) = conditional {
        request = request.header(name, &value)?;
    }
    let worker = Arc::clone(wire);
    let sent = wire.spawner.run(async move { Ok(persist(&worker, request, idempotent).await) }).await?;
    let (headers, _) = sent.map_err(|refusal| refused(refusal, condition))?;
    let etag = headers.get(header::ETAG).and_then(|v| v.to_str().ok());
    Ok(Metadata::file(size, version(etag)))
}

/// Size of part `number` (from 0): equal parts first, then growing by steps so that 10 000 hold 5 TiB.
pub(crate) fn part_size(base: u64, hint: Option<u64>, number: u64) -> u64 {
    // With a known size all parts are equal.
    let base = base.max(hint.unwrap_or(0).div_ceil(MAX_PARTS).next_multiple_of(MIB));
    (base + number.saturating_sub(EQUAL_PARTS - 1) / 7 * MIB).min(MAX_PART)
}

/// An upload in parts. Dropping it, unless it was completed, removes the parts from the store.
#[derive(Debug)]
pub(crate) struct Upload {
    wire: Arc<Wire>,
    key: String,
    id: String,
    running: JoinSet<Result<(u64, String), Refusal>>,
    done: Vec<(u64, String)>,
    parts: u64,
    size: u64,
    /// Memory for parts in flight, in MiB.
    room: Arc<Semaphore>,
    room_size: u32,
    over: bool,
}

impl Upload {
    pub(crate) async fn start(wire: &Arc<Wire>, key: &str, content_type: Option<&str>) -> Result<Self> {
        let mut request = Request::new(Method::POST, key).query("uploads", "");
        if let Some(kind) = content_type {
            request = request.header(header::CONTENT_TYPE, kind)?;
        }
        let (give, take) = oneshot::channel();
        let (worker, name) = (Arc::clone(wire), key.to_owned());
        // Not stopped with the caller: an upload whose id nobody learned could never be removed.
        wire.spawner.spawn(async move {
            if let Err(Ok(unwanted)) = give.send(initiate(&worker, request).await) {
                abort(&worker, &name, &unwanted).await.ok();
            }
        });
        let id = take.await.map_err(|_| Error::new(ErrorKind::Interrupted, "the runtime shut down"))??;
        let room_size = (wire.config.part_size.div_ceil(MIB) * wire.config.upload_concurrency as u64) as u32;
        Ok(Upload {
            wire: Arc::clone(wire),
            key: key.to_owned(),
            id,
            running: JoinSet::new(),
            done: Vec::new(),
            parts: 0,
            size: 0,
            room: Arc::new(Semaphore::new(room_size as usize)),
            room_size,
            over: false,
        })
    }

    /// Number of parts so far.
    pub(crate) fn parts(&self) -> u64 {
        self.parts
    }

    /// Sends a part; waits while too many bytes are in flight.
    ///
    /// # Errors
    /// Those of this and of earlier parts.
    pub(crate) async fn part(&mut self, data: Bytes) -> Result<()> {
        if self.parts == MAX_PARTS || self.size + data.len() as u64 > MAX_SIZE {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "the file is larger than the 5 TiB that S3 takes",
            ));
        }
        let need = (data.len() as u64).div_ceil(MIB).min(self.room_size.into()) as u32;
        let closed = |_| Error::new(ErrorKind::Interrupted, "the upload is over");
        let room = Arc::clone(&self.room).acquire_many_owned(need).await.map_err(closed)?;
        while let Some(part) = self.running.try_join_next() {
            self.take(part)?;
        }
        self.size += data.len() as u64;
        self.parts += 1;
        let number = self.parts;
        let request = Request::new(Method::PUT, &*self.key)
            .query("partNumber", number.to_string())
            .query("uploadId", &*self.id)
            .body(data);
        let work = send_part(Arc::clone(&self.wire), request, number, room);
        self.running.spawn_on(work, self.wire.spawner.handle());
        Ok(())
    }

    fn take(&mut self, part: Result<Result<(u64, String), Refusal>, tokio::task::JoinError>) -> Result<()> {
        let part = part.map_err(|e| Error::new(ErrorKind::Interrupted, "a part was lost").with_source(e))?;
        self.done.push(part?);
        Ok(())
    }

    /// Makes the object of the parts.
    pub(crate) async fn complete(mut self, condition: &Condition) -> Result<Metadata> {
        while let Some(part) = self.running.join_next().await {
            self.take(part)?;
        }
        self.done.sort_unstable();
        let mut list =
            String::from("<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">");
        for (number, etag) in &self.done {
            list.push_str(&format!(
                "<Part><PartNumber>{number}</PartNumber><ETag>&quot;{etag}&quot;</ETag></Part>"
            ));
        }
        list.push_str("</CompleteMultipartUpload>");
        let mut request = Request::new(Method::POST, &*self.key)
            .query("uploadId", &*self.id)
            .body(list.into())
            .patience(Duration::from_secs(60));
        if let Some((name, value)) = condition_header(condition)? {
            request = request.header(name, &value)?;
        }
        let worker = Arc::clone(&self.wire);
        let sent = self.wire.spawner.run(async move { Ok(persist(&worker, request, true).await) }).await?;
        let version = match sent {
            Ok((_, body)) => etag_in(&body)?,
            // The answer to an earlier attempt was lost: then the object is there, made of as many parts.
            Err(refusal) if refusal.code == "NoSuchUpload" => self.completed_before().await.ok_or(refusal)?,
            Err(refusal) => return Err(refused(refusal, condition)),
        };
        self.over = true;
        Ok(Metadata::file(self.size, version))
    }

    async fn completed_before(&self) -> Option<Version> {
        let now = self.wire.head(&self.key).await.ok()?;
        let ours = matches!(&now.version, Version::Tag(tag) if tag.ends_with(&format!("-{}", self.parts)));
        (ours && now.size == self.size).then_some(now.version)
    }

    /// Removes the parts.
    pub(crate) async fn abort(mut self) -> Result<()> {
        self.running.shutdown().await;
        self.over = true;
        let (wire, key, id) = (Arc::clone(&self.wire), self.key.clone(), self.id.clone());
        self.wire.spawner.run(async move { abort(&wire, &key, &id).await }).await
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        self.running.abort_all();
        let (wire, key, id) = (Arc::clone(&self.wire), self.key.clone(), self.id.clone());
        self.wire.spawner.spawn(async move {
            if let Err(e) = abort(&wire, &key, &id).await {
                tracing::warn!(key, "parts of an abandoned upload remain at the store: {e:#}");
            }
        });
    }
}

async fn send_part(
    wire: Arc<Wire>,
    request: Request,
    number: u64,
    room: OwnedSemaphorePermit,
) -> Result<(u64, String), Refusal> {
    let (headers, _) = persist(&wire, request, true).await?;
    drop(room);
    match version(headers.get(header::ETAG).and_then(|v| v.to_str().ok())) {
        Version::Tag(etag) => Ok((number, etag.to_string())),
        _ => Err(malformed("does not tell the ETag of a part").into()),
    }
}

async fn initiate(wire: &Arc<Wire>, request: Request) -> Result<String> {
    let (_, body) = persist(wire, request, true).await?;
    let mut id = None;
    walk(&body, |path, text| {
        if path.len() == 2 && path[1] == "UploadId" && !text.is_empty() {
            id = Some(text.to_owned());
        }
        Ok(())
    })?;
    id.ok_or_else(|| malformed("does not name the upload"))
}

async fn abort(wire: &Arc<Wire>, key: &str, id: &str) -> Result<()> {
    match persist(wire, Request::new(Method::DELETE, key).query("uploadId", id), true).await {
        Err(refusal) if refusal.status == 404 => Ok(()),
        other => Ok(other.map(drop)?),
    }
}

fn etag_in(body: &Bytes) -> Result<Version> {
    let mut etag = None;
    walk(body, |path, text| {
        if path.len() == 2 && path[1] == "ETag" {
            etag = Some(text.to_owned());
        }
        Ok(())
    })?;
    Ok(version(etag.as_deref()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_thousand_parts_hold_five_tebibytes() {
        for (base, hint) in [(8 * MIB, None), (5 * MIB, None), (5 * MIB, Some(MAX_SIZE)), (5120 * MIB, None)]
        {
            let sizes: Vec<_> = (0..MAX_PARTS).map(|n| part_size(base, hint, n)).collect();
            assert!(sizes.iter().sum::<u64>() >= MAX_SIZE, "{base} {hint:?}");
            assert!(sizes.is_sorted() && sizes[0] >= base && sizes[9999] <= MAX_PART);
            assert_eq!(sizes[0], sizes[EQUAL_PARTS as usize - 1]);
        }
        assert_eq!(part_size(8 * MIB, Some(100), 0), 8 * MIB);
    }

    #[test]
    fn conditions_need_etags() {
        let version = Condition::Version(Version::Tag("a".into()));
        assert_eq!(condition_header(&version).unwrap(), Some((header::IF_MATCH, "\"a\"".into())));
        assert!(condition_header(&Condition::Version(Version::Generation(1))).is_err());
    }
}
