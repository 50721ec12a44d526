//! Listings: pages fetched one ahead of the reader, put into the order of paths.

use std::sync::Arc;

use futures::stream::{self, StreamExt, TryStreamExt};

use super::Shared;
use super::error::Refusal;
use super::listing_order::{Merge, earlier_keys};
use super::task::Task;
use super::wire::list::{Page, Query, check_progress};
use crate::error::{Error, ErrorKind, Result};
use crate::fs::EntryStream;
use crate::metadata::{DirEntry, Metadata};
use crate::metrics::LIST_SKIPPED;
use crate::options::ListOptions;
use crate::path::FsPath;

/// Keys looked up at once when a listing is resumed.
const LOOKUPS: usize = 16;

pub(crate) fn stream(shared: Arc<Shared>, dir: FsPath, options: ListOptions) -> EntryStream {
    let start = State::New(shared, dir.clone(), options);
    let entries = stream::unfold(start, |state| async move {
        match state.next().await {
            Ok(Some((entry, rest))) => Some((Ok(entry), rest)),
            Ok(None) => None,
            Err(e) => Some((Err(e), State::Done)),
        }
    });
    entries.map_err(move |e| e.during("list").at(&dir)).boxed()
}

enum State {
    New(Arc<Shared>, FsPath, ListOptions),
    Running(Box<Listing>),
    Done,
}

impl State {
    async fn next(self) -> Result<Option<(DirEntry, State)>> {
        let mut listing = match self {
            State::New(shared, dir, options) => Box::new(Listing::start(shared, dir, options).await?),
            State::Running(listing) => listing,
            State::Done => return Ok(None),
        };
        Ok(listing.next().await?.map(|entry| (entry, State::Running(listing))))
    }
}

struct Listing {
    shared: Arc<Shared>,
    dir: FsPath,
    query: Arc<Query>,
    merge: Merge,
    /// The page being fetched; none after the last.
    ahead: Option<Task<Result<Page, Refusal>>>,
    finished: bool,
    /// True if every key of the directory would have been seen.
    whole: bool,
    /// Pages in a row that had nothing in them.
    empty: u32,
}

impl Listing {
    async fn start(shared: Arc<Shared>, dir: FsPath, options: ListOptions) -> Result<Self> {
        let Ok(prefix) = shared.dir_key(&dir) else { return Err(Error::not_found(&dir)) };
        let (after, nothing_left) = match &options.start_after {
            None => (None, false),
            Some(name) => match name.strip_prefix(&dir) {
                Some(below) => (Some(below).filter(|b| !b.is_root()), false),
                None => (None, name.cmp_listing(&dir).is_gt()),
            },
        };
        let resume = after.as_ref().map(|name| shared.dir_key(&dir.join_path(name))).transpose()?;
        let one_level = !options.recursive;
        let query = Query { prefix: prefix.clone(), one_level, start_after: resume, page_size: None };
        let mut listing = Listing {
            merge: Merge::new(dir.clone(), prefix.into_bytes(), options.recursive, after.as_ref()),
            shared,
            dir,
            query: Arc::new(query),
            ahead: None,
            finished: false,
            whole: after.is_none() && !nothing_left,
            empty: 0,
        };
        if nothing_left {
            return Ok(listing);
        }
        listing.ahead = Some(listing.fetch(None));
        if let Some(after) = after {
            listing.hold_earlier(&after, one_level).await?;
        }
        Ok(listing)
    }

    /// Finds the files that stand after the starting point though their keys come before it.
    async fn hold_earlier(&mut self, after: &FsPath, one_level: bool) -> Result<()> {
        let names = earlier_keys(after).into_iter().filter(|n| !one_level || n.depth() == 1);
        let lookups: Vec<_> = names
            .map(|name| {
                let shared = Arc::clone(&self.shared);
                let path = self.dir.join_path(&name);
                async move { Ok::<_, Error>((name, shared.listed_file(&path).await?)) }
            })
            .collect();
        let mut found = stream::iter(lookups).buffered(LOOKUPS);
        while let Some((name, metadata)) = found.try_next().await? {
            if let Some(metadata) = metadata {
                self.merge.hold(name.as_bytes().to_vec(), metadata);
            }
        }
        Ok(())
    }

    fn fetch(&self, token: Option<String>) -> Task<Result<Page, Refusal>> {
        let (wire, query) = (Arc::clone(&self.shared.wire), Arc::clone(&self.query));
        Task::spawn(&self.shared.wire, async move { wire.list(&query, token.as_deref()).await })
    }

    async fn next(&mut self) -> Result<Option<DirEntry>> {
        loop {
            if let Some(entry) = self.merge.next() {
                return Ok(Some(entry));
            }
            if self.finished {
                return Ok(None);
            }
            let Some(mut fetch) = self.ahead.take() else {
                self.finished = true;
                self.merge.finish();
                self.check_existence().await?;
                continue;
            };
            let page = fetch.join().await??;
            self.empty = if page.items.is_empty() { self.empty + 1 } else { 0 };
            check_progress(self.empty)?;
            self.ahead = page.next.map(|token| self.fetch(Some(token)));
            for item in page.items {
                self.merge.push(item)?;
            }
        }
    }

    /// No key at all: is there nothing, a file, or only nothing after the starting point?
    async fn check_existence(&self) -> Result<()> {
        if self.merge.tally.exists || self.dir.is_root() {
            return Ok(());
        }
        if !self.whole && self.shared.wire.any_with_prefix(&self.query.prefix).await? {
            return Ok(());
        }
        match self.shared.wire.head(&self.shared.key(&self.dir)?).await {
            Ok(_) => Err(Error::new(ErrorKind::NotADirectory, "a file, expected a directory")),
            Err(refusal) if refusal.is_absent() => Err(Error::not_found(&self.dir)),
            Err(refusal) if refusal.is_refused() => Err(self.shared.refused(refusal)),
            Err(refusal) => Err(refusal.into()),
        }
    }
}

impl Drop for Listing {
    fn drop(&mut self) {
        let tally = &self.merge.tally;
        if tally.skipped > 0 {
            LIST_SKIPPED.counter(["s3", "name"]).increment(tally.skipped);
            let example = tally.example.as_deref().unwrap_or_default();
            tracing::warn!(dir = %self.dir, skipped = tally.skipped, example, "keys that no path can name were skipped");
        }
        if tally.hidden > 0 {
            LIST_SKIPPED.counter(["s3", "hidden"]).increment(tally.hidden);
            tracing::debug!(dir = %self.dir, hidden = tally.hidden, "files hidden behind directories");
        }
    }
}

impl Shared {
    /// The file `path` as a listing shows it, if its key exists.
    pub(crate) async fn listed_file(&self, path: &FsPath) -> Result<Option<Metadata>> {
        let key = self.key(path)?;
        let query = Query { prefix: key.clone(), page_size: Some(1), ..Query::default() };
        let first = self.wire.first(&query).await?;
        Ok(first.filter(|item| item.key == key.as_bytes()).and_then(|item| item.metadata))
    }
}
