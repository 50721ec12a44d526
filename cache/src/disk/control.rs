//! [`Control`]: the file that all processes of a directory count in, opened once in a process and never closed.
//!
//! 64-bit words of the header (4 KiB), by number; the rest is 0:
//! ```text
//!  0 mark   1 format version   2 slots of the index   3 bytes of one   4 inode of the index, 0 before it is made
//!  8 limit, bytes   16 used, bytes   24 lent, bytes   32 logical clock, from 1
//! 40 boot of the processes that have it open   48 process slots ever used
//! ```
//! The process table follows, 4096 slots of 8 words: 0 generation (16 bits) and bytes reserved (48), 1 process id in
//! its own namespace, 2 generation and bytes lent. Locks: byte n of the file by the process of slot n, byte 2^20 by
//! whoever opens the directory.

use std::fmt;
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::ptr;
use std::sync::Weak;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::fs::{AtFlags, Mode, OFlags};

use super::dir::Directory;
use super::mapping::Mapping;
use super::process::{self, SLOTS, Seat};
use super::publish::Unnamed;
use super::rights::Rights;
use super::{FORMAT, INDEX_SLOT};

/// Bytes of the header.
const HEADER: usize = 4096;
/// Bytes of a slot of the process table.
const PROCESS: usize = 64;
/// Bytes of the file.
pub(crate) const CONTROL_LEN: u64 = (HEADER + SLOTS as usize * PROCESS) as u64;
/// `nearfs` and a mark that reads differently in the other byte order.
const MAGIC: u64 = u64::from_be_bytes(*b"nearfs\x01\x02");

/// Words of the header. What is written often has a cache line (8 words) of its own.
mod word {
    pub(super) const MAGIC: usize = 0;
    pub(super) const FORMAT: usize = 1;
    pub(super) const INDEX_SLOTS: usize = 2;
    pub(super) const INDEX_SLOT_BYTES: usize = 3;
    pub(super) const INDEX_FILE: usize = 4;
    pub(super) const LIMIT: usize = 8;
    pub(super) const USED: usize = 16;
    pub(super) const LENT: usize = 24;
    pub(super) const CLOCK: usize = 32;
    pub(super) const BOOT: usize = 40;
    pub(super) const TOP: usize = 48;
}

/// The control file of one directory as this process has it. Lives as long as the process: see [`Control::adopt`].
pub(crate) struct Control {
    /// Device and inode of the file.
    id: (u64, u64),
    file: File,
    map: Mapping,
    seat: Seat,
    next: AtomicPtr<Control>,
}

/// Every control file that this process opened, latest first. A list without locks: a forked child may not find a
/// lock that another thread of its parent held, and it must find the list.
static OPENED: AtomicPtr<Control> = AtomicPtr::new(ptr::null_mut());

/// What a file called `control` turned out to be.
pub(crate) enum Found {
    /// Ours.
    Control(&'static Control),
    /// There is none.
    Missing,
    /// Something else, with the reason and the file. It stays open: if this process has used the file (and somebody
    /// overwrote it since), closing it would drop the process's locks.
    Foreign(String, ManuallyDrop<File>),
}

impl Control {
    /// Opens the control file in `dir`.
    ///
    /// # Errors
    /// What the filesystem says.
    pub(crate) fn open(dir: BorrowedFd<'_>) -> io::Result<Found> {
        let stat = match rustix::fs::statat(dir, "control", AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(rustix::io::Errno::NOENT) => return Ok(Found::Missing),
            Err(e) => return Err(e.into()),
        };
        if let Some(control) = Self::opened((stat.st_dev, stat.st_ino)) {
            // The length first: behind the end of a file, its mapping cannot be touched.
            let right = u64::try_from(stat.st_size).is_ok_and(|len| len == CONTROL_LEN);
            if right && check(&control.map).is_ok() {
                return Ok(Found::Control(control));
            }
        }
        // A name that is not a regular file could block the opening (a FIFO) or lead elsewhere (a link).
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = match rustix::fs::openat(dir, "control", flags, Mode::empty()) {
            Ok(fd) => File::from(fd),
            Err(rustix::io::Errno::NOENT) => return Ok(Found::Missing),
            Err(e) => return Err(e.into()),
        };
        let map = match Self::map(&file) {
            Ok(map) => map,
            Err(e) if e.kind() == io::ErrorKind::InvalidData => {
                return Ok(Found::Foreign(e.to_string(), ManuallyDrop::new(file)));
            }
            Err(e) => return Err(e),
        };
        Self::adopt(file, map).map(Found::Control)
    }

