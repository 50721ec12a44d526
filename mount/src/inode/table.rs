//! [`InodeTable`]: the inodes that the kernel holds references to, and no others.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use nearfs_backends::{Error, ErrorKind, Result};
use parking_lot::Mutex;

use super::{Attrs, CONTROL_DIR, DirNode, FIRST_CONTROL, FIRST_STORE, FileNode, Inode, Node, ROOT};
use crate::tree::Place;

/// The inodes that the kernel knows, by number.
///
/// A number is a hash of path and version, so it stays the same for as long as the version does, even after the
/// kernel has forgotten it. Two inodes can hash to one number: the table sees that (it holds what each number stands
/// for) and gives the second one the next free number. Bounded by what the kernel keeps: an entry goes with its last
/// FORGET.
#[derive(Debug)]
pub(crate) struct InodeTable {
    pub(super) map: DashMap<u64, Arc<Inode>>,
    next_control: AtomicU64,
    hash: fn(&Place, &Attrs) -> u64,
}

impl InodeTable {
    /// A table with the two fixed inodes. `root` is the root directory's node.
    pub(crate) fn new(root: Node) -> Self {
        Self::with_hash(root, hash)
    }

    pub(super) fn with_hash(root: Node, hash: fn(&Place, &Attrs) -> u64) -> Self {
        let map = DashMap::new();
        map.insert(ROOT, Arc::new(Inode::new(ROOT, root)));
        map.insert(CONTROL_DIR, Arc::new(Inode::new(CONTROL_DIR, Node::ControlDir)));
        InodeTable { map, next_control: AtomicU64::new(FIRST_CONTROL), hash }
    }

    /// The inode with this number.
    ///
    /// # Errors
    /// `Stale` if the kernel has forgotten it, or never knew it.
    pub(crate) fn get(&self, ino: u64) -> Result<Arc<Inode>> {
        let found = self.map.get(&ino).map(|i| Arc::clone(&i));
        found.ok_or_else(|| Error::new(ErrorKind::Stale, format!("inode {ino} is not known")))
    }

    /// Finds or makes the inode of `place` as `attrs` describe it, and counts one lookup.
    pub(crate) fn enter(&self, place: &Place, attrs: Attrs) -> Arc<Inode> {
        let mut number = self.number(place, &attrs);
        loop {
            match self.map.entry(number) {
                Entry::Occupied(e) if e.get().stands_for(place, &attrs) => {
                    e.get().add_lookup();
                    let inode = Arc::clone(e.get());
                    inode.renew(attrs);
                    return inode;
                }
                Entry::Occupied(_) => number = FIRST_STORE | (number + 1) & (FIRST_STORE - 1),
                Entry::Vacant(e) => {
                    let node = match attrs.metadata.is_dir() {
                        true => Node::Dir(DirNode::new(place.clone(), attrs)),
                        false => Node::File(FileNode {
                            place: place.clone(),
                            attrs: Mutex::new(attrs),
                            file: Mutex::new(None),
                            used: AtomicBool::new(false),
                        }),
                    };
                    let inode = Arc::new(Inode::new(number, node));
                    e.insert(Arc::clone(&inode));
                    return inode;
                }
            }
        }
    }

    /// Makes a new inode for a snapshot of a control file, and counts one lookup.
    pub(crate) fn enter_control(&self, text: Bytes) -> Arc<Inode> {
        let ino = self.next_control.fetch_add(1, Ordering::Relaxed);
        let inode = Arc::new(Inode::new(ino, Node::Control(text)));
        self.map.insert(ino, Arc::clone(&inode));
        inode
    }

    /// The number that `place` has unless another inode sits on it: what a plain listing shows.
    pub(crate) fn number(&self, place: &Place, attrs: &Attrs) -> u64 {
        FIRST_STORE | (self.hash)(place, attrs) & (FIRST_STORE - 1)
    }

    /// Number of inodes the kernel knows.
    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }
}

