//! [`ClientBuilder`]: settings given by a program, which win over environment and files.

use std::fmt::Display;
use std::time::Duration;

use nearfs_backends::{Registry, Result};

use crate::client::Client;
use crate::config::{Config, Environment, show_span};

/// Makes a [`Client`]. Every setting is optional and has the default of the manual's configuration chapter.
#[derive(Debug, Default)]
#[must_use = "nothing happens before `build`"]
pub struct ClientBuilder {
    settings: Vec<(&'static str, String)>,
    config: Option<Config>,
    registry: Option<Registry>,
}

impl ClientBuilder {
    pub(crate) fn new() -> Self {
        ClientBuilder::default()
    }

    fn with(mut self, key: &'static str, value: impl Display) -> Self {
        self.settings.push((key, value.to_string()));
        self
    }

    /// Memory for cached data of one store, in bytes. Default: the smaller of 2 GiB and a quarter of what this process
    /// may use.
    pub fn memory(self, bytes: u64) -> Self {
        self.with("memory", bytes)
    }

    /// How long attributes and directory entries are believed; zero asks every time. Default: 60 s.
    pub fn metadata_ttl(self, ttl: Duration) -> Self {
        self.with("metadata_ttl", show_span(Some(ttl)))
    }

    /// Attributes and directory entries are believed for ever: for data that never changes.
    pub fn metadata_never_changes(self) -> Self {
        self.with("metadata_ttl", "inf")
    }

    /// How long absence is believed. Default: 2 s.
    pub fn negative_ttl(self, ttl: Duration) -> Self {
        self.with("negative_ttl", show_span(Some(ttl)))
    }

    /// Longest time any one call may take, at least 1 s. Default: 60 s.
    pub fn deadline(self, deadline: Duration) -> Self {
        self.with("deadline", show_span(Some(deadline)))
    }

    /// Reading ahead. Default: `true`.
    pub fn prefetch(self, on: bool) -> Self {
        self.with("prefetch", if on { "auto" } else { "off" })
    }

    /// Most data requests in flight for one store, 1 to 1024. Default: 128.
    pub fn max_connections(self, n: usize) -> Self {
        self.with("max_connections", n)
    }

    /// Address of the store's API. Default: the provider's own.
    pub fn endpoint_url(self, url: impl Display) -> Self {
        self.with("endpoint_url", url)
    }

    /// Region of the buckets. Default: found by asking.
    pub fn region(self, region: impl Display) -> Self {
        self.with("region", region)
    }

    /// Profile of the shared AWS configuration files. Default: none.
    pub fn profile(self, profile: impl Display) -> Self {
        self.with("profile", profile)
    }

    /// Send requests without credentials. Default: `false`.
    pub fn anonymous(self, yes: bool) -> Self {
        self.with("anonymous", yes)
    }

    /// Address buckets as `endpoint/bucket`. Default: for custom endpoints.
    pub fn path_style(self, yes: bool) -> Self {
        self.with("path_style", yes)
    }

    /// Any setting by its name in `nearfs.toml`. Checked by [`ClientBuilder::build`].
    pub fn setting(self, key: &'static str, value: impl Display) -> Self {
        self.with(key, value)
    }

    /// Starts from this configuration instead of the environment and `nearfs.toml`; [`Config::isolated`] knows neither.
    pub fn config(mut self, config: Config) -> Self {
        self.config = Some(config);
        self
    }

    /// Opens URLs with this registry, which may know schemes of your own. Default: [`Registry::with_defaults`].
    pub fn registry(mut self, registry: Registry) -> Self {
        self.registry = Some(registry);
        self
    }

    /// The client. Connects to nothing yet.
    ///
    /// # Errors
    /// `InvalidInput` for a bad value, also in the environment or a file.
    pub fn build(self) -> Result<Client> {
        let mut config = match self.config {
            Some(config) => config,
            None => Config::load(None, Environment::of_process())?,
        };
        for (key, value) in self.settings {
            config.set(key, value, &format!("setter {key}"))?;
        }
        Ok(Client::assemble(config, self.registry.unwrap_or_else(Registry::with_defaults)))
    }
}
