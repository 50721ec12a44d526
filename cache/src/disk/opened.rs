//! [`Opened`]: the large objects that this process has open, and how many of them stay open while nobody uses them.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::process::Resource;

use super::host::Ground;
use super::index::SlotRef;
use super::key::Key;
use super::object::Large;

/// Most objects kept open, however many descriptors there may be: each has a mapping too.
const MOST: usize = 1024;

/// Open large objects by key: those in use, and a bounded number of others, the least recently used of which are
/// closed first.
#[derive(Debug)]
pub(crate) struct Opened {
    ground: Arc<Ground>,
    most: usize,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    objects: HashMap<Key, Kept>,
    /// Counts uses.
    clock: u64,
}

#[derive(Debug)]
struct Kept {
    object: Arc<Large>,
    used: u64,
}

impl Opened {
    /// Keeps up to 1024 objects open, or as many as a quarter of the process's descriptors allows.
    pub(crate) fn new(ground: Arc<Ground>) -> Self {
        let descriptors = rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        // Two descriptors each.
        let most = usize::try_from(descriptors / 4 / 2).unwrap_or(usize::MAX).clamp(1, MOST);
        Self::with_most(ground, most)
    }

    pub(super) fn with_most(ground: Arc<Ground>, most: usize) -> Self {
        Opened { ground, most, inner: Mutex::default() }
    }

    /// The object of the live entry `slot`, opened if it is not; nothing if its files are not what they should be:
    /// the entry is to be dropped then. Blocks if it is not open.
    ///
    /// # Errors
    /// What the filesystem says. Nothing is known about the entry then.
    pub(crate) fn get(&self, key: &Key, slot: SlotRef, size: u64) -> io::Result<Option<Arc<Large>>> {
        if let Some(object) = self.find(key, slot) {
            return Ok(Some(object));
        }
        // Not under the lock: two threads that open the same object at once keep the first.
        Ok(Large::open(&self.ground, key, slot, size)?.map(|object| self.keep(object)))
    }

    /// The object of the live entry `slot`, if it is open.
    pub(crate) fn find(&self, key: &Key, slot: SlotRef) -> Option<Arc<Large>> {
        let mut inner = self.inner.lock();
        inner.clock += 1;
        let now = inner.clock;
        let kept = inner.objects.get_mut(key)?;
        if kept.object.is_dead() || kept.object.slot() != slot {
            let dead = inner.objects.remove(key);
            drop(inner);
            drop(dead);
            return None;
        }
        kept.used = now;
        Some(kept.object.clone())
    }

    /// Takes in what [`Large::create`] made, once its entry is `live`.
    pub(crate) fn adopt(&self, mut object: Large, live: SlotRef) -> Arc<Large> {
        object.slot = live;
        self.keep(object)
    }

    /// Number of objects kept open.
    #[cfg(all(test, not(feature = "shuttle")))]
    pub(super) fn len(&self) -> usize {
        self.inner.lock().objects.len()
    }

    fn keep(&self, object: Large) -> Arc<Large> {
        let object = Arc::new(object);
        let mut inner = self.inner.lock();
        inner.clock += 1;
        let now = inner.clock;
        match inner.objects.get_mut(&object.key) {
            Some(kept) if kept.object.slot() == object.slot() && !kept.object.is_dead() => {
                kept.used = now;
                let first = kept.object.clone();
                drop(inner);
                return first;
            }
            _ => {}
        }
        // Closed outside the lock.
        let replaced = inner.objects.insert(object.key, Kept { object: object.clone(), used: now });
        let closed = if inner.objects.len() > self.most { inner.least_used(self.most) } else { Vec::new() };
        drop(inner);
        drop((replaced, closed));
        object
    }
}

impl Inner {
    /// Removes the least recently used objects until a few fewer than `most` are left, so that this is rare.
    fn least_used(&mut self, most: usize) -> Vec<Kept> {
        let mut uses: Vec<u64> = self.objects.values().map(|kept| kept.used).collect();
        let gone = (uses.len() - most + most / 16).min(uses.len() - 1);
        uses.sort_unstable();
        let oldest_left = uses[gone];
        self.objects.extract_if(|_, kept| kept.used < oldest_left).map(|(_, kept)| kept).collect()
    }
}