fn hash(place: &Place, attrs: &Attrs) -> u64 {
    let mut hasher = DefaultHasher::new();
    place.hash(&mut hasher);
    attrs.metadata.is_dir().hash(&mut hasher);
    if attrs.metadata.is_file() {
        attrs.metadata.version.hash(&mut hasher);
        if !attrs.metadata.version.is_known() {
            attrs.expires.hash(&mut hasher);
        }
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use nearfs_backends::{FsPath, Metadata, Version};

    use super::*;

    fn place(path: &str) -> Place {
        Place { fs: 0, path: FsPath::parse(path).unwrap() }
    }

    fn attrs(version: Version) -> Attrs {
        Attrs { metadata: Metadata::file(7, version), expires: Instant::now() + Duration::from_secs(60) }
    }

    fn table() -> InodeTable {
        InodeTable::new(Node::Top)
    }

    #[test]
    fn an_inode_is_one_version_of_one_path() {
        let t = table();
        let a = t.enter(&place("a"), attrs(Version::Generation(1)));
        let again = t.enter(&place("a"), attrs(Version::Generation(1)));
        assert!(Arc::ptr_eq(&a, &again));
        assert_eq!(a.lookups(), 2);
        let newer = t.enter(&place("a"), attrs(Version::Generation(2)));
        assert_ne!(newer.ino, a.ino);
        assert_eq!(t.get(a.ino).unwrap().attrs().unwrap().metadata.version, Version::Generation(1));
        assert_ne!(t.enter(&place("b"), attrs(Version::Generation(1))).ino, a.ino);
        let other_fs = Place { fs: 1, ..place("a") };
        assert_ne!(t.enter(&other_fs, attrs(Version::Generation(1))).ino, a.ino);
    }

    #[test]
    fn numbers_stay_the_same_after_a_forget_and_fit_a_signed_number() {
        let t = table();
        let first = t.enter(&place("a"), attrs(Version::Generation(1))).ino;
        t.forget(first, 1);
        assert_eq!(t.get(first).unwrap_err().kind(), ErrorKind::Stale);
        assert_eq!(t.enter(&place("a"), attrs(Version::Generation(1))).ino, first);
        assert!(i64::try_from(first).is_ok() && first > CONTROL_DIR);
    }

    #[test]
    fn colliding_numbers_never_share_an_inode() {
        let t = InodeTable::with_hash(Node::Top, |_, _| u64::MAX);
        let inodes: Vec<_> =
            ["a", "b", "c"].map(|p| t.enter(&place(p), attrs(Version::Generation(1)))).into();
        for (inode, path) in inodes.iter().zip(["a", "b", "c"]) {
            assert_eq!(inode.place().unwrap(), &place(path));
            assert_eq!(t.enter(&place(path), attrs(Version::Generation(1))).ino, inode.ino);
        }
        assert_ne!(inodes[0].ino, inodes[1].ino);
        assert_ne!(inodes[1].ino, inodes[2].ino);
    }

    #[test]
    fn an_unknown_version_is_the_same_inode_only_within_one_answer() {
        let t = table();
        let one = attrs(Version::Unknown);
        let first = t.enter(&place("a"), one.clone());
        assert_eq!(t.enter(&place("a"), one.clone()).ino, first.ino);
        let next = Attrs { expires: one.expires + Duration::from_secs(1), ..one };
        assert_ne!(t.enter(&place("a"), next).ino, first.ino);
    }

    #[test]
    fn an_inode_takes_little_memory() {
        // With its path (about 60 bytes), version and place in the table some 350 bytes; the kernel keeps 1.1 KiB.
        assert!(size_of::<Inode>() <= 224, "{}", size_of::<Inode>());
    }

    #[test]
    fn a_directory_and_a_file_of_one_name_are_two_inodes() {
        let t = table();
        let file = t.enter(&place("a"), attrs(Version::Unknown));
        let dir = t.enter(&place("a"), Attrs { metadata: Metadata::dir(), expires: Instant::now() });
        assert_ne!(file.ino, dir.ino);
        assert!(matches!(dir.node, Node::Dir(_)));
    }
}
