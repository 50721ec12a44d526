//! [`Volume`]: one cache directory and what this process has open in it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use nearfs_backends::Result;
use nearfs_backends::io::{Buffer, Engine};
use parking_lot::RwLock;
use rustix::fs::{Mode, OFlags};

use super::catalogue::Catalogue;
use super::dir::Directory;
use super::host::{Ground, Host};
use super::index::{Claimed, Facts, HAS_STATE, SlotRef};
use super::key::Key;
use super::lend::Lent;
use super::object::Large;
use super::opened::Opened;
use super::{evict, small};
use crate::config::{DiskConfig, DiskSize, PolicyKind};

/// How long somebody else may take to make the files of an object before it is not kept.
const PATIENCE: Duration = Duration::from_secs(5);

/// One directory. When somebody removes it, another one takes its place: [`Volume::restart`].
#[derive(Debug)]
pub(crate) struct Volume {
    config: DiskConfig,
    engine: Engine,
    open: RwLock<Arc<Open>>,
}

/// A directory while it is open. What was begun in one ends in it, so nothing of two is ever mixed.
#[derive(Debug)]
struct Open {
    cat: Arc<Catalogue>,
    ground: Arc<Ground>,
    opened: Opened,
}

impl Open {
    fn new(dir: Arc<Directory>, kind: PolicyKind, engine: &Engine) -> Arc<Self> {
        let cat = Catalogue::new(dir, kind, engine.clone());
        let ground = cat.ground();
        Arc::new(Open { opened: Opened::new(ground.clone()), ground, cat })
    }

    /// Opens a large object, or makes it with `create`. Blocks.
    fn large(&self, key: &Key, size: u64, create: bool) -> Option<Arc<Large>> {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(slot) = self.cat.index().find(key) {
                match self.opened.get(key, slot, size) {
                    Ok(Some(large)) => return Some(large),
                    Ok(None) => {
                        let entry = self.cat.index().entry(slot);
                        entry.map(|entry| {
                            evict::discard(&self.cat, &entry, "its files are not what they were")
                        });
                    }
                    Err(e) => {
                        tracing::debug!(error = %e, object = ?key, "a cached object cannot be opened");
                        return None;
                    }
                }
            } else if !create || !self.cat.dir().writable() {
                return None;
            } else {
                match evict::claim(&self.cat, key, size) {
                    Claimed::Mine(at) => {
                        let filling = Filling { cat: self.cat.clone(), key: *key, at: Some(at) };
                        return self.make_large(filling, size);
                    }
                    Claimed::Live(_) => {}
                    Claimed::Busy(_) => std::thread::sleep(Duration::from_millis(1)),
                    Claimed::Dead(_) | Claimed::Full => return None,
                }
            }
            if Instant::now() > until {
                return None;
            }
        }
    }

    fn make_large(&self, mut filling: Filling, size: u64) -> Option<Arc<Large>> {
        let (key, at) = (filling.key, filling.at?);
        let overhead = Large::overhead(size);
        let make_room = |bytes| evict::make_room(&self.cat, bytes, Some(&key));
        let reserved = self.cat.dir().space().reserve(overhead, &make_room)?;
        let made = Large::create(&self.ground, &key, at, size)
            .and_then(|large| Ok((rustix::fs::fstat(large.source())?, large)));
        match made {
            Ok((stat, large)) => {
                reserved.commit(overhead);
                let facts = Facts {
                    ino: stat.st_ino,
                    dev: stat.st_dev,
                    flags: HAS_STATE,
                    boot: self.cat.boot(),
                    charged: overhead,
                    ..Facts::default()
                };
                let live = self.cat.index().publish(at, &facts);
                filling.at = None;
                Some(self.opened.adopt(large, live))
            }
            Err(e) => {
                self.cat.failed(&e);
                None
            }
        }
    }
}

/// What became of an attempt to be the one who fetches a small object.
#[derive(Debug)]
pub(crate) enum Turn {
    Mine(Filling),
    There,
    /// Somebody else, alive, is at it.
    Theirs,
    /// It will not be kept.
    No,
}

impl Volume {
    /// The volume of `dir`, which was opened with `config`.
    pub(crate) fn new(dir: Arc<Directory>, config: &DiskConfig, engine: Engine) -> Self {
        let open = Open::new(dir, config.policy, &engine);
        Volume { config: config.clone(), engine, open: RwLock::new(open) }
    }

    fn open(&self) -> Arc<Open> {
        self.open.read().clone()
    }

    pub(crate) fn cat(&self) -> Arc<Catalogue> {
        self.open().cat.clone()
    }

    pub(crate) fn dir(&self) -> Arc<Directory> {
        self.open().cat.dir().clone()
    }