    /// Makes the control file in `dir` for an index of `slots` slots, unless somebody else is faster: its file is
    /// opened then.
    ///
    /// # Errors
    /// What the filesystem says; nothing is left behind.
    pub(crate) fn create(dir: BorrowedFd<'_>, rights: Rights, slots: u64, limit: u64) -> io::Result<Found> {
        let unnamed = Unnamed::create(dir, rights)?;
        let map = Mapping::create(unnamed.file(), CONTROL_LEN)?;
        let words = map.u64s(0, HEADER / 8);
        for (word, value) in [
            (word::FORMAT, FORMAT),
            (word::INDEX_SLOTS, slots),
            (word::INDEX_SLOT_BYTES, INDEX_SLOT),
            (word::LIMIT, limit),
            // Time 0 means never.
            (word::CLOCK, 1),
            (word::MAGIC, MAGIC),
        ] {
            words[word].store(value, Ordering::Release);
        }
        match unnamed.publish("control")? {
            Some(file) => Self::adopt(file, map).map(Found::Control),
            None => Self::open(dir),
        }
    }

    fn map(file: &File) -> io::Result<Mapping> {
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a regular file"));
        }
        let map = Mapping::open(file, CONTROL_LEN)?;
        check(&map)?;
        Ok(map)
    }

    /// The control file with this identity, if this process has it open.
    fn opened(id: (u64, u64)) -> Option<&'static Control> {
        Self::all().find(|control| control.id == id)
    }

    /// Every control file that this process has open.
    pub(super) fn all() -> impl Iterator<Item = &'static Control> {
        let mut at = OPENED.load(Ordering::Acquire);
        std::iter::from_fn(move || {
            // SAFETY: the list only ever holds leaked boxes, made visible by the compare-exchange in `adopt`.
            let control = unsafe { at.as_ref() }?;
            at = control.next.load(Ordering::Acquire);
            Some(control)
        })
    }

    /// Keeps `file` for as long as the process lives, for closing any descriptor of it would drop every lock that the
    /// process holds on it. A thread that opened the same file at the same time wins or loses; the loser's descriptor
    /// stays open, unused.
    fn adopt(file: File, map: Mapping) -> io::Result<&'static Control> {
        let metadata = file.metadata()?;
        let id = (metadata.dev(), metadata.ino());
        let seat = Seat::new()?;
        let control: &'static mut Control =
            Box::leak(Box::new(Control { id, file, map, seat, next: AtomicPtr::new(ptr::null_mut()) }));
        let control: *mut Control = control;
        let mut first = OPENED.load(Ordering::Acquire);
        loop {
            if let Some(opened) = Self::opened(id) {
                return Ok(opened);
            }
            // SAFETY: leaked above, and shared with nobody until the exchange below.
            unsafe { (*control).next.store(first, Ordering::Release) };
            match OPENED.compare_exchange(first, control, Ordering::AcqRel, Ordering::Acquire) {
                // SAFETY: leaked above; from here on there are only shared references.
                Ok(_) => return Ok(unsafe { &*control }),
                Err(other) => first = other,
            }
        }
    }

    /// Whether the name `control` in `dir` still means this file. In doubt it does.
    pub(crate) fn is_named(&self, dir: BorrowedFd<'_>) -> bool {
        match rustix::fs::statat(dir, "control", AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => (stat.st_dev, stat.st_ino) == self.id,
            Err(e) => e != rustix::io::Errno::NOENT,
        }
    }

    fn word(&self, word: usize) -> &AtomicU64 {
        &self.map.u64s(word * 8, 1)[0]
    }

    /// Slots of the index.
    pub(crate) fn index_slots(&self) -> u64 {
        self.word(word::INDEX_SLOTS).load(Ordering::Relaxed)
    }

    /// Limit of `used`, in bytes.
    pub(crate) fn limit(&self) -> &AtomicU64 {
        self.word(word::LIMIT)
    }

    /// Bytes of all entries and reservations.
    pub(crate) fn used(&self) -> &AtomicU64 {
        self.word(word::USED)
    }

    /// Bytes that may not be evicted because somebody outside has them.
    pub(crate) fn lent(&self) -> &AtomicU64 {
        self.word(word::LENT)
    }

    /// The inode of the index that belongs to this file; 0 before it was made.
    pub(crate) fn index_file(&self) -> &AtomicU64 {
        self.word(word::INDEX_FILE)
    }

    /// The logical clock: accesses of the whole cache so far.
    pub(crate) fn clock(&self) -> &AtomicU64 {
        self.word(word::CLOCK)
    }

    /// The boot under which the processes that have the directory open run.
    pub(crate) fn boot(&self) -> &AtomicU64 {
        self.word(word::BOOT)
    }

    /// All process slots from this one on have never been used.
    pub(crate) fn top(&self) -> &AtomicU64 {
        self.word(word::TOP)
    }

    /// The words of a slot of the process table.
    pub(crate) fn process(&self, slot: u16) -> &[AtomicU64] {
        self.map.u64s(HEADER + usize::from(slot) * PROCESS, PROCESS / 8)
    }

    pub(crate) fn seat(&self) -> &Seat {
        &self.seat
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Where this process keeps the one [`Directory`] that uses this file; it may be gone.
    pub(crate) fn shared(&self) -> &'static Mutex<Weak<Directory>> {
        self.seat.shared()
    }
}

