//! What the kernel has been told of: inodes, each one version of one path.

mod forget;
mod table;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use bytes::Bytes;
use nearfs_backends::Metadata;
use nearfs_cache::CachedFile;
use parking_lot::Mutex;

pub(crate) use self::table::InodeTable;
use crate::tree::Place;

/// The number of the root directory, fixed by the FUSE protocol.
pub(crate) const ROOT: u64 = 1;
/// The number of the `.nearfs` directory.
pub(crate) const CONTROL_DIR: u64 = 2;
/// First number handed out to snapshots of control files.
const FIRST_CONTROL: u64 = 16;
/// First number handed out to what the stores hold; all such numbers have this bit and stay positive as `i64`.
const FIRST_STORE: u64 = 1 << 62;

/// One inode that the kernel knows.
#[derive(Debug)]
pub(crate) struct Inode {
    /// Its number.
    pub(crate) ino: u64,
    /// What it is.
    pub(crate) node: Node,
    /// Lookups that the kernel has not yet forgotten. Changed only under the table's shard lock.
    lookups: AtomicU64,
}

/// What an inode stands for.
#[derive(Debug)]
pub(crate) enum Node {
    /// The root of a mount of several filesystems.
    Top,
    /// The `.nearfs` directory.
    ControlDir,
    /// A control file: the text it had when it was looked up.
    Control(Bytes),
    /// A directory of a store.
    Dir(DirNode),
    /// One version of a file of a store.
    File(FileNode),
}

/// A directory of a store.
#[derive(Debug)]
pub(crate) struct DirNode {
    pub(crate) place: Place,
    attrs: Mutex<Attrs>,
    /// The listing that the kernel may hold in its cache of this directory; 0 = none that is known.
    pub(crate) kernel_listing: AtomicU64,
}

/// One version of a file of a store.
#[derive(Debug)]
pub(crate) struct FileNode {
    pub(crate) place: Place,
    attrs: Mutex<Attrs>,
    /// The handle that reads go through while the file is in use.
    pub(crate) file: Mutex<Option<Arc<CachedFile>>>,
    /// Set by every read, cleared by the sweep that gives handles of idle files back.
    pub(crate) used: AtomicBool,
}

/// What is known of a path, and for how long names may be believed.
#[derive(Debug, Clone)]
pub(crate) struct Attrs {
    pub(crate) metadata: Metadata,
    pub(crate) expires: Instant,
}

impl DirNode {
    pub(crate) fn new(place: Place, attrs: Attrs) -> Self {
        DirNode { place, attrs: Mutex::new(attrs), kernel_listing: AtomicU64::new(0) }
    }
}

impl Inode {
    fn new(ino: u64, node: Node) -> Self {
        Inode { ino, node, lookups: AtomicU64::new(1) }
    }

    /// Metadata and expiry; `None` for what no store holds.
    pub(crate) fn attrs(&self) -> Option<Attrs> {
        match &self.node {
            Node::Dir(d) => Some(d.attrs.lock().clone()),
            Node::File(f) => Some(f.attrs.lock().clone()),
            _ => None,
        }
    }

    /// Where it lies in a store; `None` for what no store holds.
    pub(crate) fn place(&self) -> Option<&Place> {
        match &self.node {
            Node::Dir(d) => Some(&d.place),
            Node::File(f) => Some(&f.place),
            _ => None,
        }
    }

    /// True if `place` as `attrs` describe it is this very inode.
    fn stands_for(&self, place: &Place, attrs: &Attrs) -> bool {
        let theirs = &attrs.metadata;
        match &self.node {
            Node::Dir(d) => theirs.is_dir() && d.place == *place,
            Node::File(f) if theirs.is_file() && f.place == *place => {
                let mine = f.attrs.lock();
                match theirs.version.is_known() {
                    true => mine.metadata.version == theirs.version,
                    // Nothing proves that two answers mean the same bytes, unless they are one and the same answer.
                    false => mine.expires == attrs.expires && mine.metadata == *theirs,
                }
            }
            _ => false,
        }
    }

    /// Takes over what a newer answer said of the same version (lifetime, mode bits).
    fn renew(&self, attrs: Attrs) {
        match &self.node {
            Node::Dir(d) => *d.attrs.lock() = attrs,
            Node::File(f) => *f.attrs.lock() = attrs,
            _ => {}
        }
    }

    /// Number of lookups that the kernel has not forgotten.
    #[cfg(test)]
    pub(crate) fn lookups(&self) -> u64 {
        self.lookups.load(Ordering::Relaxed)
    }

    fn add_lookup(&self) {
        self.lookups.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes `n` lookups away; true if none is left.
    fn drop_lookups(&self, n: u64) -> bool {
        let before = self.lookups.load(Ordering::Relaxed);
        let after = before.saturating_sub(n);
        self.lookups.store(after, Ordering::Relaxed);
        after == 0
    }
}
