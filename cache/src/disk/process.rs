//! Which process is alive: slots of the process table, held by POSIX locks.
//!
//! A process names itself by an [`Owner`] in whatever it claims. Who finds a claim asks the kernel whether the lock of
//! that slot is held. Process ids are no use here: they mean nothing in another PID namespace, and come back.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Once, Weak};
use std::time::Duration;

use nearfs_backends::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::control::Control;
use super::dir::Directory;

/// Slots of the process table, and so processes that may use a directory at once.
pub(crate) const SLOTS: u16 = 4096;
/// The byte of `control` that is locked while a process opens the directory. The slots come before it.
pub(crate) const OPENING: i64 = 1 << 20;
/// How a word of the process table is divided: generation above, bytes below.
const BYTES: u32 = 48;
const MASK: u64 = (1 << BYTES) - 1;

/// Words of a slot.
mod word {
    /// Generation, and bytes reserved.
    pub(super) const RESERVED: usize = 0;
    /// The process id in its own namespace. For people only.
    pub(super) const PID: usize = 1;
    /// Generation, and bytes lent out.
    pub(super) const LENT: usize = 2;
}

/// A process: slot of the process table (upper 16 bits) and generation of the slot (lower 16 bits, never 0). The
/// number 0 is nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Owner(pub u32);

impl Owner {
    /// What a process without a slot is: never alive, and never 0.
    pub(crate) const NO_SLOT: Owner = Owner(u32::MAX);

    fn new(slot: u16, generation: u16) -> Self {
        Owner(u32::from(slot) << 16 | u32::from(generation))
    }

    pub(crate) fn slot(self) -> u16 {
        (self.0 >> 16) as u16
    }

    pub(crate) fn generation(self) -> u16 {
        self.0 as u16
    }
}

/// What this process, and not a child of it, knows about its slot: memory that a fork empties.
pub(crate) struct Seat {
    page: &'static Page,
}

#[repr(C)]
struct Page {
    /// 0, [`TAKING`], or the owner that this process is.
    owner: AtomicU64,
    shared: AtomicPtr<Mutex<Weak<Directory>>>,
}

/// A thread of this process is taking a slot.
const TAKING: u64 = u64::MAX;

impl Seat {
    /// # Errors
    /// If the kernel gives no memory.
    pub(crate) fn new() -> io::Result<Self> {
        let flags = MapFlags::PRIVATE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let page = unsafe {
            rustix::mm::mmap_anonymous(ptr::null_mut(), 4096, ProtFlags::READ | ProtFlags::WRITE, flags)?
        };
        // SAFETY: only what was just mapped is advised about. It is anonymous and private, as this advice wants.
        if unsafe { rustix::mm::madvise(page, 4096, Advice::LinuxWipeOnFork) }.is_err() {
            // Kernels without it (some sandboxes): the C library tells about forks, if not about bare clones.
            static TOLD: Once = Once::new();
            TOLD.call_once(|| {
                // SAFETY: the handler only stores to atomics, which a child may do right after fork.
                unsafe { libc::pthread_atfork(None, None, Some(forget)) };
            });
        }
        // SAFETY: page-aligned, zeroed, large enough, never unmapped; zeros are a valid `Page`.
        Ok(Seat { page: unsafe { &*page.cast::<Page>() } })
    }

    /// The directory that this process has open, if it is not gone.
    pub(crate) fn shared(&self) -> &'static Mutex<Weak<Directory>> {
        let shared = self.page.shared.load(Ordering::Acquire);
        if !shared.is_null() {
            // SAFETY: only leaked boxes are stored here.
            return unsafe { &*shared };
        }
        let new = Box::into_raw(Box::new(Mutex::new(Weak::new())));
        match self.page.shared.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: leaked above.
            Ok(_) => unsafe { &*new },
            Err(other) => {
                // SAFETY: made above and given to nobody.
                drop(unsafe { Box::from_raw(new) });
                // SAFETY: only leaked boxes are stored here.
                unsafe { &*other }
            }
        }
    }
}

/// In a forked child: none of the slots is its own.
extern "C" fn forget() {
    for control in Control::all() {
        control.seat().page.owner.store(0, Ordering::Release);
        control.seat().page.shared.store(ptr::null_mut(), Ordering::Release);
    }
}

