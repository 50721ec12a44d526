//! [`Attributes`]: what the store said of single names.

use moka::sync::Cache;
use nearfs_backends::{FsPath, Metadata};

use crate::clock::Tick;

/// Names remembered besides those in listings.
const MAX_ATTRIBUTES: u64 = 200_000;

/// One answer of the store, or the knowledge that what is remembered elsewhere is wrong.
#[derive(Debug, Clone)]
pub(crate) struct Attribute {
    /// When the store was asked.
    pub(crate) seen: Tick,
    pub(crate) expires: Tick,
    pub(crate) epoch: u64,
    /// `None`: older answers are not to be believed, ask again.
    pub(crate) metadata: Option<Metadata>,
}

/// Answers about single names, bounded in number; the least used ones go first.
#[derive(Debug)]
pub(crate) struct Attributes(Cache<FsPath, Attribute>);

impl Default for Attributes {
    fn default() -> Self {
        Attributes(Cache::builder().max_capacity(MAX_ATTRIBUTES).build())
    }
}

impl Attributes {
    pub(crate) fn get(&self, path: &FsPath) -> Option<Attribute> {
        self.0.get(path)
    }

    /// Takes an answer, unless a later one is here.
    pub(crate) fn put(&self, path: &FsPath, attribute: Attribute) {
        self.0.entry_by_ref(path).and_upsert_with(|old| match old.map(|entry| entry.into_value()) {
            Some(old) if old.seen > attribute.seen && old.epoch >= attribute.epoch => old,
            _ => attribute,
        });
    }

    pub(crate) fn len(&self) -> u64 {
        self.0.entry_count()
    }
}
