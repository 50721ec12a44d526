//! [`Names`]: how a lookup is answered.

use std::sync::{Arc, Weak};
use std::time::Duration;

use nearfs_backends::{ErrorKind, FileSystem, FsPath, Metadata, Result, Spawner};

use super::attributes::{Attribute, Attributes};
use super::directory::{Directories, Directory, State};
use super::expiry::Epochs;
use super::lister::Cause;
use super::listing::{Found, Listing, READ_AHEAD};
use super::negative::{Absence, Negatives};
use super::refresh::Refresh;
use super::walk::Walk;
use crate::clock::{Clock, Tick};
use crate::config::{CacheConfig, Lifetime};
use crate::rights::Rights;
use crate::single_flight::SingleFlight;
use crate::stats::Counters;

/// Names of an unlisted directory that are looked up one by one before it is listed.
const ASKS: u32 = 3;
/// Entries of an expired listing up to which the first lookup renews it.
const SOON: usize = 50_000;
/// Entries of a page of an object store: what one LIST costs less than one request a name.
const PAGE: usize = 1000;
/// How long a lookup waits for a first listing to reach its name before it asks by itself.
const PATIENCE: Duration = Duration::from_millis(500);
/// The same for the renewal of a listing.
const RENEWAL_PATIENCE: Duration = Duration::from_secs(2);
/// A directory whose listing was refused is not listed for lookups again for this long.
const REFUSED: Duration = Duration::from_secs(60);

/// What is known of names, and the ways to learn more.
///
/// A lookup is answered from the latest word of the store: the listing of the parent directory, or an answer about
/// this very name. Where that is too old:
/// * The listing of the parent has expired: one LIST renews it and everybody in that directory waits for it. Of more
///   than 50 000 entries only once the lookups since expiry have cost half as many requests as the LISTs will.
/// * The parent was never listed: names are asked for one by one, and from the third on it is listed (ten pages,
///   and ten more whenever names behind them were asked for ten times or names near their end are looked up).
/// * The parent's listing is fresh and lacks the name: that is good for the negative lifetime since it was made,
///   then the store is asked for this one name, at most once per negative lifetime.
#[derive(Debug)]
pub(crate) struct Names {
    pub(super) fs: Arc<dyn FileSystem>,
    pub(super) spawner: Spawner,
    pub(super) clock: Clock,
    pub(super) stats: Arc<Counters>,
    pub(super) metadata_ttl: Lifetime,
    pub(super) negative_ttl: Lifetime,
    pub(super) max_entries: usize,
    /// Requests cost a round trip, so that listings are worth more than single answers.
    lists: bool,
    pub(super) lists_ahead: bool,
    attributes: Attributes,
    negatives: Negatives,
    pub(super) directories: Directories,
    pub(super) epochs: Epochs,
    flights: Arc<SingleFlight<FsPath, (Option<Metadata>, Tick)>>,
    pub(super) walk: Walk,
    pub(super) refresh: Refresh,
    /// What the store has refused.
    pub(crate) rights: Rights,
    pub(super) me: Weak<Names>,
}

/// What is known of a name, as good as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Known {
    /// `None`: the store said that nothing has this name.
    pub(crate) metadata: Option<Metadata>,
    pub(crate) expires: Tick,
}

/// How the store is to be asked.
enum Way {
    /// For this name alone.
    Single,
    /// By waiting until this listing has come to the name, at most that long.
    Listing(Arc<Listing>, Duration),
}

impl Names {
    pub(crate) fn new(
        fs: Arc<dyn FileSystem>,
        config: &CacheConfig,
        spawner: Spawner,
        clock: Clock,
        stats: Arc<Counters>,
    ) -> Arc<Self> {
        let lists = fs.capabilities().remote || config.cache_local;
        Arc::new_cyclic(|me| Names {
            lists,
            lists_ahead: lists && config.prefetch && !config.metadata_ttl.is_zero(),
            fs,
            spawner,
            clock,
            stats,
            metadata_ttl: config.metadata_ttl,
            negative_ttl: config.negative_ttl,
            max_entries: config.max_entries,
            attributes: Attributes::default(),
            negatives: Negatives::default(),
            directories: Directories::new(config.max_entries),
            epochs: Epochs::default(),
            flights: SingleFlight::new(),
            walk: Walk::default(),
            refresh: Refresh::default(),
            rights: Rights::default(),
            me: me.clone(),
        })
    }

    /// What is known of `path` and still good.
    pub(crate) fn peek(&self, path: &FsPath) -> Option<Known> {
        let known = self.known(path);
        if known.is_some() {
            self.stats.lookup_hits.inc();
        }
        known
    }

