//! Small objects: one data file and one index slot each, there wholly or not at all.

use std::fs::File;
use std::io;
use std::io::Write;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

use bytes::Bytes;
use nearfs_backends::io::Buffer;
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use super::catalogue::Catalogue;
use super::evict;
use super::host::Host;
use super::index::{CHARGE_UNIT, COMPLETE, Entry, Facts, SlotRef};
use super::key::Key;
use super::publish::Unnamed;

/// Largest small object, in bytes.
pub(crate) const SMALL: u64 = 1 << 20;

/// What a read came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Read {
    /// All bytes are in the buffer, and proven.
    Hit,
    /// It is not here.
    Miss,
    /// What was here could not be proven and was removed.
    Wrong,
    /// It may be here, but finding out could wait for the disk or for a checksum.
    Later,
}

/// How far a read may go for its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effort {
    /// The disk may be asked, and checksums may be computed.
    Full,
    /// Only what is in the kernel's caches and believed already.
    Instant,
    /// The disk is asked and the checksum is computed whatever is believed.
    Proof,
}

/// Appends the `size` bytes of `key` to `into`, which has room for them. May wait for the disk.
///
/// Any trouble with the disk is a miss; what cannot be proven is removed from the cache.
pub(crate) fn read(cat: &Catalogue, key: &Key, size: u64, into: &mut Buffer) -> Read {
    read_with(cat, key, size, into, Effort::Full)
}

/// As [`read`], for threads that must not wait: only bytes that the kernel has in memory, of an object that needs no
/// check of its checksum.
pub(crate) fn try_read(cat: &Catalogue, key: &Key, size: u64, into: &mut Buffer) -> Read {
    read_with(cat, key, size, into, Effort::Instant)
}

fn read_with(cat: &Catalogue, key: &Key, size: u64, into: &mut Buffer, effort: Effort) -> Read {
    let index = cat.index();
    let Some(entry) = index.find(key).and_then(|at| index.entry(at)) else { return Read::Miss };
    if entry.size != size || entry.has_state() {
        return Read::Miss;
    }
    let read = load(cat, &entry, into, effort);
    if read == Read::Hit {
        evict::accessed(cat, entry.at);
    }
    read
}

/// Reads the object of `entry` from the disk and compares its checksum, whatever is believed of it.
pub(crate) fn check(cat: &Catalogue, entry: &Entry, into: &mut Buffer) -> Read {
    load(cat, entry, into, Effort::Proof)
}

fn load(cat: &Catalogue, entry: &Entry, into: &mut Buffer, effort: Effort) -> Read {
    let before = into.len();
    let outcome = attempt(cat, entry, into, effort);
    // The name may have come to mean another file meanwhile, but only if the slot has changed hands.
    let read = match outcome {
        Outcome::Proven if cat.index().is_current(entry.at) => Read::Hit,
        Outcome::Proven | Outcome::Unclear => Read::Miss,
        Outcome::Later => Read::Later,
        // To remove it takes the disk.
        Outcome::Wrong(_) if effort == Effort::Instant => Read::Later,
        Outcome::Wrong(why) => match evict::discard(cat, entry, why) {
            true => Read::Wrong,
            false => Read::Miss,
        },
    };
    if read != Read::Hit {
        into.truncate(before);
    }
    read
}

