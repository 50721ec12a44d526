//! What a mount means: which stores, where, for whom.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nearfs::config::{Config, OpenMode, Settings};
use nearfs::mount::{self, Mount, MountOptions, MountSession, Tree};
use nearfs::{Client, StoreUrl};

use super::MountArgs;
use crate::cli::diagnostics::{Failure, Outcome};
use crate::cli::output::escaped;
use crate::cli::place::shown;
use crate::cli::telemetry;

/// How long a mount that ends may take to put what it fetched into the cache.
const SETTLE: Duration = Duration::from_secs(3);

/// Names in one map.
const MAX_NAMES: usize = 1024;

/// A mount that makes sense, as far as that can be known without asking anybody.
#[derive(Debug)]
pub(super) struct Plan {
    stores: Stores,
    dir: PathBuf,
    pub(super) settings: Settings,
    client: Client,
    noexec: bool,
}

#[derive(Debug)]
enum Stores {
    One(Vec<u8>),
    Map(BTreeMap<String, Vec<u8>>),
}

impl Plan {
    pub(super) fn of(args: &MountArgs, config: Config) -> Outcome<Self> {
        if args.read_write {
            return Err(Failure::new(
                "`--read-write` is not available in this version: mounts are read-only",
                "leave it out; upload with `nearfs cp`",
            ));
        }
        let (stores, dir) = operands(args)?;
        let urls: Vec<&[u8]> = match &stores {
            Stores::One(url) => vec![url],
            Stores::Map(map) => map.values().map(Vec::as_slice).collect(),
        };
        let mut first = None;
        for url in urls {
            let url = StoreUrl::parse(url).map_err(|e| Failure::about(shown(OsStr::from_bytes(url)), &e))?;
            first.get_or_insert(url.to_string());
        }
        // Of several stores each has settings of its own; the mount itself has those of the first.
        let settings = config.settings(first.as_deref())?;
        let dir = std::path::absolute(&dir)
            .map_err(|e| Failure::plain(format!("`{}`: {e}", Path::new(&dir).display())))?;
        Ok(Plan { stores, dir, settings, client: Client::with_config(config), noexec: args.noexec })
    }

    /// Mounts and waits until the directory answers.
    pub(super) fn start(&self) -> Outcome<MountSession> {
        let tree = self.tree()?;
        let session = Mount::start(tree, &self.dir, self.options(), nearfs::spawner()?);
        session.map_err(|e| match e.context("directory") {
            Some(_) => Failure::from(e),
            None => Failure::about(format!("`{}`", self.dir.display()), &e),
        })
    }

    /// Lets what was fetched last reach the cache on disk, before the process ends.
    pub(super) fn settle(&self) {
        let client = self.client.clone();
        let flushed = nearfs::blocking::wait(async move {
            client.flush(SETTLE).await;
            Ok(())
        });
        if let Err(error) = flushed {
            tracing::debug!(error = %error.chain(), "what was fetched last may not be in the cache");
        }
    }

    fn tree(&self) -> Outcome<Tree> {
        let open = |url: &[u8], share: f64| {
            let (client, url) = (self.client.clone(), url.to_owned());
            let name = shown(OsStr::from_bytes(&url));
            nearfs::blocking::wait(async move { client.cached(&url, share).await })
                .map_err(|e| Failure::about(name, &e))
        };
        Ok(match &self.stores {
            Stores::One(url) => open(url, 1.0)?.into(),
            Stores::Map(map) => {
                let share = 1.0 / map.len() as f64;
                let opened = map.iter().map(|(name, url)| Ok((name.clone(), open(url, share)?)));
                opened.collect::<Outcome<BTreeMap<_, _>>>()?.into()
            }
        })
    }

    fn options(&self) -> MountOptions {
        let s = &self.settings;
        let mut options = MountOptions {
            open: match s.open {
                OpenMode::Stateless => mount::OpenMode::Stateless,
                OpenMode::Plain => mount::OpenMode::Plain,
                OpenMode::Passthrough => mount::OpenMode::Passthrough,
                _ => mount::OpenMode::Auto,
            },
            protocol: s.fuse_protocol,
            deadline: s.deadline,
            allow_other: s.allow_other,
            uid: s.uid,
            gid: s.gid,
            umask: s.umask,
            // As with libfuse: who names a mask says which bits remain, also those to execute.
            file_mode: if s.umask == 0 { 0o444 } else { 0o555 },
            no_exec: self.noexec,
            config: self.shown_config(),
            ..Default::default()
        };
        if let Stores::One(url) = &self.stores {
            options.source = Some(source(url));
        }
        options
    }

    /// What `.nearfs/config` shows: each setting with its value and origin.
    fn shown_config(&self) -> serde_json::Value {
        let url = match &self.stores {
            Stores::One(url) => Some(source(url)),
            Stores::Map(_) => None,
        };
        let entries = self.client.config().entries(url.as_deref()).into_iter();
        let shown = entries.map(|e| {
            let value = serde_json::json!({ "value": e.value, "origin": e.origin.to_string() });
            (e.key.to_owned(), value)
        });
        serde_json::Value::Object(shown.collect())
    }

    /// The line that says what is there now and for whom.
    pub(super) fn ready_line(&self, session: &MountSession) -> String {
        let s = &self.settings;
        let user = rustix::process::geteuid();
        // Bits of files whose store has none; a store's own bits may be narrower.
        let others = 0o444 & !s.umask & 0o004 != 0;
        let readers = match (s.allow_other, others) {
            (true, true) => "everyone".to_owned(),
            (true, false) => "those whom its permissions let in".to_owned(),
            (false, _) if user.is_root() => "root only".to_owned(),
            (false, _) => format!("uid {} only", user.as_raw()),
        };
        format!(
            "{} is mounted on {} (read-only, readable by {readers})",
            self.what(),
            session.dir().display()
        )
    }

