//! The environment, read once: the only place in nearfs that asks for a variable.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::settings::{SETTINGS, nearest};

/// Variables of nearfs that are not settings.
const OTHERS: [&str; 2] = ["NEARFS_CONFIG", "NEARFS_READY_FD"];

/// A copy of the environment. Variables that are not UTF-8 count as not set.
#[derive(Debug, Clone, Default)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// The environment of this process now.
    pub fn of_process() -> Self {
        std::env::vars_os()
            .filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)))
            .collect()
    }

    /// The value of `name`; an empty one counts as not set.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|v| !v.is_empty())
    }

    /// All variables, for what must be handed to the parts that know an ecosystem's names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(k, v)| (k.as_str(), v.as_str()))
    }

    /// `NEARFS_CONFIG`: the only file to read.
    pub(super) fn config_file(&self) -> Option<PathBuf> {
        self.get("NEARFS_CONFIG").map(PathBuf::from)
    }

    /// Where files are looked for, nearest first. Nowhere if this environment is empty.
    pub(super) fn config_files(&self) -> Vec<PathBuf> {
        if self.0.is_empty() {
            return Vec::new();
        }
        let xdg = self.get("XDG_CONFIG_HOME").map(PathBuf::from);
        let user = xdg.or_else(|| self.get("HOME").map(|home| PathBuf::from(home).join(".config")));
        let user = user.map(|dir| dir.join("nearfs/nearfs.toml"));
        [Some("nearfs.toml".into()), user, Some("/etc/nearfs/nearfs.toml".into())]
            .into_iter()
            .flatten()
            .collect()
    }

    /// Where a mount in the background keeps its log if nobody says: `/var/log/nearfs` for root, else
    /// `$XDG_STATE_HOME/nearfs` (`~/.local/state`); `None` if there is no home.
    pub fn log_directory(&self, root: bool) -> Option<PathBuf> {
        if root {
            return Some("/var/log/nearfs".into());
        }
        let xdg = self.get("XDG_STATE_HOME").map(PathBuf::from);
        let state = xdg.or_else(|| self.get("HOME").map(|home| PathBuf::from(home).join(".local/state")));
        state.map(|dir| dir.join("nearfs"))
    }

    /// Where the cache on disk is if nobody says: `/var/cache/nearfs` for root, else `$XDG_CACHE_HOME/nearfs`
    /// (`~/.cache`); `None` if there is no home.
    pub fn cache_directory(&self, root: bool) -> Option<PathBuf> {
        if root {
            return Some("/var/cache/nearfs".into());
        }
        let xdg = self.get("XDG_CACHE_HOME").map(PathBuf::from);
        let cache = xdg.or_else(|| self.get("HOME").map(|home| PathBuf::from(home).join(".cache")));
        cache.map(|dir| dir.join("nearfs"))
    }

    /// The descriptor on which a mount in the background reports to the process that started it.
    pub fn ready_fd(&self) -> Option<i32> {
        self.get("NEARFS_READY_FD")?.parse().ok()
    }

    /// What the ecosystem of the store at `url` says about a setting, and the variable that says it.
    ///
    /// Shared configuration files and credentials are read by the backend itself.
    pub(super) fn ecosystem(&self, key: &str, url: Option<&str>) -> Option<(String, String)> {
        // Without a URL the question is what would hold for S3.
        let s3 = url.is_none_or(|u| u.starts_with("s3://") || u.starts_with("s3a://"));
        let names: &[&str] = match key {
            "endpoint_url" if !self.ignores_endpoints() => &["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"],
            "region" => &["AWS_REGION", "AWS_DEFAULT_REGION"],
            "profile" => &["AWS_PROFILE"],
            "ca_bundle" => &["AWS_CA_BUNDLE"],
            _ => &[],
        };
        let found = names.iter().filter(|_| s3).find_map(|name| Some((self.get(name)?, *name)))?;
        Some((found.0.to_owned(), found.1.to_owned()))
    }

    fn ignores_endpoints(&self) -> bool {
        self.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS").is_some_and(|v| v.eq_ignore_ascii_case("true"))
    }

    pub(super) fn unknown(&self) -> Vec<(String, Option<String>)> {
        let known: Vec<_> = SETTINGS.iter().map(|s| s.env()).chain(OTHERS.map(str::to_owned)).collect();
        let strange = self.0.keys().filter(|k| k.starts_with("NEARFS_") && !known.contains(k));
        strange
            .map(|k| (k.clone(), nearest(k, known.iter().map(String::as_str)).map(str::to_owned)))
            .collect()
    }
}

impl<K: Into<String>, V: Into<String>> FromIterator<(K, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(iter: I) -> Self {
        Environment(iter.into_iter().map(|(k, v)| (k.into(), v.into())).collect())
    }
}
