//! The calls, without a kernel.

use std::sync::Arc;
use std::time::Duration;

use nearfs_backends::{ErrorKind, FileSystemExt, FsPath, MemoryFileSystem, Result, Spawner};
use nearfs_cache::{CacheConfig, CachedFileSystem, Lifetime};

use super::attr::Attr;
use super::dir::{Batch, EntrySink, NameSink, OpenedDir};
use super::lookup::Entry;
use crate::inode::{CONTROL_DIR, ROOT};
use crate::options::MountOptions;
use crate::tree::Roots;
use crate::vfs::{Now, Vfs};

struct Rig {
    memory: MemoryFileSystem,
    vfs: Vfs,
}

impl Rig {
    fn new(ttl: Duration) -> Self {
        let memory = MemoryFileSystem::new();
        let config = CacheConfig { metadata_ttl: Lifetime::For(ttl), ..Default::default() };
        let fs = CachedFileSystem::new(Arc::new(memory.clone()), config, Spawner::current().unwrap());
        let vfs = Vfs::new(Roots::new(fs.into()).unwrap(), &MountOptions::default());
        Rig { memory, vfs }
    }

    async fn put(&self, name: &str, data: &str) {
        let path = FsPath::parse(name).unwrap();
        self.memory.write(&path, data.to_owned().into()).await.unwrap();
    }

    async fn lookup(&self, parent: u64, name: &str) -> Result<Entry> {
        let found = match self.vfs.lookup(0, parent, name.as_bytes())? {
            Now::Done(found) => found,
            Now::Ask(ask) => ask.run().await?,
        };
        Ok(self.vfs.enter(found))
    }

    async fn ino(&self, parent: u64, name: &str) -> u64 {
        match self.lookup(parent, name).await.unwrap() {
            Entry::Inode(attr, ..) => attr.ino,
            Entry::Absent(_) => panic!("{name} is absent"),
        }
    }

    async fn read(&self, ino: u64, offset: u64, size: u32) -> Result<Vec<u8>> {
        match self.vfs.read(ino, offset, size)? {
            Now::Done(bytes) => Ok(bytes.to_vec()),
            Now::Ask(ask) => Ok(ask.run().await?.to_vec()),
        }
    }

    async fn opendir(&self, ino: u64) -> OpenedDir {
        match self.vfs.opendir(ino).unwrap() {
            Now::Done(opened) => opened,
            Now::Ask(ask) => {
                let (inode, listing) = ask.run().await.unwrap();
                self.vfs.opened(inode, listing)
            }
        }
    }

    async fn batch(&self, handle: u64, from: u64) -> Batch {
        match self.vfs.readdir(handle, from).unwrap() {
            Now::Done(batch) => batch,
            Now::Ask(ask) => ask.run().await.unwrap(),
        }
    }
}

/// Takes so many entries.
struct Sink {
    room: usize,
    names: Vec<String>,
    inodes: Vec<u64>,
    next: u64,
}

impl Sink {
    fn new(room: usize) -> Self {
        Sink { room, names: Vec::new(), inodes: Vec::new(), next: 0 }
    }

    fn put(&mut self, ino: u64, next: u64, name: &[u8]) -> bool {
        if self.names.len() == self.room {
            return true;
        }
        self.names.push(String::from_utf8(name.to_vec()).unwrap());
        self.inodes.push(ino);
        self.next = next;
        false
    }
}

impl NameSink for Sink {
    fn add(&mut self, ino: u64, next: u64, _is_dir: bool, name: &[u8]) -> bool {
        self.put(ino, next, name)
    }
}

impl EntrySink for Sink {
    fn add(&mut self, attr: &Attr, ttl: Duration, next: u64, name: &[u8]) -> bool {
        assert!(ttl <= Duration::from_secs(60));
        self.put(attr.ino, next, name)
    }
}

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn lookups_are_counted_and_forgotten() {
    let rig = Rig::new(MINUTE);
    rig.put("d/f", "data").await;
    let d = rig.ino(ROOT, "d").await;
    let f = rig.ino(d, "f").await;
    assert_eq!(rig.ino(d, "f").await, f);
    assert_eq!(rig.vfs.table.get(f).unwrap().lookups(), 2);
    rig.vfs.forget(f, 1);
    assert_eq!(rig.vfs.getattr(f).unwrap().0.size, 4);
    rig.vfs.forget(f, 1);
    assert_eq!(rig.vfs.getattr(f).unwrap_err().kind(), ErrorKind::Stale);
    assert_eq!(rig.read(f, 0, 1).await.unwrap_err().kind(), ErrorKind::Stale);
    assert_eq!(rig.lookup(f, "x").await.unwrap_err().kind(), ErrorKind::Stale);
}

