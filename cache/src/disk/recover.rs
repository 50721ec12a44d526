//! [`Janitor`]: what crashes, power cuts and people leave behind is found and cleared, a little at a time.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, Dir, FileType};

use super::catalogue::Catalogue;
use super::evict::{self, random};
use super::host::Host;
use super::index::Claimed;
use super::key::Key;
use super::process::Owner;
use super::publish::TEMPORARY;

/// Slots of the index looked at in one pass: 8 MiB of it.
const SLOTS: usize = 1 << 16;
/// Temporary files older than this many seconds have no owner any more: nothing takes that long to write.
const TEMPORARY_AGE: i64 = 3600;

/// Walks through a directory of the cache in the background, over and over: in each pass a stretch of the index and
/// one of the 256 directories of files. Every process has its own; they do not disturb each other.
#[derive(Debug)]
pub(crate) struct Janitor {
    slot: usize,
    fan: u8,
}

/// What one pass found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Pass {
    /// Slots that dead processes were filling or removing.
    pub(crate) undone: u64,
    pub(crate) files: Files,
    /// Bytes that were counted but belonged to nobody.
    pub(crate) recovered: u64,
    /// The directory was removed or replaced by somebody. Nothing works in it any more, and nothing is wrong with
    /// what was read from it: it is to be opened anew.
    pub(crate) gone: bool,
}

/// What was found in the directories of files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Files {
    /// Files of objects that the index does not know, and temporary files of the dead: removed.
    pub(crate) orphans: u64,
    /// What nearfs did not make: left alone.
    pub(crate) foreign: u64,
}

impl Janitor {
    /// One that begins anywhere, so that those of several processes do not do the same at the same time.
    pub(crate) fn new() -> Self {
        Janitor { slot: random() as usize, fan: random() as u8 }
    }

    /// One pass: some milliseconds, more if there is much to clear. Blocks.
    pub(crate) fn pass(&mut self, cat: &Catalogue) -> Pass {
        let mut pass = Pass { gone: cat.is_gone(), ..Pass::default() };
        if pass.gone || cat.me() == Owner::NO_SLOT || !cat.dir().writable() {
            return pass;
        }
        if let Err(e) = cat.dir().renew() {
            tracing::debug!(error = %e, "removed directories of the cache cannot be made anew");
        }
        cat.dir().space().reap();
        pass.undone = self.repair(cat);
        // The limit was lowered, or others filled the disk: nothing new has to arrive for us to give way.
        let wanted = cat.dir().space().wanted(0);
        if wanted > 0 {
            evict::make_room(cat, wanted, None);
        }
        pass.files = clear_fan(cat, self.fan).unwrap_or_else(|e| {
            tracing::debug!(directory = self.fan, error = %e, "cannot look for leftovers");
            Files::default()
        });
        self.fan = self.fan.wrapping_add(1);
        if self.fan.is_multiple_of(16) {
            pass.recovered = cat.dir().space().reconcile(cat.index().charged());
        }
        pass
    }

    /// Undoes what the dead were doing in the next stretch of the index, and repairs what a power cut did to it.
    fn repair(&mut self, cat: &Catalogue) -> u64 {
        let start = self.slot % cat.index().slots();
        let end = start.saturating_add(SLOTS).min(cat.index().slots());
        self.slot = end;
        let found = cat.index().inspect(start..end, cat.me(), &|owner| cat.is_alive(owner));
        cat.dir().space().found(found.unlisted);
        for entry in found.odd.into_iter().filter_map(|at| cat.index().entry(at)) {
            evict::discard(cat, &entry, "its entry is damaged");
        }
        found.dead.into_iter().filter(|at| evict::undo(cat, *at)).count() as u64
    }
}

/// Removes what is left over in one of the directories of files.
///
/// # Errors
/// What the filesystem says.
pub(crate) fn clear_fan(cat: &Catalogue, number: u8) -> io::Result<Files> {
    let fan = cat.dir().fan(number)?;
    let mut files = Files::default();
    // `read_from` opens the directory anew, so its position is this walk's own.
    for entry in Dir::read_from(fan)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        let directory = entry.file_type() == FileType::Directory;
        match key_of(name) {
            Some(key) if key.bucket() == number && !directory => {
                if !cat.index().knows(&key) && remove_orphan(cat, &key) {
                    files.orphans += 1;
                }
            }
            _ if name.starts_with(TEMPORARY.as_bytes()) && !directory => {
                files.orphans += u64::from(remove_temporary(fan, entry.file_name())?);
            }
            _ => files.foreign += 1,
        }
    }
    Ok(files)
}

/// The key that a data file or a state file of this name belongs to.
fn key_of(name: &[u8]) -> Option<Key> {
    Key::parse(name.strip_suffix(b".s").unwrap_or(name))
}

/// Removes the files of a key that has no slot. It is claimed for that, so that nobody makes new ones meanwhile.
fn remove_orphan(cat: &Catalogue, key: &Key) -> bool {
    let claimed = cat.index().claim(key, 0, cat.me(), cat.moment(), &|owner| cat.is_alive(owner));
    match claimed {
        Claimed::Mine(at) => {
            let removed = evict::remove_files(cat, key, true);
            cat.index().vacate(at, false);
            removed.is_ok()
        }
        // Somebody makes it right now, or the bucket is full: then it waits for the next time.
        Claimed::Live(_) | Claimed::Busy(_) | Claimed::Dead(_) | Claimed::Full => false,
    }
}

/// Removes a temporary file if it is too old to be somebody's.
fn remove_temporary(fan: BorrowedFd<'_>, name: &std::ffi::CStr) -> io::Result<bool> {
    let stat = match rustix::fs::statat(fan.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => stat,
        Err(rustix::io::Errno::NOENT) => return Ok(false),
        Err(e) => return Err(e.into()),
    };
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime).tv_sec;
    if stat.st_mtime as i64 + TEMPORARY_AGE > now {
        return Ok(false);
    }
    match rustix::fs::unlinkat(fan, name, AtFlags::empty()) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(true),
        Err(e) => Err(e.into()),
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
