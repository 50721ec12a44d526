//! What a filesystem says of a name: [`Metadata`], [`Version`], [`DirEntry`].

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use crate::path::FsPath;

/// File or directory. Symbolic links of local filesystems are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// A file: an object, or a regular local file.
    File,
    /// A directory: a key prefix, a directory marker, or a local directory.
    Dir,
}

/// The identity of one content of one path: two equal versions of a path have the same bytes.
///
/// Backends normalise it in one place, so that the spellings a store uses in lists and headers compare equal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Version {
    /// A strong ETag without its quotes, or any opaque token a filesystem of your own chooses.
    Tag(Arc<str>),
    /// A number that grows with every write (GCS generation, memory filesystem).
    Generation(u64),
    /// A local file: inode, size and modification time.
    Local {
        /// Inode number.
        ino: u64,
        /// Bytes.
        size: u64,
        /// Modification time, nanoseconds since 1970 (negative before).
        mtime_ns: i128,
    },
    /// The store gives no identity (HTTP without ETag, a weak ETag). Never equal to anything in a cache: such data
    /// is good for the handle that fetched it and no longer.
    Unknown,
}

impl Version {
    /// True unless [`Version::Unknown`].
    pub fn is_known(&self) -> bool {
        !matches!(self, Version::Unknown)
    }
}

/// A short text form, for logs, `user.nearfs.version` and file names of caches.
impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Version::Tag(tag) => f.write_str(tag),
            Version::Generation(n) => write!(f, "{n}"),
            Version::Local { ino, size, mtime_ns } => write!(f, "{ino:x}-{size:x}-{mtime_ns:x}"),
            Version::Unknown => f.write_str("unknown"),
        }
    }
}

/// What `stat` and listings report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metadata {
    /// File or directory.
    pub kind: FileKind,
    /// Stored size in bytes (0 for directories). Content encodings are never undone.
    pub size: u64,
    /// Last modification, as exact as the store tells it.
    pub modified: Option<SystemTime>,
    /// Identity of the content; [`Version::Unknown`] for directories.
    pub version: Version,
    /// Unix permission bits (0o7777) where the store has them.
    pub mode: Option<u32>,
    /// True if the object is archived and not restored: reading it fails with `ErrorKind::Archived`.
    pub archived: bool,
}

impl Metadata {
    /// A file of `size` bytes at `version`, everything else unknown.
    pub fn file(size: u64, version: Version) -> Self {
        Metadata { kind: FileKind::File, size, modified: None, version, mode: None, archived: false }
    }

    /// A directory of which nothing but its existence is known.
    pub fn dir() -> Self {
        Metadata {
            kind: FileKind::Dir,
            size: 0,
            modified: None,
            version: Version::Unknown,
            mode: None,
            archived: false,
        }
    }

    /// True for a directory.
    pub fn is_dir(&self) -> bool {
        self.kind == FileKind::Dir
    }

    /// True for a file.
    pub fn is_file(&self) -> bool {
        self.kind == FileKind::File
    }
}

/// One entry of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    /// Full path from the filesystem's root; the last component is the entry's name.
    pub path: FsPath,
    /// What the listing says of it: for files complete (size, version), never needing another request.
    pub metadata: Metadata,
}
