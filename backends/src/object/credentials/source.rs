//! Where credentials come from: fixed keys, or the sources of the AWS tools one after the other.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use aws_config::ecs::EcsCredentialsProvider;
use aws_config::imds::credentials::ImdsCredentialsProvider;
use aws_config::profile::ProfileFileCredentialsProvider;
use aws_config::provider_config::ProviderConfig;
use aws_config::web_identity_token::WebIdentityTokenCredentialsProvider;
use aws_credential_types::Credentials as SdkCredentials;
use aws_credential_types::provider::ProvideCredentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_runtime::env_config::file::{EnvConfigFileKind, EnvConfigFiles};
use aws_types::os_shim_internal::{Env, Fs};
use aws_types::region::Region;
use object_store::aws::AwsCredential;

use super::super::http::Clients;
use super::http::AwsHttp;
use super::{Loaded, unauthenticated};
use crate::config::{S3Config, S3Keys};
use crate::error::{Error, ErrorKind, Result};

/// A source that has not answered within this time has none.
const LIMIT: Duration = Duration::from_secs(9);

/// The instance's metadata service is on the same host; where there is none, nobody answers.
const METADATA_CONNECT: Duration = Duration::from_secs(1);

/// When a whole fleet starts at once it may take this long.
const METADATA_ANSWER: Duration = Duration::from_millis(2500);

#[derive(Debug)]
pub(crate) enum Source {
    Anonymous,
    Fixed(Loaded),
    Chain(Arc<Chain>),
}

impl Source {
    pub(crate) fn new(config: &S3Config, region: Option<&str>, clients: Clients) -> Self {
        match &config.credentials {
            _ if config.anonymous => Source::Anonymous,
            Some(keys) => Source::Fixed(fixed(keys)),
            None => Source::Chain(Arc::new(Chain {
                profile: config.profile.clone(),
                files: files(config),
                region: region.unwrap_or("us-east-1").to_owned(),
                http: AwsHttp::new(clients),
            })),
        }
    }
}

fn fixed(keys: &S3Keys) -> Loaded {
    let credential = AwsCredential {
        key_id: keys.access_key_id.clone(),
        secret_key: keys.secret_access_key.clone(),
        token: keys.session_token.clone(),
    };
    Loaded { credential: Arc::new(credential), expires: None, source: keys.source.to_owned() }
}

/// The shared files: those named, else those of the home directory.
fn files(config: &S3Config) -> EnvConfigFiles {
    let mut files = EnvConfigFiles::builder();
    let named: [(EnvConfigFileKind, &Option<PathBuf>); 2] = [
        (EnvConfigFileKind::Config, &config.config_file),
        (EnvConfigFileKind::Credentials, &config.credentials_file),
    ];
    for (kind, path) in named {
        files = match (kind, path) {
            (kind, Some(path)) => files.with_file(kind, path),
            (EnvConfigFileKind::Config, None) => files.include_default_config_file(true),
            (_, None) => files.include_default_credentials_file(true),
        };
    }
    files.build()
}

/// The sources, asked anew for every renewal, so that changed files are seen.
#[derive(Debug)]
pub(crate) struct Chain {
    profile: Option<String>,
    files: EnvConfigFiles,
    region: String,
    http: AwsHttp,
}

impl Chain {
    /// Credentials of the first source that has any.
    ///
    /// # Errors
    /// `Unauthenticated`, with all sources that were tried.
    pub(crate) async fn load(&self) -> Result<Loaded> {
        let mut tried = Vec::new();
        match tokio::time::timeout(LIMIT, self.try_each(&mut tried)).await {
            Ok(result) => result,
            Err(_) => {
                tried.push(format!("then no answer for {}", humantime::format_duration(LIMIT)));
                Err(none_found(&tried, true))
            }
        }
    }

