//! [`ClientConfig`]: connections and time limits of the HTTP stores.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{human_duration, without_user};
use crate::error::{Error, ErrorKind, Result};

/// Settings of the HTTP client under a remote store.
///
/// There is no limit on a whole transfer: a slow body that keeps moving is healthy. What is limited is connecting, the
/// wait for an answer, and the gap between two pieces of its body.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClientConfig {
    /// Limit for establishing a connection (name look-up, TCP and TLS). Default: `5s`.
    #[serde(with = "human_duration")]
    pub connect_timeout: Duration,
    /// Limit from sending a request to the head of its answer; connecting counts. Uploads are given one further
    /// second for every 256 KiB they send. Default: `15s`.
    #[serde(with = "human_duration")]
    pub first_byte_timeout: Duration,
    /// Limit between two pieces of a body while somebody waits for them. Default: `15s`.
    #[serde(with = "human_duration")]
    pub read_gap_timeout: Duration,
    /// How long an unused connection is kept. Stores close theirs after some 20 seconds. Default: `18s`.
    #[serde(with = "human_duration")]
    pub idle_timeout: Duration,
    /// Unused connections kept for one host. Default: 256; at least 1.
    pub max_idle_per_host: usize,
    /// Proxy for every request, as a URL (`http://user:password@host:port`). Default: none.
    #[serde(skip_serializing)]
    pub proxy: Option<String>,
    /// Hosts reached without the proxy, separated by commas, in the form of `NO_PROXY`. Default: none.
    pub no_proxy: Option<String>,
    /// Value of `User-Agent`. Default: `nearfs/VERSION`.
    pub user_agent: Option<String>,
}

impl Default for ClientConfig {
    fn default() -> Self {
        ClientConfig {
            connect_timeout: Duration::from_secs(5),
            first_byte_timeout: Duration::from_secs(15),
            read_gap_timeout: Duration::from_secs(15),
            idle_timeout: Duration::from_secs(18),
            max_idle_per_host: 256,
            proxy: None,
            no_proxy: None,
            user_agent: None,
        }
    }
}

impl ClientConfig {
    /// Fills in the proxy from `https_proxy`, `http_proxy`, `all_proxy` and `no_proxy` (capitals too, except for `http_proxy`) where this
    /// configuration names none. `endpoint` decides between the first two; without one it is HTTPS.
    pub fn from_env_defaults(&mut self, endpoint: Option<&str>, env: &impl Fn(&str) -> Option<String>) {
        let any = |names: &[&str]| names.iter().find_map(|n| env(n).filter(|v| !v.is_empty()));
        if self.proxy.is_none() {
            self.proxy = match endpoint.is_some_and(|e| e.starts_with("http://")) {
                // `HTTP_PROXY` in capitals is under the control of a CGI client, so curl and others read only the
                // small spelling.
                true => any(&["http_proxy", "all_proxy", "ALL_PROXY"]),
                false => any(&["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"]),
            };
        }
        if self.no_proxy.is_none() {
            self.no_proxy = any(&["no_proxy", "NO_PROXY"]);
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        for (name, value) in [
            ("connect_timeout", self.connect_timeout),
            ("first_byte_timeout", self.first_byte_timeout),
            ("read_gap_timeout", self.read_gap_timeout),
        ] {
            if value.is_zero() {
                return Err(Error::new(ErrorKind::InvalidInput, format!("{name} is 0, expected more")));
            }
        }
        if self.max_idle_per_host == 0 {
            return Err(Error::new(ErrorKind::InvalidInput, "max_idle_per_host is 0, expected at least 1"));
        }
        Ok(())
    }
}

/// Without the proxy's password.
impl fmt::Debug for ClientConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientConfig")
            .field("connect_timeout", &self.connect_timeout)
            .field("first_byte_timeout", &self.first_byte_timeout)
            .field("read_gap_timeout", &self.read_gap_timeout)
            .field("idle_timeout", &self.idle_timeout)
            .field("max_idle_per_host", &self.max_idle_per_host)
            .field("proxy", &self.proxy.as_deref().map(without_user))
            .field("no_proxy", &self.no_proxy)
            .field("user_agent", &self.user_agent)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxy_follows_the_scheme_of_the_endpoint() {
        let env = |name: &str| match name {
            "http_proxy" => Some("http://plain:1".to_owned()),
            "HTTPS_PROXY" => Some("http://tls:1".to_owned()),
            "NO_PROXY" => Some("localhost".to_owned()),
            _ => None,
        };
        let mut plain = ClientConfig::default();
        plain.from_env_defaults(Some("http://store:9000"), &env);
        let mut tls = ClientConfig::default();
        tls.from_env_defaults(None, &env);
        assert_eq!(plain.proxy.as_deref(), Some("http://plain:1"));
        assert_eq!(
            (tls.proxy.as_deref(), tls.no_proxy.as_deref()),
            (Some("http://tls:1"), Some("localhost"))
        );

        let mut own = ClientConfig { proxy: Some("http://own:1".to_owned()), ..ClientConfig::default() };
        own.from_env_defaults(None, &env);
        assert_eq!(own.proxy.as_deref(), Some("http://own:1"));

        let secret = ClientConfig { proxy: Some("http://me:word@host:1".to_owned()), ..own };
        let shown = format!("{secret:?}");
        assert!(shown.contains("http://host:1") && !shown.contains("word"), "{shown}");
    }

    #[test]
    fn zero_limits_are_refused() {
        let bad = ClientConfig { read_gap_timeout: Duration::ZERO, ..ClientConfig::default() };
        assert_eq!(bad.check().unwrap_err().kind(), ErrorKind::InvalidInput);
        assert!(ClientConfig::default().check().is_ok());
    }
}