impl Control {
    /// The owner that this process is, taking a slot if it has none yet (it never had one, or it was forked since).
    ///
    /// # Errors
    /// `NoSpace` if all slots are taken, or what the filesystem says about locks.
    pub(crate) fn me(&self) -> Result<Owner> {
        let seat = &self.seat().page.owner;
        loop {
            match seat.load(Ordering::Acquire) {
                0 if seat.compare_exchange(0, TAKING, Ordering::AcqRel, Ordering::Acquire).is_ok() => {
                    let taken = self.take_slot();
                    let owner = taken.as_ref().map_or(0, |owner| u64::from(owner.0));
                    seat.store(owner, Ordering::Release);
                    return taken;
                }
                0 => {}
                TAKING => std::thread::sleep(Duration::from_micros(50)),
                owner => return Ok(Owner(owner as u32)),
            }
        }
    }

    /// The owner that this process is, if it has a slot.
    pub(crate) fn seated(&self) -> Option<Owner> {
        match self.seat().page.owner.load(Ordering::Acquire) {
            0 | TAKING => None,
            owner => Some(Owner(owner as u32)),
        }
    }

    fn take_slot(&self) -> Result<Owner> {
        for slot in 0..SLOTS {
            if !try_lock(self.fd(), i64::from(slot)).map_err(no_locks)? {
                continue;
            }
            let words = self.process(slot);
            let before = (words[word::RESERVED].load(Ordering::Acquire) >> BYTES) as u16;
            // 0 would make the first slot nobody.
            let generation = before.checked_add(1).unwrap_or(1);
            self.top().fetch_max(u64::from(slot) + 1, Ordering::AcqRel);
            words[word::PID].store(u64::from(std::process::id()), Ordering::Relaxed);
            // Whoever held the slot before is dead. Each word changes hands in one step, so what it had is given back
            // here, or was by `reap`, and never twice.
            let fresh = u64::from(generation) << BYTES;
            give_back(self.used(), words[word::RESERVED].swap(fresh, Ordering::AcqRel) & MASK);
            give_back(self.lent(), words[word::LENT].swap(fresh, Ordering::AcqRel) & MASK);
            return Ok(Owner::new(slot, generation));
        }
        Err(Error::new(
            ErrorKind::NoSpace,
            format!(
                "all {SLOTS} process slots of the cache directory are taken, expected fewer processes at once"
            ),
        ))
    }

    /// Whether the process that `owner` names is still there.
    pub(crate) fn is_alive(&self, owner: Owner) -> bool {
        let (slot, generation) = (owner.slot(), u64::from(owner.generation()));
        if slot >= SLOTS || generation == 0 {
            return false;
        }
        let held_by_it = || self.process(slot)[word::RESERVED].load(Ordering::Acquire) >> BYTES == generation;
        // The kernel does not tell a process about its own locks.
        held_by_it() && (self.seated() == Some(owner) || (self.is_held(slot) && held_by_it()))
    }

    /// Whether another process holds `slot`. In doubt it does: then nothing is taken away from it.
    fn is_held(&self, slot: u16) -> bool {
        held(self.fd(), i64::from(slot), 1).unwrap_or(true)
    }

    /// Whether no other process has the directory open.
    ///
    /// # Errors
    /// What the filesystem says about locks.
    pub(crate) fn is_alone(&self) -> Result<bool> {
        held(self.fd(), 0, i64::from(SLOTS)).map(|held| !held).map_err(no_locks)
    }

    /// Counts `bytes` as reserved by this process. They are part of `used` already.
    pub(crate) fn add_reserved(&self, me: Owner, bytes: u64) {
        self.process(me.slot())[word::RESERVED].fetch_add(bytes, Ordering::AcqRel);
    }

    /// `bytes` are no longer reserved by `me`.
    pub(crate) fn sub_reserved(&self, me: Owner, bytes: u64) {
        self.process(me.slot())[word::RESERVED].fetch_sub(bytes, Ordering::AcqRel);
    }

    /// Bytes that processes have reserved now, dead ones included.
    pub(crate) fn reserved(&self) -> u64 {
        self.slots().map(|slot| self.process(slot)[word::RESERVED].load(Ordering::Acquire) & MASK).sum()
    }

    /// Counts `bytes` as lent out by this process. They are part of `lent` already.
    pub(crate) fn add_lent(&self, me: Owner, bytes: u64) {
        self.process(me.slot())[word::LENT].fetch_add(bytes, Ordering::AcqRel);
    }

    /// `bytes` are no longer lent out by `me`.
    pub(crate) fn sub_lent(&self, me: Owner, bytes: u64) {
        self.process(me.slot())[word::LENT].fetch_sub(bytes, Ordering::AcqRel);
    }

