//! STATFS: what `df` shows. A store has no size, so the numbers are large and nothing ever looks full.

use crate::vfs::Vfs;

/// What `statfs` reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Statfs {
    /// Size of a block in bytes.
    pub(crate) block: u32,
    /// Blocks, all of them free.
    pub(crate) blocks: u64,
    /// Files, as many as can still be made.
    pub(crate) files: u64,
    /// Longest name in bytes.
    pub(crate) name_max: u32,
}

impl Vfs {
    /// One pebibyte, free: tools that watch for full disks stay quiet, and sizes stay exact in floating point.
    pub(crate) fn statfs(&self) -> Statfs {
        Statfs { block: 4096, blocks: 1 << 38, files: 1 << 40, name_max: nearfs_backends::NAME_MAX as u32 }
    }
}
