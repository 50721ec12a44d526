//! What people ask of a cache directory: how full it is, whether it is sound, and to remove or keep things.

use nearfs_backends::io::Buffer;
use nearfs_backends::{Error, ErrorKind, Result};

use super::catalogue::Catalogue;
use super::evict;
use super::index::{Entry, PINNED};
use super::key::Key;
use super::object::Large;
use super::recover::{Files, clear_fan};
use super::small::{self, Read, SMALL};

/// How full a directory is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Status {
    /// Objects up to 1 MiB.
    pub(crate) small: u64,
    /// Larger objects, and parts of very large ones.
    pub(crate) large: u64,
    /// Bytes of disk that objects are charged for.
    pub(crate) bytes: u64,
    /// The same, with what is being written now.
    pub(crate) used: u64,
    pub(crate) limit: u64,
    /// Bytes that somebody outside has.
    pub(crate) lent: u64,
    /// Pinned objects, and the bytes that they have or may come to have.
    pub(crate) pinned: u64,
    pub(crate) pinned_bytes: u64,
    /// Objects that are not here any more, but whose accesses are remembered.
    pub(crate) remembered: u64,
    /// Processes that have the directory open.
    pub(crate) processes: u64,
}

/// Looks at every slot: some ten milliseconds for a million of them.
pub(crate) fn status(cat: &Catalogue) -> Status {
    let mut status = Status {
        used: cat.dir().used(),
        limit: cat.dir().limit(),
        lent: cat.dir().lent(),
        remembered: cat.index().count().ghosts,
        processes: cat.dir().processes().len() as u64,
        ..Status::default()
    };
    for entry in cat.index().live() {
        match entry.has_state() {
            true => status.large += 1,
            false => status.small += 1,
        }
        status.bytes += entry.charged;
        if entry.is_pinned() {
            status.pinned += 1;
            status.pinned_bytes += pinnable(&entry);
        }
    }
    status
}

/// What [`verify`] found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Report {
    /// Objects looked at.
    pub(crate) entries: u64,
    /// Bytes of them that are there and right.
    pub(crate) bytes: u64,
    /// Objects that were wrong or missing and were removed; of large ones, those of which a part was.
    pub(crate) dropped: u64,
    /// Objects that could not be read just now, which says nothing about them.
    pub(crate) unread: u64,
    pub(crate) files: Files,
}

/// Compares everything with its checksums, whatever is believed of it, and removes what is wrong and what is left
/// over. Others may use the cache meanwhile. `step` is called now and then, with the report so far; false ends it.
pub(crate) fn verify(cat: &Catalogue, step: &mut dyn FnMut(&Report) -> bool) -> Report {
    let mut report = Report::default();
    let mut buffer = Buffer::with_capacity(SMALL as usize);
    for entry in cat.index().live() {
        buffer.clear();
        report.entries += 1;
        match entry.has_state() {
            true => verify_large(cat, &entry, &mut report),
            false => verify_small(cat, &entry, &mut buffer, &mut report),
        }
        if !step(&report) {
            return report;
        }
    }
    clear_fans(cat, &mut report.files);
    report
}

fn verify_small(cat: &Catalogue, entry: &Entry, buffer: &mut Buffer, report: &mut Report) {
    if entry.size > buffer.remaining() as u64 {
        // No program writes that: a damaged page of the index.
        report.dropped += u64::from(evict::discard(cat, entry, "its size is impossible"));
        return;
    }
    match small::check(cat, entry, buffer) {
        Read::Hit => report.bytes += entry.size,
        Read::Wrong => report.dropped += 1,
        // It left meanwhile.
        Read::Miss if !cat.index().is_current(entry.at) => report.entries -= 1,
        Read::Miss | Read::Later => report.unread += 1,
    }
}

