//! [`Walk`]: when directories are read one after the other, the next ones are listed ahead.

use std::collections::VecDeque;
use std::sync::Arc;

use nearfs_backends::FsPath;
use parking_lot::Mutex;

use super::lister::Cause;
use super::listing::{Listing, READ_AHEAD};
use super::names::Names;

/// Listings made ahead at once.
const AT_ONCE: usize = 32;
/// Directories that may be listed or on their way ahead of the walker.
const MAX_AHEAD: usize = 96;
/// How many of the next sub-directories of one directory are looked at in one step.
const SIBLINGS: usize = MAX_AHEAD;
/// Parents whose children's order of visits is remembered.
const MAX_PARENTS: usize = 32;
/// A walker may leave out this many sub-directories between two visits.
const SKIPS: usize = 4;

/// How directories are being read.
///
/// Walkers (`find`, `os.walk`, `rsync`, `du`) read directories depth first in the order of the listings. Two
/// siblings read one after the other are taken for a walk; from then on the directories that come next in that
/// order are listed ahead, twice as many after each visit.
#[derive(Debug, Default)]
pub(super) struct Walk {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    parents: VecDeque<(FsPath, usize)>,
    /// Where the walker was last, and how many directories may be ahead of it.
    at: Option<FsPath>,
    ahead: usize,
}

impl Names {
    /// A reader has come to `dir`.
    pub(super) fn visited(&self, dir: &FsPath) {
        if !self.lists_ahead {
            return;
        }
        let Some(parent) = dir.parent() else { return };
        let index = self.fresh_listing(&parent).and_then(|l| l.position(dir.name()));
        {
            let mut state = self.walk.state.lock();
            let known =
                state.parents.iter().position(|(p, _)| *p == parent).and_then(|i| state.parents.remove(i));
            let Some(index) = index else { return };
            if state.parents.len() == MAX_PARENTS {
                state.parents.pop_front();
            }
            state.parents.push_back((parent.clone(), index));
            let next = known
                .is_some_and(|(_, last)| index > last && self.dirs_between(&parent, last, index) <= SKIPS);
            let inside = state.at.as_ref().is_some_and(|at| *at == parent);
            if next {
                state.ahead = (state.ahead * 2).clamp(4, MAX_AHEAD);
            } else if !inside {
                // Neither the next sibling nor a child of where the walker was.
                state.ahead = 0;
            }
            state.at = Some(dir.clone());
        }
        self.list_ahead();
    }

    fn dirs_between(&self, parent: &FsPath, from: usize, to: usize) -> usize {
        let dirs = self.fresh_listing(parent).map(|l| l.dirs_from(from + 1, SKIPS + 1));
        dirs.map_or(usize::MAX, |dirs| dirs.iter().filter(|(i, _)| *i < to).count())
    }

    /// Begins the listings that may be begun now.
    pub(super) fn list_ahead(&self) {
        let (at, mut ahead) = {
            let state = self.walk.state.lock();
            match &state.at {
                Some(at) if state.ahead > 0 => (at.clone(), state.ahead),
                _ => return,
            }
        };
        let mut running = AT_ONCE;
        self.children(&at, 0, &mut ahead, &mut running);
        let mut dir = at;
        while let Some(parent) = dir.parent() {
            if ahead == 0 || running == 0 {
                return;
            }
            let Some(listing) = self.fresh_listing(&parent) else { return };
            let Some(index) = listing.position(dir.name()) else { return };
            self.children(&parent, index + 1, &mut ahead, &mut running);
            dir = parent;
        }
    }

    /// Goes through the sub-directories of `dir` from index `from` on, depth first, and lists those that are not
    /// listed yet. `ahead` and `running` count down.
    fn children(&self, dir: &FsPath, from: usize, ahead: &mut usize, running: &mut usize) {
        let Some(listing) = self.fresh_listing(dir) else { return };
        for (_, name) in listing.dirs_from(from, SIBLINGS.min(*ahead)) {
            if *ahead == 0 || *running == 0 {
                return;
            }
            *ahead -= 1;
            let Ok(path) = dir.join(&name) else { continue };
            if self.begin(&path, running).is_some() {
                self.children(&path, 0, ahead, running);
            }
        }
    }

    /// The fresh listing of `path`; otherwise one is begun.
    fn begin(&self, path: &FsPath, running: &mut usize) -> Option<Arc<Listing>> {
        let (now, epoch) = (self.clock.now(), self.epochs.of(path));
        let directory = self.directories.get_or_insert(path);
        let mut state = directory.state.lock();
        if let Some(listing) = state.listing.as_ref().filter(|l| l.is_fresh(now, epoch)) {
            return Some(listing.clone());
        }
        *running -= 1;
        if state.running.is_none() && state.refused_until.is_none_or(|t| t <= now) {
            self.start(&directory, &mut state, Cause::Ahead, READ_AHEAD);
        }
        None
    }
}
