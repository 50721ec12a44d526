//! [`Listing`]: the entries of one directory as the store listed them, growing while pages arrive.

use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Instant;

use futures::StreamExt;
use nearfs_backends::{Error, ErrorKind, FileSystem, FsPath, ListOptions, Metadata, Result};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::chunks::{Chunks, Place, Search};
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
    /// Entries held at once.
    most: usize,
    source: (Arc<dyn FileSystem>, FsPath),
    state: Mutex<State>,
    changed: Notify,
    wanted: Notify,
}

#[derive(Debug, Default)]
struct State {
    chunks: Chunks,
    end: Option<Result<()>>,
    /// The end has been taken note of where listings are remembered.
    settled: bool,
    /// The fetcher pauses when this many entries are here.
    allowed: usize,
}

/// What [`Listing::entries`] finds.
enum Page {
    Here(Result<ListingPage>),
    /// The entries were let go: they begin at `start`, are `len`, and follow the name `after`.
    Gone {
        start: usize,
        len: usize,
        after: Option<Box<[u8]>>,
    },
    NotYet,
}

/// Where and when a listing is made.
pub(crate) struct Begin<'a> {
    pub(crate) id: u64,
    pub(crate) clock: &'a Clock,
    pub(crate) seen: Tick,
    pub(crate) expires: Tick,
    pub(crate) epoch: u64,
    /// Entries after which it pauses.
    pub(crate) allowed: usize,
    /// Entries held at once.
    pub(crate) most: usize,
    pub(crate) fs: &'a Arc<dyn FileSystem>,
    pub(crate) dir: &'a FsPath,
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
    pub(crate) fn new(begin: Begin<'_>) -> Self {
        Listing {
            id: begin.id,
            clock: begin.clock.clone(),
            seen: AtomicU64::new(begin.seen.0),
            epoch: AtomicU64::new(begin.epoch),
            outdated: AtomicBool::new(false),
            shown: AtomicBool::new(false),
            expires: AtomicU64::new(begin.expires.0),
            most: begin.most.max(READ_AHEAD * 2),
            source: (begin.fs.clone(), begin.dir.clone()),
            state: Mutex::new(State { allowed: begin.allowed, ..State::default() }),
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

    /// At most `max` entries from index `from` on. Waits only if none of them is here yet and more may come, or if
    /// they were let go again, which happens to the front of a directory with more entries than are remembered.
    ///
    /// # Errors
    /// What ended the listing before `from` was reached: `NotFound`, `NotADirectory`, others as the store answers.
    /// `Stale` if entries that were let go have changed meanwhile: list the directory again.
    ///
    /// # Cancellation
    /// Dropping the call leaves the listing running for its other readers.
    pub async fn entries(&self, from: usize, max: usize) -> Result<ListingPage> {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            self.allow(from.saturating_add(max.max(READ_AHEAD)));
            match self.page(from, max) {
                Page::Here(page) => return page,
                Page::Gone { start, len, after } => return self.again(from, max, start, len, after).await,
                Page::NotYet => changed.await,
            }
        }
    }

    /// The same without waiting. `None` if it would wait, or fail.
    pub fn peek_entries(&self, from: usize, max: usize) -> Option<ListingPage> {
        match self.page(from, max) {
            Page::Here(page) => page.ok(),
            Page::Gone { .. } | Page::NotYet => None,
        }
    }

    fn page(&self, from: usize, max: usize) -> Page {
        let state = self.state.lock();
        match (state.chunks.place(from), &state.end) {
            (Some(Place::Here(chunk, start)), end) => {
                let first = from - start;
                let last = chunk.len().min(first.saturating_add(max.max(1)));
                let end = start + last == state.chunks.len() && matches!(end, Some(Ok(())));
                Page::Here(Ok(ListingPage { entries: ListedEntries { chunk, range: first..last }, end }))
            }
            (Some(Place::Gone { start, len, after }), _) => Page::Gone { start, len, after },
            (None, None) => Page::NotYet,
            (None, Some(Ok(()))) => {
                let entries = ListedEntries { chunk: Arc::new([]), range: 0..0 };
                Page::Here(Ok(ListingPage { entries, end: true }))
            }
            (None, Some(Err(e))) => Page::Here(Err(e.duplicate())),
        }
    }

    /// Lists entries again that were let go.
    async fn again(
        &self,
        from: usize,
        max: usize,
        start: usize,
        len: usize,
        after: Option<Box<[u8]>>,
    ) -> Result<ListingPage> {
        let (fs, dir) = &self.source;
        let start_after = after.map(|name| dir.join(name)).transpose()?;
        let mut stream = fs.list(dir, ListOptions { recursive: false, start_after }).take(len);
        let mut entries = Vec::with_capacity(len);
        while let Some(entry) = stream.next().await {
            let entry = entry?;
            entries
                .extend(name_in(dir, &entry.path).map(|name| ListedEntry { name, metadata: entry.metadata }));
        }
        if entries.len() < len {
            return Err(Error::new(
                ErrorKind::Stale,
                "the directory has changed while it was read; read it again",
            )
            .during("list")
            .at(dir));
        }
        let first = from - start;
        let range = first..len.min(first.saturating_add(max.max(1)));
        Ok(ListingPage { entries: ListedEntries { chunk: entries.into(), range }, end: false })
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
        self.state.lock().chunks.dirs_from(from, max)
    }

    /// Entries that have come.
    pub(crate) fn len(&self) -> usize {
        self.state.lock().chunks.len()
    }

    /// True if it has more entries than may be held.
    pub(crate) fn is_oversize(&self) -> bool {
        self.len() > self.most
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
        state.chunks.push(entries);
        state.chunks.shrink(self.most);
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
                if state.chunks.len() < state.allowed {
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
        match state.chunks.search(name) {
            Search::Entry(_, entry) => Found::Entry(entry.metadata.clone()),
            _ if complete && state.chunks.lacks(name) => Found::Absent,
            Search::Missing => Found::Passed,
            Search::Unknown if state.chunks.is_partial() => Found::Passed,
            Search::Unknown | Search::Behind => Found::NotYet,
        }
    }

    /// The index of `name`, if it is here.
    pub(crate) fn position(&self, name: &[u8]) -> Option<usize> {
        match self.state.lock().chunks.search(name) {
            Search::Entry(index, _) => Some(index),
            _ => None,
        }
    }

    /// True if it does not go on before more is wanted.
    pub(crate) fn is_paused(&self) -> bool {
        let state = self.state.lock();
        state.end.is_none() && state.chunks.len() >= state.allowed
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
        self.wait_more_than(usize::MAX).await
    }

    /// Waits until it has more than so many entries, or is complete and remembered.
    ///
    /// # Errors
    /// What ended it instead.
    pub(crate) async fn wait_more_than(&self, entries: usize) -> Result<()> {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let state = self.state.lock();
                if let Some(end) = state.end.as_ref().filter(|_| state.settled) {
                    return duplicate(end);
                }
                if state.chunks.len() > entries {
                    return Ok(());
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
        let pieces = |l: &Listing| {
            let state = l.state.lock();
            let whole = matches!(state.end, Some(Ok(()))) && !state.chunks.is_partial();
            whole.then(|| (state.chunks.len(), state.chunks.pieces()))
        };
        let (Some((n, a)), Some((m, b))) = (pieces(self), pieces(other)) else { return false };
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

/// `entry` of the listing of `dir` without its directory; `None` if it does not lie in it.
pub(crate) fn name_in(dir: &FsPath, path: &FsPath) -> Option<Box<[u8]>> {
    let bytes = path.as_bytes();
    let name = if dir.is_root() { bytes } else { bytes.strip_prefix(dir.as_bytes())?.strip_prefix(b"/")? };
    (!name.is_empty() && !name.contains(&b'/')).then(|| name.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_takes_at_most_400_bytes() {
        // Itself, its name and the text of its version with the allocator's overhead for the usual lengths.
        let (name, version) = (16 + 32, 16 + 16 + 48);
        assert!(size_of::<ListedEntry>() + name + version <= 400, "{}", size_of::<ListedEntry>());
    }
}
