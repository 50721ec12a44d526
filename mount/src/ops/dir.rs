//! OPENDIR, READDIR, READDIRPLUS, RELEASEDIR.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nearfs_backends::{Error, ErrorKind, FsPath, Metadata, Result};
use nearfs_cache::{CachedFileSystem, Listing, ListingPage};

use super::attr::Attr;
use super::lookup::{Entry, Found};
use crate::control::{ControlFile, DIR_NAME};
use crate::handle::dir::{DirHandle, keep_kernel_copy, note_read_from_start, offset, position};
use crate::inode::{Attrs, CONTROL_DIR, DirNode, Inode, Node, ROOT};
use crate::tree::Place;
use crate::vfs::{Now, Vfs, forever};

/// Entries taken from a listing at a time.
const PAGE: usize = 512;
/// Positions 0 and 1 are `.` and `..`; entry `i` of the listing is position `i + DOTS`.
const DOTS: u64 = 2;

/// Where entries of a plain listing go.
pub(crate) trait NameSink {
    /// Adds an entry; `next` is the offset after it. True if it did not fit (and was not added).
    fn add(&mut self, ino: u64, next: u64, is_dir: bool, name: &[u8]) -> bool;
}

/// Where entries with attributes go.
pub(crate) trait EntrySink {
    /// Adds an entry; `next` is the offset after it. True if it did not fit (and was not added).
    fn add(&mut self, attr: &Attr, ttl: Duration, next: u64, name: &[u8]) -> bool;
}

/// An open directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OpenedDir {
    /// Number of the handle.
    pub(crate) handle: u64,
    /// True if the kernel may go on using the copy it has.
    pub(crate) keep_copy: bool,
    /// True if the kernel may make a copy.
    pub(crate) may_copy: bool,
}

/// A directory whose listing must be asked for.
#[derive(Debug)]
pub(crate) struct ListAsk {
    fs: Arc<CachedFileSystem>,
    inode: Arc<Inode>,
    path: FsPath,
}

impl ListAsk {
    /// Asks for the listing: a fresh one, or one that is being fetched.
    ///
    /// # Errors
    /// Those of the store.
    pub(crate) async fn run(self) -> Result<(Arc<Inode>, Arc<Listing>)> {
        match self.fs.read_dir(&self.path).await {
            Ok(listing) => Ok((self.inode, listing)),
            Err(e) => Err(e.during("list").at(&self.path)),
        }
    }
}

/// A part of a directory whose entries are at hand.
#[derive(Debug)]
pub(crate) struct Batch {
    handle: Arc<DirHandle>,
    position: u64,
    /// The listing it is a part of and the page that begins at `position`; `None` for directories no store holds.
    page: Option<(Arc<Listing>, ListingPage)>,
}

/// A part of a directory whose entries have not arrived yet.
#[derive(Debug)]
pub(crate) struct PageAsk {
    handle: Arc<DirHandle>,
    position: u64,
    source: PageSource,
}

#[derive(Debug)]
enum PageSource {
    Pinned(Arc<Listing>),
    /// The directory is read from its start again: with a listing as of now.
    Rewound(ListAsk),
}

impl PageAsk {
    /// Waits until some of the entries are there, or the end is.
    ///
    /// # Errors
    /// Those of the store.
    pub(crate) async fn run(self) -> Result<Batch> {
        let listing = match self.source {
            PageSource::Pinned(listing) => listing,
            PageSource::Rewound(ask) => {
                let (_, listing) = ask.run().await?;
                self.handle.pin(Arc::clone(&listing));
                note_read_from_start(&self.handle.inode, listing.id());
                listing
            }
        };
        let path = self.handle.inode.place().map(|p| p.path.clone()).unwrap_or_else(FsPath::root);
        let from = self.position.saturating_sub(DOTS) as usize;
        let page = listing.entries(from, PAGE).await.map_err(|e| e.during("list").at(&path))?;
        Ok(Batch { handle: self.handle, position: self.position, page: Some((listing, page)) })
    }
}

