//! Options of the [`FileSystem`](crate::FileSystem) calls. All are plain data with working defaults.

use crate::metadata::{Metadata, Version};
use crate::path::FsPath;

/// Options of `list`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListOptions {
    /// The whole subtree instead of one level. Directories, also those that exist only as key prefixes, are listed
    /// before what is below them. Default: `false`.
    pub recursive: bool,
    /// Only entries after this one in listing order ([`FsPath::cmp_listing`]); it need not exist. Default: `None`.
    pub start_after: Option<FsPath>,
}

/// Options of `open`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// Metadata the caller already has (from a listing or `stat`): no request is made to learn it, and the file is
    /// pinned to its version. Default: `None`, the current version is looked up.
    pub metadata: Option<Metadata>,
}

/// What must hold at the target for a write to happen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Condition {
    /// Nothing: the last writer wins.
    #[default]
    None,
    /// No file of this name exists; else `ErrorKind::AlreadyExists`.
    Absent,
    /// The current version is this one; else `ErrorKind::Stale`.
    Version(Version),
}

/// Options of `create`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CreateOptions {
    /// What must hold when the file becomes visible. Default: [`Condition::None`].
    pub condition: Condition,
    /// Content type kept by stores that have one. Default: `None`, the store's own.
    pub content_type: Option<String>,
    /// Size in bytes if the caller knows it; only a hint for part sizes. Default: `None`.
    pub size_hint: Option<u64>,
}

/// Options of `rename` and `copy`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CopyOptions {
    /// Fail with `ErrorKind::AlreadyExists` instead of replacing the target. Default: `false`.
    pub no_replace: bool,
}