    /// As [`Names::peek`], without counting.
    pub(crate) fn known(&self, path: &FsPath) -> Option<Known> {
        self.rights.check(path).ok()?;
        let now = self.clock.now();
        let Some(parent) = path.parent() else { return self.known_root(now) };
        let epoch = self.epochs.of(path);
        let attribute = self.attributes.get(path).filter(|a| a.epoch == epoch);
        let absence = self.negatives.get(path).filter(|a| a.epoch == epoch);
        let directory = self.directories.get(&parent);
        let single = attribute.as_ref().map(|a| a.seen).max(absence.map(|a| a.seen));
        let listed = directory
            .as_ref()
            .and_then(|d| self.listed(d, now))
            .filter(|l| single.is_none_or(|s| s < l.seen()));
        let known = match listed.map(|l| self.in_listing(&l, path.name())).unwrap_or_default() {
            Some(known) => known,
            None => match (attribute, absence) {
                (Some(a), b) if b.is_none_or(|b| b.seen < a.seen) => {
                    Known { metadata: Some(a.metadata?), expires: a.expires }
                }
                (_, Some(absence)) => Known { metadata: None, expires: absence.expires },
                (_, None) => return None,
            },
        };
        if known.expires <= now {
            return None;
        }
        if let Some(directory) = directory {
            self.used(&directory, now);
        }
        Some(known)
    }

    fn known_root(&self, now: Tick) -> Option<Known> {
        let root = FsPath::root();
        if self.lists {
            // It always exists, and a store of objects has nothing to say of it.
            return Some(Known { metadata: Some(Metadata::dir()), expires: self.metadata_ttl.from(now) });
        }
        let known =
            self.attributes.get(&root).filter(|a| a.epoch == self.epochs.of(&root) && a.expires > now)?;
        Some(Known { metadata: Some(known.metadata?), expires: known.expires })
    }

    /// The listing of `directory` that lookups may go by: fresh, complete or on its way.
    fn listed(&self, directory: &Directory, now: Tick) -> Option<Arc<Listing>> {
        let epoch = self.epochs.of(&directory.path);
        let state = directory.state.lock();
        let fresh = |l: &&Arc<Listing>| l.is_fresh(now, epoch);
        state.listing.as_ref().filter(fresh).or(state.running.as_ref().filter(fresh)).cloned()
    }

    /// What `listing` says of `name`, perhaps no longer good; `None` if it has not come to it.
    fn in_listing(&self, listing: &Listing, name: &[u8]) -> Option<Known> {
        match listing.find(name) {
            Found::Entry(metadata) => Some(Known { metadata: Some(metadata), expires: listing.expires_at() }),
            Found::Absent => {
                let expires = self.negative_ttl.from(listing.seen()).min(listing.expires_at());
                Some(Known { metadata: None, expires })
            }
            Found::Passed | Found::NotYet => None,
        }
    }

    /// What is known of `path`, asking the store where that is no longer good.
    ///
    /// # Errors
    /// As `stat`, except that absence is an answer.
    pub(crate) async fn lookup(&self, path: &FsPath) -> Result<Known> {
        if let Some(known) = self.peek(path) {
            return Ok(known);
        }
        self.stats.lookup_misses.inc();
        if self.rights.check(path).is_ok()
            && let Some(parent) = path.parent()
            && let Way::Listing(listing, patience) = self.way(&parent, path)
            && let Ok(found) = tokio::time::timeout(patience, listing.wait_for(path.name())).await
            && let Some(known) = self.learn(found, &listing, path)
        {
            return Ok(known);
        }
        self.ask(path).await
    }

