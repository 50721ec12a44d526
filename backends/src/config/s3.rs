//! [`S3Config`]: which bucket, where, and as whom.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{ClientConfig, lenient_path};
use crate::error::{Error, ErrorKind, Result};
use crate::path::FsPath;

const MIB: u64 = 1024 * 1024;

/// Settings of an S3 store. Only `bucket` is needed; the rest has working defaults.
///
/// Credentials come from the first of: `credentials`; `profile` if named; the default profile of the shared files
/// (static keys, roles, SSO, processes); a web identity token; the container's role; the machine's role. Requests are
/// unsigned only with `anonymous`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct S3Config {
    /// Name of the bucket. Needed.
    pub bucket: String,
    /// Directory inside the bucket that is shown as the root. Default: the whole bucket.
    #[serde(with = "lenient_path")]
    pub prefix: FsPath,
    /// URL of the store: `http://` or `https://`, host, optional port and path. Default: Amazon's for the region.
    pub endpoint: Option<String>,
    /// Region that requests are signed for. Default: the profile's; else `us-east-1` with an `endpoint`; else asked of
    /// the bucket. A store that names another region is believed once.
    pub region: Option<String>,
    /// Profile in the shared files; then no other source of credentials is tried. Default: none.
    pub profile: Option<String>,
    /// Sends unsigned requests, for public buckets. Default: `false`.
    pub anonymous: bool,
    /// `true`: `endpoint/bucket/key`; `false`: `bucket.endpoint/key`. Default: `true` with an `endpoint` or for bucket
    /// names that cannot be host names under TLS (with dots or capitals), else `false`.
    pub path_style: Option<bool>,
    /// Accepts the cost of requests to buckets whose requester pays. Default: `false`.
    pub requester_pays: bool,
    /// File with further trusted certificates (PEM). Default: those of the system only.
    pub ca_bundle: Option<PathBuf>,
    /// Explicit keys, instead of any other source. Never written out. Default: none.
    #[serde(skip_serializing)]
    pub credentials: Option<S3Keys>,
    /// Shared configuration file. Default: `~/.aws/config`.
    pub config_file: Option<PathBuf>,
    /// Shared credentials file. Default: `~/.aws/credentials`.
    pub credentials_file: Option<PathBuf>,
    /// Takes a refusal (403) of a look-up as absence. Without the right to list, S3 refuses to say that a key is absent;
    /// by default that is `PermissionDenied`. Default: `false`.
    pub refusal_means_absent: bool,
    /// Size of the parts of large uploads, in bytes, 5 MiB to 5 GiB; grows by itself so that 5 TiB fit into 10 000
    /// parts. Smaller files are one request. Default: 8 MiB.
    pub part_size: u64,
    /// Parts of one upload in flight at once, 1 to 64; each holds its bytes in memory. Default: 8.
    pub upload_concurrency: usize,
    /// Connections and time limits.
    pub client: ClientConfig,
}

impl Default for S3Config {
    fn default() -> Self {
        S3Config {
            bucket: String::new(),
            prefix: FsPath::root(),
            endpoint: None,
            region: None,
            profile: None,
            anonymous: false,
            path_style: None,
            requester_pays: false,
            ca_bundle: None,
            credentials: None,
            config_file: None,
            credentials_file: None,
            refusal_means_absent: false,
            part_size: 8 * MIB,
            upload_concurrency: 8,
            client: ClientConfig::default(),
        }
    }
}

impl S3Config {
    /// Defaults for `bucket`.
    pub fn new(bucket: impl Into<String>) -> Self {
        S3Config { bucket: bucket.into(), ..S3Config::default() }
    }

