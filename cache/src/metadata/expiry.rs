//! How long things are good, and what ends that early.

use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

use nearfs_backends::FsPath;

use crate::clock::Tick;
use crate::config::Lifetime;

impl Lifetime {
    /// When something that the store was asked for at `seen` stops being good.
    pub(crate) fn from(self, seen: Tick) -> Tick {
        match self {
            Lifetime::For(d) => seen.after(d),
            Lifetime::Forever => Tick::FOREVER,
        }
    }
}

/// Counters that go up when something below changes by our own doing. What was asked for before a change is not
/// believed after it, whether its answer is remembered already or still on its way.
///
/// Several paths share a counter, so a change may take more with it than it must; never less.
#[derive(Debug)]
pub(crate) struct Epochs {
    counters: Box<[AtomicU64]>,
    all: AtomicU64,
}

const COUNTERS: usize = 4096;

impl Default for Epochs {
    fn default() -> Self {
        Epochs { counters: (0..COUNTERS).map(|_| AtomicU64::new(0)).collect(), all: AtomicU64::new(0) }
    }
}

impl Epochs {
    pub(crate) fn of(&self, path: &FsPath) -> u64 {
        // Both only grow, so their sum names the pair.
        self.counters[slot(path)].load(Ordering::SeqCst) + self.all.load(Ordering::SeqCst)
    }

    /// `path` changed, and with it what its parents contain.
    pub(crate) fn changed(&self, path: &FsPath) {
        let mut at = Some(path.clone());
        while let Some(path) = at {
            self.counters[slot(&path)].fetch_add(1, Ordering::SeqCst);
            at = path.parent();
        }
    }

    /// A whole tree changed.
    pub(crate) fn all_changed(&self) {
        self.all.fetch_add(1, Ordering::SeqCst);
    }
}

fn slot(path: &FsPath) -> usize {
    let mut hasher = std::hash::DefaultHasher::new();
    path.hash(&mut hasher);
    hasher.finish() as usize % COUNTERS
}