    fn what(&self) -> String {
        match &self.stores {
            Stores::One(url) => source(url),
            Stores::Map(map) => {
                let names: Vec<_> = map.iter().map(|(name, url)| format!("{name}={}", source(url))).collect();
                names.join(", ")
            }
        }
    }

    /// Where a mount in the background logs, and its path: as set, else a file named after the directory.
    pub(super) fn log_file(&self) -> Outcome<(File, PathBuf)> {
        let path = match &self.settings.log_file {
            Some(path) => {
                std::path::absolute(path).map_err(|e| Failure::plain(format!("the log file: {e}")))?
            }
            None => {
                let root = rustix::process::geteuid().is_root();
                let fallback =
                    std::env::temp_dir().join(format!("nearfs-{}", rustix::process::geteuid().as_raw()));
                let dir = self
                    .client
                    .config()
                    .environment()
                    .log_directory(root)
                    .unwrap_or_else(|| fallback.clone());
                let dir = if make_private(&dir).is_ok() { dir } else { fallback };
                make_private(&dir).map_err(|e| {
                    Failure::new(
                        format!("cannot make the log directory `{}`: {e}", dir.display()),
                        "name a file with `--log-file`",
                    )
                })?;
                dir.join(log_name(&self.dir))
            }
        };
        Ok((telemetry::open(&path)?, path))
    }
}

/// The store or stores, and the directory.
fn operands(args: &MountArgs) -> Outcome<(Stores, OsString)> {
    if args.map.is_empty() {
        return match args.operands.as_slice() {
            [url, dir] => Ok((Stores::One(url.as_bytes().to_vec()), dir.clone())),
            [one] => Err(Failure::new(
                format!("`{}` is only one operand: expected a store and a directory", one.display()),
                "`nearfs mount URL DIR`, or `nearfs mount --map NAME=URL DIR`",
            )),
            _ => Err(Failure::plain("expected a store and a directory")),
        };
    }
    let [dir] = args.operands.as_slice() else {
        return Err(Failure::new(
            "with `--map` only the directory follows",
            "`nearfs mount --map NAME=URL DIR`",
        ));
    };
    if args.map.len() > MAX_NAMES {
        return Err(Failure::plain(format!(
            "{} stores in one mount, expected at most {MAX_NAMES}",
            args.map.len()
        )));
    }
    let mut map = BTreeMap::new();
    for word in &args.map {
        let (name, url) = split_map(word)?;
        if map.insert(name.clone(), url).is_some() {
            return Err(Failure::plain(format!("`--map`: the name `{name}` is given twice")));
        }
    }
    Ok((Stores::Map(map), dir.clone()))
}

fn split_map(word: &OsStr) -> Outcome<(String, Vec<u8>)> {
    let bytes = word.as_bytes();
    let bad =
        |why: &str| Failure::new(format!("`--map {}`: {why}", word.display()), "write `--map NAME=URL`");
    let at = bytes.iter().position(|b| *b == b'=').ok_or_else(|| bad("expected a name, `=` and a URL"))?;
    let name = str::from_utf8(&bytes[..at]).map_err(|_| bad("the name is not UTF-8"))?;
    if name.is_empty() || name.contains('/') || name == "." || name == ".." {
        return Err(bad("the name must be that of one directory"));
    }
    Ok((name.to_owned(), bytes[at + 1..].to_vec()))
}

/// The URL for the mount table: absolute, without anything secret (a URL with a password is refused much earlier).
fn source(url: &[u8]) -> String {
    let parsed = StoreUrl::parse(url);
    match parsed.as_ref().map(StoreUrl::local_path) {
        Ok(Some(path)) => std::path::absolute(&path).unwrap_or(path).display().to_string(),
        // As typed: a trailing `/` would be a difference that means nothing.
        Ok(None) => escaped(url).trim_end_matches('/').to_owned(),
        Err(_) => escaped(url),
    }
}

/// `/data/train` logs to `data-train.log`.
fn log_name(dir: &Path) -> String {
    let name = escaped(dir.as_os_str().as_bytes()).trim_matches('/').replace('/', "-");
    // Within the 255 bytes of a file name, wherever that cuts a character.
    let short: String = name.chars().rev().take(60).collect::<Vec<_>>().into_iter().rev().collect();
    format!("{}.log", if short.is_empty() { "root".to_owned() } else { short })
}

/// A directory for this user alone; one that belongs to somebody else is refused.
fn make_private(dir: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::{DirBuilderExt, MetadataExt};
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let metadata = std::fs::symlink_metadata(dir)?;
    if !metadata.is_dir() || metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(std::io::Error::new(std::io::ErrorKind::PermissionDenied, "it belongs to another user"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_and_names() {
        assert_eq!(split_map(OsStr::new("a=s3://b/x=y")).unwrap(), ("a".into(), b"s3://b/x=y".to_vec()));
        for bad in ["a", "=s3://b", "a/b=s3://b", "..=s3://b"] {
            assert!(split_map(OsStr::new(bad)).is_err(), "{bad}");
        }
        assert_eq!(source(b"s3://b/p/"), "s3://b/p");
        assert_eq!(source(b"s3://b"), "s3://b");
        assert_eq!(source(b"/data"), "/data");
        assert_eq!(log_name(Path::new("/data/train")), "data-train.log");
        assert_eq!(log_name(Path::new("/")), "root.log");
        assert!(log_name(Path::new(&format!("/{}", "x".repeat(250)))).len() < 255);
    }
}
