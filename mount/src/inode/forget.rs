//! FORGET: how inodes leave the table.

use std::sync::Arc;

use super::{CONTROL_DIR, Inode, InodeTable, ROOT};

impl InodeTable {
    /// The kernel gives back `lookups` references to `ino`; the inode goes with the last one, and is given back.
    ///
    /// The count and the removal happen under the lock of the entry's shard, as do lookups: a lookup that comes at
    /// the same time either finds the entry or makes a new one, and no reference is lost.
    pub(crate) fn forget(&self, ino: u64, lookups: u64) -> Option<Arc<Inode>> {
        if ino == ROOT || ino == CONTROL_DIR {
            return None;
        }
        self.map.remove_if(&ino, |_, inode| inode.drop_lookups(lookups)).map(|(_, inode)| inode)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use nearfs_backends::{FsPath, Metadata, Version};

    use super::*;
    use crate::inode::{Attrs, Node};
    use crate::tree::Place;

    #[test]
    fn an_inode_goes_with_its_last_reference_and_the_root_never() {
        let t = InodeTable::new(Node::Top);
        let place = Place { fs: 0, path: FsPath::parse("a").unwrap() };
        let attrs = Attrs { metadata: Metadata::file(1, Version::Generation(1)), expires: Instant::now() };
        let ino = t.enter(&place, attrs.clone()).ino;
        t.enter(&place, attrs.clone());
        t.enter(&place, attrs);
        assert!(t.forget(ino, 2).is_none());
        assert!(t.get(ino).is_ok());
        assert!(t.forget(ino, 1).is_some());
        assert!(t.get(ino).is_err());
        t.forget(ino, 1);
        t.forget(ROOT, u64::MAX);
        t.forget(CONTROL_DIR, u64::MAX);
        assert_eq!(t.len(), 2);
    }

    #[test]
    fn lookups_and_forgets_at_the_same_time_lose_nothing() {
        let t = Arc::new(InodeTable::new(Node::Top));
        let expires = Instant::now();
        let workers: Vec<_> = (0..4)
            .map(|_| {
                let t = Arc::clone(&t);
                std::thread::spawn(move || {
                    for i in 0..2000u32 {
                        let place = Place { fs: 0, path: FsPath::parse(format!("f{}", i % 7)).unwrap() };
                        let metadata = Metadata::file(1, Version::Generation(1));
                        let inode = t.enter(&place, Attrs { metadata, expires });
                        assert!(t.get(inode.ino).is_ok());
                        t.forget(inode.ino, 1);
                    }
                })
            })
            .collect();
        workers.into_iter().for_each(|w| w.join().unwrap());
        assert_eq!(t.len(), 2);
    }
}
