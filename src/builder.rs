//! [`ClientBuilder`]: settings given by a program, which win over environment and files.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nearfs_backends::{Error, ErrorKind, Registry, Result};
use nearfs_cache::PolicyKind;

use crate::client::Client;
use crate::config::{Config, Environment, show_span};

/// Makes a [`Client`]. Every setting is optional and has the default of the manual's configuration chapter.
#[derive(Debug, Default)]
#[must_use = "nothing happens before `build`"]
pub struct ClientBuilder {
    settings: Vec<(&'static str, String)>,
    cache_dirs: Vec<PathBuf>,
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

    /// A directory of the cache on disk, best on a local disk. Called several times, it names several, one for each
    /// disk. Default: `/var/cache/nearfs` for root, else `$XDG_CACHE_HOME/nearfs` or `~/.cache/nearfs`.
    pub fn cache_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.cache_dirs.push(dir.into());
        self
    }

    /// Most disk space for cached data, in bytes, at least 16 MiB; 0 keeps nothing on disk. A share of the filesystem
    /// is set by `.setting("cache_size", "80%")`. Default: the limit that the directory has, for a new one half of the
    /// filesystem.
    pub fn cache_size(self, bytes: u64) -> Self {
        self.with("cache_size", bytes)
    }

    /// Share of the filesystem that the cache leaves free, 0 to 0.9. Default: 0.05.
    pub fn cache_free(self, share: f64) -> Self {
        self.with("cache_free", format!("{}%", share * 100.0))
    }

    /// Group, by name or number, whose members share the cache directory. Default: this user alone.
    pub fn cache_group(self, group: impl Display) -> Self {
        self.with("cache_group", group)
    }

    /// What goes first when the disk space is used up. Default: [`PolicyKind::Epochs`].
    pub fn cache_policy(self, policy: PolicyKind) -> Self {
        self.with("cache_policy", policy)
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
        if !self.cache_dirs.is_empty() {
            let text = |dir: &PathBuf| dir.to_str().map(str::to_owned).ok_or_else(|| not_text(dir));
            let dirs = self.cache_dirs.iter().map(text).collect::<Result<Vec<_>>>()?;
            config.set_list("cache_dir", dirs, "setter cache_dir")?;
        }
        Ok(Client::assemble(config, self.registry.unwrap_or_else(Registry::with_defaults)))
    }
}

fn not_text(dir: &Path) -> Error {
    let message = format!("setter cache_dir: `{}` is not UTF-8", dir.display());
    Error::new(ErrorKind::InvalidInput, message)
}
