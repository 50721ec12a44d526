//! The names and bytes of a memory filesystem, changed under one lock.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::SystemTime;

use bytes::Bytes;

use crate::error::{Error, ErrorKind, Result};
use crate::metadata::{DirEntry, Metadata, Version};
use crate::options::Condition;
use crate::path::FsPath;

/// Every name but the root, by its path with `/` behind it: plain byte order of such keys is listing order, and the
/// subtree of a directory is one range of keys.
#[derive(Default)]
pub(super) struct Tree {
    nodes: BTreeMap<Vec<u8>, Node>,
    generation: u64,
}

#[derive(Clone)]
struct Node {
    path: FsPath,
    metadata: Metadata,
    /// Empty for directories.
    data: Bytes,
}

impl Tree {
    pub(super) fn stat(&self, path: &FsPath) -> Result<Metadata> {
        if path.is_root() {
            return Ok(Metadata::dir());
        }
        self.node(path).map(|n| n.metadata.clone()).ok_or_else(|| Error::not_found(path))
    }

    /// Metadata and bytes of a file.
    pub(super) fn file(&self, path: &FsPath) -> Result<(Metadata, Bytes)> {
        match self.node(path) {
            _ if path.is_root() => Err(is_directory()),
            Some(node) if node.metadata.is_dir() => Err(is_directory()),
            Some(node) => Ok((node.metadata.clone(), node.data.clone())),
            None => Err(Error::not_found(path)),
        }
    }

    /// Up to `limit` entries of `dir` after `after`.
    pub(super) fn list(
        &self,
        dir: &FsPath,
        recursive: bool,
        after: Option<&FsPath>,
        limit: usize,
    ) -> Result<Vec<DirEntry>> {
        if !self.stat(dir)?.is_dir() {
            return Err(Error::new(ErrorKind::NotADirectory, "a file cannot be listed"));
        }
        let end = if dir.is_root() { Bound::Unbounded } else { Bound::Excluded(end_of(key(dir))) };
        let mut start = if dir.is_root() { Bound::Unbounded } else { Bound::Excluded(key(dir)) };
        if let Some(after) = after.filter(|a| !a.is_root()) {
            let after = key(after);
            if matches!(&end, Bound::Excluded(end) if after >= *end) {
                return Ok(Vec::new());
            }
            if !matches!(&start, Bound::Excluded(start) if after < *start) {
                start = Bound::Excluded(after);
            }
        }
        let depth = dir.depth() + 1;
        let mut page = Vec::new();
        while page.len() < limit {
            let Some((_, node)) = self.nodes.range((start, end.clone())).next() else { break };
            // One level only: what lies below a child is jumped over as a whole.
            let child = if recursive { None } else { ancestor(&node.path, depth) };
            start = match &child {
                Some(child) => Bound::Included(end_of(key(child))),
                None => Bound::Excluded(key(&node.path)),
            };
            if child.is_none_or(|c| c == node.path) {
                page.push(DirEntry { path: node.path.clone(), metadata: node.metadata.clone() });
            }
            if matches!((&start, &end), (Bound::Included(s), Bound::Excluded(e)) if s >= e) {
                break;
            }
        }
        Ok(page)
    }

