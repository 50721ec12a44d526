//! A cache directory for tests.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use nearfs_backends::io::{Buffer, EngineChoice, EngineConfig};

use super::*;
use crate::config::{DiskConfig, DiskSize};
use crate::disk::UNIT;
use crate::disk::index::{Claimed, Entry};
use crate::disk::object::Large;
use crate::disk::small::{self, Read};
use crate::disk::volume::Volume;

/// A directory and its catalogue; the directory goes with it unless it is another's.
pub(crate) struct Cache {
    pub(crate) cat: Option<Arc<Catalogue>>,
    limit: u64,
    place: Place,
}

enum Place {
    Own(tempfile::TempDir),
    Given(PathBuf),
}

impl Cache {
    /// A new directory with this limit in bytes.
    pub(crate) fn new(limit: u64) -> Self {
        Cache { cat: None, limit, place: Place::Own(tempfile::tempdir().unwrap()) }.opened()
    }

    /// The same on a filesystem in memory if there is one: for tests that make very many.
    pub(crate) fn in_memory(limit: u64) -> Self {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        Cache { cat: None, limit, place: Place::Own(dir) }.opened()
    }

    /// The directory of somebody else.
    pub(crate) fn at(path: &Path, limit: u64) -> Self {
        Cache { cat: None, limit, place: Place::Given(path.to_owned()) }.opened()
    }

    fn opened(mut self) -> Self {
        self.cat = Some(open(self.root(), self.limit));
        self
    }

    /// Closes it and opens it again.
    pub(crate) fn reopen(&mut self) {
        drop(self.cat.take());
        self.cat = Some(open(self.root(), self.limit));
    }

    pub(crate) fn cat(&self) -> &Catalogue {
        self.cat.as_ref().unwrap()
    }

    /// What `--cache-dir` would name.
    pub(crate) fn root(&self) -> &Path {
        match &self.place {
            Place::Own(dir) => dir.path(),
            Place::Given(path) => path,
        }
    }

    /// The data file of `key`.
    pub(crate) fn path(&self, key: &Key) -> PathBuf {
        self.cat().dir().path().join(format!("objects/{:02x}/{}", key.bucket(), key.name()))
    }

    pub(crate) fn entry(&self, key: &Key) -> Option<Entry> {
        self.cat().index().find(key).and_then(|at| self.cat().index().entry(at))
    }

    /// Stores object number `n`, if the cache takes it.
    pub(crate) fn put(&self, n: u64, len: usize) -> bool {
        let key = key(n);
        match evict::claim(self.cat(), &key, len as u64) {
            Claimed::Mine(at) => {
                let data = content(n, len);
                let data = [data.slice(..len / 3), data.slice(len / 3..)];
                small::store(self.cat(), &key, at, &data).unwrap().is_some()
            }
            Claimed::Live(_) => true,
            Claimed::Busy(_) | Claimed::Dead(_) | Claimed::Full => false,
        }
    }

    /// Reads object number `n`.
    ///
    /// # Panics
    /// If wrong bytes come back.
    pub(crate) fn get(&self, n: u64, len: usize) -> Read {
        self.get_with(n, len, small::read)
    }

    /// As [`Cache::get`], without waiting.
    pub(crate) fn try_get(&self, n: u64, len: usize) -> Read {
        self.get_with(n, len, small::try_read)
    }

    fn get_with(&self, n: u64, len: usize, read: fn(&Catalogue, &Key, u64, &mut Buffer) -> Read) -> Read {
        let mut buffer = Buffer::with_capacity(len + 3);
        buffer.append(b"abc");
        let read = read(self.cat(), &key(n), len as u64, &mut buffer);
        assert_eq!(buffer[..3], *b"abc", "only what is behind is written");
        match read {
            Read::Hit => assert!(buffer[3..] == content(n, len), "wrong bytes of object {n}"),
            _ => assert_eq!(buffer.len(), 3, "nothing is left of a read that failed"),
        }
        read
    }

    /// What large objects are opened by.
    pub(crate) fn volume(&self) -> Volume {
        Volume::new(self.cat().dir().clone(), &DiskConfig::default(), self.cat().engine.clone())
    }

    /// Stores these units of large object `n`.
    pub(crate) fn put_large(&self, n: u64, len: usize, units: std::ops::Range<u64>) -> Arc<Large> {
        let large = self.volume().open_large(&key(n), len as u64, true).unwrap();
        let range = units.start * UNIT..(units.end * UNIT).min(len as u64);
        let data = content(n, len).slice(range.start as usize..range.end as usize);
        large.claim(range.clone());
        assert!(large.fill(range.start, &[data]).unwrap());
        large
    }

    /// Names of all data and state files.
    pub(crate) fn files(&self) -> Vec<String> {
        let objects = self.cat().dir().path().join("objects");
        let mut names = Vec::new();
        for fan in std::fs::read_dir(objects).unwrap() {
            let files = std::fs::read_dir(fan.unwrap().path()).unwrap();
            names.extend(files.map(|file| file.unwrap().file_name().into_string().unwrap()));
        }
        names
    }

    /// Checks that index, files and space agree.
    pub(crate) fn settle(&self) {
        let index = self.cat().index();
        let live: Vec<Entry> = index.live().collect();
        let mut expected: Vec<String> = live.iter().map(|e| e.key.name()).collect();
        expected.extend(live.iter().filter(|e| e.has_state()).map(|e| e.key.state_name()));
        let mut files = self.files();
        files.sort();
        expected.sort();
        assert_eq!(files, expected);
        let charged: u64 = live.iter().map(|e| e.charged).sum();
        assert_eq!((index.charged(), self.cat().dir().used()), (charged, charged));
    }
}

fn open(path: &Path, limit: u64) -> Arc<Catalogue> {
    let config = DiskConfig { size: Some(DiskSize::Bytes(limit)), free: 0.0, ..DiskConfig::default() };
    let dir = Directory::open(path, &config).unwrap();
    let engine =
        Engine::new(EngineConfig { choice: EngineChoice::Psync, ..EngineConfig::default() }).unwrap();
    Catalogue::new(dir, PolicyKind::Lru, engine)
}

/// The key of object number `n`: all of them in different buckets, as hashes are.
pub(crate) fn key(n: u64) -> Key {
    Key::from_words([n.wrapping_mul(0x9e37_79b9_7f4a_7c15), n, !n, 1])
}

/// The content of object number `n`.
pub(crate) fn content(n: u64, len: usize) -> Bytes {
    let mut word = n.wrapping_mul(0x2545_f491_4f6c_dd1d).wrapping_add(1);
    (0..len)
        .map(|_| {
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            word as u8
        })
        .collect::<Vec<u8>>()
        .into()
}
