//! Making listings: one at a time for each directory, for all who want it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::StreamExt;
use nearfs_backends::{DirEntry, Error, ErrorKind, FsPath, ListOptions, Result};

use super::directory::{Directory, State};
use super::listing::{Begin, ListedEntry, Listing, name_in};
use super::names::Names;

/// Entries taken from the store's stream at a time, if they are there.
const CHUNK: usize = 1000;
/// A listing that has paused and that nobody wants more of for this long is given up.
const PAUSE: Duration = Duration::from_secs(10);

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// Why a listing is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// A reader of the directory.
    Read,
    /// Lookups in a directory whose listing has expired.
    Renew,
    /// Lookups in a directory that was never listed.
    Lookups,
    /// A walk that comes this way.
    Ahead,
    /// A directory in use, ahead of expiry.
    Refresh,
}

impl Names {
    /// Begins a listing of `directory`, which pauses when `allowed` entries are here.
    pub(super) fn start(
        &self,
        directory: &Arc<Directory>,
        state: &mut State,
        cause: Cause,
        allowed: usize,
    ) -> Arc<Listing> {
        let counter = match cause {
            Cause::Read => &self.stats.lists_read,
            Cause::Renew => &self.stats.lists_renewed,
            Cause::Lookups => &self.stats.lists_lookup,
            Cause::Ahead => &self.stats.lists_ahead,
            Cause::Refresh => &self.stats.lists_refreshed,
        };
        counter.inc();
        let seen = self.clock.now();
        let (id, epoch) = (NEXT_ID.fetch_add(1, Ordering::Relaxed), self.epochs.of(&directory.path));
        let expires = self.metadata_ttl.from(seen);
        let listing = Arc::new(Listing::new(Begin {
            id,
            clock: &self.clock,
            seen,
            expires,
            epoch,
            allowed,
            most: self.max_entries,
            fs: &self.fs,
            dir: &directory.path,
        }));
        state.running = Some(listing.clone());
        state.asks = 0;
        let (names, task) =
            (self.me.clone(), Task { directory: directory.clone(), listing: listing.clone() });
        let stream = self.fs.list(&directory.path, ListOptions::default()).ready_chunks(CHUNK);
        self.spawner.spawn(async move {
            let end = task.list(stream).await;
            if let Some(names) = names.upgrade() {
                names.listed_all(&task.directory, &task.listing, end, cause);
            }
        });
        listing
    }

    /// Takes in the end of a listing.
    fn listed_all(&self, directory: &Arc<Directory>, listing: &Arc<Listing>, end: Result<()>, cause: Cause) {
        let kind = end.as_ref().err().map(Error::kind);
        if matches!(
            kind,
            Some(ErrorKind::PermissionDenied | ErrorKind::Unauthenticated | ErrorKind::Unsupported)
        ) {
            self.refuse(directory);
        }
        let old = directory.listing();
        match &end {
            Ok(()) => self.rights.listed(&directory.path),
            Err(e) if old.is_some() => self.rights.refused_below(&directory.path, e),
            Err(_) => {}
        }
        listing.finish(end);
        // The old one goes on if nothing has changed, unless readers were already given the new one.
        let keep = old.filter(|old| !listing.was_shown() && old.same_content(listing));
        {
            let mut state = directory.state.lock();
            if state.running.as_ref().is_some_and(|l| Arc::ptr_eq(l, listing)) {
                state.running = None;
            }
            match (kind, keep) {
                (None, Some(old)) => old.renew(listing),
                (None, None) if !listing.is_oversize() => state.listing = Some(listing.clone()),
                (None, None) => state.listing = None,
                (Some(ErrorKind::NotFound | ErrorKind::NotADirectory), _) => state.listing = None,
                (Some(_), _) => {}
            }
            state.asks = 0;
        }
        if kind.is_none() {
            self.directories.weigh(directory);
        }
        listing.settle();
        if cause == Cause::Ahead {
            self.list_ahead();
        }
    }
}

/// One listing in the making. Dropping it before the end (the runtime is going away) ends the listing.
struct Task {
    directory: Arc<Directory>,
    listing: Arc<Listing>,
}

impl Task {
    async fn list<S>(&self, mut stream: S) -> Result<()>
    where
        S: futures::Stream<Item = Vec<Result<DirEntry>>> + Unpin,
    {
        loop {
            if tokio::time::timeout(PAUSE, self.listing.until_wanted()).await.is_err() {
                return Err(Error::new(ErrorKind::Interrupted, "nobody reads this listing any more")
                    .during("list")
                    .at(&self.directory.path));
            }
            let Some(items) = stream.next().await else { return Ok(()) };
            let mut entries = Vec::with_capacity(items.len());
            let mut failed = None;
            for item in items {
                match item {
                    Ok(entry) => entries.extend(listed(&self.directory.path, entry)),
                    Err(e) => {
                        failed = Some(e);
                        break;
                    }
                }
            }
            self.listing.push(entries);
            if self.listing.is_oversize() && !self.listing.was_shown() {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    "the directory is larger than what is remembered",
                )
                .during("list")
                .at(&self.directory.path));
            }
            if let Some(e) = failed {
                return Err(e);
            }
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        // No effect after the end.
        self.listing.finish(Err(Error::new(ErrorKind::Interrupted, "the listing was given up")));
        self.listing.settle();
    }
}

fn listed(dir: &FsPath, entry: DirEntry) -> Option<ListedEntry> {
    let DirEntry { path, metadata } = entry;
    name_in(dir, &path).map(|name| ListedEntry { name, metadata })
}
