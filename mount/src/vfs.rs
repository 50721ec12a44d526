//! [`Vfs`]: the state of one mount. What it does with it is in `ops`, one file for each family of calls.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use nearfs_backends::{FsPath, Metadata};

use crate::counters::Counters;
use crate::failures::RecentFailures;
use crate::handle::dir::DirHandles;
use crate::handle::file::FileHandles;
use crate::inode::{Attrs, DirNode, InodeTable, Node};
use crate::interrupt::InFlight;
use crate::negotiate::Status;
use crate::ops::attr::Style;
use crate::options::MountOptions;
use crate::report::Reporter;
use crate::tree::{Place, Roots};

/// The longest lifetime told to the kernel, which counts in jiffies.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// A result that is there, or what must be asked for with a wait.
#[derive(Debug)]
pub(crate) enum Now<T, Ask> {
    /// Known without any waiting.
    Done(T),
    /// Somebody must be asked.
    Ask(Ask),
}

/// The state of one mount. Knows no kernel: calls come in, answers go out.
#[derive(Debug)]
pub(crate) struct Vfs {
    pub(crate) roots: Roots,
    pub(crate) table: InodeTable,
    pub(crate) dirs: DirHandles,
    pub(crate) files: Arc<FileHandles>,
    pub(crate) failures: Arc<RecentFailures>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) in_flight: Arc<InFlight>,
    pub(crate) reporter: Reporter,
    pub(crate) status: Status,
    pub(crate) style: Style,
    pub(crate) config: serde_json::Value,
    pub(crate) started: Instant,
}

impl Vfs {
    /// The state of a new mount of `roots`.
    pub(crate) fn new(roots: Roots, options: &MountOptions) -> Self {
        let root = match roots.is_map() {
            true => Node::Top,
            false => {
                let attrs = Attrs { metadata: Metadata::dir(), expires: forever() };
                Node::Dir(DirNode::new(Place { fs: 0, path: FsPath::root() }, attrs))
            }
        };
        let status = Status::new(options, &roots);
        Vfs {
            roots,
            table: InodeTable::new(root),
            dirs: DirHandles::default(),
            files: Arc::default(),
            failures: Arc::default(),
            counters: Arc::default(),
            in_flight: Arc::default(),
            reporter: Reporter::new(),
            status,
            style: Style::new(options, SystemTime::now()),
            config: options.config.clone(),
            started: Instant::now(),
        }
    }
}

/// An expiry that does not come.
pub(crate) fn forever() -> Instant {
    Instant::now() + LONGEST
}

/// What remains of a lifetime; nothing if it is over.
pub(crate) fn remaining(expires: Instant, now: Instant) -> Duration {
    expires.saturating_duration_since(now).min(LONGEST)
}
