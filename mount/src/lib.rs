//! The kernel's door to nearfs: a [`CachedFileSystem`](nearfs_cache::CachedFileSystem) shown as a directory through
//! FUSE.
//!
//! [`Mount::start`] mounts and returns once the directory answers; the [`MountSession`] it gives unmounts when told
//! to or when dropped. [`list_mounts`], [`unmount`] and [`probe()`] look after mounts of other processes.
//!
//! How it is built: `adapter` is the only place that speaks the FUSE protocol; it decodes a request, answers at once
//! what needs no waiting, spawns the rest, and sends the reply. `vfs` and `ops` hold the meaning and know no kernel.
//!
//! Promises a mount keeps:
//! * An inode is one version of one path, so pages of two versions never meet and an open file keeps its version.
//! * Every call ends: with its result, with an error by the deadline (`ETIMEDOUT`), or when its caller is killed.
//! * A name never outlives the lifetime that the cache gives it: the kernel is always told what remains of it.
//! * A read-only mount is read-only for the kernel too.

mod adapter;
mod attach;
mod control;
mod counters;
mod failures;
mod handle;
mod inode;
mod interrupt;
mod mount_point;
mod mount_table;
mod negotiate;
mod ops;
mod options;
mod passthrough;
mod probe;
mod readahead;
mod report;
mod session;
mod tree;
mod vfs;

pub use mount_point::{UnmountOptions, Unmounted, unmount};
pub use mount_table::{MountEntry, list_mounts};
pub use options::{MountOptions, OpenMode};
pub use probe::{Liveness, probe};
pub use session::{Mount, MountSession};
pub use tree::Tree;
