//! LOOKUP: from a name in a directory to an inode.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nearfs_backends::{Error, ErrorKind, FsPath, Metadata, Result};
use nearfs_cache::{CachedFileSystem, Lookup};

use super::attr::Attr;
use crate::control::{ControlFile, DIR_NAME};
use crate::failures::{RecentFailures, Subject};
use crate::inode::{Attrs, CONTROL_DIR, Inode, Node, ROOT};
use crate::interrupt::is_dying;
use crate::tree::Place;
use crate::vfs::{Now, Vfs, forever, remaining};

/// What a name stands for.
#[derive(Debug)]
pub(crate) enum Found {
    /// Something in a store.
    Node(Place, Attrs),
    /// Nothing, and for how long that may be believed.
    Absent(Instant),
    /// The `.nearfs` directory.
    ControlDir,
    /// A file in it.
    Control(ControlFile),
}

/// A name that a store must be asked about.
#[derive(Debug)]
pub(crate) struct LookupAsk {
    fs: Arc<CachedFileSystem>,
    place: Place,
    failures: Arc<RecentFailures>,
}

/// The answer for the kernel, already entered into the inode table.
#[derive(Debug)]
pub(crate) enum Entry {
    /// An inode: attributes, how long they may be believed, how long the name may be.
    Inode(Attr, Duration, Duration),
    /// There is no such name, and how long that may be believed (not at all, if zero).
    Absent(Duration),
}

impl LookupAsk {
    /// What it asks for.
    pub(crate) fn subject(&self) -> Subject {
        Subject::Name(self.place.clone())
    }

    /// Asks.
    ///
    /// # Errors
    /// Those of the store; absence is no error.
    ///
    /// # Cancellation
    /// Leaves nothing behind.
    pub(crate) async fn run(self) -> Result<Found> {
        let started = Instant::now();
        match self.fs.lookup(&self.place.path).await {
            Ok(lookup) => Ok(found(self.place, lookup)),
            Err(e) => {
                let now = Instant::now();
                self.failures.note(&self.subject(), e.kind(), now - started, now);
                Err(e.during("lookup").at(&self.place.path))
            }
        }
    }
}

fn found(place: Place, lookup: Lookup) -> Found {
    match lookup.metadata {
        Some(metadata) => Found::Node(place, Attrs { metadata, expires: lookup.expires }),
        None => Found::Absent(lookup.expires),
    }
}

impl Vfs {
    /// What `name` in the directory `parent` stands for, if that is known. `caller` is the thread that asks (0 if it
    /// cannot be seen).
    ///
    /// # Errors
    /// `Stale` if the parent is not known, `NotADirectory` if it is none, `NameTooLong`; the error of a lookup of the
    /// same name that failed slowly a moment ago.
    pub(crate) fn lookup(&self, caller: u32, parent: u64, name: &[u8]) -> Result<Now<Found, LookupAsk>> {
        let parent = self.table.get(parent)?;
        if parent.ino == ROOT && name == DIR_NAME.as_bytes() {
            return Ok(Now::Done(Found::ControlDir));
        }
        let place = match &parent.node {
            Node::Dir(dir) => Place { fs: dir.place.fs, path: child(&dir.place.path, name)? },
            Node::Top => return Ok(Now::Done(self.lookup_top(name))),
            Node::ControlDir => {
                let found = ControlFile::find(name).map_or_else(|| Found::Absent(forever()), Found::Control);
                return Ok(Now::Done(found));
            }
            Node::File(_) | Node::Control(..) => {
                return Err(Error::new(ErrorKind::NotADirectory, "a name was looked up in a file"));
            }
        };
        let fs = self.roots.fs(&place);
        if let Some(lookup) = fs.peek(&place.path) {
            return Ok(Now::Done(found(place, lookup)));
        }
        match self.failures.of_name(&place, Instant::now()) {
            // Who waits for the same name waits in the kernel, where nobody can be ended; killed together, they come
            // one after the other as each is ended. Others than the killed go on.
            Some(ErrorKind::Interrupted) if !is_dying(caller) => {}
            Some(kind) => {
                let e = Error::new(kind, "the same lookup has just failed");
                return Err(e.during("lookup").at(&place.path));
            }
            None => {}
        }
        Ok(Now::Ask(LookupAsk { fs: Arc::clone(fs), place, failures: Arc::clone(&self.failures) }))
    }

    fn lookup_top(&self, name: &[u8]) -> Found {
        match self.roots.find(name) {
            Some(place) => Found::Node(place, Attrs { metadata: Metadata::dir(), expires: forever() }),
            None => Found::Absent(forever()),
        }
    }

    /// Enters what was found into the inode table (counting a lookup) and says what to tell the kernel. Call it only
    /// if that is told: the kernel gives back what it was given, and nothing else.
    pub(crate) fn enter(&self, found: Found) -> Entry {
        match found {
            Found::Node(place, attrs) => self.entry(&self.table.enter(&place, attrs)),
            Found::Absent(expires) => Entry::Absent(remaining(expires, Instant::now())),
            Found::ControlDir => {
                let (attr, ttl) = (self.style.own(CONTROL_DIR, None), remaining(forever(), Instant::now()));
                Entry::Inode(attr, ttl, ttl)
            }
            Found::Control(file) => {
                let inode = self.table.enter_control(file.render(self));
                let (attr, ttl) = self.attr_of(&inode);
                Entry::Inode(attr, ttl, Duration::ZERO)
            }
        }
    }

    fn entry(&self, inode: &Inode) -> Entry {
        let (attr, ttl) = self.attr_of(inode);
        Entry::Inode(attr, ttl, ttl)
    }

    /// The kernel gives back references. True if those were the last of the inode.
    pub(crate) fn forget(&self, ino: u64, lookups: u64) -> bool {
        self.counters.forget(lookups);
        let forgotten = self.table.forget(ino, lookups);
        if let Some(inode) = &forgotten {
            self.files.release(inode);
        }
        forgotten.is_some()
    }

    /// Directory and name of a file of a store, as the kernel knows them; `None` for what is nothing like that.
    pub(crate) fn name_of(&self, ino: u64) -> Option<(u64, Vec<u8>)> {
        let inode = self.table.get(ino).ok()?;
        let Node::File(node) = &inode.node else { return None };
        let path = &node.place.path;
        let dir = Place { fs: node.place.fs, path: path.parent()? };
        let parent = match dir.path.is_root() && !self.roots.is_map() {
            true => ROOT,
            false => self.table.number(&dir, &Attrs { metadata: Metadata::dir(), expires: forever() }),
        };
        Some((parent, path.name().to_vec()))
    }
}

/// The path of `name` in `dir`.
fn child(dir: &FsPath, name: &[u8]) -> Result<FsPath> {
    dir.join(name).map_err(|e| e.during("lookup").at(dir))
}
