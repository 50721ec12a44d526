//! Settings and where they come from: the only place that reads the environment and configuration files.
//!
//! Strongest first:
//!
//! 1. an option on the command line (`--metadata-ttl 10s`) or a setter of the builder,
//! 2. an environment variable of nearfs (`NEARFS_METADATA_TTL`),
//! 3. a `[store."s3://bucket/prefix"]` section of `nearfs.toml`; of several that fit, the longest,
//! 4. what the store's own ecosystem says (`AWS_*` variables, shared AWS configuration files),
//! 5. the top level of `nearfs.toml`,
//! 6. the default.
//!
//! Files, nearest first: `--config F` (or `NEARFS_CONFIG`) alone, or else `./nearfs.toml`,
//! `$XDG_CONFIG_HOME/nearfs/nearfs.toml` (`~/.config`), `/etc/nearfs/nearfs.toml`, all that exist. What a nearer file
//! says about a setting hides the same setting, in the same section, of a farther one.

mod cache;
mod env;
mod file;
mod origin;
mod settings;
mod size;
mod span;
mod store;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use nearfs_backends::{Error, Result};
pub use nearfs_cache::PolicyKind;

pub use cache::LEAST_CACHE;
pub use env::Environment;
use file::ConfigFile;
pub use origin::{Entry, Origin};
pub use settings::{LogFormat, OpenMode, SETTINGS, Scope, Setting, Settings, nearest, setting};
pub use size::Size;
pub use span::{parse_span, parse_span_or_inf, show_span};
pub(crate) use store::StorePlan;

/// What all sources say, before it is narrowed down to one store by [`Config::settings`].
#[derive(Debug, Default)]
pub struct Config {
    /// Values by key, and how the flag was spelled.
    flags: BTreeMap<&'static str, (String, String)>,
    environment: Environment,
    /// Nearest first.
    files: Vec<ConfigFile>,
}

impl Config {
    /// Reads environment and files. `explicit` is the file of `--config`.
    ///
    /// # Errors
    /// `InvalidInput` for an unknown key or a bad value, naming its place; `NotFound` if `explicit` does not exist.
    pub fn load(explicit: Option<&Path>, environment: Environment) -> Result<Self> {
        let mut files = Vec::new();
        let named = explicit.map(Path::to_owned).or_else(|| environment.config_file());
        if let Some(path) = named {
            files.extend(ConfigFile::read(&path)?);
            if files.is_empty() {
                let error = Error::new(nearfs_backends::ErrorKind::NotFound, "no such configuration file");
                return Err(prefixed(&path.display().to_string(), error));
            }
        } else {
            for path in environment.config_files() {
                files.extend(ConfigFile::read(&path)?);
            }
        }
        let config = Config { flags: BTreeMap::new(), environment, files };
        // Bad values are reported at the start, not at first use.
        config.settings(None)?;
        Ok(config)
    }

    /// Nothing but defaults: no environment, no files.
    pub fn isolated() -> Self {
        Config::default()
    }

    /// Gives `key` the strongest value, said to come from `spelling` (an option's name).
    ///
    /// # Errors
    /// `InvalidInput` for an unknown key or a bad value.
    pub fn set(&mut self, key: &str, value: impl Into<String>, spelling: &str) -> Result<()> {
        let value = value.into();
        let Some(found) = setting(key) else {
            return Err(Error::new(
                nearfs_backends::ErrorKind::InvalidInput,
                format!("unknown setting `{key}`"),
            ));
        };
        (found.apply)(&mut Settings::blank(), &value).map_err(|e| prefixed(spelling, e))?;
        self.flags.insert(found.key, (value, spelling.to_owned()));
        Ok(())
    }

    /// As [`Config::set`], for a setting with several values, which may hold any characters.
    ///
    /// # Errors
    /// As [`Config::set`].
    pub fn set_list(
        &mut self,
        key: &str,
        values: impl IntoIterator<Item = impl AsRef<str>>,
        spelling: &str,
    ) -> Result<()> {
        self.set(key, cache::join(values), spelling)
    }

