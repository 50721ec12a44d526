//! One request: built, signed, sent, its refusal understood. Two things are put right on the way, once each: a wrong
//! region that the store corrects, and credentials that have just expired. Nothing else is tried twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use object_store::client::{HttpClient, HttpRequest};
use parking_lot::RwLock;

use super::super::credentials::Credentials;
use super::super::endpoint::Endpoint;
use super::super::error::{Refusal, transport};
use super::body::Body;
use super::sign::sign;
use crate::config::S3Config;
use crate::error::{Error, ErrorKind, Result};
use crate::spawner::Spawner;

/// Error answers are read no further.
const ERROR_LIMIT: usize = 64 * 1024;

/// What an upload may be slow by: bytes a second beyond which its answer is not overdue.
const UPLOAD_FLOOR: u64 = 256 * 1024;

/// One bucket of one store.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) config: S3Config,
    pub(crate) spawner: Spawner,
    pub(crate) credentials: Arc<Credentials>,
    client: HttpClient,
    endpoint: RwLock<Arc<Endpoint>>,
    region_switched: AtomicBool,
}

/// A request before it is signed; kept until it is answered, because it may be signed again.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    method: Method,
    /// Key, or empty for the bucket itself.
    key: String,
    query: Vec<(&'static str, String)>,
    headers: HeaderMap,
    body: Bytes,
    patience: Duration,
}

impl Request {
    pub(crate) fn new(method: Method, key: impl Into<String>) -> Self {
        Request {
            method,
            key: key.into(),
            query: Vec::new(),
            headers: HeaderMap::new(),
            body: Bytes::new(),
            patience: Duration::ZERO,
        }
    }

    pub(crate) fn query(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.query.push((name, value.into()));
        self
    }

    /// Adds a header.
    ///
    /// # Errors
    /// `InvalidInput` if `value` cannot stand in one.
    pub(crate) fn header(mut self, name: HeaderName, value: &str) -> Result<Self> {
        let value = HeaderValue::from_str(value).map_err(|e| {
            Error::new(ErrorKind::InvalidInput, format!("the value of `{name}` cannot stand in a header"))
                .with_source(e)
        })?;
        self.headers.insert(name, value);
        Ok(self)
    }

    pub(crate) fn body(mut self, body: Bytes) -> Self {
        self.patience = Duration::from_secs(body.len() as u64 / UPLOAD_FLOOR);
        self.body = body;
        self
    }

    /// Waits longer for the answer: the store itself has work to do.
    pub(crate) fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }
}

/// A successful answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Body,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|v| v.to_str().ok())
    }
}

impl Wire {
    pub(crate) fn new(
        config: S3Config,
        client: HttpClient,
        credentials: Arc<Credentials>,
        endpoint: Endpoint,
        spawner: Spawner,
    ) -> Self {
        Wire {
            config,
            spawner,
            credentials,
            client,
            endpoint: RwLock::new(Arc::new(endpoint)),
            region_switched: AtomicBool::new(false),
        }
    }

    pub(crate) fn endpoint(&self) -> Arc<Endpoint> {
        Arc::clone(&self.endpoint.read())
    }

    /// Sends `request` from our runtime, whoever polls; dropping the future drops the request.
    pub(crate) async fn send(self: &Arc<Self>, request: Request) -> Result<Answer, Refusal> {
        let ours = self.spawner.handle();
        if tokio::runtime::Handle::try_current().is_ok_and(|h| h.id() == ours.id()) {
            return self.send_here(request).await;
        }
        let wire = Arc::clone(self);
        self.spawner.run(async move { Ok(wire.send_here(request).await) }).await?
    }

    /// [`Wire::send`], then the whole body, at most `limit` bytes.
    pub(crate) async fn send_and_collect(
        self: &Arc<Self>,
        request: Request,
        limit: usize,
    ) -> Result<(HeaderMap, Bytes), Refusal> {
        let answer = self.send(request).await?;
        Ok((answer.headers, answer.body.collect(limit).await?))
    }

    async fn send_here(&self, request: Request) -> Result<Answer, Refusal> {
        let mut refreshed = false;
        let mut moved = false;
        loop {
            let endpoint = self.endpoint();
            let credential = self.credentials.get().await?;
            let refusal = match self.attempt(&request, &endpoint, credential.as_deref()).await {
                Ok(answer) => return Ok(answer),
                Err(refusal) => refusal,
            };
            if !moved && self.follow_region(&endpoint, &refusal) {
                moved = true;
                continue;
            }
            if !refreshed && refusal.wants_fresh_credentials() {
                refreshed = true;
                if self.credentials.refresh(credential.as_ref()).await? {
                    continue;
                }
            }
            return Err(refusal);
        }
    }

    async fn attempt(
        &self,
        request: &Request,
        endpoint: &Endpoint,
        credential: Option<&object_store::aws::AwsCredential>,
    ) -> Result<Answer, Refusal> {
        let query: Vec<_> = request.query.iter().map(|(n, v)| (*n, v.as_str())).collect();
        let mut http = HttpRequest::new(request.body.clone().into());
        *http.method_mut() = request.method.clone();
        *http.uri_mut() =
            endpoint.url(&request.key, &query).parse().map_err(|e: http::uri::InvalidUri| {
                Error::new(ErrorKind::NameTooLong, "the key makes a URL that cannot be sent").with_source(e)
            })?;
        *http.headers_mut() = request.headers.clone();
        sign(&mut http, credential, endpoint, self.config.requester_pays)?;

        let limits = &self.config.client;
        let limit = limits.first_byte_timeout + request.patience;
        let answer = tokio::time::timeout(limit, self.client.execute(http)).await.map_err(|_| {
            let limit = humantime::format_duration(limit);
            Error::new(ErrorKind::TimedOut, format!("the store did not begin to answer within {limit}"))
        })?;
        let (head, body) = answer.map_err(transport)?.into_parts();
        let body = Body::new(body, limits.read_gap_timeout, self.spawner.handle().clone());
        if head.status.is_success() {
            return Ok(Answer { status: head.status, headers: head.headers, body });
        }
        // A refusal that trickles in is as good without its text.
        let text = tokio::time::timeout(limits.first_byte_timeout, body.collect_some(ERROR_LIMIT));
        Err(Refusal::new(head.status, &head.headers, &text.await.unwrap_or_default()))
    }

    /// True if the store named another region than the one used and we have moved there.
    fn follow_region(&self, used: &Endpoint, refusal: &Refusal) -> bool {
        let Some(region) = refusal.region.as_deref().filter(|r| *r != used.region) else { return false };
        if !matches!(refusal.status, 301 | 307 | 400) {
            return false;
        }
        let mut current = self.endpoint.write();
        if **current != *used {
            // Somebody else has moved meanwhile.
            return true;
        }
        if self.region_switched.swap(true, Ordering::Relaxed) {
            return false;
        }
        match Endpoint::new(&self.config, region) {
            Ok(moved) => {
                tracing::info!(
                    bucket = self.config.bucket,
                    from = used.region,
                    to = region,
                    "the bucket's region"
                );
                *current = Arc::new(moved);
                true
            }
            Err(_) => false,
        }
    }
}