enum Outcome {
    Proven,
    /// Not to be had now, which says nothing about the object (out of descriptors, interrupted).
    Unclear,
    Later,
    /// The disk does not have what the index says.
    Wrong(&'static str),
}

fn attempt(cat: &Catalogue, entry: &Entry, into: &mut Buffer, effort: Effort) -> Outcome {
    let file = match open(cat, &entry.key, effort) {
        Ok(file) => file,
        Err(e) => return failed(e, effort),
    };
    let stat = match rustix::fs::fstat(&file) {
        Ok(stat) => stat,
        Err(e) => return failed(e, effort),
    };
    let regular = stat.st_mode & libc::S_IFMT == libc::S_IFREG;
    if !regular || stat.st_size as u64 != entry.size || stat.st_ino != entry.ino {
        return Outcome::Wrong("another file has its name");
    }
    // A device number may change when the machine starts again or the filesystem is mounted anew, the file with it
    // does not: that alone is reason to check, not to throw away.
    let believed = entry.boot == cat.boot() && stat.st_dev == entry.dev && mtime_ns(&stat) == entry.mtime_ns;
    if effort == Effort::Instant && !believed {
        return Outcome::Later;
    }
    let start = into.len();
    match pread(&file, entry.size as usize, into, effort) {
        Ok(true) => {}
        Ok(false) => return Outcome::Wrong("its file became shorter"),
        Err(e) => return failed(e, effort),
    }
    if believed && effort != Effort::Proof {
        return Outcome::Proven;
    }
    if crc32c::crc32c(&into[start..]) != entry.crc {
        return Outcome::Wrong("its checksum is wrong");
    }
    if !believed {
        cat.index().believe(entry.at, cat.boot(), stat.st_dev, mtime_ns(&stat));
    }
    Outcome::Proven
}

/// What a failed system call says about the object.
fn failed(e: Errno, effort: Effort) -> Outcome {
    match e {
        Errno::AGAIN if effort == Effort::Instant => Outcome::Later,
        // The call is not there or not allowed: this way there is never an answer, the other one may have it.
        Errno::NOSYS | Errno::PERM | Errno::OPNOTSUPP | Errno::INVAL if effort == Effort::Instant => {
            Outcome::Later
        }
        Errno::NOENT => Outcome::Wrong("its file is missing"),
        Errno::LOOP | Errno::NOTDIR | Errno::ISDIR | Errno::NXIO => {
            Outcome::Wrong("another file has its name")
        }
        Errno::IO | Errno::NODATA | Errno::UCLEAN => Outcome::Wrong("the disk cannot read it"),
        _ => Outcome::Unclear,
    }
}

/// Opens the data file of `key`, whatever it may be by now: a link is not followed and a FIFO does not block.
fn open(cat: &Catalogue, key: &Key, effort: Effort) -> Result<File, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let name = key.name();
    let file = match effort {
        Effort::Instant => {
            let objects = cat.dir().opened_fan(key.bucket()).ok_or(Errno::AGAIN)?;
            rustix::fs::openat2(objects, name, flags, Mode::empty(), ResolveFlags::CACHED)?
        }
        Effort::Full | Effort::Proof => {
            rustix::fs::openat(cat.objects(key).map_err(errno)?, name, flags, Mode::empty())?
        }
    };
    Ok(file.into())
}

fn errno(e: io::Error) -> Errno {
    Errno::from_io_error(&e).unwrap_or(Errno::IO)
}