    /// The settings of the store that holds `url`, or with `None` those of the process.
    ///
    /// # Errors
    /// `InvalidInput` for a bad value in the environment.
    pub fn settings(&self, url: Option<&str>) -> Result<Settings> {
        let mut settings = Settings::blank();
        for found in SETTINGS {
            let (value, origin) = self.find(found, url);
            // An empty default is the field's own blank.
            if origin != Origin::Default || !value.is_empty() {
                (found.apply)(&mut settings, &value)
                    .map_err(|e| prefixed(&origin.to_string(), at_key(found.key, e)))?;
            }
        }
        Ok(settings)
    }

    /// Every setting in force, in the order of the manual. Nothing in it is secret.
    pub fn entries(&self, url: Option<&str>) -> Vec<Entry> {
        let entry = |s: &'static Setting| {
            let (value, origin) = self.find(s, url);
            let list = (s.list && !value.is_empty()).then(|| cache::split(&value));
            Entry { key: s.key, value, list, origin }
        };
        SETTINGS.iter().map(entry).collect()
    }

    /// The files that were read, nearest first.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|f| f.path.as_path())
    }

    /// Where a file would be looked for, nearest first.
    pub fn searched(&self) -> Vec<PathBuf> {
        self.environment.config_files()
    }

    /// The environment this was loaded from.
    pub fn environment(&self) -> &Environment {
        &self.environment
    }

    /// Variables that begin with `NEARFS_` and mean nothing here, each with the nearest that would.
    pub fn unknown_variables(&self) -> Vec<(String, Option<String>)> {
        self.environment.unknown()
    }

    fn find(&self, found: &'static Setting, url: Option<&str>) -> (String, Origin) {
        let key = found.key;
        if let Some((value, spelling)) = self.flags.get(key) {
            return (value.clone(), Origin::Flag(spelling.clone()));
        }
        if let Some(value) = self.environment.get(&found.env()) {
            return (value.to_owned(), Origin::Env(found.env()));
        }
        let sections = self.files.iter().flat_map(|f| f.stores.iter().map(move |(u, values)| (f, u, values)));
        let mut best: Option<(&ConfigFile, &String, &String)> = None;
        for (file, section, values) in sections {
            let fits = url.is_some_and(|url| covers(section, url));
            // `>`: of equal sections in two files the nearer one stays.
            if let Some(value) = values.get(key).filter(|_| fits)
                && best.is_none_or(|(_, u, _)| section.len() > u.len())
            {
                best = Some((file, section, value));
            }
        }
        if let Some((file, section, value)) = best {
            return (value.clone(), Origin::Section(file.path.clone(), section.clone()));
        }
        if let Some((value, name)) = self.environment.ecosystem(key, url) {
            return (value, Origin::Env(name));
        }
        match self.files.iter().find_map(|f| f.top.get(key).map(|v| (f, v))) {
            Some((file, value)) => (value.clone(), Origin::File(file.path.clone())),
            None => (found.default.to_owned(), Origin::Default),
        }
    }
}

/// True if `url` is `section` or lies below it; `s3a://` counts as `s3://`.
fn covers(section: &str, url: &str) -> bool {
    let plain = |u: &str| match u.split_once("://") {
        Some((scheme, rest)) => {
            let scheme = scheme.to_ascii_lowercase();
            format!("{}://{rest}", if scheme == "s3a" { "s3" } else { &scheme })
        }
        None => u.to_owned(),
    };
    let (section, url) = (plain(section), plain(url));
    url.strip_prefix(&section)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || section.ends_with('/'))
}

/// `error` with `place: ` before its message; kind and hint stay.
fn prefixed(place: &str, error: Error) -> Error {
    let mut out = Error::new(error.kind(), format!("{place}: {}", error.message())).with_retry(error.retry());
    for key in ["section", "hint"] {
        if let Some(value) = error.context(key) {
            out = out.with_context(key, value);
        }
    }
    out
}

fn at_key(key: &str, error: Error) -> Error {
    prefixed(&format!("`{key}`"), error)
}
