//! Making an [`S3FileSystem`]: settings, region, client.

use std::sync::Arc;

use http::Method;
use object_store::client::{HttpClient, HttpRequest};

use super::credentials::{Credentials, ProfileSettings, Source};
use super::endpoint::Endpoint;
use super::error::transport;
use super::http::Clients;
use super::wire::request::Wire;
use super::{S3FileSystem, Shared};
use crate::config::S3Config;
use crate::error::{Error, ErrorKind, Result};
use crate::spawner::Spawner;

/// The region of stores that have none.
const DEFAULT_REGION: &str = "us-east-1";

impl S3FileSystem {
    /// Connects to the bucket that `config` describes; all requests run on `spawner`'s runtime.
    ///
    /// No request is made, except to ask a bucket of Amazon's for its region where nothing else names one. So a wrong
    /// bucket or missing rights show at the first call.
    ///
    /// # Errors
    /// `InvalidInput` for settings that cannot work, named; `NotFound` if the bucket asked for its region does not exist;
    /// `Unavailable` or `TimedOut` if it does not answer.
    pub async fn connect(config: S3Config, spawner: Spawner) -> Result<Arc<S3FileSystem>> {
        let worker = spawner.clone();
        spawner.run(connect(config, worker)).await.map_err(|e| e.during("connect"))
    }
}

async fn connect(mut config: S3Config, spawner: Spawner) -> Result<Arc<S3FileSystem>> {
    config.check()?;
    if !config.anonymous {
        let profile = match ProfileSettings::load(&config).await {
            // With keys of its own it does not depend on the files.
            Err(e) if config.credentials.is_some() && config.profile.is_none() => {
                tracing::debug!("ignored: {e:#}");
                ProfileSettings::default()
            }
            other => other?,
        };
        config.region = config.region.or(profile.region);
        config.endpoint = config.endpoint.or(profile.endpoint);
        config.ca_bundle = config.ca_bundle.or(profile.ca_bundle);
    }
    let clients = super::http::build(&config.client, config.ca_bundle.as_deref())?;
    let source = Source::new(&config, config.region.as_deref(), clients.clone());
    let credentials = Arc::new(Credentials::new(source, spawner.clone()));
    let region = match (&config.region, &config.endpoint) {
        (Some(region), _) => region.clone(),
        (None, Some(_)) => DEFAULT_REGION.to_owned(),
        (None, None) => region_of_bucket(&config, &clients.store).await?,
    };
    if !region.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') || region.is_empty() {
        return Err(Error::new(ErrorKind::InvalidInput, format!("`{region}` is not a region")));
    }
    let endpoint = Endpoint::new(&config, &region)?;
    let Clients { store, .. } = clients;
    let prefix = config.prefix.clone();
    let wire = Arc::new(Wire::new(config, store, credentials, endpoint, spawner));
    Ok(Arc::new(S3FileSystem { shared: Arc::new(Shared { wire, prefix }) }))
}

/// Amazon tells a bucket's region to anybody, even in a refusal.
async fn region_of_bucket(config: &S3Config, client: &HttpClient) -> Result<String> {
    let place = Endpoint::new(config, DEFAULT_REGION)?;
    let mut request = HttpRequest::new(bytes::Bytes::new().into());
    *request.method_mut() = Method::HEAD;
    *request.uri_mut() = place.url("", &[]).parse().map_err(|e: http::uri::InvalidUri| {
        Error::new(ErrorKind::InvalidInput, "the bucket's name makes no URL").with_source(e)
    })?;
    let limit = config.client.first_byte_timeout;
    let answer = tokio::time::timeout(limit, client.execute(request)).await.map_err(|_| {
        Error::new(ErrorKind::TimedOut, "the store did not say where the bucket is")
            .with_context("hint", "name the region")
    })?;
    let answer = answer.map_err(transport)?;
    let region = answer.headers().get("x-amz-bucket-region").and_then(|v| v.to_str().ok());
    match (region, answer.status().as_u16()) {
        (Some(region), _) => Ok(region.to_owned()),
        (None, 404) => Err(Error::new(ErrorKind::NotFound, "the bucket does not exist")
            .with_context("hint", format!("check the name `{}` and the endpoint", config.bucket))),
        (None, status) => Err(Error::new(ErrorKind::InvalidInput, "the bucket's region is not known")
            .with_context("status", status)
            .with_context("hint", "name the region")),
    }
}
