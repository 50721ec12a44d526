//! Large objects in real directories.

mod damage;
mod lending;
mod processes;
mod sharing;

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use nearfs_backends::io::{Buffer, Engine, EngineConfig};
use nearfs_backends::{FsPath, Identity, Version};
use rustix::fd::BorrowedFd;

use super::*;
use crate::config::{DiskConfig, DiskSize, PolicyKind};
use crate::disk::catalogue::Catalogue;
use crate::disk::claims::Claimed;
use crate::disk::dir::Directory;
use crate::disk::direct::Way;
use crate::disk::evict;
use crate::disk::files::discard;
use crate::disk::host::Host;
use crate::disk::index::{self, Facts, HAS_STATE};
use crate::disk::opened::Opened;
use crate::disk::process::Owner;
use crate::disk::rights::Rights;
use crate::disk::write::Writing;

const MIB: u64 = 1 << 20;

/// A cache directory that one test has for itself, and perhaps its children.
struct World {
    dir: PathBuf,
    _temp: Option<tempfile::TempDir>,
    cat: Arc<Catalogue>,
    opened: Opened,
}

impl World {
    fn new(limit: u64) -> Self {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("cache");
        World { _temp: Some(temp), ..World::at(&path, limit) }
    }

    fn at(path: &Path, limit: u64) -> Self {
        let size = Some(DiskSize::Bytes(limit));
        let config = DiskConfig { size, free: 0.0, ..DiskConfig::default() };
        let dir = Directory::open(path, &config).unwrap();
        let cat = Catalogue::new(dir, PolicyKind::default(), engine());
        let opened = Opened::new(cat.ground());
        World { dir: path.to_owned(), _temp: None, cat, opened }
    }

    /// The object `name`, empty.
    fn make(&self, name: &str, size: u64) -> Arc<Large> {
        let key = key(name, size);
        let at = match evict::claim(&self.cat, &key, size) {
            index::Claimed::Mine(at) => at,
            other => panic!("{other:?}"),
        };
        let space = self.cat.dir().space();
        let overhead = Large::overhead(size);
        let reserved = space.reserve(overhead, &|_| 0).unwrap();
        let large = Large::create(&self.cat.ground(), &key, at, size).unwrap();
        let facts = Facts {
            ino: 0,
            dev: 0,
            mtime_ns: 0,
            crc: 0,
            flags: HAS_STATE,
            boot: self.cat.boot(),
            charged: overhead,
        };
        let live = self.cat.index().publish(at, &facts);
        reserved.commit(overhead);
        self.opened.adopt(large, live)
    }

    /// The object `name`, whole.
    fn whole(&self, name: &str, size: u64) -> Arc<Large> {
        let large = self.make(name, size);
        fill(&large, 0..size);
        assert!(large.is_whole());
        large
    }

    fn slot(&self, name: &str, size: u64) -> SlotRef {
        self.cat.index().find(&key(name, size)).expect("the entry is there")
    }

    /// The object `name`, opened anew, as another process would.
    fn open(&self, name: &str, size: u64) -> Option<Arc<Large>> {
        self.open_with(&self.cat.ground(), name, size)
    }

    fn open_with(&self, ground: &Arc<Ground>, name: &str, size: u64) -> Option<Arc<Large>> {
        Large::open(ground, &key(name, size), self.slot(name, size), size).unwrap().map(Arc::new)
    }

    /// The paths of the data file and the state file of `name`.
    fn files(&self, name: &str, size: u64) -> (PathBuf, PathBuf) {
        let key = key(name, size);
        let dir = self.cat.dir().path().join("objects").join(format!("{:02x}", key.bucket()));
        (dir.join(key.name()), dir.join(key.state_name()))
    }

    fn charged(&self, name: &str, size: u64) -> u64 {
        self.cat.index().entry(self.slot(name, size)).unwrap().charged
    }

    /// What another process sees, or this one after something happened to it.
    fn other(&self, change: impl FnOnce(&mut Other)) -> Arc<Ground> {
        let mut other = Other {
            cat: self.cat.clone(),
            me: Owner(0x7000_0001),
            boot: self.cat.boot(),
            dead: HashSet::new(),
            full: false,
            failures: Mutex::default(),
        };
        change(&mut other);
        Arc::new(Ground { host: Arc::new(other), engine: engine(), writing: Writing::default() })
    }