/// `InvalidData` if this is not the control file of this format.
fn check(map: &Mapping) -> io::Result<()> {
    let wrong = |what: String| Err(io::Error::new(io::ErrorKind::InvalidData, what));
    let words = map.u64s(0, HEADER / 8);
    let load = |word: usize| words[word].load(Ordering::Acquire);
    let slots = load(word::INDEX_SLOTS);
    if load(word::MAGIC) != MAGIC {
        return wrong("not a control file of nearfs on this kind of machine".to_owned());
    }
    if (load(word::FORMAT), load(word::INDEX_SLOT_BYTES)) != (FORMAT, INDEX_SLOT)
        || !slots.is_power_of_two()
        || !super::INDEX_SLOTS.contains(&slots)
    {
        return wrong(format!("format {} with {slots} slots", load(word::FORMAT)));
    }
    Ok(())
}

/// Removes the foreign file called `control` from `dir`, if no process uses it and the name still means it.
///
/// # Errors
/// What the filesystem says. `ResourceBusy` if a process uses it.
pub(crate) fn remove_foreign(dir: BorrowedFd<'_>, file: &File) -> io::Result<()> {
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return unlink_if(dir, (metadata.dev(), metadata.ino()));
    }
    // The lock keeps two processes from removing each other's new file after finding the same old one.
    let busy = || io::Error::new(io::ErrorKind::ResourceBusy, "a process uses it");
    if !process::try_lock(file.as_fd(), process::OPENING)? {
        return Err(busy());
    }
    let removed = match process::held(file.as_fd(), 0, i64::from(SLOTS)) {
        Ok(false) => unlink_if(dir, (metadata.dev(), metadata.ino())),
        Ok(true) => Err(busy()),
        Err(e) => Err(e),
    };
    process::unlock(file.as_fd(), process::OPENING);
    removed
}

/// Takes the name `control` from the file with this identity.
fn unlink_if(dir: BorrowedFd<'_>, id: (u64, u64)) -> io::Result<()> {
    match rustix::fs::statat(dir, "control", AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) if (stat.st_dev, stat.st_ino) == id => {
            Ok(rustix::fs::unlinkat(dir, "control", AtFlags::empty())?)
        }
        Ok(_) | Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control").field("id", &self.id).finish_non_exhaustive()
    }
}
