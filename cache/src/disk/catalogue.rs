//! [`Catalogue`]: one cache directory with everything that decides what is in it.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use nearfs_backends::io::Engine;
use parking_lot::Mutex;
use rustix::time::ClockId;

use super::dir::Directory;
use super::evict;
use super::host::{Ground, Host};
use super::index::{CHARGE_UNIT, Index, Moment, SlotRef};
use super::key::Key;
use super::policy::{Policy, Scene, policy};
use super::process::Owner;
use super::rights::Rights;
use super::write::Writing;
use crate::config::PolicyKind;

/// How many answers one count of the live objects is good for.
const RECOUNT: u64 = 256;

/// A directory, the policy of its eviction, and what large objects need of both.
#[derive(Debug)]
pub(crate) struct Catalogue {
    dir: Arc<Directory>,
    policy: Box<dyn Policy>,
    engine: Engine,
    this: Weak<Catalogue>,
    /// Weak, because it holds this catalogue.
    ground: Mutex<Weak<Ground>>,
    boot: AtomicU64,
    wrong: AtomicU64,
    evicted: AtomicU64,
    /// Live objects as last counted, and how often that was asked for since.
    live: AtomicU64,
    asked: AtomicU64,
}

impl Catalogue {
    /// The catalogue of `dir`. There should be one for each directory and process, but several do no harm.
    pub(crate) fn new(dir: Arc<Directory>, kind: PolicyKind, engine: Engine) -> Arc<Catalogue> {
        Arc::new_cyclic(|this| Catalogue {
            policy: policy(kind),
            engine,
            this: this.clone(),
            ground: Mutex::new(Weak::new()),
            boot: AtomicU64::new(dir.boot()),
            wrong: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            live: AtomicU64::new(dir.index().len()),
            asked: AtomicU64::new(0),
            dir,
        })
    }

    /// The directory.
    pub(crate) fn dir(&self) -> &Arc<Directory> {
        &self.dir
    }

    pub(crate) fn index(&self) -> &Index {
        self.dir.index()
    }

    pub(crate) fn policy(&self) -> &dyn Policy {
        &*self.policy
    }

    /// What large objects stand on: the same for all that are open at a time.
    pub(crate) fn ground(&self) -> Arc<Ground> {
        let mut shared = self.ground.lock();
        if let Some(ground) = shared.upgrade() {
            return ground;
        }
        let host = self.this.upgrade().expect("a catalogue that is used is alive");
        let ground = Arc::new(Ground { host, engine: self.engine.clone(), writing: Writing::default() });
        *shared = Arc::downgrade(&ground);
        ground
    }

    /// The moment of an access, which it counts.
    pub(crate) fn moment(&self) -> Moment {
        Moment { now: self.dir.tick(), seconds: seconds() }
    }

    /// What the policy judges by.
    pub(crate) fn scene(&self) -> Scene<'_> {
        if self.asked.fetch_add(1, Ordering::Relaxed) % RECOUNT == RECOUNT - 1 {
            self.live.store(self.index().len(), Ordering::Relaxed);
        }
        Scene {
            now: self.dir.now(),
            seconds: seconds(),
            live: self.live.load(Ordering::Relaxed),
            learned: self.index().learned(),
        }
    }

    /// Gives the charge of an object that is gone back.
    pub(crate) fn release(&self, bytes: u64) {
        self.dir.space().release(bytes);
    }

    /// Notes that an object was removed because the disk did not have what the index said. There may be very many (a
    /// directory was removed), so fewer and fewer of them are worth a warning.
    pub(crate) fn count_wrong(&self, key: &Key, why: &str) {
        let count = self.wrong.fetch_add(1, Ordering::Relaxed) + 1;
        if count.is_power_of_two() {
            tracing::warn!(object = ?key, count, "a cached object was removed and will be fetched again: {why}");
        } else {
            tracing::debug!(object = ?key, count, "a cached object was removed and will be fetched again: {why}");
        }
    }

    /// Objects removed, in this process, because the disk did not have what the index said.
    pub(crate) fn wrong(&self) -> u64 {
        self.wrong.load(Ordering::Relaxed)
    }

    /// Notes that bytes were freed to make room for others.
    pub(crate) fn count_evicted(&self, bytes: u64) {
        self.evicted.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes freed, by this process, to make room for others.
    pub(crate) fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    /// Counts on from where the catalogue of a directory that is gone ends.
    pub(crate) fn inherit(&self, old: &Catalogue) {
        self.wrong.fetch_add(old.wrong(), Ordering::Relaxed);
        self.evicted.fetch_add(old.evicted(), Ordering::Relaxed);
    }

    /// Whether the directory was removed or replaced: what it had on disk is gone.
    pub(crate) fn is_gone(&self) -> bool {
        !self.dir.control().is_named(self.dir.fd())
    }

    /// Makes this the boot with another tag.
    #[cfg(all(test, not(feature = "shuttle")))]
    pub(super) fn set_boot(&self, tag: u64) {
        self.boot.store(tag, Ordering::Relaxed);
    }
}

impl Host for Catalogue {
    fn me(&self) -> Owner {
        self.dir.me()
    }

    fn is_alive(&self, owner: Owner) -> bool {
        self.dir.is_alive(owner)
    }

    fn boot(&self) -> u64 {
        self.boot.load(Ordering::Relaxed)
    }

    fn objects(&self, key: &Key) -> io::Result<BorrowedFd<'_>> {
        self.dir.objects(key)
    }

    fn rights(&self) -> Rights {
        self.dir.rights()
    }

    fn spend(
        &self,
        slot: SlotRef,
        bytes: u64,
        write: &mut dyn FnMut() -> io::Result<()>,
    ) -> io::Result<bool> {
        let bytes = bytes.next_multiple_of(CHARGE_UNIT);
        let key = self.index().key_of(slot);
        let make_room = |bytes| evict::make_room(self, bytes, Some(&key));
        let Some(reserved) = self.dir.space().reserve(bytes, &make_room) else { return Ok(false) };
        write()?;
        reserved.commit(bytes);
        let charged = self.index().add_charge(slot, bytes);
        if !charged {
            self.release(bytes);
        }
        Ok(charged)
    }

    fn discharge(&self, slot: SlotRef, bytes: u64) {
        self.release(self.index().sub_charge(slot, bytes));
    }

    fn lend(&self, bytes: u64) -> Option<Box<dyn Send + Sync>> {
        Some(Box::new(self.dir.space().lend(bytes)?))
    }

    fn count_wrong(&self, key: &Key, why: &str) {
        Catalogue::count_wrong(self, key, why);
    }

    fn failed(&self, error: &io::Error) {
        // Directories that somebody removed are not a disk that fails: once they are there again, all is well.
        if !self.dir.renew().is_ok_and(|renewed| renewed > 0) {
            self.dir.failed(error);
        }
    }
}

/// The wall clock, seconds since 1970; a coarse one, since nobody needs it exact.
fn seconds() -> u32 {
    rustix::time::clock_gettime(ClockId::RealtimeCoarse).tv_sec as u32
}

#[cfg(all(test, not(feature = "shuttle")))]
pub(super) mod fixture;