    fn next_boot(&self) -> Arc<Ground> {
        self.other(|other| other.boot += 1)
    }
}

fn engine() -> Engine {
    Engine::new(EngineConfig::default()).unwrap()
}

/// A host that stands for another process of the same directory.
#[derive(Debug)]
struct Other {
    cat: Arc<Catalogue>,
    me: Owner,
    boot: u64,
    /// Whoever is not in here lives.
    dead: HashSet<Owner>,
    /// Writes are refused half-way.
    full: bool,
    failures: Mutex<u32>,
}

impl Host for Other {
    fn me(&self) -> Owner {
        self.me
    }

    fn is_alive(&self, owner: Owner) -> bool {
        !self.dead.contains(&owner)
    }

    fn boot(&self) -> u64 {
        self.boot
    }

    fn objects(&self, key: &Key) -> io::Result<BorrowedFd<'_>> {
        self.cat.objects(key)
    }

    fn rights(&self) -> Rights {
        self.cat.rights()
    }

    fn spend(
        &self,
        slot: SlotRef,
        bytes: u64,
        write: &mut dyn FnMut() -> io::Result<()>,
    ) -> io::Result<bool> {
        if self.full {
            write()?;
            return Err(ErrorKind::StorageFull.into());
        }
        self.cat.spend(slot, bytes, write)
    }

    fn discharge(&self, slot: SlotRef, bytes: u64) {
        self.cat.discharge(slot, bytes);
    }

    fn lend(&self, bytes: u64) -> Option<Box<dyn Send + Sync>> {
        self.cat.lend(bytes)
    }

    fn count_wrong(&self, key: &Key, why: &str) {
        self.cat.count_wrong(key, why);
    }

    fn failed(&self, _: &io::Error) {
        *self.failures.lock() += 1;
    }
}

fn key(name: &str, size: u64) -> Key {
    let identity = Identity { url: "s3://bucket".into(), endpoint: "test".into() };
    Key::new(&identity, &FsPath::parse(name).unwrap(), &Version::Generation(1), size).unwrap()
}

/// The bytes of every object in these tests: no two units of any are alike, and no byte is zero.
fn content(range: Range<u64>) -> Vec<u8> {
    const TURN: usize = 1 << 17;
    static NOISE: OnceLock<Vec<u8>> = OnceLock::new();
    let noise = NOISE.get_or_init(|| {
        let mut x = 1u32;
        let mut byte = || {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (x >> 24) as u8 | 1
        };
        (0..TURN + UNIT as usize).map(|_| byte()).collect()
    });
    let mut bytes = Vec::with_capacity((range.end - range.start) as usize);
    let mut at = range.start;
    while at < range.end {
        let (unit, offset) = (at / UNIT, (at % UNIT) as usize);
        let end = range.end.min((unit + 1) * UNIT);
        let from = (unit as usize).wrapping_mul(7919) % TURN + offset;
        bytes.extend_from_slice(&noise[from..from + (end - at) as usize]);
        at = end;
    }
    bytes
}

/// `content`, in pieces as odd as a network makes them.
fn pieces(range: Range<u64>) -> Vec<Bytes> {
    let data = Bytes::from(content(range));
    let mut pieces = Vec::new();
    let (mut at, mut len) = (0, 1);
    while at < data.len() {
        let end = (at + len).min(data.len());
        pieces.push(data.slice(at..end));
        (at, len) = (end, len * 7 % 150_001);
    }
    pieces
}

/// Claims what is missing of `range` and fills it; returns the bytes filled.
fn fill(large: &Large, range: Range<u64>) -> u64 {
    let mut filled = 0;
    for piece in large.claim(range) {
        if piece.claimed == Claimed::Mine {
            assert!(large.fill(piece.range.start, &pieces(piece.range.clone())).unwrap());
            filled += piece.range.end - piece.range.start;
        }
    }
    filled
}

/// Whether `range` could be read; if so, its bytes are right.
fn check(large: &Large, range: Range<u64>) -> bool {
    let mut buf = vec![0; (range.end - range.start) as usize];
    let read = large.read(range.start, &mut buf).unwrap();
    assert!(!read || buf == content(range.clone()), "wrong bytes in {range:?}");
    read
}