#[tokio::test]
async fn absence_has_its_own_lifetime() {
    let rig = Rig::new(MINUTE);
    rig.put("f", "data").await;
    match rig.lookup(ROOT, "g").await.unwrap() {
        Entry::Absent(ttl) => assert!(ttl > Duration::ZERO && ttl <= Duration::from_secs(2), "{ttl:?}"),
        Entry::Inode(..) => panic!("it is absent"),
    }
    let f = rig.ino(ROOT, "f").await;
    assert_eq!(rig.lookup(f, "x").await.unwrap_err().kind(), ErrorKind::NotADirectory);
    assert_eq!(rig.lookup(ROOT, &"n".repeat(256)).await.unwrap_err().kind(), ErrorKind::NameTooLong);
}

#[tokio::test]
async fn a_lifetime_that_is_over_is_told_as_none() {
    let rig = Rig::new(Duration::ZERO);
    rig.put("f", "data").await;
    match rig.lookup(ROOT, "f").await.unwrap() {
        Entry::Inode(_, attr, entry) => assert_eq!((attr, entry), (Duration::ZERO, Duration::ZERO)),
        Entry::Absent(_) => panic!("it exists"),
    }
}

#[tokio::test]
async fn reads_end_at_the_end_of_the_file() {
    let rig = Rig::new(MINUTE);
    rig.put("f", "0123456789").await;
    let f = rig.ino(ROOT, "f").await;
    for (offset, size, expected) in [
        (0, 4, "0123"),
        (8, 100, "89"),
        (10, 4, ""),
        (u64::MAX, u32::MAX, ""),
        (3, 0, ""),
        (9, u32::MAX, "9"),
    ] {
        assert_eq!(rig.read(f, offset, size).await.unwrap(), expected.as_bytes(), "{offset} {size}");
    }
    assert_eq!(rig.read(ROOT, 0, 1).await.unwrap_err().kind(), ErrorKind::IsADirectory);
}

#[tokio::test]
async fn a_new_version_is_a_new_inode_and_the_old_one_stays_as_it_was() {
    let rig = Rig::new(Duration::ZERO);
    rig.put("f", "old").await;
    let old = rig.ino(ROOT, "f").await;
    rig.put("f", "newer").await;
    let new = rig.ino(ROOT, "f").await;
    assert_ne!(old, new);
    assert_eq!((rig.vfs.getattr(old).unwrap().0.size, rig.vfs.getattr(new).unwrap().0.size), (3, 5));
}

