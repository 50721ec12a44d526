//! Far buckets, near files: object storage as one filesystem, read at local-disk speed.
//!
//! ```no_run
//! use futures::StreamExt;
//! use nearfs::{FileExt, FileSystemExt, FsPath};
//!
//! # async fn example() -> nearfs::Result<()> {
//! let fs = nearfs::open("s3://bucket/prefix").await?;
//! let mut entries = fs.walk(&FsPath::root());
//! while let Some(entry) = entries.next().await {
//!     println!("{}", entry?.path);
//! }
//! let labels = fs.read(&FsPath::parse("labels.txt")?, 1 << 20).await?;
//! # let _ = labels;
//! # Ok(())
//! # }
//! ```
//!
//! Everything is an `Arc<dyn FileSystem>`: stores ([`open`], [`Client`]), caches, layers and filesystems of your own.
//! [`blocking`] is the same for threads that do not speak async; [`interop`] fits nearfs into programs built on the crate
//! `object_store`, and what only that crate reaches into nearfs. The handbook is [`manual`].
//!
//! All input and output runs on a runtime that nearfs makes when it is first needed; any executor may wait for it.
//!
//! # Features
//! `cli` (on by default): the command `nearfs` and its dependencies. Libraries switch default features off.

pub mod blocking;
mod builder;
mod client;
pub mod config;
mod disk;
mod inspect;
pub mod manual;
mod runtime;
mod stack;

pub use builder::ClientBuilder;
pub use client::{Client, open};
pub use inspect::Inspection;
pub use nearfs_backends::interop;
pub use nearfs_backends::{
    BlockingReader, ByteStream, Bytes, Capabilities, Condition, CopyOptions, CreateOptions, DirEntry,
    EntryStream, Error, ErrorKind, File, FileExt, FileKind, FileReader, FileSystem, FileSystemExt,
    FileWriter, FsPath, Identity, ListOptions, Metadata, NAME_MAX, OpenOptions, Registry, Result, Retry,
    Spawner, StoreOptions, StoreUrl, TreeCopied, TreeCopyOptions, Version,
};
pub use nearfs_cache::{CachedFileSystem, memory_limit};
pub use runtime::spawner;

/// Where credentials come from, as [`Inspection`] shows it.
pub use nearfs_backends::CredentialInfo;

/// Memory filesystem, for tests and as scratch space.
pub use nearfs_backends::MemoryFileSystem;

/// The cache: what it did, and its directories on disk.
pub mod cache {
    pub use nearfs_cache::{
        CacheStats, Checked, DirectoryStatus, DiskConfig, DiskSize, DiskStats, DiskTier, Pinned, PolicyKind,
        Removed,
    };
}

/// The mount, for programs that show a filesystem as a directory themselves.
pub mod mount {
    pub use nearfs_mount::*;
}
