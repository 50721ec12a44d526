//! [`Listing`]: the entries of one directory as the store listed them, growing while pages arrive.

use std::cmp::Ordering;
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Instant;

use nearfs_backends::{FsPath, Metadata, Result};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::clock::{Clock, Tick};

/// One name of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedEntry {
    /// The last component of its path.
    pub name: Box<[u8]>,
    /// What the listing says of it.
    pub metadata: Metadata,
}

/// Some consecutive entries of a [`Listing`], shared with it, not copied. Derefs to a slice.
#[derive(Debug, Clone)]
pub struct ListedEntries {
    chunk: Arc<[ListedEntry]>,
    range: Range<usize>,
}

impl Deref for ListedEntries {
    type Target = [ListedEntry];

    fn deref(&self) -> &[ListedEntry] {
        &self.chunk[self.range.clone()]
    }
}

/// What [`Listing::entries`] gives.
#[derive(Debug, Clone)]
pub struct ListingPage {
    /// Entries in listing order; may be fewer than asked for before the end, but not none.
    pub entries: ListedEntries,
    /// True if nothing follows these entries.
    pub end: bool,
}

/// The entries of one directory in listing order, each name once.
///
/// It is complete, or still arriving: then callers see what is there and wait only for what is not.
#[derive(Debug)]
pub struct Listing {
    id: u64,
    clock: Clock,
    seen: AtomicU64,
    epoch: AtomicU64,
    expires: AtomicU64,
    /// A later look at one name showed something else: readers of the directory get a new listing.
    outdated: AtomicBool,
    /// A reader has been given it, so it keeps its own identity.
    shown: AtomicBool,
    state: Mutex<State>,
    changed: Notify,
    wanted: Notify,
}

#[derive(Debug, Default)]
struct State {
    chunks: Vec<Chunk>,
    len: usize,
    end: Option<Result<()>>,
    /// The end has been taken note of where listings are remembered.
    settled: bool,
    /// Indexes of the directories among the entries.
    dirs: Vec<u32>,
    /// The fetcher pauses when this many entries are here.
    allowed: usize,
    unordered: bool,
}

#[derive(Debug)]
struct Chunk {
    start: usize,
    entries: Arc<[ListedEntry]>,
}

/// What a listing knows of one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Found {
    /// It was listed.
    Entry(Metadata),
    /// The listing is complete and does not have it.
    Absent,
    /// The listing has gone past where it would stand and does not have it, but is not complete.
    Passed,
    /// The listing has not come that far.
    NotYet,
}

impl Listing {
    pub(crate) fn new(id: u64, clock: &Clock, seen: Tick, expires: Tick, epoch: u64, allowed: usize) -> Self {
        Listing {
            id,
            clock: clock.clone(),
            seen: AtomicU64::new(seen.0),
            epoch: AtomicU64::new(epoch),
            outdated: AtomicBool::new(false),
            shown: AtomicBool::new(false),
            expires: AtomicU64::new(expires.0),
            state: Mutex::new(State { allowed, ..State::default() }),
            changed: Notify::new(),
            wanted: Notify::new(),
        }
    }

    /// Changes whenever the content may have changed; a renewal that found the same content keeps it.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// When its lifetime ends. Moves forward when the listing is renewed with equal content.
    pub fn expires(&self) -> Instant {
        self.clock.instant(self.expires_at())
    }

