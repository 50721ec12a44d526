//! What is agreed with the kernel when a mount begins.

use fuser::{InitFlags, KernelConfig};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use crate::options::{MountOptions, OpenMode};
use crate::passthrough::Passthrough;
use crate::tree::Roots;

/// Requests that may wait at once before the kernel holds back further ones, of all files together: with a small
/// number one stalled object blocks every other one. What is really outstanding is bounded by the cache's budget.
pub(crate) const MAX_BACKGROUND: u16 = 4096;
/// Largest request, in bytes; the kernel's limit by default (`fs.fuse.max_pages_limit` = 256 pages).
const MAX_REQUEST: u32 = 1024 * 1024;

/// Something that the kernel may have.
struct Feature {
    flag: InitFlags,
    name: &'static str,
    /// The minor version of the protocol that brought it.
    since: u32,
    /// What its absence costs; empty = nothing that anybody would notice.
    costs: &'static str,
}

const fn feature(flag: InitFlags, name: &'static str, since: u32, costs: &'static str) -> Feature {
    Feature { flag, name, since, costs }
}

/// Asked for where the kernel has it.
const WANTED: [Feature; 7] = [
    feature(InitFlags::FUSE_ASYNC_READ, "async_read", 6, "requests of one file wait for one another"),
    feature(
        InitFlags::FUSE_PARALLEL_DIROPS,
        "parallel_dirops",
        25,
        "names of one directory are looked up one after the other",
    ),
    feature(InitFlags::FUSE_DO_READDIRPLUS, "readdirplus", 21, "each listed name is asked about once more"),
    feature(InitFlags::FUSE_READDIRPLUS_AUTO, "readdirplus_auto", 21, ""),
    feature(InitFlags::FUSE_ASYNC_DIO, "async_dio", 22, "pieces of a direct read come one after the other"),
    feature(
        InitFlags::FUSE_MAX_PAGES,
        "max_pages",
        28,
        "requests are of 128 KiB instead of 1 MiB: streams take more processor time",
    ),
    // An inode's content never changes, so the kernel has no reason of its own to drop pages.
    feature(InitFlags::FUSE_EXPLICIT_INVAL_DATA, "explicit_inval_data", 30, ""),
];

const NO_OPEN: Feature = feature(
    InitFlags::FUSE_NO_OPEN_SUPPORT,
    "no_open",
    23,
    "every open is a round trip: small files that are in memory open at about 0.6 of the rate",
);

const PASSTHROUGH: Feature = feature(InitFlags::FUSE_PASSTHROUGH, "passthrough", 40, "");

/// Protocol version since which an open can say that its close need not be told.
const NO_FLUSH_SINCE: u32 = 35;

/// Protocol version since which the kernel can be asked to forget inodes that nothing uses.
const PRUNE_SINCE: u32 = 45;

/// What was agreed, and what was found out about the mount since; shown by the statistics.
#[derive(Debug)]
pub(crate) struct Status {
    inner: Mutex<Inner>,
    pub(crate) passthrough: Passthrough,
    /// Nothing newer is used.
    newest: (u32, u32),
}

#[derive(Debug)]
struct Inner {
    mode: OpenMode,
    abi: (u32, u32),
    features: Vec<&'static str>,
    max_background: u64,
    max_readahead: u32,
    read_ahead: Value,
    threads: usize,
    clone_fd: bool,
    notes: Vec<Value>,
}

impl Status {
    /// Before the kernel was asked.
    pub(crate) fn new(options: &MountOptions, roots: &Roots) -> Self {
        Status {
            inner: Mutex::new(Inner {
                mode: options.open,
                abi: (0, 0),
                features: Vec::new(),
                max_background: MAX_BACKGROUND.into(),
                max_readahead: 0,
                read_ahead: Value::Null,
                threads: 0,
                clone_fd: false,
                notes: Vec::new(),
            }),
            passthrough: match options.open {
                OpenMode::Passthrough => Passthrough::wanted(roots),
                _ => Passthrough::unwanted(),
            },
            newest: options.protocol.unwrap_or((u32::MAX, u32::MAX)),
        }
    }

