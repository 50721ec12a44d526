//! What is agreed with the kernel when a mount begins.

use fuser::{InitFlags, KernelConfig};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use crate::options::OpenMode;

/// Requests that may wait at once before the kernel holds back further ones, of all files together: with a small
/// number one stalled object blocks every other one. What is really outstanding is bounded by the cache's budget.
const MAX_BACKGROUND: u16 = 4096;
/// Largest request, in bytes; the kernel's limit by default (`fs.fuse.max_pages_limit` = 256 pages).
const MAX_REQUEST: u32 = 1024 * 1024;

/// Asked for where the kernel has it.
const WANTED: [(InitFlags, &str); 7] = [
    (InitFlags::FUSE_ASYNC_READ, "async_read"),
    (InitFlags::FUSE_PARALLEL_DIROPS, "parallel_dirops"),
    (InitFlags::FUSE_DO_READDIRPLUS, "readdirplus"),
    (InitFlags::FUSE_READDIRPLUS_AUTO, "readdirplus_auto"),
    (InitFlags::FUSE_ASYNC_DIO, "async_dio"),
    (InitFlags::FUSE_MAX_PAGES, "max_pages"),
    // An inode's content never changes, so the kernel has no reason of its own to drop pages.
    (InitFlags::FUSE_EXPLICIT_INVAL_DATA, "explicit_inval_data"),
];

/// What was agreed, and what was found out about the mount since; shown by the statistics.
#[derive(Debug)]
pub(crate) struct Status {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    mode: OpenMode,
    abi: (u32, u32),
    features: Vec<&'static str>,
    max_readahead: u32,
    read_ahead: Value,
    threads: usize,
    clone_fd: bool,
}

impl Status {
    /// Before the kernel was asked. `mode` is what the options say.
    pub(crate) fn new(mode: OpenMode) -> Self {
        Status {
            inner: Mutex::new(Inner {
                mode,
                abi: (0, 0),
                features: Vec::new(),
                max_readahead: 0,
                read_ahead: Value::Null,
                threads: 0,
                clone_fd: false,
            }),
        }
    }

    /// Agrees with the kernel on everything that `config` offers, and decides how files are opened.
    pub(crate) fn negotiate(&self, config: &mut KernelConfig) {
        let mut inner = self.inner.lock();
        for (flag, name) in WANTED {
            if config.add_capabilities(flag).is_ok() {
                inner.features.push(name);
            }
        }
        // Opens without a round trip. Directories are always opened: without that the kernel would never be told to
        // look at them again, and a listing would never show a new name.
        let stateless = matches!(inner.mode, OpenMode::Auto | OpenMode::Stateless);
        inner.mode = match stateless && config.add_capabilities(InitFlags::FUSE_NO_OPEN_SUPPORT).is_ok() {
            true => {
                inner.features.push("no_open");
                OpenMode::Stateless
            }
            false => OpenMode::Plain,
        };
        // All in range, so there is nothing to refuse; the kernel lowers what it does not allow this user.
        let _ = config.set_max_background(MAX_BACKGROUND);
        let _ = config.set_congestion_threshold(MAX_BACKGROUND);
        let _ = config.set_max_write(MAX_REQUEST);
        inner.max_readahead = MAX_REQUEST;
        if let Err(most) = config.set_max_readahead(MAX_REQUEST) {
            inner.max_readahead = most;
            let _ = config.set_max_readahead(most);
        }
        let abi = config.kernel_abi();
        inner.abi = (abi.0, abi.1);
    }

    /// How files are opened.
    pub(crate) fn mode(&self) -> OpenMode {
        self.inner.lock().mode
    }

    /// Notes what became of the kernel's readahead.
    pub(crate) fn set_read_ahead(&self, value: Value) {
        self.inner.lock().read_ahead = value;
    }

    /// Notes how requests are taken from the kernel.
    pub(crate) fn set_threads(&self, threads: usize, clone_fd: bool) {
        let mut inner = self.inner.lock();
        (inner.threads, inner.clone_fd) = (threads, clone_fd);
    }

    /// All of it, as JSON.
    pub(crate) fn to_json(&self) -> Map<String, Value> {
        let inner = self.inner.lock();
        let value = json!({
            "open_mode": inner.mode.as_str(),
            "kernel": {
                "abi": format!("{}.{}", inner.abi.0, inner.abi.1),
                "features": inner.features,
                "max_background": MAX_BACKGROUND,
                "max_request_bytes": MAX_REQUEST,
                "max_readahead_bytes": inner.max_readahead,
                "read_ahead": inner.read_ahead,
            },
            "threads": inner.threads,
            "clone_fd": inner.clone_fd,
        });
        match value {
            Value::Object(map) => map,
            _ => Map::new(),
        }
    }
}
