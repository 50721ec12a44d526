//! Listings in our order out of listings in none.

use std::collections::BTreeMap;

use futures::stream::{self, StreamExt};

use super::{Found, ObjectStoreFileSystem, level};
use crate::error::{Error, ErrorKind, Result};
use crate::fs::EntryStream;
use crate::interop::error::{metadata_of, path_of};
use crate::metadata::{DirEntry, Metadata};
use crate::metrics::LIST_SKIPPED;
use crate::options::ListOptions;
use crate::path::FsPath;

/// Depth first, one level at a time: memory is bounded by the levels on the way down, and the order is ours whatever
/// the store's is.
pub(super) fn list(fs: ObjectStoreFileSystem, dir: FsPath, options: ListOptions) -> EntryStream {
    let ListOptions { recursive, start_after } = options;
    let state = Walk { fs, start_after, recursive, levels: Vec::new(), next: Some(dir.clone()), root: dir };
    stream::unfold(Some(state), |state| async move {
        let mut state = state?;
        match state.step().await {
            Ok(Some(entry)) => Some((Ok(entry), Some(state))),
            Ok(None) => None,
            Err(e) => Some((Err(e), None)),
        }
    })
    .boxed()
}

struct Walk {
    fs: ObjectStoreFileSystem,
    root: FsPath,
    start_after: Option<FsPath>,
    recursive: bool,
    /// The rest of every level on the way down.
    levels: Vec<std::vec::IntoIter<DirEntry>>,
    /// A directory to be listed next.
    next: Option<FsPath>,
}

impl Walk {
    async fn step(&mut self) -> Result<Option<DirEntry>> {
        loop {
            if let Some(dir) = self.next.take() {
                let entries = self.level(&dir).await?;
                self.levels.push(entries.into_iter());
            }
            let Some(rest) = self.levels.last_mut() else { return Ok(None) };
            let Some(entry) = rest.next() else {
                self.levels.pop();
                continue;
            };
            if self.recursive && entry.metadata.is_dir() && self.may_hold_more(&entry.path) {
                self.next = Some(entry.path.clone());
            }
            if self.start_after.as_ref().is_none_or(|after| entry.path.cmp_listing(after).is_gt()) {
                return Ok(Some(entry));
            }
        }
    }

    /// Whether a subtree has entries after the start: it comes after it, or the start lies in it.
    fn may_hold_more(&self, dir: &FsPath) -> bool {
        self.start_after
            .as_ref()
            .is_none_or(|after| dir.cmp_listing(after).is_gt() || after.strip_prefix(dir).is_some())
    }

    async fn level(&self, dir: &FsPath) -> Result<Vec<DirEntry>> {
        let found = match level(&*self.fs.store, dir).await {
            Ok(found) => found,
            // A local disk under the store, and a path that is a file there or nothing.
            Err(e) if matches!(e.kind(), ErrorKind::NotADirectory | ErrorKind::NotFound) => {
                object_store::ListResult {
                    common_prefixes: Vec::new(),
                    objects: Vec::new(),
                    extensions: Default::default(),
                }
            }
            Err(e) => return Err(e),
        };
        let mut skipped = 0;
        // Sorted by the name with `/` behind it: our order.
        let mut entries = BTreeMap::new();
        let key = |path: &FsPath| [path.as_bytes(), b"/"].concat();
        for object in &found.objects {
            match path_of(&object.location).filter(|p| p.parent().as_ref() == Some(dir)) {
                Some(path) => {
                    entries.insert(key(&path), DirEntry { path, metadata: metadata_of(object) });
                }
                None => skipped += 1,
            }
        }
        for prefix in &found.common_prefixes {
            match path_of(prefix).filter(|p| p.parent().as_ref() == Some(dir)) {
                // The directory wins over an object of its name.
                Some(path) => {
                    let entry = DirEntry { path, metadata: Metadata::dir() };
                    skipped += u64::from(entries.insert(key(&entry.path), entry).is_some());
                }
                None => skipped += 1,
            }
        }
        if skipped > 0 {
            LIST_SKIPPED.counter(["object_store", "name"]).increment(skipped);
        }
        if entries.is_empty() && *dir == self.root && !dir.is_root() {
            let e = match self.fs.look_up(dir, "list").await? {
                Found::File(_) => Error::new(ErrorKind::NotADirectory, "a file has this name"),
                // Some stores do keep empty directories, others have just got an object.
                Found::Dir | Found::EmptyDir => return Ok(Vec::new()),
                Found::Nothing => Error::not_found(dir),
            };
            return Err(e.during("list").at(dir));
        }
        Ok(entries.into_values().collect())
    }
}
