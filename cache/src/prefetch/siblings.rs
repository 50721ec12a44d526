//! [`Siblings`]: small files of one directory that are read one after the other bring their neighbours along.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use nearfs_backends::FsPath;
use parking_lot::Mutex;

use super::window::WHOLE;
use crate::clock::Tick;
use crate::engine::Engine;
use crate::memory::extent::Purpose;
use crate::metadata::Listing;

/// Directories that are followed at once.
const MAX_DIRECTORIES: usize = 32;
/// Reads in a directory that make a habit.
const HABIT: u32 = 3;
/// A habit is forgotten after this long without a read.
const FORGOTTEN: Duration = Duration::from_secs(30);
/// Reads this far apart in the listing are in order, since many readers share a directory; at most a sixteenth of
/// the directory, so that reads in any order are not.
const NEAR: usize = 64;
/// Most files fetched ahead of reads that go in order.
const MAX_FILES: usize = 256;
/// Most bytes fetched ahead and not read yet, over all directories; also at most a quarter of the memory.
const MAX_BYTES: u64 = 256 << 20;
/// Wasted files that are tolerated at any time.
const TOLERATED: u64 = 64;
/// After this long without fetching any, they are given another chance.
const FORGIVEN: Duration = Duration::from_secs(60);
/// Entries looked at in one step.
const SCAN: usize = 1024;

/// The directories in which small files are being read.
///
/// Reads in the order of the listing are followed by a window of files ahead that doubles with the reads. Reads in
/// any other order (shuffled epochs) bring along the whole directory, but only if its small files fit into half of
/// the memory, since then each will be read before it has to go. Files fetched and never read are counted: when
/// they outnumber the ones that were used, no more are fetched for a minute.
#[derive(Debug, Default)]
pub(crate) struct Siblings {
    habits: Mutex<VecDeque<Habit>>,
    record: Mutex<Record>,
}

/// Files used and wasted that no longer count, and when it was last worth fetching more.
#[derive(Debug, Default)]
struct Record {
    used: u64,
    wasted: u64,
    good_at: Option<Tick>,
}

#[derive(Debug)]
struct Habit {
    dir: FsPath,
    listing: u64,
    reads: u32,
    in_order: u32,
    /// The farthest index read.
    last: usize,
    /// Where to look for the next file to fetch.
    next: usize,
    /// Files fetched ahead beyond `last` count from here.
    until: usize,
    fits: bool,
    at: Tick,
}

impl Siblings {
    /// Whether enough of what was fetched is used.
    fn is_worth_it(&self, engine: &Engine, now: Tick) -> bool {
        let (used, wasted) = (engine.stats.siblings_used.get(), engine.stats.siblings_wasted.get());
        let mut record = self.record.lock();
        if wasted.saturating_sub(record.wasted) > used.saturating_sub(record.used) + TOLERATED {
            if record.good_at.is_some_and(|at| now.since(at) < FORGIVEN) {
                return false;
            }
            (record.used, record.wasted) = (used, wasted);
        }
        record.good_at = Some(now);
        true
    }

    /// A small file was read for the first time since it was remembered.
    pub(crate) fn read(&self, engine: &Arc<Engine>, path: &FsPath) {
        let Some(dir) = path.parent() else { return };
        let Some(listing) = engine.names.fresh_listing(&dir) else { return };
        let Some(index) = listing.position(path.name()) else { return };
        let now = engine.clock.now();
        let mut habits = self.habits.lock();
        let found = habits.iter().position(|h| h.dir == dir).and_then(|i| habits.remove(i));
        let usable = found.filter(|h| h.listing == listing.id() && now.since(h.at) < FORGOTTEN);
        let mut habit = usable.unwrap_or_else(|| Habit::new(&dir, &listing, index, engine, now));
        habit.reads += 1;
        habit.at = now;
        habit.in_order += u32::from(index.abs_diff(habit.last) <= NEAR.min(1 + listing.len() / 16));
        habit.last = if habit.is_in_order() { habit.last.max(index) } else { index };
        if habits.len() == MAX_DIRECTORIES {
            habits.pop_front();
        }
        fill(engine, &mut habit, &listing);
        habits.push_back(habit);
    }

    /// A file that was fetched ahead has arrived: there may be room for the next.
    pub(crate) fn landed(&self, engine: &Arc<Engine>, path: &FsPath) {
        let Some(dir) = path.parent() else { return };
        let Some(listing) = engine.names.fresh_listing(&dir) else { return };
        let mut habits = self.habits.lock();
        if let Some(habit) = habits.iter_mut().find(|h| h.dir == dir && h.listing == listing.id()) {
            fill(engine, habit, &listing);
        }
    }
}

impl Habit {
    fn new(dir: &FsPath, listing: &Listing, index: usize, engine: &Engine, now: Tick) -> Self {
        Habit {
            dir: dir.clone(),
            listing: listing.id(),
            reads: 0,
            in_order: 0,
            last: index,
            next: index,
            until: index,
            fits: small_bytes(listing, engine.memory.limit() / 2),
            at: now,
        }
    }

    fn is_in_order(&self) -> bool {
        self.in_order * 4 >= self.reads * 3
    }
}

/// Whether all small files of `listing` together have at most `limit` bytes.
fn small_bytes(listing: &Listing, limit: u64) -> bool {
    let (mut from, mut bytes) = (0, 0u64);
    while let Some(page) = listing.peek_entries(from, SCAN).filter(|p| !p.entries.is_empty()) {
        let small = page.entries.iter().filter(|e| e.metadata.is_file() && e.metadata.size <= WHOLE);
        bytes += small.map(|e| e.metadata.size).sum::<u64>();
        if bytes > limit {
            return false;
        }
        from += page.entries.len();
    }
    true
}

/// Fetches the next files of `habit` as far as connections, memory and its record allow.
fn fill(engine: &Arc<Engine>, habit: &mut Habit, listing: &Listing) {
    if habit.reads < HABIT {
        return;
    }
    if !engine.siblings.is_worth_it(engine, engine.clock.now()) {
        return;
    }
    let entries = listing.len();
    let end = if habit.is_in_order() {
        habit.next = habit.next.max(habit.last + 1);
        (habit.last + 1 + (habit.reads as usize).saturating_mul(4).min(MAX_FILES)).min(entries)
    } else if habit.fits {
        // Once round from where the first read was.
        habit.until + entries
    } else {
        return;
    };
    let most = MAX_BYTES.min(engine.memory.limit() / 4);
    while habit.next < end {
        if engine.memory.siblings_unread() >= most {
            return;
        }
        let Some(page) = listing.peek_entries(habit.next % entries, 1) else { return };
        let Some(entry) = page.entries.first() else { return };
        let metadata = &entry.metadata;
        let wanted =
            metadata.is_file() && !metadata.archived && (1..=engine.whole()).contains(&metadata.size);
        if let Some(path) = habit.dir.join(&entry.name).ok().filter(|_| wanted)
            && let Some(blocks) = engine.untouched(&path, metadata)
        {
            if blocks.is_on_disk() {
                engine.forget_if_unused(&blocks);
                habit.next += 1;
                continue;
            }
            let whole = 0..metadata.size;
            match blocks.fetch_ahead(whole, Clone::clone, Purpose::Sibling, 0) {
                Some(_) => engine.memory.sibling_coming(metadata.size),
                None => {
                    engine.forget_if_unused(&blocks);
                    return;
                }
            }
        }
        habit.next += 1;
    }
}
