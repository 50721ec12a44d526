//! [`Walk`]: a directory, or all below it, in listing order and in pieces.

use std::cmp::Ordering;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, RawDir, Stat};
use rustix::io::Errno;

use super::attr::{self, Found};
use super::temp::TEMP_PREFIX;
use crate::error::{Error, Result};
use crate::io::Beat;
use crate::metadata::DirEntry;
use crate::metrics::LIST_SKIPPED;
use crate::options::ListOptions;
use crate::path::FsPath;

/// Entries of one piece.
const BATCH: usize = 1024;
/// Directories kept open at the same time; those further up are opened again when the walk comes back to them.
const OPEN_LEVELS: usize = 32;

/// A listing in progress. Holds the sorted names of the directories it is inside of, and nothing else.
pub(super) struct Walk {
    dir: FsPath,
    options: ListOptions,
    levels: Vec<Level>,
    state: State,
}

#[derive(PartialEq, Eq)]
enum State {
    New,
    Going,
    Over,
}

struct Level {
    path: FsPath,
    /// Device and inode: where a walk is inside already, it does not go in again.
    id: (u64, u64),
    fd: Option<OwnedFd>,
    names: Names,
}

impl Walk {
    pub(super) fn new(dir: FsPath, options: ListOptions) -> Self {
        Walk { dir, options, levels: Vec::new(), state: State::New }
    }

    /// True when there is nothing more to come.
    pub(super) fn is_over(&self) -> bool {
        self.state == State::Over
    }

    /// The next entries, at most [`BATCH`]; an error is the last item.
    pub(super) fn next_batch(&mut self, root: &OwnedFd, beat: &Beat) -> Vec<Result<DirEntry>> {
        let mut batch = Vec::new();
        if self.state == State::New {
            self.state = State::Going;
            if let Err(e) = self.enter(root, self.dir.clone(), true, beat) {
                self.fail(e, &mut batch);
            }
        }
        while self.state == State::Going && batch.len() < BATCH && beat.is_wanted() {
            if let Err(e) = self.step(root, beat, &mut batch) {
                self.fail(e, &mut batch);
            }
        }
        batch
    }

    fn fail(&mut self, error: Error, batch: &mut Vec<Result<DirEntry>>) {
        self.state = State::Over;
        self.levels.clear();
        batch.push(Err(error));
    }

    /// One name further.
    fn step(&mut self, root: &OwnedFd, beat: &Beat, batch: &mut Vec<Result<DirEntry>>) -> Result<()> {
        let Some(level) = self.levels.last_mut() else {
            self.state = State::Over;
            return Ok(());
        };
        let Some(name) = level.names.next() else {
            self.levels.pop();
            return Ok(());
        };
        let Ok(path) = level.path.join(name) else {
            skipped("name");
            return Ok(());
        };
        let after = self.options.start_after.as_ref();
        let is_wanted = after.is_none_or(|a| path.cmp_listing(a) == Ordering::Greater);
        // What is not after the mark itself can still hold what is.
        let may_hold = after.is_none_or(|a| is_wanted || a.strip_prefix(&path).is_some());
        if !(is_wanted || self.options.recursive && may_hold) {
            return Ok(());
        }
        let fd = match &mut level.fd {
            Some(fd) => fd,
            closed => match attr::open_dir(root, &level.path) {
                Ok(fd) => closed.insert(fd),
                // The directory went while the walk was below it.
                Err(e) if is_gone(&e) => {
                    self.levels.pop();
                    return Ok(());
                }
                Err(e) => return Err(e.at(&level.path)),
            },
        };
        beat.touch();
        let Some(stat) = look(fd, name).map_err(|e| attr::error(e).at(&path))? else { return Ok(()) };
        match attr::classify(&stat) {
            Found::Special(_) => skipped("special"),
            Found::Known(metadata) => {
                let is_dir = metadata.is_dir();
                if is_wanted {
                    batch.push(Ok(DirEntry { path: path.clone(), metadata }));
                }
                if is_dir && self.options.recursive {
                    self.enter(root, path, false, beat)?;
                }
            }
        }
        Ok(())
    }