    /// What a wait for `listing` to come to `path` has brought. `None` where the name must be asked for alone: the
    /// listing was refused, has failed or paused, or absence must be proven.
    fn learn(&self, found: Result<Found>, listing: &Listing, path: &FsPath) -> Option<Known> {
        match found {
            Ok(Found::Entry(metadata)) => {
                self.passed(listing, path.name());
                Some(Known { metadata: Some(metadata), expires: listing.expires_at() })
            }
            Ok(Found::Absent) => {
                let expires = self.negative_ttl.from(listing.seen()).min(listing.expires_at());
                (self.clock.now() < expires).then_some(Known { metadata: None, expires })
            }
            Ok(Found::Passed | Found::NotYet) => None,
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                let expires = self.negative_ttl.from(listing.seen());
                (self.clock.now() < expires).then_some(Known { metadata: None, expires })
            }
            Err(_) => None,
        }
    }

    /// Asks the store for one name; many who want it at once share one request.
    async fn ask(&self, path: &FsPath) -> Result<Known> {
        if self.metadata_ttl.is_zero() || self.negative_ttl.is_zero() {
            // Nothing older than the question may answer it, not even a request that is on its way.
            return self.ask_now(path).await;
        }
        let joined = self.flights.join(path, |lead| {
            let (names, path) = (self.me.clone(), path.clone());
            self.spawner.spawn(async move {
                if let Some(names) = names.upgrade() {
                    let result = names.ask_now(&path).await;
                    lead.finish(result.map(|known| (known.metadata, known.expires)));
                }
            });
        });
        let (metadata, expires) = joined.await?;
        Ok(Known { metadata, expires })
    }

    async fn ask_now(&self, path: &FsPath) -> Result<Known> {
        let (seen, epoch) = (self.clock.now(), self.epochs.of(path));
        self.stats.stats.inc();
        match self.fs.stat(path).await {
            Ok(metadata) => {
                self.rights.shown(path);
                let expires = self.metadata_ttl.from(seen);
                self.contradict(path, Some(&metadata), seen);
                let attribute = Attribute { seen, expires, epoch, metadata: Some(metadata.clone()) };
                self.attributes.put(path, attribute);
                Ok(Known { metadata: Some(metadata), expires })
            }
            Err(e) if e.kind() == ErrorKind::NotFound => {
                self.contradict(path, None, seen);
                Ok(self.absent(path, seen, epoch))
            }
            Err(e) => {
                self.rights.refused(path, &e);
                Err(e)
            }
        }
    }

    fn absent(&self, path: &FsPath, seen: Tick, epoch: u64) -> Known {
        let expires = self.negative_ttl.from(seen);
        self.negatives.put(path, Absence { seen, expires, epoch });
        Known { metadata: None, expires }
    }

    /// If the parent's listing says something else of `path`, readers of the directory must not get it any more.
    fn contradict(&self, path: &FsPath, metadata: Option<&Metadata>, seen: Tick) {
        let Some(listing) = path.parent().and_then(|p| self.directories.get(&p)).and_then(|d| d.listing())
        else {
            return;
        };
        if listing.seen() >= seen {
            return;
        }
        let same = match (listing.find(path.name()), metadata) {
            (Found::Entry(a), Some(b)) => a.kind == b.kind && a.size == b.size && a.version == b.version,
            (Found::Entry(_), None) | (_, Some(_)) => false,
            (_, None) => true,
        };
        if !same {
            listing.set_outdated();
        }
    }

    /// How to ask for `path` in `parent`.
    fn way(&self, parent: &FsPath, path: &FsPath) -> Way {
        if !self.lists || self.metadata_ttl.is_zero() {
            return Way::Single;
        }
        let now = self.clock.now();
        let directory = self.directories.get_or_insert(parent);
        let epoch = self.epochs.of(parent);
        let mut state = directory.state.lock();
        if state.refused_until.is_some_and(|t| now < t) {
            return Way::Single;
        }
        if let Some(running) = state.running.clone().filter(|l| l.is_fresh(now, epoch)) {
            if self.asked_after(path, running.seen()) {
                return Way::Single;
            }
            self.extend(&running, &mut state, path.name());
            let patience = if state.listing.is_some() { RENEWAL_PATIENCE } else { PATIENCE };
            return Way::Listing(running, patience);
        }
        if let Some(listing) = &state.listing {
            if listing.is_fresh(now, epoch) {
                // It is about this one name: absence to be proven, or the listing known to be wrong.
                return Way::Single;
            }
            let entries = listing.len();
            state.asks += 1;
            if entries > SOON && (state.asks as usize) < entries / PAGE / 2 {
                return Way::Single;
            }
            let running = self.start(&directory, &mut state, Cause::Renew, usize::MAX);
            return Way::Listing(running, RENEWAL_PATIENCE);
        }
        state.asks += 1;
        if state.asks < ASKS {
            return Way::Single;
        }
        Way::Listing(self.start(&directory, &mut state, Cause::Lookups, READ_AHEAD), PATIENCE)
    }

    /// True if something newer than `seen` is known of this very name, so that a listing would not tell more.
    fn asked_after(&self, path: &FsPath, seen: Tick) -> bool {
        self.attributes.get(path).is_some_and(|a| a.seen > seen)
            || self.negatives.get(path).is_some_and(|a| a.seen > seen)
    }

    /// Lets a paused listing go on when the lookups behind its end have cost as much as its next pages will.
    fn extend(&self, running: &Listing, state: &mut State, name: &[u8]) {
        if running.is_paused() && running.find(name) == Found::NotYet {
            state.asks += 1;
            if state.asks as usize >= READ_AHEAD / PAGE {
                state.asks = 0;
                running.allow(running.len() + READ_AHEAD);
            }
        }
    }

    /// Lets a listing go on when names near its end are looked up: somebody goes through it in order.
    fn passed(&self, listing: &Listing, name: &[u8]) {
        if listing.is_paused() {
            let len = listing.len();
            if listing.position(name).is_some_and(|i| i >= len - len / 5) {
                listing.allow(len + READ_AHEAD);
            }
        }
    }

    /// The directory was used: it will be renewed ahead of expiry.
    fn used(&self, directory: &Arc<Directory>, now: Tick) {
        // What follows a listing at once (`ls -l`, a walk) is part of it and no sign of use.
        let settled = || directory.listing().is_some_and(|l| now.since(l.seen()) > Duration::from_secs(1));
        if self.lists && settled() && directory.mark_used() {
            self.refresh.used(self, directory);
        }
    }

    /// Notes that a file of this directory is being read.
    pub(crate) fn file_used(&self, path: &FsPath) {
        if let Some(directory) = path.parent().and_then(|p| self.directories.get(&p)) {
            self.used(&directory, self.clock.now());
        }
    }

    /// The listing of `dir` for a reader: remembered, being made, or begun now.
    ///
    /// # Errors
    /// What ended a listing that could have been waited for.
    pub(crate) async fn read_dir(&self, dir: &FsPath) -> Result<Arc<Listing>> {
        let now = self.clock.now();
        let directory = self.directories.get_or_insert(dir);
        let epoch = self.epochs.of(dir);
        let (running, old) = {
            let mut state = directory.state.lock();
            let fresh = |l: &&Arc<Listing>| l.is_fresh(now, epoch) && !l.is_outdated();
            if let Some(listing) = state.listing.as_ref().filter(fresh).cloned() {
                drop(state);
                self.visited(dir);
                return Ok(listing);
            }
            let joinable = |l: &Arc<Listing>| l.is_fresh(now, epoch) && !self.metadata_ttl.is_zero();
            let running = state.running.clone().filter(joinable);
            let running =
                running.unwrap_or_else(|| self.start(&directory, &mut state, Cause::Read, READ_AHEAD));
            running.allow(READ_AHEAD);
            let old = state.listing.clone().filter(|old| old.len() <= PAGE);
            if old.is_none() {
                running.show();
            }
            (running, old)
        };
        self.visited(dir);
        if let Some(old) = old {
            // A renewal of one page takes no longer than its first entries do, and may find that nothing changed.
            running.wait_more_than(PAGE).await?;
            if let Some(listing) =
                directory.listing().filter(|l| Arc::ptr_eq(l, &old) || Arc::ptr_eq(l, &running))
            {
                return Ok(listing);
            }
            running.show();
        }
        Ok(running)
    }

    /// The complete and fresh listing of `dir`, if there is one.
    pub(crate) fn fresh_listing(&self, dir: &FsPath) -> Option<Arc<Listing>> {
        let listing = self.directories.get(dir)?.listing()?;
        listing.is_fresh(self.clock.now(), self.epochs.of(dir)).then_some(listing)
    }

    /// `path` was changed by our own doing: what was known of it, and of what its parents contain, is void.
    pub(crate) fn changed(&self, path: &FsPath) {
        self.epochs.changed(path);
    }

    /// A whole directory was.
    pub(crate) fn tree_changed(&self) {
        self.epochs.all_changed();
    }

    /// What is known of `path` turned out to be wrong: the next lookup asks the store.
    pub(crate) fn distrust(&self, path: &FsPath) {
        let now = self.clock.now();
        let attribute = Attribute { seen: now, expires: now, epoch: self.epochs.of(path), metadata: None };
        self.attributes.put(path, attribute);
        if let Some(listing) = path.parent().and_then(|p| self.directories.get(&p)).and_then(|d| d.listing())
        {
            listing.set_outdated();
        }
    }

    pub(super) fn refuse(&self, directory: &Directory) {
        directory.state.lock().refused_until = Some(self.clock.now().after(REFUSED));
    }

    /// Brings the gauges up to date.
    pub(crate) fn count(&self) {
        let (directories, entries) = self.directories.count();
        self.stats.directories.set(directories);
        self.stats.entries.set(entries);
        self.stats.attributes.set(self.attributes.len());
        self.stats.negatives.set(self.negatives.len());
    }
}