    /// Gives back what processes had reserved or lent out when they died. Returns the bytes of reservations.
    pub(crate) fn reap(&self) -> u64 {
        let mut reaped = 0;
        for slot in self.slots() {
            reaped += self.reap_word(slot, word::RESERVED, self.used());
            self.reap_word(slot, word::LENT, self.lent());
        }
        reaped
    }

    fn reap_word(&self, slot: u16, word: usize, total: &AtomicU64) -> u64 {
        let word = &self.process(slot)[word];
        let value = word.load(Ordering::Acquire);
        if value & MASK == 0 || self.is_alive(Owner::new(slot, (value >> BYTES) as u16)) {
            return 0;
        }
        // If the slot has a new holder, or another process was faster, the word is another one now.
        if word.compare_exchange(value, value & !MASK, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return 0;
        }
        give_back(total, value & MASK);
        value & MASK
    }

    /// Forgets what all processes had reserved and lent out. Only for whoever has the directory alone.
    pub(crate) fn clear_processes(&self) {
        for slot in self.slots() {
            for word in [word::RESERVED, word::LENT] {
                self.process(slot)[word].fetch_and(!MASK, Ordering::AcqRel);
            }
        }
    }

    /// Owners and process ids (each in its own namespace) of the processes that have the directory open.
    pub(crate) fn processes(&self) -> Vec<(Owner, u32)> {
        self.slots()
            .filter_map(|slot| {
                let words = self.process(slot);
                let owner = Owner::new(slot, (words[word::RESERVED].load(Ordering::Acquire) >> BYTES) as u16);
                self.is_alive(owner).then(|| (owner, words[word::PID].load(Ordering::Relaxed) as u32))
            })
            .collect()
    }

    fn slots(&self) -> impl Iterator<Item = u16> {
        0..self.top().load(Ordering::Acquire).min(u64::from(SLOTS)) as u16
    }
}

/// Takes `bytes` off `total`, which is shared with processes that may have counted anything: it stops at 0.
pub(crate) fn give_back(total: &AtomicU64, bytes: u64) {
    if bytes > 0 {
        let taken =
            total.try_update(Ordering::AcqRel, Ordering::Acquire, |all| Some(all.saturating_sub(bytes)));
        debug_assert!(taken.is_ok_and(|before| before >= bytes), "{bytes} given back of {taken:?}");
    }
}

fn no_locks(e: io::Error) -> Error {
    Error::from(e).with_context("hint", "the cache directory must be on a filesystem with POSIX locks")
}

/// Takes the lock of one byte for this process, without waiting. False if another process has it; true also if this
/// process has it already.
///
/// # Errors
/// What the filesystem says, as `ENOLCK` where it has no locks.
pub(crate) fn try_lock(fd: BorrowedFd<'_>, byte: i64) -> io::Result<bool> {
    let mut range = range(libc::F_WRLCK, byte, 1);
    match fcntl(fd, libc::F_SETLK, &mut range) {
        Ok(()) => Ok(true),
        Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Gives back the lock of one byte.
pub(crate) fn unlock(fd: BorrowedFd<'_>, byte: i64) {
    if let Err(e) = fcntl(fd, libc::F_SETLK, &mut range(libc::F_UNLCK, byte, 1)) {
        tracing::error!(error = %e, "unlocking failed");
    }
}

/// Whether another process has a lock on any of these bytes.
///
/// # Errors
/// What the filesystem says, as `ENOLCK` where it has no locks.
pub(crate) fn held(fd: BorrowedFd<'_>, start: i64, len: i64) -> io::Result<bool> {
    let mut range = range(libc::F_WRLCK, start, len);
    fcntl(fd, libc::F_GETLK, &mut range)?;
    Ok(range.l_type != libc::F_UNLCK as libc::c_short)
}

fn range(kind: libc::c_int, start: i64, len: i64) -> libc::flock {
    // SAFETY: a plain C structure of integers, for which zeros are valid.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    range.l_type = kind as libc::c_short;
    range.l_whence = libc::SEEK_SET as libc::c_short;
    range.l_start = start;
    range.l_len = len;
    range
}

fn fcntl(fd: BorrowedFd<'_>, command: libc::c_int, range: &mut libc::flock) -> io::Result<()> {
    loop {
        // SAFETY: the descriptor is open while it is borrowed, and these commands take a pointer to a `flock`.
        if unsafe { libc::fcntl(fd.as_raw_fd(), command, ptr::from_mut(range)) } == 0 {
            return Ok(());
        }
        let e = io::Error::last_os_error();
        if e.kind() != io::ErrorKind::Interrupted {
            return Err(e);
        }
    }
}

#[cfg(test)]
mod tests;
