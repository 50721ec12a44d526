//! [`Capabilities`]: what a filesystem can do, so that callers choose instead of trying.

/// What a filesystem can do. Wrappers pass the flags of what they wrap, less what they take away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Capabilities {
    /// `create` and `delete` work.
    pub write: bool,
    /// `create_dir` keeps an empty directory.
    pub empty_dirs: bool,
    /// `rename` of a file is one atomic step. Otherwise it is copy, then delete.
    pub atomic_rename: bool,
    /// `copy` happens inside the store; no bytes pass through this process.
    pub server_side_copy: bool,
    /// `CreateOptions::condition` is enforced by the store, not only checked before.
    pub conditional_write: bool,
    /// Reads are pinned by the store itself (If-Match, generation), not only compared afterwards.
    pub pinned_reads: bool,
    /// `Metadata::mode` is reported.
    pub unix_mode: bool,
    /// `File::as_fd` may give a descriptor of the file's own bytes.
    pub local_fd: bool,
    /// A request costs a network round trip: callers read ahead, read in parallel and cache.
    pub remote: bool,
    /// `ListOptions::start_after` is carried out by the store, not by skipping.
    pub list_resume: bool,
}
