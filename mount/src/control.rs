//! The `.nearfs` directory of a mount: its statistics and its configuration as files.
//!
//! It is not listed in the root, and it hides a file or directory of the store that really has this name there. Each
//! lookup of a file in it makes a new inode that holds the text rendered then: the kernel reads such a file once and
//! keeps its pages, so a new text needs a new inode. The true size is known from the start.

use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::vfs::Vfs;

/// Name of the directory, in the root of the mount.
pub(crate) const DIR_NAME: &str = ".nearfs";

/// A file in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ControlFile {
    /// Counters and gauges, JSON.
    Stats,
    /// The options in force, JSON.
    Config,
    /// Takes orders by ioctl; empty.
    Control,
}

impl ControlFile {
    /// All of them, in the order of the listing.
    pub(crate) const ALL: [ControlFile; 3] = [ControlFile::Config, ControlFile::Control, ControlFile::Stats];

    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            ControlFile::Stats => "stats",
            ControlFile::Config => "config",
            ControlFile::Control => "control",
        }
    }

    /// The file called `name`.
    pub(crate) fn find(name: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|f| f.name().as_bytes() == name)
    }

    /// Its text now.
    pub(crate) fn render(self, vfs: &Vfs) -> Bytes {
        match self {
            ControlFile::Stats => text(&stats(vfs)),
            ControlFile::Config => text(&vfs.config),
            ControlFile::Control => Bytes::new(),
        }
    }
}

fn text(value: &Value) -> Bytes {
    let mut text = format!("{value:#}");
    text.push('\n');
    text.into()
}

fn stats(vfs: &Vfs) -> Value {
    let filesystems: Map<String, Value> = vfs
        .roots
        .iter()
        .map(|(name, fs)| {
            let cache = serde_json::to_value(fs.stats()).unwrap_or(Value::Null);
            (name.to_owned(), json!({"url": fs.identity_url(), "cache": cache}))
        })
        .collect();
    let mut mount = vfs.counters.to_json();
    let oldest = vfs.in_flight.oldest().map_or(0, |age| age.as_millis() as u64);
    mount.insert("in_flight".into(), vfs.in_flight.len().into());
    mount.insert("oldest_request_ms".into(), oldest.into());
    mount.insert("inodes".into(), vfs.table.len().into());
    mount.insert("open_directories".into(), vfs.dirs.len().into());
    mount.insert("files_in_use".into(), vfs.files.len().into());
    mount.extend(vfs.status.to_json());
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "uptime_s": vfs.started.elapsed().as_secs(),
        "mount": mount,
        "filesystems": filesystems,
    })
}

/// The URL of a filesystem, for the statistics.
trait IdentityUrl {
    fn identity_url(&self) -> String;
}

impl<F: nearfs_backends::FileSystem + ?Sized> IdentityUrl for std::sync::Arc<F> {
    fn identity_url(&self) -> String {
        self.identity().url
    }
}