    /// Begins anew, with an empty directory in place of one that somebody removed or replaced. Its limit stays. What
    /// readers still hold of the old one stays readable.
    ///
    /// # Errors
    /// As [`Directory::open`]; the old one stays in use then.
    pub(crate) fn restart(&self) -> Result<()> {
        let old = self.open();
        let dir = old.cat.dir();
        let size = Some(DiskSize::Bytes(dir.limit()));
        let mut config = DiskConfig { size, ..self.config.clone() };
        let mut new = Directory::open(dir.asked(), &config);
        if new.is_err() && config.group.take().is_some() {
            // It was the fallback, which is this user's own.
            new = Directory::open(dir.asked(), &config);
        }
        let new = Open::new(new?, config.policy, &self.engine);
        new.cat.inherit(&old.cat);
        tracing::warn!(
            directory = %dir.asked().display(),
            "the cache directory was removed or replaced; an empty one takes its place"
        );
        *self.open.write() = new;
        Ok(())
    }

    /// Whether the index has `key`.
    pub(crate) fn has(&self, key: &Key) -> bool {
        self.cat().index().find(key).is_some()
    }

    /// Whether somebody alive is making or removing `key`.
    pub(crate) fn is_busy(&self, key: &Key) -> bool {
        let cat = self.cat();
        cat.index().worker(key).is_some_and(|owner| cat.is_alive(owner))
    }

    /// Appends all `size` bytes of a small object to `into`, if they are here. Blocks.
    pub(crate) fn read_small(&self, key: &Key, size: u64, into: &mut Buffer) -> bool {
        small::read(&self.cat(), key, size, into) == small::Read::Hit
    }

    /// The same out of the kernel's memory, without waiting.
    pub(crate) fn try_read_small(&self, key: &Key, size: u64, into: &mut Buffer) -> bool {
        small::try_read(&self.cat(), key, size, into) == small::Read::Hit
    }

    /// Asks to be the one who fetches a small object.
    pub(crate) fn claim_small(&self, key: &Key, size: u64) -> Turn {
        let cat = self.cat();
        if cat.index().find(key).is_some() {
            return Turn::There;
        }
        if !cat.dir().writable() {
            return Turn::No;
        }
        match evict::claim(&cat, key, size) {
            Claimed::Mine(at) => Turn::Mine(Filling { cat, key: *key, at: Some(at) }),
            Claimed::Live(_) => Turn::There,
            Claimed::Busy(_) => Turn::Theirs,
            Claimed::Dead(_) | Claimed::Full => Turn::No,
        }
    }

    /// The file of a small object, if it needs no check.
    pub(crate) fn lend_small(&self, key: &Key, size: u64) -> Option<OwnedFd> {
        let cat = self.cat();
        let entry = cat.index().find(key).and_then(|at| cat.index().entry(at))?;
        if entry.size != size || entry.has_state() || entry.boot != cat.boot() {
            return None;
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let objects = cat.objects(key).ok()?;
        let file = rustix::fs::openat(objects, key.name(), flags, Mode::empty()).ok()?;
        let stat = rustix::fs::fstat(&file).ok()?;
        let same = (stat.st_ino, stat.st_dev, stat.st_size as u64) == (entry.ino, entry.dev, size);
        if !same || small::mtime_ns(&stat) != entry.mtime_ns {
            return None;
        }
        rustix::fs::fcntl_setfl(&file, OFlags::empty()).ok()?;
        // Small files are removed or left alone, never changed: open, it stays what it is.
        cat.index().is_current(entry.at).then_some(file)
    }

    /// A large object that is open already.
    pub(crate) fn find_large(&self, key: &Key) -> Option<Arc<Large>> {
        let open = self.open();
        open.opened.find(key, open.cat.index().find(key)?)
    }

    /// Opens a large object, or makes it with `create`. Blocks.
    pub(crate) fn open_large(&self, key: &Key, size: u64, create: bool) -> Option<Arc<Large>> {
        self.open().large(key, size, create)
    }

    /// Lends a large object. Blocks, but not for long.
    pub(crate) fn lend_large(&self, key: &Key, size: u64) -> Option<Lent> {
        let large = self.open_large(key, size, false)?;
        large.lend().ok().flatten()
    }

    /// Removes a large object of which something is missing. Blocks.
    pub(crate) fn forget_incomplete(&self, key: &Key, size: u64) {
        let open = self.open();
        let Some(large) = open.large(key, size, false) else { return };
        if large.resident_bytes() < size
            && let Some(entry) = open.cat.index().entry(large.slot())
        {
            evict::remove(&open.cat, &entry);
        }
    }

    /// Notes that a large object is used.
    pub(crate) fn accessed(&self, large: &Large) {
        evict::accessed(&self.cat(), large.slot());
    }
}

/// The slot of an object that the caller makes; given up on drop.
#[derive(Debug)]
pub(crate) struct Filling {
    cat: Arc<Catalogue>,
    key: Key,
    at: Option<SlotRef>,
}

impl Filling {
    /// Stores a small object, all of it and proven. False if there is no room for it. Blocks.
    ///
    /// # Errors
    /// What the filesystem says; the directory has been told.
    pub(crate) fn store(mut self, data: &[Bytes]) -> io::Result<bool> {
        match self.at.take() {
            Some(at) => small::store(&self.cat, &self.key, at, data).map(|stored| stored.is_some()),
            None => Ok(false),
        }
    }
}

impl Drop for Filling {
    fn drop(&mut self) {
        if let Some(at) = self.at.take() {
            // It was asked for: that is remembered, so that it may be let in the next time.
            self.cat.index().vacate(at, true);
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