/// Units of `large` that can be read, all of them checked.
fn readable(large: &Large) -> Vec<u64> {
    (0..large.size().div_ceil(UNIT))
        .filter(|u| check(large, u * UNIT..((u + 1) * UNIT).min(large.size())))
        .collect()
}

#[test]
fn what_was_filled_is_read_and_nothing_else() {
    let world = World::new(256 * MIB);
    for size in [MIB + 1, 17 * UNIT, 17 * UNIT + 1, 18 * UNIT - 1, 128 * UNIT] {
        let name = &size.to_string();
        let large = world.make(name, size);
        assert_eq!(large.resident(0..size), (false, 0..size));
        assert!(!check(&large, 0..size) && !large.is_whole());
        assert_eq!(fill(&large, 3 * UNIT + 5..6 * UNIT), 3 * UNIT);
        assert_eq!(large.resident(0..size), (false, 0..3 * UNIT));
        assert_eq!(large.resident(4 * UNIT + 1..size), (true, 4 * UNIT + 1..6 * UNIT));
        assert!(check(&large, 3 * UNIT..6 * UNIT) && check(&large, 4 * UNIT - 1..4 * UNIT + 1));
        assert!(!check(&large, 3 * UNIT - 1..4 * UNIT) && !check(&large, 5 * UNIT..6 * UNIT + 1));
        // The last unit is as long as what is left of the object.
        let tail = (size - 1) / UNIT * UNIT;
        assert_eq!(fill(&large, size - 1..size), size - tail);
        assert!(check(&large, tail..size));
        assert!(large.begin(&(tail..size + 1)).is_none(), "nothing is there behind the end");
        assert_eq!(fill(&large, 0..size), size - 3 * UNIT - (size - tail));
        assert_eq!(fill(&large, 0..size), 0);
        assert!(large.is_whole() && check(&large, 0..size));
        assert_eq!(large.resident(5..size), (true, 5..size));
        assert_eq!(large.resident_bytes(), size);
        assert_eq!(std::fs::read(world.files(name, size).0).unwrap(), content(0..size));
        // So it is for whoever opens it later.
        let again = world.open(name, size).unwrap();
        assert!(again.is_whole() && check(&again, 0..size));
    }
}

#[test]
fn random_fills_of_one_unit_keep_residency_and_charges_exact() {
    let world = World::new(256 * MIB);
    let size = 32 * MIB - 100;
    let large = world.make("a", size);
    let mut order: Vec<u64> = (0..size.div_ceil(UNIT)).collect();
    // A fixed shuffle: the multiplier has no factor in common with 512.
    order.iter_mut().for_each(|u| *u = *u * 181 % 512);
    let used = world.cat.dir().used();
    let mut there = HashSet::new();
    for (i, unit) in order.into_iter().enumerate() {
        let at = unit * UNIT;
        fill(&large, at..at + 1);
        there.insert(unit);
        assert_eq!(large.resident(at..at + 1), (true, at..at + 1));
        let bytes: u64 = there.iter().map(|u| ((u + 1) * UNIT).min(size) - u * UNIT).sum();
        let blocks: u64 = there.iter().map(|u| blocks(&(u * UNIT..((u + 1) * UNIT).min(size)))).sum();
        assert_eq!(world.cat.dir().used(), used + blocks);
        assert_eq!(world.charged("a", size), Large::overhead(size) + blocks);
        if i % 37 == 0 {
            let other = world.open("a", size).unwrap();
            let found: HashSet<u64> = (0..512).filter(|u| other.resident(u * UNIT..u * UNIT + 1).0).collect();
            assert_eq!(found, there);
            assert!(check(&other, at..(at + UNIT).min(size)));
            assert!(other.resident_bytes().abs_diff(bytes) <= 100);
        }
    }
    assert!(large.is_whole() && check(&large, 0..size));
    let blocks = std::fs::metadata(world.files("a", size).0).unwrap().blocks() * 512;
    // The filesystem may need some for its own tables.
    assert!(blocks <= 32 * MIB + MIB, "{blocks}");
}

