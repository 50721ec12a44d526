//! [`Chunks`]: the entries of a listing, in pieces as they arrived.

use std::cmp::Ordering;
use std::sync::Arc;

use super::listing::ListedEntry;

/// Entries in order, in pieces. Of a listing that is larger than what is remembered, the oldest pieces are let go;
/// their place is kept, so that they can be listed again.
#[derive(Debug, Default)]
pub(super) struct Chunks {
    chunks: Vec<Chunk>,
    len: usize,
    held: usize,
    /// The first chunk whose entries are here.
    first_held: usize,
    /// Indexes of the directories among the entries.
    dirs: Vec<u32>,
    /// The store broke the order of listings, so nothing follows from where a name does not stand.
    unordered: bool,
}

#[derive(Debug)]
struct Chunk {
    start: usize,
    len: usize,
    last: Box<[u8]>,
    entries: Option<Arc<[ListedEntry]>>,
}

/// Where an entry is.
#[derive(Debug, Clone)]
pub(super) enum Place {
    /// In this piece, which begins at this index.
    Here(Arc<[ListedEntry]>, usize),
    /// In a piece that was let go: it begins at this index, has so many entries, and followed this name.
    Gone { start: usize, len: usize, after: Option<Box<[u8]>> },
}

/// What is known of a name.
#[derive(Debug)]
pub(super) enum Search<'a> {
    /// It is here.
    Entry(usize, &'a ListedEntry),
    /// It would stand before an entry that is here, and does not.
    Missing,
    /// It would stand behind all entries.
    Behind,
    /// It would stand in a piece that was let go, or cannot be looked for.
    Unknown,
}

impl Chunks {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn push(&mut self, entries: Vec<ListedEntry>) {
        let Some(last) = entries.last().map(|e| e.name.clone()) else { return };
        let before = self.chunks.last();
        let ordered = before.is_none_or(|c| cmp_names(&c.last, &entries[0].name).is_lt())
            && entries.is_sorted_by(|a, b| cmp_names(&a.name, &b.name).is_lt());
        self.unordered |= !ordered;
        let (start, len) = (self.len, entries.len());
        let dirs = entries.iter().enumerate().filter(|(_, e)| e.metadata.is_dir());
        self.dirs.extend(dirs.filter_map(|(i, _)| u32::try_from(start + i).ok()));
        self.len += len;
        self.held += len;
        self.chunks.push(Chunk { start, len, last, entries: Some(entries.into()) });
    }

    /// Lets the oldest pieces go until at most `most` entries are here.
    pub(super) fn shrink(&mut self, most: usize) {
        while self.held > most && self.first_held + 1 < self.chunks.len() {
            let chunk = &mut self.chunks[self.first_held];
            chunk.entries = None;
            self.held -= chunk.len;
            self.first_held += 1;
        }
    }

    /// True if something was let go.
    pub(super) fn is_partial(&self) -> bool {
        self.first_held > 0
    }

    /// Where the entry `index` is; `None` if it has not come.
    pub(super) fn place(&self, index: usize) -> Option<Place> {
        if index >= self.len {
            return None;
        }
        let at = self.chunks.partition_point(|c| c.start <= index) - 1;
        let chunk = &self.chunks[at];
        Some(match &chunk.entries {
            Some(entries) => Place::Here(entries.clone(), chunk.start),
            None => {
                let after = at.checked_sub(1).map(|before| self.chunks[before].last.clone());
                Place::Gone { start: chunk.start, len: chunk.len, after }
            }
        })
    }

