//! The HTTP client: one connection pool for everything a store is asked.

use std::path::Path;

use object_store::client::HttpClient;

use crate::config::ClientConfig;
use crate::error::{Error, ErrorKind, Result};

/// The client and its twin that never uses a proxy (metadata services are reached directly).
#[derive(Debug, Clone)]
pub(crate) struct Clients {
    pub(crate) store: HttpClient,
    pub(crate) reqwest: reqwest::Client,
    pub(crate) direct: reqwest::Client,
}

/// Builds both clients: HTTP/1.1 (one body per connection, so that parallel ranges get parallel streams), redirects
/// left to the caller, bodies never transformed, no limit on whole transfers. Without `tls` a machine that has no
/// certificates will do.
pub(crate) fn build(config: &ClientConfig, ca_bundle: Option<&Path>, tls: bool) -> Result<Clients> {
    let certificates = match ca_bundle {
        None => Vec::new(),
        Some(file) => read_certificates(file)?,
    };
    let agent = config.user_agent.as_deref().unwrap_or(concat!("nearfs/", env!("CARGO_PKG_VERSION")));
    let base = |system: bool| {
        let builder = reqwest::Client::builder()
            .user_agent(agent)
            .http1_only()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(config.connect_timeout)
            .pool_idle_timeout(config.idle_timeout)
            .pool_max_idle_per_host(config.max_idle_per_host)
            .tcp_nodelay(true)
            .tcp_keepalive(std::time::Duration::from_secs(15))
            .no_proxy();
        match system {
            true => builder.tls_certs_merge(certificates.iter().cloned()),
            false => builder.tls_certs_only(certificates.iter().cloned()),
        }
    };
    let failed = |e: reqwest::Error| {
        Error::new(ErrorKind::InvalidInput, "the HTTP client cannot be set up")
            .with_context("hint", "install the system's certificates (ca-certificates), or name a ca_bundle")
            .with_source(e)
    };
    let (direct, system) = match base(true).build() {
        Err(_) if !tls => (base(false).build().map_err(failed)?, false),
        other => (other.map_err(failed)?, true),
    };
    let reqwest = match &config.proxy {
        None => direct.clone(),
        Some(url) => {
            // The URL may hold a password: it is not repeated in the error.
            let proxy = reqwest::Proxy::all(url)
                .map_err(|_| Error::new(ErrorKind::InvalidInput, "the proxy is not a usable URL"))?
                .no_proxy(config.no_proxy.as_deref().and_then(reqwest::NoProxy::from_string));
            base(system).proxy(proxy).build().map_err(failed)?
        }
    };
    Ok(Clients { store: HttpClient::new(reqwest.clone()), reqwest, direct })
}

fn read_certificates(file: &Path) -> Result<Vec<reqwest::Certificate>> {
    let refuse = |what: &str| {
        Error::new(ErrorKind::InvalidInput, format!("the CA bundle `{}` {what}", file.display()))
            .with_context("hint", "name a file of PEM certificates with ca_bundle or AWS_CA_BUNDLE")
    };
    let pem = std::fs::read(file).map_err(|e| refuse("cannot be read").with_source(e))?;
    let found =
        reqwest::Certificate::from_pem_bundle(&pem).map_err(|e| refuse("is not PEM").with_source(e))?;
    if found.is_empty() { Err(refuse("holds no certificate")) } else { Ok(found) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_bundle_or_proxy_is_named_without_its_password() {
        let missing =
            build(&ClientConfig::default(), Some(Path::new("/no/such/bundle.pem")), true).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::InvalidInput);
        assert!(missing.to_string().contains("/no/such/bundle.pem"));

        let proxy = ClientConfig { proxy: Some("http://me:pass word@".into()), ..ClientConfig::default() };
        let bad = build(&proxy, None, true).unwrap_err();
        assert!(!format!("{bad:#} {bad:?}").contains("pass word"), "{bad:?}");
    }
}