    /// Agrees with the kernel on everything that `config` offers, and decides how files are opened.
    pub(crate) fn negotiate(&self, config: &mut KernelConfig) {
        let kernel = config.kernel_abi();
        let abi = (kernel.0, kernel.1).min(self.newest);
        let mut features = Vec::new();
        let mut missing = Vec::new();
        let mut agree = |config: &mut KernelConfig, feature: &Feature| {
            let agreed = abi >= (7, feature.since) && config.add_capabilities(feature.flag).is_ok();
            if agreed {
                features.push(feature.name);
            } else if !feature.costs.is_empty() {
                missing.push((feature.name, feature.costs));
            }
            agreed
        };
        for feature in &WANTED {
            agree(config, feature);
        }
        // Not locked any more in what follows, which notes things.
        let wanted = self.inner.lock().mode;
        let mode = match wanted {
            // Opens without a round trip. Directories are always opened: without that the kernel would never be told
            // to look at them again, and a listing would never show a new name.
            OpenMode::Auto | OpenMode::Stateless => match agree(config, &NO_OPEN) {
                true => OpenMode::Stateless,
                false => OpenMode::Plain,
            },
            OpenMode::Passthrough => self.agree_on_passthrough(config, &mut agree),
            OpenMode::Plain => OpenMode::Plain,
        };
        // Only where it is needed: with it the kernel accepts fewer layers on top of the mount.
        let _ = config.set_max_stack_depth(if mode == OpenMode::Passthrough {
            self.passthrough.depth
        } else {
            0
        });
        // All in range, so there is nothing to refuse; the kernel lowers what it does not allow this user.
        let _ = config.set_max_background(MAX_BACKGROUND);
        let _ = config.set_congestion_threshold(MAX_BACKGROUND);
        let _ = config.set_max_write(MAX_REQUEST);
        let mut max_readahead = MAX_REQUEST;
        if let Err(most) = config.set_max_readahead(MAX_REQUEST) {
            max_readahead = most;
            let _ = config.set_max_readahead(most);
        }
        {
            let mut inner = self.inner.lock();
            (inner.mode, inner.abi, inner.features, inner.max_readahead) =
                (mode, abi, features, max_readahead);
        }
        for (name, costs) in missing {
            self.note(name, "the kernel does not have it", costs);
        }
    }

    fn agree_on_passthrough(
        &self,
        config: &mut KernelConfig,
        agree: &mut impl FnMut(&mut KernelConfig, &Feature) -> bool,
    ) -> OpenMode {
        if self.passthrough.is_on() && !agree(config, &PASSTHROUGH) {
            self.passthrough.switch_off("the kernel does not have it (Linux 6.9 and later do)".to_owned());
        }
        match self.passthrough.reason() {
            None => OpenMode::Passthrough,
            Some(reason) => {
                self.note_no_passthrough(&reason);
                OpenMode::Plain
            }
        }
    }

    /// Notes, and says, that no file is passed through although that was asked for.
    pub(crate) fn note_no_passthrough(&self, reason: &str) {
        let costs =
            "files are opened as with `plain`: large cached files cost processor time, 0.3 s for each GB";
        self.note("passthrough", reason, costs);
    }

    /// How files are opened.
    pub(crate) fn mode(&self) -> OpenMode {
        match self.agreed_mode() {
            OpenMode::Passthrough if !self.passthrough.is_on() => OpenMode::Plain,
            mode => mode,
        }
    }

    /// How files are opened, as agreed with the kernel: passthrough also if it turned out later that no file can be.
    pub(crate) fn agreed_mode(&self) -> OpenMode {
        self.inner.lock().mode
    }

    /// Whether an open can say that its close need not be told.
    pub(crate) fn knows_no_flush(&self) -> bool {
        self.newest >= (7, NO_FLUSH_SINCE)
    }

    /// Whether the kernel can be asked to forget inodes that nothing uses.
    pub(crate) fn knows_prune(&self) -> bool {
        self.inner.lock().abi >= (7, PRUNE_SINCE)
    }

    /// Notes what became of the kernel's readahead, and what was asked for, in KiB.
    pub(crate) fn set_read_ahead(&self, value: Value, wanted: u32) {
        if let Some(reason) = value["not_raised"].as_str()
            && value["kib"].as_u64().is_none_or(|kib| kib < u64::from(wanted))
        {
            let why = format!("read_ahead_kb cannot be raised, which only root may: {reason}");
            let costs = "the kernel asks for 128 KiB at a time: streams reach about a quarter of the rate";
            self.note("read_ahead", &why, costs);
        }
        self.inner.lock().read_ahead = value;
    }

    /// Notes how many requests the kernel lets wait at once.
    pub(crate) fn set_background(&self, most: u64) {
        if most < u64::from(MAX_BACKGROUND) {
            let why = format!("the kernel lets this user have {most} requests waiting (fuse.max_user_bgreq)");
            self.note("background", &why, "a store that hangs on one file holds up readers of others sooner");
        }
        self.inner.lock().max_background = most;
    }

    /// Notes how requests are taken from the kernel.
    pub(crate) fn set_threads(&self, threads: usize, clone_fd: bool) {
        if !clone_fd && threads > 1 {
            let why = "this user cannot open /dev/fuse once more";
            self.note(
                "clone_fd",
                why,
                "threads that take requests wait for one another, on machines of many cores",
            );
        }
        let mut inner = self.inner.lock();
        (inner.threads, inner.clone_fd) = (threads, clone_fd);
    }

    /// Says once in the log, and shows from now on, that `what` is not there, why, and what that costs.
    fn note(&self, what: &str, why: &str, costs: &str) {
        tracing::warn!(what, why, costs, "the mount works, but not as well as it could");
        self.inner.lock().notes.push(json!({"what": what, "why": why, "costs": costs}));
    }

    /// All of it, as JSON.
    pub(crate) fn to_json(&self) -> Map<String, Value> {
        let mode = self.mode();
        let inner = self.inner.lock();
        let value = json!({
            "open_mode": mode.as_str(),
            "passthrough": self.passthrough.to_json(),
            "notes": inner.notes,
            "kernel": {
                "abi": format!("{}.{}", inner.abi.0, inner.abi.1),
                "features": inner.features,
                "max_background": inner.max_background,
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