impl Vfs {
    /// Opens a directory, if no store must be asked for that.
    ///
    /// # Errors
    /// `Stale` if the inode is not known, `NotADirectory`.
    pub(crate) fn opendir(&self, ino: u64) -> Result<Now<OpenedDir, ListAsk>> {
        let inode = self.table.get(ino)?;
        match &inode.node {
            Node::Dir(dir) => Ok(Now::Ask(self.list(&inode, dir))),
            // These never change.
            Node::Top => {
                let handle = self.dirs.open(Arc::clone(&inode), None);
                Ok(Now::Done(OpenedDir { handle, keep_copy: true, may_copy: true }))
            }
            Node::ControlDir => {
                let handle = self.dirs.open(Arc::clone(&inode), None);
                Ok(Now::Done(OpenedDir { handle, keep_copy: false, may_copy: false }))
            }
            _ => Err(Error::new(ErrorKind::NotADirectory, "a file was opened as a directory")),
        }
    }

    /// Opens a directory with the listing that was asked for. Call it only if the kernel is told.
    pub(crate) fn opened(&self, inode: Arc<Inode>, listing: Arc<Listing>) -> OpenedDir {
        let keep_copy = match &inode.node {
            Node::Dir(dir) => keep_kernel_copy(dir, listing.id(), listing.expires(), Instant::now()),
            _ => false,
        };
        let handle = self.dirs.open(inode, Some(listing));
        OpenedDir { handle, keep_copy, may_copy: true }
    }

    fn list(&self, inode: &Arc<Inode>, dir: &DirNode) -> ListAsk {
        let fs = Arc::clone(self.roots.fs(&dir.place));
        ListAsk { fs, inode: Arc::clone(inode), path: dir.place.path.clone() }
    }

    /// The entries of an open directory from `from` on (an offset given with an earlier entry, 0 = the start), if
    /// some are at hand.
    ///
    /// # Errors
    /// `InvalidInput` if the handle is not open.
    pub(crate) fn readdir(&self, handle: u64, from: u64) -> Result<Now<Batch, PageAsk>> {
        let handle = self.dirs.get(handle)?;
        let position = position(from);
        let Some(listing) = handle.listing() else {
            return Ok(Now::Done(Batch { handle, position, page: None }));
        };
        if from == 0 {
            let rewound = handle.rewinds();
            if rewound && let Node::Dir(dir) = &handle.inode.node {
                let source = PageSource::Rewound(self.list(&handle.inode, dir));
                return Ok(Now::Ask(PageAsk { handle, position, source }));
            }
            note_read_from_start(&handle.inode, listing.id());
        }
        match listing.peek_entries(position.saturating_sub(DOTS) as usize, PAGE) {
            Some(page) => Ok(Now::Done(Batch { handle, position, page: Some((listing, page)) })),
            None => Ok(Now::Ask(PageAsk { handle, position, source: PageSource::Pinned(listing) })),
        }
    }

    /// Closes an open directory.
    pub(crate) fn releasedir(&self, handle: u64) {
        self.dirs.close(handle);
    }

    /// Fills `sink` with names. Call it only if it is sent.
    pub(crate) fn fill_names(&self, batch: Batch, sink: &mut dyn NameSink) {
        self.fill(batch, &mut |vfs, item, next| match item {
            Item::Dot(name, ino) => sink.add(ino, next, true, name),
            Item::Own(name, found) => {
                let (ino, is_dir) = match &found {
                    Found::Node(place, attrs) => (vfs.table.number(place, attrs), true),
                    // Each lookup makes another inode, so no number would be right.
                    _ => (u64::from(u32::MAX), false),
                };
                sink.add(ino, next, is_dir, name)
            }
            Item::Stored(place, attrs) => {
                let ino = vfs.table.number(&place, &attrs);
                sink.add(ino, next, attrs.metadata.is_dir(), place.path.name())
            }
        });
    }

    /// Fills `sink` with entries and their attributes, each of which counts as a lookup (but for `.` and `..`). Call
    /// it only if it is sent.
    pub(crate) fn fill_entries(&self, batch: Batch, sink: &mut dyn EntrySink) {
        self.fill(batch, &mut |vfs, item, next| match item {
            Item::Dot(name, ino) => sink.add(&vfs.style.own(ino, None), Duration::ZERO, next, name),
            Item::Own(name, found) => vfs.add_counted(found, name, next, sink),
            Item::Stored(place, attrs) => {
                let path = place.path.clone();
                vfs.add_counted(Found::Node(place, attrs), path.name(), next, sink)
            }
        });
    }