fn verify_large(cat: &Catalogue, entry: &Entry, report: &mut Report) {
    let large = match Large::open(&cat.ground(), &entry.key, entry.at, entry.size) {
        Ok(Some(large)) => large,
        Ok(None) => {
            let dropped = evict::discard(cat, entry, "its files are missing or not its own");
            report.dropped += u64::from(dropped);
            report.entries -= u64::from(!dropped);
            return;
        }
        Err(_) => {
            report.unread += 1;
            return;
        }
    };
    let (secret, mut buffer) = (large.secret(), Vec::new());
    let mut wrong = false;
    for unit in large.units(&(0..entry.size)) {
        if !large.state().is_resident(unit) {
            continue;
        }
        match large.prove_unit(unit, secret, &mut buffer) {
            Ok(right) => {
                report.bytes += if right { buffer.len() as u64 } else { 0 };
                // Wrong, unless somebody took it away just now.
                wrong |= !right;
            }
            Err(_) => {
                report.unread += 1;
                return;
            }
        }
    }
    report.dropped += u64::from(wrong);
}

fn clear_fans(cat: &Catalogue, files: &mut Files) {
    for number in 0..=u8::MAX {
        if let Ok(found) = clear_fan(cat, number) {
            files.orphans += found.orphans;
            files.foreign += found.foreign;
        }
    }
}

/// What [`clear`] and [`evict()`] did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Removed {
    pub(crate) entries: u64,
    /// Bytes of disk.
    pub(crate) bytes: u64,
    /// Objects that stay: lent to somebody, or, for [`evict()`], pinned.
    pub(crate) kept: u64,
}

impl Removed {
    fn remove(&mut self, cat: &Catalogue, entry: &Entry) {
        match evict::remove(cat, entry) {
            Some(bytes) => {
                self.entries += 1;
                self.bytes += bytes;
            }
            None => self.kept += u64::from(cat.index().is_current(entry.at)),
        }
    }
}

/// Removes everything that is not lent, pinned objects too, and what is left over. Readers go on: what they need
/// is fetched again.
pub(crate) fn clear(cat: &Catalogue) -> Removed {
    let mut removed = Removed::default();
    for entry in cat.index().live() {
        removed.remove(cat, &entry);
    }
    clear_fans(cat, &mut Files::default());
    removed
}

/// Removes the objects of `keys` that are here, but for pinned and lent ones.
pub(crate) fn evict(cat: &Catalogue, keys: impl IntoIterator<Item = Key>) -> Removed {
    let mut removed = Removed::default();
    for key in keys {
        match cat.index().find(&key).and_then(|at| cat.index().entry(at)) {
            Some(entry) if entry.is_pinned() => removed.kept += 1,
            Some(entry) => removed.remove(cat, &entry),
            None => {}
        }
    }
    removed
}

/// Keeps the object of `key` until it is unpinned, and says whether it is here to be kept. Of a large object all that
/// is or will be there is kept.
///
/// # Errors
/// `NoSpace` if more than half of the limit would be pinned.
pub(crate) fn pin(cat: &Catalogue, key: &Key) -> Result<bool> {
    let Some(entry) = cat.index().find(key).and_then(|at| cat.index().entry(at)) else { return Ok(false) };
    if entry.is_pinned() {
        return Ok(true);
    }
    // First pinned, then counted: of two who do this at once, at least one sees both.
    if !cat.index().set_flags(entry.at, PINNED) {
        return Ok(false);
    }
    let pinned: u64 = cat.index().live().filter(Entry::is_pinned).map(|e| pinnable(&e)).sum();
    let most = cat.dir().limit() / 2;
    if pinned > most {
        cat.index().clear_flags(entry.at, PINNED);
        return Err(Error::new(
            ErrorKind::NoSpace,
            format!(
                "expected at most {most} bytes pinned (half of the limit), found {pinned} with this object"
            ),
        )
        .with_context("hint", "unpin something, or raise --cache-size"));
    }
    Ok(cat.index().is_current(entry.at))
}

/// Lets the object of `key` go again when room is needed, and says whether it is here.
pub(crate) fn unpin(cat: &Catalogue, key: &Key) -> bool {
    cat.index().find(key).is_some_and(|at| cat.index().clear_flags(at, PINNED))
}

/// Bytes that a pinned object keeps from others, all of it being there.
fn pinnable(entry: &Entry) -> u64 {
    entry.charged.max(small::charge(entry.size))
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
