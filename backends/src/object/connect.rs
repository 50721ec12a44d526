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
    let tls = !config.endpoint.as_deref().is_some_and(|e| e.starts_with("http://"));
    let clients = super::http::build(&config.client, config.ca_bundle.as_deref(), tls)?;
    let source = Source::new(&config, config.region.as_deref(), clients.clone());
    let credentials = Arc::new(Credentials::new(source, spawner.clone()));
    let region = match (&config.region, &config.endpoint) {
        (Some(region), _) => region.clone(),
        (None, Some(_)) => DEFAULT_REGION.to_owned(),
        (None, None) => {
            region_of_bucket(&config, &Endpoint::new(&config, DEFAULT_REGION)?, &clients.store).await?
        }
    };
    if !region.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') || region.is_empty() {
        return Err(Error::new(ErrorKind::InvalidInput, format!("`{region}` is not a region")));
    }
    let endpoint = Endpoint::new(&config, &region)?;
    let Clients { store, .. } = clients;
    let prefix = config.prefix.clone();
    let wire = Arc::new(Wire::new(config, store, credentials, endpoint, spawner));
    Ok(Arc::new(S3FileSystem { shared: Arc::new(Shared::new(wire, prefix)) }))
}

/// Amazon tells a bucket's region to anybody, even in a refusal.
async fn region_of_bucket(config: &S3Config, place: &Endpoint, client: &HttpClient) -> Result<String> {
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

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    /// Asks a server that gives this answer to one request; what was asked, and what came of it.
    async fn ask(answer: &'static str) -> (String, Result<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 4096];
            let n = stream.read(&mut request).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
            String::from_utf8_lossy(&request[..n]).into_owned()
        });
        let config = S3Config { endpoint: Some(url), ..S3Config::new("b") };
        let clients = super::super::http::build(&config.client, None, true).unwrap();
        let place = Endpoint::new(&config, DEFAULT_REGION).unwrap();
        let region = region_of_bucket(&config, &place, &clients.store).await;
        (server.join().unwrap(), region)
    }

    #[tokio::test]
    async fn the_region_is_told_even_by_a_refusal() {
        let refusal = "HTTP/1.1 403 Forbidden\r\nx-amz-bucket-region: eu-west-1\r\ncontent-length: 0\r\n\r\n";
        let (asked, region) = ask(refusal).await;
        assert!(asked.starts_with("HEAD /b/ HTTP/1.1"), "{asked}");
        assert_eq!(region.unwrap(), "eu-west-1");

        let missing = ask("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n").await.1.unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
        let mute = ask("HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n").await.1.unwrap_err();
        assert_eq!((mute.kind(), mute.context("hint")), (ErrorKind::InvalidInput, Some("name the region")));
    }
}