    fn add_counted(&self, found: Found, name: &[u8], next: u64, sink: &mut dyn EntrySink) -> bool {
        let Entry::Inode(attr, _, ttl) = self.enter(found) else { return false };
        let full = sink.add(&attr, ttl, next, name);
        if full {
            self.table.forget(attr.ino, 1);
        }
        full
    }

    /// Gives the entries of `batch`, and those that follow it as long as they are at hand, to `add` until it is full.
    fn fill(&self, batch: Batch, add: &mut dyn FnMut(&Self, Item<'_>, u64) -> bool) {
        let Batch { handle, mut position, page } = batch;
        let id = page.as_ref().map_or(0, |(listing, _)| listing.id());
        while position < DOTS {
            let (name, ino) = match position {
                0 => (&b"."[..], handle.inode.ino),
                _ => (&b".."[..], self.parent_number(&handle.inode)),
            };
            if add(self, Item::Dot(name, ino), offset(id, position + 1)) {
                return;
            }
            position += 1;
        }
        match page {
            Some((listing, page)) => self.fill_stored(&handle, listing, page, position, add),
            None => self.fill_own(&handle.inode, position, add),
        }
    }

    fn fill_stored(
        &self,
        handle: &DirHandle,
        listing: Arc<Listing>,
        mut page: ListingPage,
        mut position: u64,
        add: &mut dyn FnMut(&Self, Item<'_>, u64) -> bool,
    ) {
        let Node::Dir(dir) = &handle.inode.node else { return };
        loop {
            let expires = listing.expires();
            let mut any = false;
            for entry in page.entries.iter() {
                any = true;
                position += 1;
                if handle.inode.ino == ROOT && entry.name[..] == *DIR_NAME.as_bytes() {
                    continue;
                }
                // The cache lists only names that a path can have.
                let Ok(path) = dir.place.path.join(&entry.name[..]) else { continue };
                let place = Place { fs: dir.place.fs, path };
                let attrs = Attrs { metadata: entry.metadata.clone(), expires };
                if add(self, Item::Stored(place, attrs), offset(listing.id(), position)) {
                    return;
                }
            }
            if page.end || !any {
                return;
            }
            match listing.peek_entries((position - DOTS) as usize, PAGE) {
                Some(next) => page = next,
                // What is there goes out; the rest is asked for when the kernel comes back.
                None => return,
            }
        }
    }

    fn fill_own(&self, inode: &Inode, position: u64, add: &mut dyn FnMut(&Self, Item<'_>, u64) -> bool) {
        let skip = (position - DOTS) as usize;
        let mut next = position;
        let mut put = |name: &[u8], found: Found| {
            next += 1;
            add(self, Item::Own(name, found), offset(0, next))
        };
        match inode.node {
            Node::Top => {
                for (name, _) in self.roots.iter().skip(skip) {
                    let Some(place) = self.roots.find(name.as_bytes()) else { continue };
                    let attrs = Attrs { metadata: Metadata::dir(), expires: forever() };
                    if put(name.as_bytes(), Found::Node(place, attrs)) {
                        return;
                    }
                }
            }
            Node::ControlDir => {
                for file in ControlFile::ALL.into_iter().skip(skip) {
                    if put(file.name().as_bytes(), Found::Control(file)) {
                        return;
                    }
                }
            }
            _ => {}
        }
    }

    fn parent_number(&self, inode: &Inode) -> u64 {
        if inode.ino == ROOT || inode.ino == CONTROL_DIR {
            return ROOT;
        }
        let Some(place) = inode.place() else { return ROOT };
        match place.path.parent() {
            // The root of one of several filesystems.
            None => ROOT,
            Some(parent) if parent.is_root() && !self.roots.is_map() => ROOT,
            Some(path) => {
                let attrs = Attrs { metadata: Metadata::dir(), expires: Instant::now() };
                self.table.number(&Place { fs: place.fs, path }, &attrs)
            }
        }
    }
}

/// An entry on its way out.
enum Item<'a> {
    /// `.` or `..`, with its number.
    Dot(&'a [u8], u64),
    /// What only the mount has.
    Own(&'a [u8], Found),
    /// What a store holds.
    Stored(Place, Attrs),
}