/// Appends the first `len` bytes of `file` to `into`. False if there are fewer.
fn pread(file: &File, len: usize, into: &mut Buffer, effort: Effort) -> Result<bool, Errno> {
    let mut at = 0;
    while at < len {
        let space = &mut into.spare_mut()[..len - at];
        let n = match effort {
            Effort::Instant => pread_cached(file, space, at as u64),
            Effort::Full | Effort::Proof => {
                rustix::io::pread(file, space, at as u64).map(|(read, _)| read.len())
            }
        };
        match n {
            Ok(0) => return Ok(false),
            Ok(n) => {
                // SAFETY: the kernel has just written the first `n` bytes of the spare part.
                unsafe { into.advance(n) };
                at += n;
            }
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(true)
}

/// Reads what the page cache has at `at`; `AGAIN` if it has nothing there.
fn pread_cached(file: &File, space: &mut [MaybeUninit<u8>], at: u64) -> Result<usize, Errno> {
    let slice = libc::iovec { iov_base: space.as_mut_ptr().cast(), iov_len: space.len() };
    // SAFETY: the descriptor is open, and the kernel writes at most `iov_len` bytes into memory that is borrowed
    // mutably until the call returns.
    let n = unsafe { libc::preadv2(file.as_raw_fd(), &slice, 1, at as libc::off_t, libc::RWF_NOWAIT) };
    usize::try_from(n).map_err(|_| errno(io::Error::last_os_error()))
}

pub(super) fn mtime_ns(stat: &Stat) -> u64 {
    // Before 1970 or after 2554: some number, which is compared for equality only.
    (stat.st_mtime as u64).wrapping_mul(1_000_000_000).wrapping_add(stat.st_mtime_nsec as i64 as u64)
}

/// Bytes that a small object of `size` bytes is charged for. An empty one costs its inode.
pub(crate) fn charge(size: u64) -> u64 {
    size.max(1).next_multiple_of(CHARGE_UNIT)
}

/// Puts the bytes of `key` into the cache: `data` is all of it, proven, and `at` its slot, which the caller claimed
/// ([`evict::claim`]). None if there is no room that the policy would give it. The slot is live or given up afterwards.
///
/// # Errors
/// What the filesystem says; the cache then stores nothing for a while.
pub(crate) fn store(cat: &Catalogue, key: &Key, at: SlotRef, data: &[Bytes]) -> io::Result<Option<SlotRef>> {
    let filling = Filling { cat, at: Some(at) };
    let size: usize = data.iter().map(Bytes::len).sum();
    let charge = charge(size as u64);
    let make_room = |bytes| evict::make_room(cat, bytes, Some(key));
    let Some(reserved) = cat.dir().space().reserve(charge, &make_room) else { return Ok(None) };
    match write(cat, key, data) {
        Ok(facts) => {
            reserved.commit(charge);
            Ok(Some(filling.publish(&Facts { charged: charge, ..facts })))
        }
        Err(e) => {
            cat.failed(&e);
            Err(e)
        }
    }
}

/// A claimed slot, given up unless the object gets there.
struct Filling<'d> {
    cat: &'d Catalogue,
    at: Option<SlotRef>,
}

impl Filling<'_> {
    fn publish(mut self, facts: &Facts) -> SlotRef {
        let at = self.at.take().expect("a slot is published once");
        self.cat.index().publish(at, facts)
    }
}

impl Drop for Filling<'_> {
    fn drop(&mut self) {
        if let Some(at) = self.at {
            // It was asked for: that is remembered, so that it may be let in the next time.
            self.cat.index().vacate(at, true);
        }
    }
}

/// Makes the data file: whole before it has its name.
fn write(cat: &Catalogue, key: &Key, data: &[Bytes]) -> io::Result<Facts> {
    for _ in 0..3 {
        let objects = cat.objects(key)?;
        let unnamed = match Unnamed::create(objects, cat.rights()) {
            // Did somebody remove the directory? ext4 then says EPERM, others ENOENT.
            Err(_) if cat.dir().renew()? > 0 => continue,
            created => created?,
        };
        let mut crc = 0;
        for piece in data {
            unnamed.file().write_all(piece)?;
            crc = crc32c::crc32c_append(crc, piece);
        }
        // Linking changes neither of these.
        let stat = rustix::fs::fstat(unnamed.file())?;
        if unnamed.publish(&key.name())?.is_some() {
            return Ok(Facts {
                ino: stat.st_ino,
                dev: stat.st_dev,
                mtime_ns: mtime_ns(&stat),
                crc,
                flags: COMPLETE,
                boot: cat.boot(),
                charged: 0,
            });
        }
        // The key is ours, so whatever has the name was left over by somebody who is dead.
        remove_name(objects, &key.name())?;
    }
    Err(io::Error::new(io::ErrorKind::AlreadyExists, "the name of a cache file cannot be cleared"))
}

/// Removes what has this name: a file, a link, or an empty directory. It is no error if there is nothing.
///
/// # Errors
/// What the filesystem says; a directory that is not empty stays and is no error either.
pub(crate) fn remove_name(objects: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    match rustix::fs::unlinkat(objects, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(Errno::ISDIR) => {
            // Somebody else made it, and it may be of use to them.
            let _ = rustix::fs::unlinkat(objects, name, AtFlags::REMOVEDIR);
            Ok(())
        }
        Err(e) => Err(e.into()),
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