#[test]
fn an_object_of_five_gib_takes_up_what_was_filled() {
    let world = World::new(8 << 30);
    let size = (5 << 30) + 12_345;
    let large = world.make("huge", size);
    let parts = [0..MIB, (4 << 30) - UNIT..(4 << 30) + UNIT, size / UNIT * UNIT..size];
    for part in &parts {
        fill(&large, part.clone());
    }
    let large = world.open("huge", size).unwrap();
    assert!(parts.iter().all(|part| check(&large, part.clone())));
    assert_eq!(large.resident(0..size), (true, 0..MIB));
    assert_eq!(large.resident(MIB..size), (false, MIB..(4 << 30) - UNIT));
    assert!(!check(&large, (4 << 30) + UNIT - 1..(4 << 30) + UNIT + 1));
    let (data, state) = world.files("huge", size);
    assert_eq!(std::fs::metadata(&data).unwrap().len(), size);
    assert!(std::fs::metadata(&data).unwrap().blocks() * 512 <= 2 * MIB);
    let state = std::fs::metadata(&state).unwrap();
    assert!(state.blocks() * 512 >= state.len(), "no page of it can fail to be stored");
    assert_eq!(large.evict_units(u64::MAX), MIB + 2 * UNIT + 16_384);
    assert_eq!(large.resident(0..size), (false, 0..size));
}

#[test]
fn bytes_that_nobody_claimed_are_not_kept() {
    let world = World::new(64 * MIB);
    let size = 2 * MIB;
    drop(world.make("a", size));
    // Two processes that both live.
    let large = world.open_with(&world.other(|other| other.me = world.cat.me()), "a", size).unwrap();
    assert!(!large.fill(0, &pieces(0..UNIT)).unwrap(), "unclaimed");
    let other = world.open_with(&world.other(|_| ()), "a", size).unwrap();
    assert_eq!(other.claim(0..3 * UNIT), [Piece { range: 0..3 * UNIT, claimed: Claimed::Mine }]);
    let theirs = Claimed::Theirs(Owner(0x7000_0001));
    assert_eq!(
        large.claim(UNIT..5 * UNIT),
        [
            Piece { range: UNIT..3 * UNIT, claimed: theirs },
            Piece { range: 3 * UNIT..5 * UNIT, claimed: Claimed::Mine },
        ]
    );
    assert!(!large.fill(2 * UNIT, &pieces(2 * UNIT..4 * UNIT)).unwrap(), "half of it is somebody else's");
    assert_eq!(large.resident(0..size), (false, 0..size));
    assert!(other.fill(0, &pieces(0..3 * UNIT)).unwrap());
    assert!(check(&large, 0..3 * UNIT));
    large.release(&(0..size));
    assert_eq!(fill(&other, 0..size), size - 3 * UNIT);
    large.kill();
    assert_eq!(other.evict_units(size), 0, "whoever removes it has the charge");
    assert!(!other.fill(0, &pieces(0..UNIT)).unwrap(), "it is dead");
    assert!(check(&other, 0..size), "what is there stays readable");
}

#[test]
fn j1_without_room_nothing_is_kept_and_the_claim_is_free_again() {
    let world = World::new(4 * MIB);
    let size = 3 * MIB;
    let large = world.make("a", size);
    let hog =
        world.cat.dir().space().reserve(world.cat.dir().limit() - world.cat.dir().used() - UNIT, &|_| 0);
    let used = world.cat.dir().used();
    assert_eq!(large.claim(0..2 * UNIT)[0].claimed, Claimed::Mine);
    assert!(!large.fill(0, &pieces(0..2 * UNIT)).unwrap());
    assert_eq!((world.cat.dir().used(), large.resident(0..size)), (used, (false, 0..size)));
    assert_eq!(fill(&large, 0..UNIT), UNIT, "one unit fits");
    drop(hog);
    assert_eq!(fill(&large, 0..size), size - UNIT);
    assert!(check(&large, 0..size));
}

#[test]
fn j1_a_write_that_fails_leaves_nothing_behind() {
    let world = World::new(64 * MIB);
    let size = 4 * MIB;
    drop(world.make("a", size));
    let ground = world.other(|other| other.full = true);
    let large = world.open_with(&ground, "a", size).unwrap();
    let used = world.cat.dir().used();
    assert_eq!(large.claim(0..size)[0].claimed, Claimed::Mine);
    assert_eq!(large.fill(0, &pieces(0..size)).unwrap_err().kind(), ErrorKind::StorageFull);
    assert_eq!(large.resident(0..size), (false, 0..size));
    assert_eq!(world.cat.dir().used(), used);
    let data = std::fs::metadata(world.files("a", size).0).unwrap();
    assert!(data.blocks() * 512 <= 64 * 1024, "{} blocks are charged to nobody", data.blocks());
    let other = world.open("a", size).unwrap();
    assert_eq!(fill(&other, 0..size), size, "the claims were given up");
    assert!(check(&other, 0..size));
}

