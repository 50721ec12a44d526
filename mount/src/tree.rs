//! [`Tree`]: what a mount shows: one filesystem, or several below one root.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use nearfs_backends::{Error, ErrorKind, FileSystem, FsPath, Result};
use nearfs_cache::CachedFileSystem;

/// What is mounted.
#[derive(Debug, Clone)]
pub enum Tree {
    /// The root of the mount is the root of this filesystem.
    One(Arc<CachedFileSystem>),
    /// The root of the mount holds one directory for each name; each keeps its own cache.
    Map(BTreeMap<String, Arc<CachedFileSystem>>),
}

impl From<Arc<CachedFileSystem>> for Tree {
    fn from(fs: Arc<CachedFileSystem>) -> Self {
        Tree::One(fs)
    }
}

impl From<BTreeMap<String, Arc<CachedFileSystem>>> for Tree {
    fn from(map: BTreeMap<String, Arc<CachedFileSystem>>) -> Self {
        Tree::Map(map)
    }
}

/// A path of one of the mounted filesystems.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    /// Index into [`Roots`].
    pub(crate) fs: u16,
    /// Path inside that filesystem.
    pub(crate) path: FsPath,
}

/// A checked [`Tree`], addressed by index.
#[derive(Debug)]
pub(crate) struct Roots {
    entries: Vec<(Box<str>, Arc<CachedFileSystem>)>,
    is_map: bool,
}

impl Roots {
    /// # Errors
    /// `InvalidInput` if a name is not one path component, is `.nearfs`, or there are none or more than 65535.
    pub(crate) fn new(tree: Tree) -> Result<Self> {
        let map = match tree {
            Tree::One(fs) => return Ok(Roots { entries: vec![("".into(), fs)], is_map: false }),
            Tree::Map(map) => map,
        };
        if map.is_empty() || map.len() > usize::from(u16::MAX) {
            let text = format!("{} filesystems to mount, expected 1 to {}", map.len(), u16::MAX);
            return Err(Error::new(ErrorKind::InvalidInput, text));
        }
        for name in map.keys() {
            FsPath::root().join(name).map_err(|e| e.with_context("name", name))?;
            if name == crate::control::DIR_NAME {
                return Err(Error::new(ErrorKind::InvalidInput, "the name `.nearfs` is taken"));
            }
        }
        Ok(Roots { entries: map.into_iter().map(|(n, fs)| (n.into(), fs)).collect(), is_map: true })
    }

    /// True if the root is a directory of names.
    pub(crate) fn is_map(&self) -> bool {
        self.is_map
    }

    /// The filesystem of `place`.
    pub(crate) fn fs(&self, place: &Place) -> &Arc<CachedFileSystem> {
        &self.entries[usize::from(place.fs)].1
    }

    /// The root called `name`.
    pub(crate) fn find(&self, name: &[u8]) -> Option<Place> {
        let i = self.entries.binary_search_by(|(n, _)| n.as_bytes().cmp(name)).ok()?;
        Some(Place { fs: i as u16, path: FsPath::root() })
    }

    /// Name and filesystem of each root, in order.
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Arc<CachedFileSystem>)> {
        self.entries.iter().map(|(n, fs)| (&**n, fs))
    }

    /// The directories of the cache on disk, of all filesystems; none if nothing is kept on disk.
    pub(crate) fn cache_dirs(&self) -> BTreeSet<PathBuf> {
        self.entries.iter().filter_map(|(_, fs)| fs.disk()).flat_map(|disk| disk.directories()).collect()
    }

    /// The URL of `place`, for people.
    pub(crate) fn url(&self, place: &Place) -> String {
        let base = self.fs(place).identity().url;
        match place.path.is_root() {
            true => base,
            false => format!("{}/{}", base.trim_end_matches('/'), place.path),
        }
    }

    /// What `/proc/mounts` shows.
    pub(crate) fn source(&self) -> String {
        match self.entries.as_slice() {
            [(_, fs)] if !self.is_map => fs.identity().url,
            _ => "nearfs".to_owned(),
        }
    }
}
