//! Extended attributes `user.nearfs.*`: what the store says of a file, for people and scripts.

use nearfs_backends::{Error, ErrorKind, Result, Version};

use crate::inode::{Inode, Node};
use crate::vfs::Vfs;

const ETAG: &str = "user.nearfs.etag";
const VERSION: &str = "user.nearfs.version";
const URL: &str = "user.nearfs.url";
/// Bytes in memory, decimal.
const CACHED: &str = "user.nearfs.cached";

impl Vfs {
    /// The value of an extended attribute; `None` if the inode has none of this name.
    ///
    /// # Errors
    /// `Stale` if the inode is not known.
    pub(crate) fn getxattr(&self, ino: u64, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let inode = self.table.get(ino)?;
        let Some(name) = [ETAG, VERSION, URL, CACHED].into_iter().find(|n| n.as_bytes() == name) else {
            return Ok(None);
        };
        Ok(self.value(&inode, name).map(String::into_bytes))
    }

    /// The names of the extended attributes, each ended by NUL.
    ///
    /// # Errors
    /// `Stale` if the inode is not known.
    pub(crate) fn listxattr(&self, ino: u64) -> Result<Vec<u8>> {
        let inode = self.table.get(ino)?;
        let names = [ETAG, VERSION, URL, CACHED].into_iter().filter(|n| self.value(&inode, n).is_some());
        Ok(names.flat_map(|n| n.bytes().chain([0])).collect())
    }

    /// # Errors
    /// `ReadOnly`, always.
    pub(crate) fn change(&self) -> Error {
        Error::new(ErrorKind::ReadOnly, "the mount is read-only")
    }

    fn value(&self, inode: &Inode, name: &str) -> Option<String> {
        let place = inode.place()?;
        if name == URL {
            return Some(self.roots.url(place));
        }
        let Node::File(_) = &inode.node else { return None };
        let metadata = inode.attrs()?.metadata;
        match (name, &metadata.version) {
            (VERSION, version) if version.is_known() => Some(version.to_string()),
            (ETAG, Version::Tag(tag)) => Some(format!("\"{tag}\"")),
            (CACHED, _) => Some(self.roots.fs(place).cached_bytes(&place.path, &metadata).to_string()),
            _ => None,
        }
    }
}