#[test]
fn j4_an_object_that_was_only_opened_has_no_bytes() {
    let world = World::new(64 * MIB);
    let size = 3 * MIB;
    drop(world.make("a", size));
    let large = world.open("a", size).unwrap();
    assert_eq!(large.claim(0..size)[0].claimed, Claimed::Mine);
    large.release(&(0..size));
    assert_eq!(large.resident(0..size), (false, 0..size));
    assert!(readable(&large).is_empty());
    assert!(readable(&world.open("a", size).unwrap()).is_empty());
}

#[tokio::test]
async fn old_objects_are_read_past_the_page_cache() {
    let world = World::new(64 * MIB);
    let size = 4 * MIB + 100;
    let young = world.whole("a", size);
    let buf = Buffer::with_capacity(MIB as usize);
    assert!(young.is_young() && matches!(young.way(0, MIB, &buf), Way::Cached));
    assert_eq!(young.read_into(0, Buffer::with_capacity(9), 9).await.1[..], content(0..9));
    // In the next boot nothing is young, but all has to be proven.
    let ground = world.next_boot();
    let large = world.open_with(&ground, "a", size).unwrap();
    assert!(!large.is_young() && large.prove(&(0..size)).unwrap());
    assert!(matches!(large.way(1, MIB, &buf), Way::Cached), "offsets must be aligned");
    assert!(matches!(large.way(0, MIB - 1, &buf), Way::Cached), "and lengths");
    let mut shifted = Buffer::with_capacity(MIB as usize);
    shifted.append(b"x");
    assert!(matches!(large.way(0, UNIT, &shifted), Way::Cached), "and memory");
    let passes = matches!(large.way(0, MIB, &buf), Way::Direct(_));
    let possible = large.open_again(OFlags::RDONLY | OFlags::DIRECT).is_ok();
    assert_eq!(passes, possible, "as far as the filesystem lets");
    for (offset, len) in [(0, MIB), (MIB, 2 * MIB), (MIB + 1, MIB), (3 * MIB, MIB + 100), (size - 1, 1)] {
        let mut buf = Buffer::with_capacity((len + 1) as usize);
        if len == MIB + 100 {
            buf.append(b"x");
        }
        let before = buf.len();
        let token = large.begin(&(offset..offset + len)).unwrap();
        let (result, buf) = large.read_into(offset, buf, len as usize).await;
        assert_eq!(result.unwrap() as u64, len);
        assert!(large.finish(token) && buf[before..] == content(offset..offset + len));
    }
    large.refuse_direct();
    assert!(matches!(large.way(0, MIB, &buf), Way::Cached));
    let (result, buf) = large.read_into(0, buf, MIB as usize).await;
    assert!(result.unwrap() as u64 == MIB && buf[..] == content(0..MIB));
}

#[test]
fn the_least_recently_used_objects_are_closed() {
    let world = World::new(64 * MIB);
    let size = 2 * MIB;
    let opened = Opened::with_most(world.cat.ground(), 3);
    let names = ["a", "b", "c", "d", "e"];
    names.iter().for_each(|name| drop(world.whole(name, size)));
    let get = |name: &str| opened.get(&key(name, size), world.slot(name, size), size).unwrap().unwrap();
    let a = get("a");
    assert!(Arc::ptr_eq(&a, &get("a")));
    drop((get("b"), get("c")));
    assert!(Arc::ptr_eq(&a, &get("a")));
    get("d");
    assert_eq!(opened.len(), 3);
    assert!(Arc::ptr_eq(&a, &get("a")), "used more lately than b");
    assert!(opened.find(&key("b", size), world.slot("b", size)).is_none());
    drop((get("c"), get("d"), get("e")));
    assert!(check(&a, 0..size), "what is in use stays usable");
    assert!(!Arc::ptr_eq(&a, &get("a")));
    // A dead one is not handed out.
    get("a").kill();
    assert!(opened.get(&key("a", size), world.slot("a", size), size).unwrap().is_none());
    assert!(opened.len() <= 3);
}
