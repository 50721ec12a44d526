//! [`FileKey`]: which bytes a piece of cached data belongs to.

use nearfs_backends::{FsPath, Version};

/// One version of one file of the wrapped filesystem. A cache belongs to one store, so the store is not part of it.
///
/// Only known versions make a key: data of [`Version::Unknown`] is good for the handle that fetched it and no longer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct FileKey {
    pub(crate) path: FsPath,
    pub(crate) version: Version,
}

impl FileKey {
    pub(crate) fn new(path: &FsPath, version: &Version) -> Option<Self> {
        version.is_known().then(|| FileKey { path: path.clone(), version: version.clone() })
    }
}