    /// Fills in what is not set from the variables of the AWS tools, as told by `env`: `AWS_ACCESS_KEY_ID`,
    /// `AWS_SECRET_ACCESS_KEY` and `AWS_SESSION_TOKEN` (unless a profile or `anonymous` is set already), `AWS_PROFILE`,
    /// `AWS_REGION` or `AWS_DEFAULT_REGION`, `AWS_ENDPOINT_URL_S3` or `AWS_ENDPOINT_URL` (unless
    /// `AWS_IGNORE_CONFIGURED_ENDPOINT_URLS` is `true`), `AWS_CA_BUNDLE`, `AWS_CONFIG_FILE`,
    /// `AWS_SHARED_CREDENTIALS_FILE`, and the proxy variables. Empty values count as not set.
    ///
    /// The variables of web identity, container and instance roles (`AWS_WEB_IDENTITY_TOKEN_FILE`,
    /// `AWS_CONTAINER_CREDENTIALS_*`, `AWS_EC2_METADATA_*`) are read from the process when those sources are asked.
    pub fn from_env_defaults(&mut self, env: &impl Fn(&str) -> Option<String>) {
        let get = |name: &str| env(name).filter(|v| !v.is_empty());
        if self.profile.is_none() && self.credentials.is_none() && !self.anonymous {
            if let (Some(id), Some(secret)) = (get("AWS_ACCESS_KEY_ID"), get("AWS_SECRET_ACCESS_KEY")) {
                let keys = S3Keys::new(id, secret, get("AWS_SESSION_TOKEN"));
                self.credentials = Some(S3Keys { source: "environment variables", ..keys });
            } else {
                self.profile = get("AWS_PROFILE");
            }
        }
        fill(&mut self.region, || get("AWS_REGION").or_else(|| get("AWS_DEFAULT_REGION")));
        if !get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS").is_some_and(|v| v.eq_ignore_ascii_case("true")) {
            fill(&mut self.endpoint, || get("AWS_ENDPOINT_URL_S3").or_else(|| get("AWS_ENDPOINT_URL")));
        }
        fill(&mut self.ca_bundle, || get("AWS_CA_BUNDLE").map(PathBuf::from));
        fill(&mut self.config_file, || get("AWS_CONFIG_FILE").map(PathBuf::from));
        fill(&mut self.credentials_file, || get("AWS_SHARED_CREDENTIALS_FILE").map(PathBuf::from));
        self.client.from_env_defaults(self.endpoint.as_deref(), env);
    }

    /// Whether `endpoint/bucket/key` is used rather than `bucket.endpoint/key`.
    pub(crate) fn uses_path_style(&self) -> bool {
        let host_like = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        self.path_style.unwrap_or_else(|| self.endpoint.is_some() || !self.bucket.bytes().all(host_like))
    }

    pub(crate) fn check(&self) -> Result<()> {
        let invalid = |message: String| Err(Error::new(ErrorKind::InvalidInput, message));
        let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_' | b':');
        if self.bucket.is_empty() || !self.bucket.bytes().all(legal) {
            return invalid(format!(
                "`{}` is not a bucket name: expected letters, digits, `.`, `-` or `_`",
                self.bucket
            ));
        }
        if !(5 * MIB..=5 * 1024 * MIB).contains(&self.part_size) {
            return invalid(format!("part_size is {} bytes, expected 5 MiB to 5 GiB", self.part_size));
        }
        if !(1..=64).contains(&self.upload_concurrency) {
            return invalid(format!("upload_concurrency is {}, expected 1 to 64", self.upload_concurrency));
        }
        if self.anonymous && self.credentials.is_some() {
            return invalid("anonymous and credentials are both set, expected one of them".to_owned());
        }
        self.client.check()
    }
}

fn fill<T>(slot: &mut Option<T>, value: impl FnOnce() -> Option<T>) {
    if slot.is_none() {
        *slot = value();
    }
}

/// An access key with its secret. `Debug` shows neither the secret nor the token.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct S3Keys {
    /// Access key id.
    pub access_key_id: String,
    /// Secret access key.
    pub secret_access_key: String,
    /// Token of temporary keys.
    #[serde(default)]
    pub session_token: Option<String>,
    /// Where they came from, for people.
    #[serde(skip, default = "explicit")]
    pub(crate) source: &'static str,
}

impl S3Keys {
    /// Explicit keys.
    pub fn new(
        access_key_id: impl Into<String>,
        secret_access_key: impl Into<String>,
        session_token: Option<String>,
    ) -> Self {
        S3Keys {
            access_key_id: access_key_id.into(),
            secret_access_key: secret_access_key.into(),
            session_token,
            source: explicit(),
        }
    }
}

fn explicit() -> &'static str {
    "explicit keys"
}