    pub(super) fn check_create(&self, path: &FsPath, condition: &Condition) -> Result<()> {
        self.check_parents(path)?;
        let current = match self.file(path) {
            Ok((metadata, _)) => Some(metadata.version),
            Err(e) if e.kind() == ErrorKind::NotFound => None,
            Err(_) if *condition == Condition::Absent => return Err(exists()),
            Err(e) => return Err(e),
        };
        match (condition, current) {
            (Condition::Absent, Some(_)) => Err(exists()),
            (Condition::Version(wanted), Some(current)) if current == *wanted => Ok(()),
            (Condition::Version(_), _) => {
                Err(Error::new(ErrorKind::Stale, "the file is not the version that should be replaced"))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn create(&mut self, path: &FsPath, data: Bytes, condition: &Condition) -> Result<Metadata> {
        self.check_create(path, condition)?;
        Ok(self.put_file(path, data))
    }

    pub(super) fn delete(&mut self, path: &FsPath) -> Result<()> {
        match self.file(path) {
            Ok(_) => {
                self.nodes.remove(&key(path));
                Ok(())
            }
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
            Err(e) => Err(e),
        }
    }

    pub(super) fn copy(&mut self, from: &FsPath, to: &FsPath, no_replace: bool) -> Result<()> {
        let (_, data) = self.file(from)?;
        self.check_target(to, no_replace)?;
        self.put_file(to, data);
        Ok(())
    }

    /// Files and whole directories; the target must not be a directory.
    pub(super) fn rename(&mut self, from: &FsPath, to: &FsPath, no_replace: bool) -> Result<()> {
        let is_dir = self.stat(from)?.is_dir();
        if from.is_root() || (is_dir && to.strip_prefix(from).is_some_and(|tail| !tail.is_root())) {
            return Err(Error::new(ErrorKind::InvalidInput, "a directory cannot move below itself"));
        }
        if from == to && !no_replace {
            return Ok(());
        }
        self.check_target(to, no_replace)?;
        if is_dir && self.node(to).is_some() {
            return Err(Error::new(ErrorKind::NotADirectory, "a directory cannot replace a file"));
        }
        self.make_parents(to);
        let mut moved = self.nodes.split_off(&key(from));
        let mut rest = moved.split_off(&end_of(key(from)));
        self.nodes.append(&mut rest);
        for mut node in moved.into_values() {
            let tail = node.path.strip_prefix(from).expect("the range holds nothing but the subtree");
            node.path = to.join_path(&tail);
            self.nodes.insert(key(&node.path), node);
        }
        Ok(())
    }

    pub(super) fn create_dir(&mut self, path: &FsPath) -> Result<()> {
        if path.is_root() || self.node(path).is_some() {
            return Err(exists());
        }
        self.check_parents(path)?;
        self.make_parents(path);
        self.put_dir(path);
        Ok(())
    }

    pub(super) fn remove_dir(&mut self, path: &FsPath) -> Result<()> {
        if path.is_root() {
            return Err(Error::new(ErrorKind::InvalidInput, "the root always exists"));
        }
        if !self.stat(path)?.is_dir() {
            return Err(Error::new(ErrorKind::NotADirectory, "a file is not a directory"));
        }
        if !self.list(path, false, None, 1)?.is_empty() {
            return Err(Error::new(ErrorKind::NotEmpty, "the directory has entries"));
        }
        self.nodes.remove(&key(path));
        Ok(())
    }

    fn node(&self, path: &FsPath) -> Option<&Node> {
        self.nodes.get(&key(path))
    }

    fn check_target(&self, to: &FsPath, no_replace: bool) -> Result<()> {
        self.check_parents(to)?;
        match self.stat(to) {
            Ok(_) if no_replace => Err(exists()),
            Ok(m) if m.is_dir() => Err(is_directory()),
            _ => Ok(()),
        }
    }

    fn check_parents(&self, path: &FsPath) -> Result<()> {
        let parents = std::iter::successors(path.parent(), FsPath::parent);
        for parent in parents.filter(|p| !p.is_root()) {
            if self.node(&parent).is_some_and(|n| n.metadata.is_file()) {
                return Err(Error::new(ErrorKind::NotADirectory, format!("`{parent}` is a file")));
            }
        }
        Ok(())
    }

    fn make_parents(&mut self, path: &FsPath) {
        let parents = std::iter::successors(path.parent(), FsPath::parent);
        for parent in parents.filter(|p| !p.is_root()) {
            if self.node(&parent).is_some() {
                break;
            }
            self.put_dir(&parent);
        }
    }

    fn put_dir(&mut self, path: &FsPath) {
        let metadata = Metadata { modified: Some(SystemTime::now()), ..Metadata::dir() };
        self.nodes.insert(key(path), Node { path: path.clone(), metadata, data: Bytes::new() });
    }

    fn put_file(&mut self, path: &FsPath, data: Bytes) -> Metadata {
        self.make_parents(path);
        self.generation += 1;
        let version = Version::Generation(self.generation);
        let modified = Some(SystemTime::now());
        let metadata = Metadata { modified, ..Metadata::file(data.len() as u64, version) };
        self.nodes.insert(key(path), Node { path: path.clone(), metadata: metadata.clone(), data });
        metadata
    }
}

fn key(path: &FsPath) -> Vec<u8> {
    [path.as_bytes(), b"/"].concat()
}

/// The first key behind the subtree of the directory with this key.
fn end_of(mut key: Vec<u8>) -> Vec<u8> {
    if let Some(last) = key.last_mut() {
        *last = b'/' + 1;
    }
    key
}

/// The first `depth` components of `path`.
fn ancestor(path: &FsPath, depth: usize) -> Option<FsPath> {
    let up = path.depth().checked_sub(depth)?;
    std::iter::successors(Some(path.clone()), FsPath::parent).nth(up)
}

fn exists() -> Error {
    Error::new(ErrorKind::AlreadyExists, "the name is taken")
}

fn is_directory() -> Error {
    Error::new(ErrorKind::IsADirectory, "a directory has this name")
}
