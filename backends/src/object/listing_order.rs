//! From the order of keys to the order of paths.
//!
//! A store lists keys by their bytes: `out`, `out-a`, `out/x`. A listing compares every component as if it ended in `/`
//! ([`FsPath::cmp_listing`]): `out-a`, `out`, `out/x`. So a file is held back until the keys have passed the place of a
//! directory of its name; if that directory shows up, the file is hidden behind it. Keys between a file `f` and `f/`
//! begin with `f`, so what is held at any time is a chain of names, each the beginning of the next.

use std::collections::VecDeque;

use super::wire::list::Item;
use crate::error::{Error, ErrorKind, Result};
use crate::metadata::{DirEntry, Metadata};
use crate::path::FsPath;

/// Turns keys of one directory, in key order, into entries in listing order.
#[derive(Debug)]
pub(crate) struct Merge {
    dir: FsPath,
    /// What all keys begin with.
    prefix: Vec<u8>,
    recursive: bool,
    /// Entries up to this place are not wanted: a relative path with its final `/`.
    after: Option<Vec<u8>>,
    /// Files whose place has not been reached, the longest name last.
    held: Vec<(Vec<u8>, Metadata)>,
    /// The last key, relative to `prefix`.
    last: Option<Vec<u8>>,
    out: VecDeque<DirEntry>,
    pub(crate) tally: Tally,
}

/// What was left out, and whether there was anything at all.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// True once any key was seen: the directory exists.
    pub(crate) exists: bool,
    /// Keys that no path can name.
    pub(crate) skipped: u64,
    /// The first of them.
    pub(crate) example: Option<String>,
    /// Files hidden by a directory of the same name.
    pub(crate) hidden: u64,
}

impl Merge {
    /// `after` is a path below `dir`, relative to it.
    pub(crate) fn new(dir: FsPath, prefix: Vec<u8>, recursive: bool, after: Option<&FsPath>) -> Self {
        let after = after.map(|p| place(p.as_bytes()));
        Merge {
            dir,
            prefix,
            recursive,
            after,
            held: Vec::new(),
            last: None,
            out: VecDeque::new(),
            tally: Tally::default(),
        }
    }

    /// A file that comes before all keys that will be pushed, though its place may be later.
    pub(crate) fn hold(&mut self, name: Vec<u8>, metadata: Metadata) {
        self.held.push((name, metadata));
    }

    /// Takes the next key.
    ///
    /// # Errors
    /// `Corrupt` if the store does not list in key order: nothing could then be said about completeness.
    pub(crate) fn push(&mut self, item: Item) -> Result<()> {
        let Some(name) = item.key.strip_prefix(&*self.prefix) else {
            return Err(disorder("holds a key outside of the directory"));
        };
        match self.last.as_deref() {
            Some(last) if last > name => return Err(disorder("is not in the order of keys")),
            // A page that begins with the last line of the one before.
            Some(last) if last == name => return Ok(()),
            _ => {}
        }
        self.tally.exists = true;
        self.release(name);
        self.enter_dirs(name);
        // In one level a longer key can only come from a store that does not roll keys up: its directory is all it says.
        let too_deep = !self.recursive && name.contains(&b'/') && FsPath::parse(name).is_ok();
        if !name.ends_with(b"/") && !name.is_empty() && !too_deep {
            match item.metadata {
                Some(metadata) if FsPath::parse(name).is_ok() => self.held.push((name.to_vec(), metadata)),
                Some(_) => self.skip(&item.key),
                None => return Err(disorder("holds a prefix that is none")),
            }
        }
        self.last = Some(name.to_vec());
        Ok(())
    }

    /// No further keys.
    pub(crate) fn finish(&mut self) {
        while let Some((name, metadata)) = self.held.pop() {
            self.emit(&name, metadata);
        }
    }

    pub(crate) fn next(&mut self) -> Option<DirEntry> {
        self.out.pop_front()
    }

    /// Gives out the held files whose place is before `name`, and drops those that `name` makes directories.
    fn release(&mut self, name: &[u8]) {
        while let Some((file, _)) = self.held.last() {
            let below = name.strip_prefix(&**file);
            match below {
                Some([b'/', ..]) => {
                    let (file, _) = self.held.pop().expect("looked at above");
                    self.tally.hidden += 1;
                    tracing::debug!(
                        file = %String::from_utf8_lossy(&file),
                        "hidden behind a directory of the same name"
                    );
                }
                // `name` lies between the file and its place.
                Some([b, ..]) if *b < b'/' => break,
                _ => {
                    let (file, metadata) = self.held.pop().expect("looked at above");
                    self.emit(&file, metadata);
                }
            }
        }
    }

    /// Gives out the directories that `name` lies in and the key before it did not.
    fn enter_dirs(&mut self, name: &[u8]) {
        let shared = self.last.as_deref().map_or(0, |last| {
            let same = last.iter().zip(name).take_while(|(a, b)| a == b).count();
            name[..same].iter().rposition(|b| *b == b'/').map_or(0, |i| i + 1)
        });
        let mut from = shared;
        while let Some(slash) = name[from..].iter().position(|b| *b == b'/').map(|i| from + i) {
            let dir = &name[..slash];
            if FsPath::parse(dir).is_err() || dir.is_empty() {
                // Neither it nor anything below can be named. Counted here where the key is a directory itself, else
                // by the caller.
                if name.ends_with(b"/") {
                    self.skip(&[&self.prefix, name].concat());
                }
                return;
            }
            self.emit(dir, Metadata::dir());
            if !self.recursive {
                return;
            }
            from = slash + 1;
        }
    }

    fn emit(&mut self, name: &[u8], metadata: Metadata) {
        if self.after.as_deref().is_some_and(|after| *place(name) <= *after) {
            return;
        }
        let Ok(below) = FsPath::parse(name) else { return };
        self.out.push_back(DirEntry { path: self.dir.join_path(&below), metadata });
    }

    fn skip(&mut self, key: &[u8]) {
        self.tally.skipped += 1;
        self.tally.example.get_or_insert_with(|| key.escape_ascii().to_string());
    }
}

/// Where a name stands in listing order.
fn place(name: &[u8]) -> Vec<u8> {
    [name, b"/"].concat()
}

/// Files that stand after `name` in listing order although their keys come before it: its beginnings that are followed
/// by a byte below `/`.
pub(crate) fn earlier_keys(name: &FsPath) -> Vec<FsPath> {
    let bytes = name.as_bytes();
    let cuts = (1..bytes.len()).filter(|i| bytes[*i] < b'/');
    cuts.filter_map(|i| FsPath::parse(&bytes[..i]).ok()).collect()
}

fn disorder(what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("the store's listing {what}"))
        .with_context("hint", "stores that list in another order than that of keys cannot be shown")
}

#[cfg(test)]
mod tests;