#[tokio::test]
async fn a_directory_is_read_in_parts_and_each_entry_once() {
    let rig = Rig::new(MINUTE);
    for i in 0..20 {
        rig.put(&format!("d/{i:02}"), "").await;
    }
    let d = rig.ino(ROOT, "d").await;
    let opened = rig.opendir(d).await;
    let (mut names, mut from) = (Vec::new(), 0);
    loop {
        let mut sink = Sink::new(3);
        rig.vfs.fill_names(rig.batch(opened.handle, from).await, &mut sink);
        if sink.names.is_empty() {
            break;
        }
        names.extend(sink.names);
        from = sink.next;
    }
    let expected: Vec<_> =
        [".".to_owned(), "..".to_owned()].into_iter().chain((0..20).map(|i| format!("{i:02}"))).collect();
    assert_eq!(names, expected);
    assert_eq!(rig.vfs.table.len(), 3, "plain names count as no lookups");
    rig.vfs.releasedir(opened.handle);
    assert_eq!(rig.vfs.readdir(opened.handle, 0).unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[tokio::test]
async fn entries_with_attributes_count_as_lookups_but_for_dots_and_what_did_not_fit() {
    let rig = Rig::new(MINUTE);
    for i in 0..5 {
        rig.put(&format!("d/{i}"), "").await;
    }
    let d = rig.ino(ROOT, "d").await;
    let opened = rig.opendir(d).await;
    let mut sink = Sink::new(5);
    rig.vfs.fill_entries(rig.batch(opened.handle, 0).await, &mut sink);
    assert_eq!(sink.names, [".", "..", "0", "1", "2"]);
    assert_eq!((sink.inodes[0], sink.inodes[1]), (d, ROOT));
    assert_eq!(rig.vfs.table.len(), 3 + 3, "the one that did not fit is not counted");
    assert_eq!(rig.vfs.table.get(d).unwrap().lookups(), 1);
    for (name, &ino) in sink.names.iter().zip(&sink.inodes).skip(2) {
        assert_eq!(rig.ino(d, name).await, ino, "the number of the listing is that of the lookup");
        rig.vfs.forget(ino, 2);
    }
    assert_eq!(rig.vfs.table.len(), 3);
    let mut plain = Sink::new(100);
    rig.vfs.fill_names(rig.batch(opened.handle, 0).await, &mut plain);
    assert_eq!(plain.inodes[..5], sink.inodes, "and of the plain listing");
}

#[tokio::test]
async fn the_kernel_may_keep_its_copy_of_the_same_listing_only() {
    let rig = Rig::new(Duration::from_millis(300));
    rig.put("d/a", "").await;
    let d = rig.ino(ROOT, "d").await;
    let first = rig.opendir(d).await;
    assert!(first.may_copy && !first.keep_copy);
    rig.vfs.fill_names(rig.batch(first.handle, 0).await, &mut Sink::new(9));
    assert!(rig.opendir(d).await.keep_copy);
    rig.put("d/b", "").await;
    tokio::time::sleep(Duration::from_millis(400)).await;
    let mut sink = Sink::new(9);
    let mut opened = rig.opendir(d).await;
    // A listing may be served once more while the new one is fetched; it is never kept after its lifetime.
    for _ in 0..20 {
        rig.vfs.fill_names(rig.batch(opened.handle, 0).await, &mut sink);
        if sink.names.contains(&"b".to_owned()) {
            break;
        }
        assert!(!opened.keep_copy);
        tokio::time::sleep(Duration::from_millis(50)).await;
        sink = Sink::new(9);
        opened = rig.opendir(d).await;
    }
    assert_eq!(sink.names, [".", "..", "a", "b"]);
}

#[tokio::test]
async fn the_control_directory_is_there_and_not_listed() {
    let rig = Rig::new(MINUTE);
    rig.put(".nearfs/stats", "the store's own").await;
    assert_eq!(rig.ino(ROOT, ".nearfs").await, CONTROL_DIR);
    let opened = rig.opendir(ROOT).await;
    let mut sink = Sink::new(9);
    rig.vfs.fill_entries(rig.batch(opened.handle, 0).await, &mut sink);
    assert_eq!(sink.names, [".", ".."]);
    let (one, two) = (rig.ino(CONTROL_DIR, "stats").await, rig.ino(CONTROL_DIR, "stats").await);
    assert_ne!(one, two, "each lookup is a snapshot of its own");
    let size = rig.vfs.getattr(one).unwrap().0.size;
    let text = rig.read(one, 0, u32::MAX).await.unwrap();
    assert_eq!(text.len() as u64, size);
    assert!(serde_json::from_slice::<serde_json::Value>(&text).unwrap()["mount"].is_object());
    assert_eq!(rig.read(one, 0, u32::MAX).await.unwrap(), text, "and stays as it was");
    assert!(matches!(rig.lookup(CONTROL_DIR, "other").await.unwrap(), Entry::Absent(_)));
    assert_eq!(rig.vfs.ioctl(one).unwrap(), libc::ENOTTY);
    let opened = rig.opendir(CONTROL_DIR).await;
    assert!(!opened.may_copy);
    let mut sink = Sink::new(9);
    rig.vfs.fill_names(rig.batch(opened.handle, 0).await, &mut sink);
    assert_eq!(sink.names, [".", "..", "config", "control", "stats"]);
}

#[tokio::test]
async fn nothing_can_be_changed() {
    let rig = Rig::new(MINUTE);
    assert_eq!(rig.vfs.change().kind(), ErrorKind::ReadOnly);
    assert_eq!(rig.vfs.access(ROOT, true).unwrap_err().kind(), ErrorKind::ReadOnly);
    assert!(rig.vfs.access(ROOT, false).is_ok());
    assert!(rig.vfs.statfs().blocks > 0);
}