    /// Reads and sorts the names of `path`, which are next. A missing directory is an error only if `must_exist`.
    fn enter(&mut self, root: &OwnedFd, path: FsPath, must_exist: bool, beat: &Beat) -> Result<()> {
        let opened = match self.levels.last().and_then(|l| l.fd.as_ref()) {
            Some(parent) => {
                rustix::fs::openat(parent, path.name(), attr::DIRECTORY, rustix::fs::Mode::empty())
                    .map_err(|e| attr::lookup_error(e, &path))
            }
            None => attr::open_dir(root, &path),
        };
        let fd = match opened {
            Ok(fd) => fd,
            Err(e) if is_gone(&e) && !must_exist => return Ok(()),
            Err(e) => return Err(e.at(&path)),
        };
        let stat = rustix::fs::fstat(&fd).map_err(|e| attr::error(e).at(&path))?;
        let id = (stat.st_dev, stat.st_ino);
        if self.levels.iter().any(|l| l.id == id) {
            skipped("cycle");
            return Ok(());
        }
        let names = Names::read(&fd, beat).map_err(|e| attr::error(e).at(&path))?;
        if let Some(up) = self.levels.len().checked_sub(OPEN_LEVELS) {
            self.levels[up].fd = None;
        }
        self.levels.push(Level { path, id, fd: Some(fd), names });
        Ok(())
    }
}

fn is_gone(error: &Error) -> bool {
    error.kind() == crate::error::ErrorKind::NotFound
}

/// The attributes behind `name`, links followed; `None` for what is gone and for links that lead nowhere.
fn look(dir: &OwnedFd, name: &[u8]) -> rustix::io::Result<Option<Stat>> {
    match rustix::fs::statat(dir, name, AtFlags::empty()) {
        Ok(stat) => Ok(Some(stat)),
        Err(e @ (Errno::NOENT | Errno::NOTDIR | Errno::LOOP)) => {
            if e == Errno::LOOP || rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
                skipped("link");
            }
            Ok(None)
        }
        Err(e) => Err(e),
    }
}

fn skipped(reason: &'static str) {
    LIST_SKIPPED.counter(["local", reason]).increment(1);
}

/// The names of one directory, sorted, in two allocations.
#[derive(Default)]
struct Names {
    bytes: Vec<u8>,
    /// Begin and length of each name.
    spans: Vec<(usize, u16)>,
    next: usize,
}

impl Names {
    fn read(fd: &OwnedFd, beat: &Beat) -> rustix::io::Result<Names> {
        let mut names = Names::default();
        let mut space = Vec::with_capacity(64 << 10);
        let mut entries = RawDir::new(fd.as_fd(), space.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            let entry = match entry {
                Ok(entry) => entry,
                Err(Errno::INTR) => continue,
                // A directory that is being removed reads like an empty one.
                Err(Errno::NOENT) => break,
                Err(e) => return Err(e),
            };
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") || name.starts_with(TEMP_PREFIX) {
                continue;
            }
            let length = u16::try_from(name.len()).map_err(|_| Errno::NAMETOOLONG)?;
            names.spans.push((names.bytes.len(), length));
            names.bytes.extend_from_slice(name);
            if names.spans.len().is_multiple_of(512) {
                beat.touch();
            }
        }
        let Names { bytes, spans, .. } = &mut names;
        let name = |(at, length): (usize, u16)| bytes[at..at + length as usize].iter().chain(b"/");
        spans.sort_unstable_by(|a, b| name(*a).cmp(name(*b)));
        // A directory changed while it was read may give a name twice.
        spans.dedup_by(|a, b| name(*a).eq(name(*b)));
        Ok(names)
    }

    fn next(&mut self) -> Option<&[u8]> {
        let (at, length) = *self.spans.get(self.next)?;
        self.next += 1;
        Some(&self.bytes[at..at + length as usize])
    }
}