    async fn try_each(&self, tried: &mut Vec<String>) -> Result<Loaded> {
        let conf = ProviderConfig::without_region()
            .with_region(Some(Region::new(self.region.clone())))
            .with_http_client(self.http.clone());
        let profile =
            ProfileFileCredentialsProvider::builder().configure(&conf).profile_files(self.files.clone());
        if let Some(name) = &self.profile {
            let provider = profile.profile_name(name).build();
            let label = format!("profile `{name}`");
            return match self.try_one(&label, &provider, tried).await? {
                Some(loaded) => Ok(loaded),
                None => Err(none_found(tried, false)),
            };
        }
        if let Some(loaded) = self.try_one("the default profile", &profile.build(), tried).await? {
            return Ok(loaded);
        }
        let token = WebIdentityTokenCredentialsProvider::builder().configure(&conf).build();
        if let Some(loaded) = self.try_one("web identity token", &token, tried).await? {
            return Ok(loaded);
        }
        let container = EcsCredentialsProvider::builder().configure(&conf).build();
        if let Some(loaded) = self.try_one("container role", &container, tried).await? {
            return Ok(loaded);
        }
        let metadata = aws_config::imds::Client::builder()
            .configure(&conf)
            .connect_timeout(METADATA_CONNECT)
            .read_timeout(METADATA_ANSWER)
            .max_attempts(2)
            .build();
        let instance = ImdsCredentialsProvider::builder().configure(&conf).imds_client(metadata).build();
        match self.try_one("instance role", &instance, tried).await? {
            Some(loaded) => Ok(loaded),
            None => Err(none_found(tried, false)),
        }
    }

    /// `None` if this source has none; an error if it has, but they could not be got: then no other is tried, because
    /// another identity than the one meant would be worse than none.
    async fn try_one(
        &self,
        label: &str,
        provider: &impl ProvideCredentials,
        tried: &mut Vec<String>,
    ) -> Result<Option<Loaded>> {
        // Noted before the answer, for the case that none comes.
        tried.push(label.to_owned());
        match provider.provide_credentials().await {
            Ok(found) => Ok(Some(loaded(&found, label))),
            Err(e @ CredentialsError::CredentialsNotLoaded(_)) => {
                let last = tried.last_mut().expect("pushed above");
                *last = format!("{label} ({})", innermost(&e));
                Ok(None)
            }
            Err(e) => {
                let transient = !matches!(e, CredentialsError::InvalidConfiguration(_));
                let text = format!("{label} gave no credentials: {}", innermost(&e));
                Err(unauthenticated(text, transient).with_context("hint", "renew them, or log in again"))
            }
        }
    }
}

fn loaded(found: &SdkCredentials, label: &str) -> Loaded {
    let credential = AwsCredential {
        key_id: found.access_key_id().to_owned(),
        secret_key: found.secret_access_key().to_owned(),
        token: found.session_token().map(str::to_owned),
    };
    Loaded { credential: Arc::new(credential), expires: found.expiry(), source: label.to_owned() }
}

fn none_found(tried: &[String], transient: bool) -> Error {
    unauthenticated(format!("no credentials found; tried: {}", tried.join(", ")), transient).with_context(
        "hint",
        "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, name a profile, or ask for anonymous access",
    )
}

/// The last source of an error says what happened; those above it say that something happened.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut last = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string()
}

/// What a profile says besides credentials.
#[derive(Debug, Default)]
pub(crate) struct ProfileSettings {
    pub(crate) region: Option<String>,
    pub(crate) endpoint: Option<String>,
    pub(crate) ca_bundle: Option<PathBuf>,
}

impl ProfileSettings {
    /// Reads the profile that `config` names, or the default one.
    ///
    /// # Errors
    /// `InvalidInput` if a file cannot be read or has no such profile.
    pub(crate) async fn load(config: &S3Config) -> Result<Self> {
        let name = config.profile.clone().map(Cow::Owned);
        let set = aws_config::profile::load(&Fs::real(), &Env::real(), &files(config), name).await.map_err(
            |e| {
                Error::new(
                    ErrorKind::InvalidInput,
                    format!("the shared AWS files are unusable: {}", innermost(&e)),
                )
            },
        )?;
        let wanted = config.profile.as_deref().unwrap_or_else(|| set.selected_profile());
        let Some(profile) = set.get_profile(wanted) else {
            if config.profile.is_none() {
                return Ok(ProfileSettings::default());
            }
            let mut known: Vec<_> = set.profiles().collect();
            known.sort_unstable();
            let known = if known.is_empty() { "there are none".to_owned() } else { known.join(", ") };
            return Err(Error::new(ErrorKind::InvalidInput, format!("there is no profile `{wanted}`"))
                .with_context("hint", format!("profiles in the shared AWS files: {known}")));
        };
        let get = |key: &str| profile.get(key).filter(|v| !v.is_empty());
        Ok(ProfileSettings {
            region: get("region").map(str::to_owned),
            endpoint: get("endpoint_url").map(str::to_owned),
            ca_bundle: get("ca_bundle").map(|p| Path::new(p).to_owned()),
        })
    }
}
