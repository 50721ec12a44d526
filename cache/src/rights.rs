//! [`Rights`]: what the store has refused to this process, so that nothing remembered is given out instead.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use nearfs_backends::{Error, ErrorKind, FsPath, Result};
use parking_lot::Mutex;

/// Refusals, and names shown again, that are told apart. Beyond that everything is refused until it is shown again:
/// more than must be, never less.
const MAX: usize = 4096;

/// The store's refusals (401 and 403) that are in force.
///
/// Blocks of a cache are shared by whoever may open it, but a process serves only what the store has shown to *it*.
/// So a refusal ends the serving of what is held, at once, until the store shows the name again:
/// * Refused for one name (`stat`, a read): that name, until a `stat` or a read of it succeeds.
/// * Refused to list a directory that could be listed before: everything below it, until it (or the directory in
///   question) is listed again, or the single name shown. Where listing was never allowed nothing was learnt by it,
///   and its refusal says nothing of the files.
#[derive(Debug, Default)]
pub(crate) struct Rights {
    /// Refusals in force: all that is looked at while there are none.
    count: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Orders refusals and showings.
    next: u64,
    names: HashMap<FsPath, Refusal>,
    trees: HashMap<FsPath, Refusal>,
    shown: HashMap<FsPath, u64>,
    listed: HashMap<FsPath, u64>,
}

#[derive(Debug)]
struct Refusal {
    at: u64,
    error: Error,
}

/// True for the errors that say that these credentials may not.
pub(crate) fn is_refusal(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::Unauthenticated)
}

impl Rights {
    /// # Errors
    /// The store's refusal, if the last word on `path` is one.
    pub(crate) fn check(&self, path: &FsPath) -> Result<()> {
        if self.count.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let state = self.state.lock();
        let shown = state.shown.get(path).copied().unwrap_or(0);
        if let Some(refusal) = state.names.get(path).filter(|r| r.at > shown) {
            return Err(refusal.error.duplicate().with_path(path));
        }
        let mut seen = shown;
        let mut at = path.parent();
        let mut newest: Option<&Refusal> = None;
        while let Some(dir) = at {
            // Only the listing of its own directory showed this name.
            if at_most_parent(path, &dir) {
                seen = seen.max(state.listed.get(&dir).copied().unwrap_or(0));
            }
            newest = newest.into_iter().chain(state.trees.get(&dir)).max_by_key(|r| r.at);
            at = dir.parent();
        }
        match newest.filter(|r| r.at > seen) {
            Some(refusal) => Err(refusal.error.duplicate().with_path(path)),
            None => Ok(()),
        }
    }

    /// A call for this very name was refused. Errors of other kinds change nothing.
    pub(crate) fn refused(&self, path: &FsPath, error: &Error) {
        if is_refusal(error) {
            let mut state = self.state.lock();
            let refusal = state.refusal(error);
            state.names.insert(path.clone(), refusal);
            self.settle(&mut state);
        }
    }

    /// The listing of `dir`, which was allowed before, was refused.
    pub(crate) fn refused_below(&self, dir: &FsPath, error: &Error) {
        if is_refusal(error) {
            let mut state = self.state.lock();
            let refusal = state.refusal(error);
            state.trees.insert(dir.clone(), refusal);
            self.settle(&mut state);
        }
    }

    /// The store has shown this name.
    pub(crate) fn shown(&self, path: &FsPath) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut state = self.state.lock();
        state.names.remove(path);
        if !state.trees.is_empty() {
            let now = state.tick();
            state.shown.insert(path.clone(), now);
        }
        self.settle(&mut state);
    }

    /// The store has listed `dir`.
    pub(crate) fn listed(&self, dir: &FsPath) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut state = self.state.lock();
        state.trees.remove(dir);
        if !state.trees.is_empty() {
            let now = state.tick();
            state.listed.insert(dir.clone(), now);
        }
        self.settle(&mut state);
    }

    fn settle(&self, state: &mut State) {
        if state.names.len() + state.trees.len() > MAX {
            let all = state.names.drain().chain(std::mem::take(&mut state.trees)).map(|(_, r)| r);
            if let Some(newest) = all.max_by_key(|r| r.at) {
                state.trees.insert(FsPath::root(), newest);
            }
        }
        if state.shown.len() + state.listed.len() > MAX || state.trees.is_empty() {
            // Whoever asks for them again is shown them again.
            state.shown.clear();
            state.listed.clear();
        }
        self.count.store(state.names.len() + state.trees.len(), Ordering::Release);
    }
}

impl State {
    fn tick(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn refusal(&mut self, error: &Error) -> Refusal {
        Refusal { at: self.tick(), error: error.duplicate() }
    }
}

fn at_most_parent(path: &FsPath, dir: &FsPath) -> bool {
    path.depth() == dir.depth() + 1
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    fn path(text: &str) -> FsPath {
        FsPath::parse(text).unwrap()
    }

    fn denied() -> Error {
        Error::new(ErrorKind::PermissionDenied, "the store answered 403")
    }

    #[test]
    fn a_refused_name_stays_refused_until_it_is_shown() {
        let rights = Rights::default();
        rights.refused(&path("d/a"), &Error::new(ErrorKind::Unavailable, "busy"));
        rights.check(&path("d/a")).unwrap();
        rights.refused(&path("d/a"), &denied());
        assert_eq!(rights.check(&path("d/a")).unwrap_err().kind(), ErrorKind::PermissionDenied);
        rights.check(&path("d/b")).unwrap();
        rights.listed(&path("d"));
        assert!(rights.check(&path("d/a")).is_err(), "a listing does not show that a file may be read");
        rights.shown(&path("d/a"));
        rights.check(&path("d/a")).unwrap();
        assert_eq!(rights.count.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_refused_listing_ends_all_below_until_each_is_shown_again() {
        let rights = Rights::default();
        rights.refused_below(&path("d"), &denied());
        for below in ["d/a", "d/e/f"] {
            let error = rights.check(&path(below)).unwrap_err();
            assert!(error.to_string().contains(below), "{error}");
        }
        rights.check(&path("dd")).unwrap();
        rights.check(&path("d")).unwrap();
        rights.shown(&path("d/a"));
        rights.check(&path("d/a")).unwrap();
        rights.listed(&path("d/e"));
        rights.check(&path("d/e/f")).unwrap();
        assert!(rights.check(&path("d/e/g/h")).is_err() && rights.check(&path("d/b")).is_err());
        rights.refused_below(&path("d"), &denied());
        assert!(rights.check(&path("d/a")).is_err() && rights.check(&path("d/e/f")).is_err());
        rights.listed(&path("d"));
        rights.check(&path("d/b")).unwrap();
    }

    #[test]
    fn too_many_refusals_refuse_more_and_never_less() {
        let rights = Rights::default();
        for i in 0..=MAX {
            rights.refused(&path(&format!("d/{i}")), &denied());
        }
        for name in ["d/0", "d/4000", "else"] {
            assert!(rights.check(&path(name)).is_err(), "{name}");
        }
        for i in 0..=MAX {
            rights.shown(&path(&format!("d/{i}")));
        }
        assert!(rights.check(&path("d/0")).is_err(), "what was forgotten is shown again first");
        rights.shown(&path("d/0"));
        rights.check(&path("d/0")).unwrap();
        rights.listed(&FsPath::root());
        rights.check(&path("else")).unwrap();
    }
}
