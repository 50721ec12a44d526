//! [`Negatives`]: names that the store said do not exist.

use moka::sync::Cache;
use nearfs_backends::FsPath;

use crate::clock::Tick;

/// Absent names remembered. Few: they are good for seconds only.
const MAX_NEGATIVES: u64 = 50_000;

/// The store's word that nothing has a name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Absence {
    /// When the store was asked. Being asked for again does not change it.
    pub(crate) seen: Tick,
    pub(crate) expires: Tick,
    pub(crate) epoch: u64,
}

/// Absent names, bounded in number. Only an answer of the store makes an entry, never an error.
#[derive(Debug)]
pub(crate) struct Negatives(Cache<FsPath, Absence>);

impl Default for Negatives {
    fn default() -> Self {
        Negatives(Cache::builder().max_capacity(MAX_NEGATIVES).build())
    }
}

impl Negatives {
    pub(crate) fn get(&self, path: &FsPath) -> Option<Absence> {
        self.0.get(path)
    }

    pub(crate) fn put(&self, path: &FsPath, absence: Absence) {
        self.0.insert(path.clone(), absence);
    }

    pub(crate) fn len(&self) -> u64 {
        self.0.entry_count()
    }
}