    /// At most `max` entries from index `from` on. Waits only if none of them is here yet and more may come.
    ///
    /// # Errors
    /// What ended the listing before `from` was reached: `NotFound`, `NotADirectory`, others as the store answers.
    ///
    /// # Cancellation
    /// Dropping the call leaves the listing running for its other readers.
    pub async fn entries(&self, from: usize, max: usize) -> Result<ListingPage> {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            self.allow(from.saturating_add(max.max(READ_AHEAD)));
            if let Some(page) = self.page(from, max) {
                return page;
            }
            changed.await;
        }
    }

    /// The same without waiting. `None` if it would wait, or fail.
    pub fn peek_entries(&self, from: usize, max: usize) -> Option<ListingPage> {
        self.page(from, max).and_then(Result::ok)
    }

    fn page(&self, from: usize, max: usize) -> Option<Result<ListingPage>> {
        let state = self.state.lock();
        if from < state.len {
            let at = state.chunks.partition_point(|c| c.start <= from) - 1;
            let chunk = &state.chunks[at];
            let first = from - chunk.start;
            let last = chunk.entries.len().min(first.saturating_add(max.max(1)));
            let end = chunk.start + last == state.len && matches!(state.end, Some(Ok(())));
            let entries = ListedEntries { chunk: chunk.entries.clone(), range: first..last };
            return Some(Ok(ListingPage { entries, end }));
        }
        match &state.end {
            None => None,
            Some(Ok(())) => Some(Ok(ListingPage {
                entries: ListedEntries { chunk: Arc::new([]), range: 0..0 },
                end: true,
            })),
            Some(Err(e)) => Some(Err(e.duplicate())),
        }
    }

    /// When the store was asked.
    pub(crate) fn seen(&self) -> Tick {
        Tick(self.seen.load(SeqCst))
    }

    pub(crate) fn expires_at(&self) -> Tick {
        Tick(self.expires.load(SeqCst))
    }

    /// True while its lifetime lasts and nothing of it was changed by our own doing.
    pub(crate) fn is_fresh(&self, now: Tick, epoch: u64) -> bool {
        now < self.expires_at() && self.epoch.load(SeqCst) == epoch
    }

    /// Takes over the lifetime of `newer`, which has the same content.
    pub(crate) fn renew(&self, newer: &Listing) {
        self.seen.store(newer.seen.load(SeqCst), SeqCst);
        self.epoch.store(newer.epoch.load(SeqCst), SeqCst);
        self.expires.store(newer.expires.load(SeqCst), SeqCst);
        self.outdated.store(false, SeqCst);
    }

    pub(crate) fn set_outdated(&self) {
        self.outdated.store(true, SeqCst);
    }

    pub(crate) fn is_outdated(&self) -> bool {
        self.outdated.load(SeqCst)
    }

    pub(crate) fn show(&self) {
        self.shown.store(true, SeqCst);
    }

    pub(crate) fn was_shown(&self) -> bool {
        self.shown.load(SeqCst)
    }

    /// The directories among its entries with indexes from `from` on, as far as they are here; at most `max`.
    pub(crate) fn dirs_from(&self, from: usize, max: usize) -> Vec<(usize, Box<[u8]>)> {
        let state = self.state.lock();
        let first = state.dirs.partition_point(|i| (*i as usize) < from);
        let name = |i: usize| {
            let chunk = &state.chunks[state.chunks.partition_point(|c| c.start <= i) - 1];
            (i, chunk.entries[i - chunk.start].name.clone())
        };
        state.dirs[first..].iter().take(max).map(|i| name(*i as usize)).collect()
    }

    /// Entries here now.
    pub(crate) fn len(&self) -> usize {
        self.state.lock().len
    }

    /// How it ended, if it did.
    pub(crate) fn end(&self) -> Option<Result<()>> {
        self.state.lock().end.as_ref().map(duplicate)
    }

    /// Adds a piece of a page.
    pub(crate) fn push(&self, entries: Vec<ListedEntry>) {
        if entries.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        let last = state.chunks.last().and_then(|c| c.entries.last());
        let ordered = last.is_none_or(|last| cmp_names(&last.name, &entries[0].name).is_lt())
            && entries.is_sorted_by(|a, b| cmp_names(&a.name, &b.name).is_lt());
        state.unordered |= !ordered;
        let start = state.len;
        let dirs = entries.iter().enumerate().filter(|(_, e)| e.metadata.is_dir());
        state.dirs.extend(dirs.filter_map(|(i, _)| u32::try_from(start + i).ok()));
        state.len += entries.len();
        state.chunks.push(Chunk { start, entries: entries.into() });
        drop(state);
        self.changed.notify_waiters();
    }

    pub(crate) fn finish(&self, end: Result<()>) {
        self.state.lock().end.get_or_insert(end);
        self.changed.notify_waiters();
    }

    /// Ends the wait of those who go on with what is remembered.
    pub(crate) fn settle(&self) {
        self.state.lock().settled = true;
        self.changed.notify_waiters();
    }

    /// Lets the fetcher go on until `entries` are here.
    pub(crate) fn allow(&self, entries: usize) {
        let mut state = self.state.lock();
        if state.allowed < entries {
            state.allowed = entries;
            drop(state);
            self.wanted.notify_waiters();
        }
    }

    /// Waits until more entries are wanted than are here.
    pub(crate) async fn until_wanted(&self) {
        loop {
            let wanted = self.wanted.notified();
            tokio::pin!(wanted);
            wanted.as_mut().enable();
            {
                let state = self.state.lock();
                if state.len < state.allowed {
                    return;
                }
            }
            wanted.await;
        }
    }

    /// What it knows of `name`.
    pub(crate) fn find(&self, name: &[u8]) -> Found {
        let state = self.state.lock();
        let complete = matches!(state.end, Some(Ok(())));
        if state.unordered {
            let entries = state.chunks.iter().flat_map(|c| c.entries.iter());
            return match entries.into_iter().find(|e| &*e.name == name) {
                Some(entry) => Found::Entry(entry.metadata.clone()),
                None if complete => Found::Absent,
                None => Found::NotYet,
            };
        }
        let at = state
            .chunks
            .partition_point(|c| c.entries.last().is_some_and(|e| cmp_names(&e.name, name).is_lt()));
        match state.chunks.get(at) {
            Some(chunk) => match chunk.entries.binary_search_by(|e| cmp_names(&e.name, name)) {
                Ok(i) => Found::Entry(chunk.entries[i].metadata.clone()),
                Err(_) if complete => Found::Absent,
                Err(_) => Found::Passed,
            },
            None if complete => Found::Absent,
            None => Found::NotYet,
        }
    }

    /// The index of `name`, if it is here (and the listing is ordered).
    pub(crate) fn position(&self, name: &[u8]) -> Option<usize> {
        let state = self.state.lock();
        if state.unordered {
            return None;
        }
        let at = state
            .chunks
            .partition_point(|c| c.entries.last().is_some_and(|e| cmp_names(&e.name, name).is_lt()));
        let chunk = state.chunks.get(at)?;
        chunk.entries.binary_search_by(|e| cmp_names(&e.name, name)).ok().map(|i| chunk.start + i)
    }

    /// True if it does not go on before more is wanted.
    pub(crate) fn is_paused(&self) -> bool {
        let state = self.state.lock();
        state.end.is_none() && state.len >= state.allowed
    }

    /// Waits until the listing knows of `name`, has paused, or has failed.
    ///
    /// # Errors
    /// What ended the listing.
    pub(crate) async fn wait_for(&self, name: &[u8]) -> Result<Found> {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let end = self.end();
            match self.find(name) {
                Found::NotYet => match end {
                    Some(Err(e)) => return Err(e),
                    _ if self.is_paused() => return Ok(Found::NotYet),
                    _ => changed.await,
                },
                found => return Ok(found),
            }
        }
    }

    /// Waits until it is complete and remembered.
    ///
    /// # Errors
    /// What ended it instead.
    pub(crate) async fn wait_end(&self) -> Result<()> {
        self.allow(usize::MAX);
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let state = self.state.lock();
                if let Some(end) = state.end.as_ref().filter(|_| state.settled) {
                    return duplicate(end);
                }
            }
            changed.await;
        }
    }

    /// True if both are complete and have the same entries.
    pub(crate) fn same_content(&self, other: &Listing) -> bool {
        if std::ptr::eq(self, other) {
            return true;
        }
        let chunks = |l: &Listing| {
            let state = l.state.lock();
            let complete = matches!(state.end, Some(Ok(())));
            complete.then(|| (state.len, state.chunks.iter().map(|c| c.entries.clone()).collect::<Vec<_>>()))
        };
        let (Some((n, a)), Some((m, b))) = (chunks(self), chunks(other)) else { return false };
        n == m && a.iter().flat_map(|c| c.iter()).eq(b.iter().flat_map(|c| c.iter()))
    }
}

fn duplicate(end: &Result<()>) -> Result<()> {
    match end {
        Ok(()) => Ok(()),
        Err(e) => Err(e.duplicate()),
    }
}

/// How far a listing may run ahead of its reader, in entries: ten pages of an object store.
pub(crate) const READ_AHEAD: usize = 10_000;

/// The order of [`FsPath::cmp_listing`] for two names of one directory: as if both ended in `/`.
pub(crate) fn cmp_names(a: &[u8], b: &[u8]) -> Ordering {
    let n = a.len().min(b.len());
    a[..n].cmp(&b[..n]).then_with(|| match (a.get(n), b.get(n)) {
        (None, None) => Ordering::Equal,
        (x, y) => x.unwrap_or(&b'/').cmp(y.unwrap_or(&b'/')),
    })
}

/// `entry` of the listing of `dir` without its directory; `None` if it does not lie in it.
pub(crate) fn name_in(dir: &FsPath, path: &FsPath) -> Option<Box<[u8]>> {
    let bytes = path.as_bytes();
    let name = if dir.is_root() { bytes } else { bytes.strip_prefix(dir.as_bytes())?.strip_prefix(b"/")? };
    (!name.is_empty() && !name.contains(&b'/')).then(|| name.into())
}
