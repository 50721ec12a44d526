//! Reading `nearfs.toml`: flat settings and `[store."URL"]` sections, every unknown name an error.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use nearfs_backends::{Error, ErrorKind, Result};
use toml::{Table, Value};

use super::settings::{SETTINGS, Scope, nearest, setting};

/// Largest file that is read, in bytes.
const MAX_FILE: u64 = 1 << 20;

/// The content of one file, values as text.
#[derive(Debug, Default)]
pub(super) struct ConfigFile {
    pub(super) path: PathBuf,
    pub(super) top: BTreeMap<&'static str, String>,
    /// By store URL without trailing `/`.
    pub(super) stores: BTreeMap<String, BTreeMap<&'static str, String>>,
}

impl ConfigFile {
    /// Reads `path`; `None` if there is no such file.
    ///
    /// # Errors
    /// `InvalidInput` naming file and key for anything in it that makes no sense; others as the system says.
    pub(super) fn read(path: &Path) -> Result<Option<Self>> {
        let meta = match std::fs::metadata(path) {
            Ok(meta) => meta,
            Err(e)
                if matches!(e.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) =>
            {
                return Ok(None);
            }
            Err(e) => return Err(named(path, Error::from(e))),
        };
        if meta.len() > MAX_FILE {
            return Err(named(
                path,
                Error::new(ErrorKind::InvalidInput, "a configuration file of more than 1 MiB"),
            ));
        }
        let text = std::fs::read_to_string(path).map_err(|e| named(path, Error::from(e)))?;
        Self::parse(path, &text).map(Some)
    }

    pub(super) fn parse(path: &Path, text: &str) -> Result<Self> {
        let table: Table = text.parse().map_err(|e: toml::de::Error| {
            let line = e.span().map_or(1, |s| 1 + text[..s.start.min(text.len())].matches('\n').count());
            let message = format!("line {line}: {}", e.message().replace('\n', ", "));
            named(path, Error::new(ErrorKind::InvalidInput, message))
        })?;
        let mut file = ConfigFile { path: path.to_owned(), ..Default::default() };
        for (key, value) in &table {
            if key == "store" {
                file.read_stores(value).map_err(|e| named(path, e))?;
            } else {
                let (key, text) = entry(key, value, Scope::Process).map_err(|e| named(path, e))?;
                file.top.insert(key, text);
            }
        }
        Ok(file)
    }

    fn read_stores(&mut self, value: &Value) -> Result<()> {
        let shape = || {
            Error::new(ErrorKind::InvalidInput, "`store` is not a table of sections")
                .with_context("hint", "write `[store.\"s3://bucket\"]` and the settings below it")
        };
        for (url, section) in value.as_table().ok_or_else(shape)? {
            let section = section.as_table().ok_or_else(shape)?;
            if !url.contains("://") {
                return Err(Error::new(
                    ErrorKind::InvalidInput,
                    format!("[store.\"{url}\"]: the name is not a URL"),
                )
                .with_context("hint", "quote the whole URL: `[store.\"s3://bucket/prefix\"]`"));
            }
            let mut values = BTreeMap::new();
            for (key, value) in section {
                let (key, text) = entry(key, value, Scope::Store)
                    .map_err(|e| e.with_context("section", format!("[store.\"{url}\"]")))?;
                values.insert(key, text);
            }
            self.stores.insert(url.trim_end_matches('/').to_owned(), values);
        }
        Ok(())
    }
}

/// Checks one `key = value` for a place of scope `place`; the value is also tried out.
fn entry(key: &str, value: &Value, place: Scope) -> Result<(&'static str, String)> {
    let Some(found) = setting(key) else {
        let known = SETTINGS.iter().filter(|s| place == Scope::Process || s.scope == Scope::Store);
        let known = known.map(|s| s.key).chain((place == Scope::Process).then_some("store"));
        let mut error = Error::new(ErrorKind::InvalidInput, format!("unknown setting `{key}`"));
        // Hyphens are how the option is spelled.
        if let Some(near) = nearest(&key.replace('-', "_"), known) {
            error = error.with_context("hint", format!("did you mean `{near}`?"));
        }
        return Err(error);
    };
    if place == Scope::Store && found.scope == Scope::Process {
        return Err(Error::new(ErrorKind::InvalidInput, format!("`{key}` is not a setting of a store"))
            .with_context("hint", "move it above the first `[store…]` section"));
    }
    let text = match value {
        Value::String(s) if found.list => super::cache::join([s]),
        Value::String(s) => s.clone(),
        Value::Array(items) if found.list => {
            let items = items.iter().map(Value::as_str).collect::<Option<Vec<_>>>();
            let shape =
                || Error::new(ErrorKind::InvalidInput, format!("`{key}`: expected an array of strings"));
            super::cache::join(items.ok_or_else(shape)?)
        }
        Value::Integer(n) => n.to_string(),
        Value::Boolean(b) => b.to_string(),
        other => {
            let message =
                format!("`{key}`: expected a string, number or boolean, found {}", other.type_str());
            return Err(Error::new(ErrorKind::InvalidInput, message));
        }
    };
    (found.apply)(&mut super::Settings::blank(), &text).map_err(|e| super::at_key(key, e))?;
    Ok((found.key, text))
}

fn named(path: &Path, error: Error) -> Error {
    super::prefixed(&path.display().to_string(), error)
}