impl fmt::Debug for S3Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("S3Keys")
            .field("access_key_id", &self.access_key_id)
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(name: &str) -> Option<String> {
        let value = match name {
            "AWS_ACCESS_KEY_ID" => "AKIA",
            "AWS_SECRET_ACCESS_KEY" => "very-secret",
            "AWS_SESSION_TOKEN" => "very-token",
            "AWS_PROFILE" => "work",
            "AWS_DEFAULT_REGION" => "eu-west-1",
            "AWS_ENDPOINT_URL" => "http://general:1",
            "AWS_ENDPOINT_URL_S3" => "http://special:1",
            "AWS_CA_BUNDLE" => "/ca.pem",
            _ => return None,
        };
        Some(value.to_owned())
    }

    #[test]
    fn environment_fills_only_what_is_not_set() {
        let mut config = S3Config::new("b");
        config.from_env_defaults(&env);
        assert_eq!(config.credentials.as_ref().unwrap().access_key_id, "AKIA");
        assert_eq!(config.profile, None);
        assert_eq!(config.region.as_deref(), Some("eu-west-1"));
        assert_eq!(config.endpoint.as_deref(), Some("http://special:1"));
        assert_eq!(config.ca_bundle.as_deref(), Some(std::path::Path::new("/ca.pem")));

        let mut named =
            S3Config { profile: Some("mine".into()), region: Some("r".into()), ..S3Config::new("b") };
        named.from_env_defaults(&env);
        assert_eq!((named.profile.as_deref(), named.region.as_deref()), (Some("mine"), Some("r")));
        assert!(named.credentials.is_none());
    }

    #[test]
    fn anonymous_stays_anonymous_and_incomplete_keys_are_no_keys() {
        let mut public = S3Config { anonymous: true, ..S3Config::new("b") };
        public.from_env_defaults(&env);
        assert!(public.credentials.is_none() && public.profile.is_none());

        let mut half = S3Config::new("b");
        half.from_env_defaults(&|n: &str| env(n).filter(|_| n != "AWS_SECRET_ACCESS_KEY"));
        assert!(half.credentials.is_none());
        assert_eq!(half.profile.as_deref(), Some("work"));
    }

    #[test]
    fn secrets_are_never_shown() {
        let mut config = S3Config::new("b");
        config.from_env_defaults(&env);
        let shown = format!("{config:?} {:?}", config.credentials);
        assert!(!shown.contains("very-secret") && !shown.contains("very-token"), "{shown}");
    }

    #[test]
    fn dotted_buckets_and_own_endpoints_use_path_style() {
        assert!(!S3Config::new("plain-1").uses_path_style());
        assert!(S3Config::new("with.dots").uses_path_style());
        assert!(S3Config { endpoint: Some("http://x".into()), ..S3Config::new("b") }.uses_path_style());
        assert!(!S3Config { path_style: Some(false), ..S3Config::new("with.dots") }.uses_path_style());
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(S3Config::new("b").check().is_ok());
        assert!(S3Config::new("").check().is_err());
        assert!(S3Config::new("a/b").check().is_err());
        assert!(S3Config { part_size: 1, ..S3Config::new("b") }.check().is_err());
        assert!(S3Config { upload_concurrency: 0, ..S3Config::new("b") }.check().is_err());
    }

    #[test]
    fn files_set_what_they_name_and_nothing_else() {
        let text = "bucket = 'b'\nprefix = '/a//b/'\npart_size = 16777216\ncredentials = { access_key_id = 'i', \
                    secret_access_key = 's' }\n[client]\nread_gap_timeout = '1m 30s'\n";
        let config: S3Config = toml::from_str(text).unwrap();
        let expected = S3Config {
            prefix: FsPath::parse("a/b").unwrap(),
            part_size: 16 * MIB,
            credentials: Some(S3Keys::new("i", "s", None)),
            client: ClientConfig {
                read_gap_timeout: std::time::Duration::from_secs(90),
                ..ClientConfig::default()
            },
            ..S3Config::new("b")
        };
        assert_eq!(config, expected);
        for bad in ["buket = 'b'", "client = { read_gap = '1s' }", "client = { read_gap_timeout = 'soon' }"] {
            assert!(toml::from_str::<S3Config>(bad).is_err(), "{bad}");
        }
        // What is written out can be read again, without the secrets.
        let written = toml::to_string(&config).unwrap();
        assert!(!written.contains("secret"), "{written}");
        let again: S3Config = toml::from_str(&written).unwrap();
        assert_eq!(again, S3Config { credentials: None, ..expected });
    }
}