    pub(super) fn search(&self, name: &[u8]) -> Search<'_> {
        if self.unordered {
            let mut all =
                self.chunks.iter().flat_map(|c| c.entries.iter().flat_map(|e| e.iter())).enumerate();
            return all.find(|(_, e)| &*e.name == name).map_or(Search::Unknown, |(i, e)| Search::Entry(i, e));
        }
        let at = self.chunks.partition_point(|c| cmp_names(&c.last, name).is_lt());
        let Some(chunk) = self.chunks.get(at) else { return Search::Behind };
        let Some(entries) = &chunk.entries else { return Search::Unknown };
        match entries.binary_search_by(|e| cmp_names(&e.name, name)) {
            Ok(i) => Search::Entry(chunk.start + i, &entries[i]),
            Err(_) => Search::Missing,
        }
    }

    /// True if all entries were looked through and `name` is not among them, given that no more will come.
    pub(super) fn lacks(&self, name: &[u8]) -> bool {
        match self.search(name) {
            Search::Missing | Search::Behind => true,
            Search::Unknown => self.unordered && !self.is_partial(),
            Search::Entry(..) => false,
        }
    }

    /// The directories among the entries here with indexes from `from` on; at most `max`.
    pub(super) fn dirs_from(&self, from: usize, max: usize) -> Vec<(usize, Box<[u8]>)> {
        let first = self.dirs.partition_point(|i| (*i as usize) < from);
        let name = |i: usize| match self.place(i)? {
            Place::Here(entries, start) => Some((i, entries[i - start].name.clone())),
            Place::Gone { .. } => None,
        };
        self.dirs[first..].iter().take(max).filter_map(|i| name(*i as usize)).collect()
    }

    /// The pieces that are here.
    pub(super) fn pieces(&self) -> Vec<Arc<[ListedEntry]>> {
        self.chunks.iter().filter_map(|c| c.entries.clone()).collect()
    }
}

/// The order of [`FsPath::cmp_listing`](nearfs_backends::FsPath::cmp_listing) for two names of one directory: as if
/// both ended in `/`.
pub(super) fn cmp_names(a: &[u8], b: &[u8]) -> Ordering {
    let n = a.len().min(b.len());
    a[..n].cmp(&b[..n]).then_with(|| match (a.get(n), b.get(n)) {
        (None, None) => Ordering::Equal,
        (x, y) => x.unwrap_or(&b'/').cmp(y.unwrap_or(&b'/')),
    })
}

#[cfg(test)]
mod tests {
    use nearfs_backends::{FsPath, Metadata};

    use super::*;

    fn entry(name: &str) -> ListedEntry {
        ListedEntry { name: name.as_bytes().into(), metadata: Metadata::dir() }
    }

    #[test]
    fn names_are_ordered_as_paths_in_listings_are() {
        let names = ["a", "a!", "a-b", "a.b", "a0", "ab", "b", "\u{1}", "z/"];
        for a in &names[..8] {
            for b in &names[..8] {
                let by_path = FsPath::parse(a).unwrap().cmp_listing(&FsPath::parse(b).unwrap());
                assert_eq!(cmp_names(a.as_bytes(), b.as_bytes()), by_path, "{a} {b}");
            }
        }
    }

    #[test]
    fn what_is_let_go_keeps_its_place() {
        let mut chunks = Chunks::default();
        for piece in [["a", "b"], ["c", "d"], ["e", "f"]] {
            chunks.push(piece.map(entry).into());
        }
        chunks.shrink(3);
        assert!(chunks.is_partial());
        assert!(matches!(chunks.place(0), Some(Place::Gone { start: 0, len: 2, after: None })));
        assert!(
            matches!(chunks.place(3), Some(Place::Gone { start: 2, len: 2, after: Some(name) }) if &*name == b"b")
        );
        assert!(matches!(chunks.place(5), Some(Place::Here(_, 4))));
        assert!(chunks.place(6).is_none());
        assert!(matches!(chunks.search(b"b"), Search::Unknown) && !chunks.lacks(b"b"));
        assert!(matches!(chunks.search(b"f"), Search::Entry(5, _)));
        assert!(chunks.lacks(b"ee") && chunks.lacks(b"g") && !chunks.lacks(b"e"));
        assert_eq!(chunks.dirs_from(0, 10).len(), 2);
        let mut wrong = Chunks::default();
        wrong.push(["b", "a"].map(entry).into());
        assert!(matches!(wrong.search(b"a"), Search::Entry(1, _)) && wrong.lacks(b"c"));
    }
}
