//! [`FileKey`]: which bytes a piece of cached data belongs to.

use nearfs_backends::{FsPath, Metadata, Version};

/// One version of one file of the wrapped filesystem. A cache belongs to one store, so the store is not part of it.
///
/// Only known versions make a key: data of [`Version::Unknown`] is good for the handle that fetched it and no longer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct FileKey {
    pub(crate) path: FsPath,
    pub(crate) version: Version,
    /// Follows from the version; here so that a store that breaks this rule mixes nothing up.
    pub(crate) size: u64,
}

impl FileKey {
    pub(crate) fn new(path: &FsPath, metadata: &Metadata) -> Option<Self> {
        let version = metadata.version.clone();
        version.is_known().then(|| FileKey { path: path.clone(), version, size: metadata.size })
    }
}
