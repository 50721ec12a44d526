//! [`FileSystem`]: the one trait every store, layer, cache and door speaks.

use std::fmt;

use async_trait::async_trait;
use futures::stream::BoxStream;

use crate::capability::Capabilities;
use crate::error::Result;
use crate::file::{File, FileWriter};
use crate::metadata::{DirEntry, Metadata};
use crate::options::{CopyOptions, CreateOptions, ListOptions, OpenOptions};
use crate::path::FsPath;

/// Entries of a listing, in listing order ([`FsPath::cmp_listing`]), each name once.
///
/// An `Err` item ends the stream: a listing that ends without one is complete. Dropping the stream stops the work.
pub type EntryStream = BoxStream<'static, Result<DirEntry>>;

/// Which store a filesystem shows: two filesystems with equal identity show the same bytes under the same paths.
/// Never holds secrets.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Identity {
    /// What a person would type: `s3://bucket/prefix`, `file:///data`, `memory:///`.
    pub url: String,
    /// Where it really goes, when the URL does not say: `https://s3.eu-west-1.amazonaws.com`. May be empty.
    pub endpoint: String,
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url)
    }
}

/// A filesystem over a store: path-based and stateless in the namespace; `Arc<dyn FileSystem>` is the one currency
/// between crates.
///
/// **Users** hold an `Arc<dyn FileSystem>` and find the pleasant calls in `FileSystemExt`.
///
/// **Implementors** provide every method: there are no default bodies, so a wrapper can not lose an optimisation by
/// forgetting one. The public suite in `conformance` (feature `conformance`) checks an implementation.
///
/// Rules that hold for every method:
/// * A name that is both a file and a directory is the directory; the file is not visible while that lasts.
/// * The root always exists. Directories may exist only as prefixes of other names.
/// * `NotFound` is reported only when the store said so; every other failure is another kind.
/// * Dropping a future cancels the call. Reads leave nothing behind; a cancelled write may or may not have happened.
#[async_trait]
pub trait FileSystem: fmt::Debug + Send + Sync + 'static {
    /// Which store this is.
    fn identity(&self) -> Identity;

    /// What this filesystem can do.
    fn capabilities(&self) -> Capabilities;

    /// Metadata of `path`, as the store has it now.
    ///
    /// # Errors
    /// `NotFound` if neither a file nor a directory has this name; `NotADirectory` never: a path below a file is
    /// `NotFound`. Others as the store answers.
    async fn stat(&self, path: &FsPath) -> Result<Metadata>;

    /// The entries of `dir` (one level, or the subtree with `ListOptions::recursive`), without `dir` itself.
    ///
    /// File entries carry size and version. Keys that no [`FsPath`] can name are skipped and counted
    /// (metric `nearfs_list_skipped_total`).
    ///
    /// # Errors
    /// As stream items: `NotFound` if `dir` does not exist (never for the root), `NotADirectory` if it is a file,
    /// others as the store answers. After an error the stream ends.
    fn list(&self, dir: &FsPath, options: ListOptions) -> EntryStream;

    /// Opens a file, pinned to one version: the given one, or the current one.
    ///
    /// With `OpenOptions::metadata` no request is made.
    ///
    /// # Errors
    /// `NotFound`, `IsADirectory`, `Archived`, others as the store answers.
    async fn open(&self, path: &FsPath, options: OpenOptions) -> Result<std::sync::Arc<dyn File>>;

    /// Starts writing a file. Nothing is visible before [`FileWriter::finish`]; then all of it is. Missing parent
    /// directories are made.
    ///
    /// # Errors
    /// `IsADirectory`, `AlreadyExists`, `Stale` (by the condition, here or at `finish`), `Unsupported`, `ReadOnly`,
    /// others as the store answers.
    async fn create(&self, path: &FsPath, options: CreateOptions) -> Result<Box<dyn FileWriter>>;

    /// Deletes files, in bulk where the store can. One result for each path, in any order; a missing file is `Ok`.
    ///
    /// # Errors
    /// Per path: `IsADirectory`, `PermissionDenied`, `ReadOnly`, others as the store answers.
    fn delete(&self, paths: BoxStream<'static, FsPath>) -> BoxStream<'static, (FsPath, Result<()>)>;

    /// Renames a file (stores with real directories may rename those too). On stores without a rename this is
    /// `copy`, then delete: the target is complete before the source goes. Whatever fails, one whole copy remains.
    ///
    /// # Errors
    /// `NotFound`, `IsADirectory` (the store cannot rename directories, or the target is one), `AlreadyExists`
    /// (with `no_replace`), others as the store answers.
    async fn rename(&self, from: &FsPath, to: &FsPath, options: CopyOptions) -> Result<()>;

    /// Copies a file inside the store; the target becomes visible whole.
    ///
    /// # Errors
    /// `NotFound`, `IsADirectory`, `AlreadyExists` (with `no_replace`), others as the store answers.
    async fn copy(&self, from: &FsPath, to: &FsPath, options: CopyOptions) -> Result<()>;

    /// Makes a directory; on stores without directories an empty marker. Missing parents are made.
    ///
    /// # Errors
    /// `AlreadyExists` if a file or directory has this name; others as the store answers.
    async fn create_dir(&self, path: &FsPath) -> Result<()>;

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, `NotEmpty`, others as the store answers.
    async fn remove_dir(&self, path: &FsPath) -> Result<()>;
}
