//! Who goes, who stays, and what remains of processes that die.

use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::super::catalogue::fixture::{Cache, content, key};
use super::*;
use crate::disk::UNIT;
use crate::disk::children::{self, Child};
use crate::disk::index::{BUCKET, PINNED};
use crate::disk::small::{self, Read};
use crate::disk::verify;
use crate::disk::volume::Volume;

const LEN: usize = 100_000;
const MIB: u64 = 1 << 20;

/// Objects of `LEN` bytes that fit into `limit`.
fn fits(limit: u64) -> u64 {
    limit / small::charge(LEN as u64)
}

#[test]
fn the_limit_holds_and_what_was_used_last_stays() {
    let cache = Cache::new(8 * MIB);
    let most = fits(8 * MIB);
    for n in 0..4 * most {
        assert!(cache.put(n, LEN), "the newest is always taken by this policy");
        assert!(cache.cat().dir().used() <= 8 * MIB);
        assert_eq!(cache.get(n, LEN), Read::Hit);
    }
    cache.settle();
    let there: Vec<u64> = (0..4 * most).filter(|n| cache.get(*n, LEN) == Read::Hit).collect();
    assert!(there.len() as u64 >= most - 1, "{} of {most} fit", there.len());
    // Samples are random: the newer half is nearly all there, the oldest half nearly all gone.
    let old = there.iter().filter(|n| **n < 2 * most).count() as u64;
    assert!(old <= most / 4, "{old} old ones of {most} stayed");
    assert!(cache.cat().evicted() >= 3 * most * LEN as u64);
    assert!(cache.cat().index().history(&key(0)).is_some(), "what left is remembered");
}

#[test]
fn pinned_and_lent_objects_stay() {
    let cache = Cache::new(8 * MIB);
    let most = fits(8 * MIB);
    assert!((0..10).all(|n| cache.put(n, LEN)));
    for n in 0..5 {
        assert!(cache.cat().index().set_flags(cache.entry(&key(n)).unwrap().at, PINNED));
    }
    let lent: Vec<File> = (5..10).map(|n| File::open(cache.path(&key(n))).unwrap()).collect();
    assert!(lent.iter().all(|file| locks::try_lock(file, Lock::Shared).unwrap()));
    (10..5 * most).for_each(|n| assert!(cache.put(n, LEN)));
    for n in 0..10 {
        assert_eq!(cache.get(n, LEN), Read::Hit, "object {n}");
    }
    assert!(make_room(cache.cat(), u64::MAX, None) > 0);
    assert_eq!(cache.cat().index().live().count(), 10, "all others can go");
    assert_eq!(make_room(cache.cat(), 1, None), 0);
    drop(lent);
    assert_eq!(make_room(cache.cat(), u64::MAX, None), 5 * small::charge(LEN as u64));
    cache.settle();
}

/// Keys of one bucket of the table, whatever its size.
fn neighbour(n: u64) -> Key {
    Key::from_words([5, n, 0, 0])
}

#[test]
fn a_full_bucket_gives_up_one_object_for_another() {
    let cache = Cache::new(64 * MIB);
    for n in 0..3 * BUCKET as u64 {
        let Claimed::Mine(at) = claim(cache.cat(), &neighbour(n), 5) else { panic!("there is room for {n}") };
        assert!(small::store(cache.cat(), &neighbour(n), at, &[b"12345"[..].into()]).unwrap().is_some());
        assert!(cache.entry(&neighbour(n)).is_some());
    }
    assert_eq!(cache.cat().index().live().count(), BUCKET);
    cache.settle();
    for entry in cache.cat().index().live() {
        cache.cat().index().set_flags(entry.at, PINNED);
    }
    assert_eq!(claim(cache.cat(), &neighbour(999), 5), Claimed::Full);
}

/// A large object goes piece by piece, a medium one at once; both are told so.
#[test]
fn large_objects_lose_pieces_and_medium_ones_go() {
    let cache = Cache::new(100 * MIB);
    let (big, medium) = (80 << 20, 10 << 20);
    let large = cache.put_large(100, big, 0..big as u64 / UNIT);
    let other = cache.put_large(101, medium, 0..medium as u64 / UNIT);
    let resident = |large: &Large| (large.resident_bytes(), large.is_dead());
    assert_eq!((resident(&large), resident(&other)), ((80 * MIB, false), (10 * MIB, false)));
    accessed(cache.cat(), cache.entry(&key(101)).unwrap().at);
    assert_eq!(make_room(cache.cat(), 1, None), 8 * MIB);
    assert_eq!((resident(&large), resident(&other)), ((72 * MIB, false), (10 * MIB, false)));
    accessed(cache.cat(), cache.entry(&key(100)).unwrap().at);
    assert!(make_room(cache.cat(), 1, None) >= 10 * MIB);
    assert_eq!((resident(&large), other.is_dead()), ((72 * MIB, false), true));
    assert!(make_room(cache.cat(), 20 * MIB, Some(&key(100))) == 0, "it does not push itself out");
    assert_eq!(make_room(cache.cat(), 20 * MIB, None), 20 * MIB);
    // What is left is no more than one goes for at once.
    assert!(make_room(cache.cat(), 1, None) > 50 * MIB && large.is_dead());
    cache.settle();
}

#[test]
fn an_object_that_cannot_be_removed_stays_an_object() {
    let cache = Cache::new(8 * MIB);
    assert!(cache.put(1, LEN));
    let fan = cache.path(&key(1)).parent().unwrap().to_owned();
    let immutable = |on: bool| {
        let flag = if on { "+i" } else { "-i" };
        std::process::Command::new("chattr").arg(flag).arg(&fan).status().is_ok_and(|s| s.success())
    };
    // Filesystems without such flags: a read-only bind mount does the same.
    let bind = || {
        use rustix::mount::{MountFlags, mount_bind, mount_remount};
        mount_bind(&fan, &fan).unwrap();
        mount_remount(&fan, MountFlags::BIND | MountFlags::RDONLY, "").unwrap();
    };
    let flagged = immutable(true);
    if !flagged {
        bind();
        // The directory is open already, below the mount: open it anew.
    }
    let entry = cache.entry(&key(1)).unwrap();
    let removed = remove(cache.cat(), &entry);
    if flagged {
        assert_eq!(removed, None);
        assert_eq!(cache.get(1, LEN), Read::Hit);
        assert!(!cache.cat().dir().writable(), "the disk is not written to for a while");
        assert!(immutable(false));
        assert!(remove(cache.cat(), &cache.entry(&key(1)).unwrap()).is_some());
    } else {
        rustix::mount::unmount(&fan, rustix::mount::UnmountFlags::empty()).unwrap();
        assert!(removed.is_some());
    }
    cache.settle();
}

/// A process that dies in the middle of something.
fn victim(args: &[String]) {
    let cache = Cache::at(Path::new(&args[0]), 8 * MIB);
    match args[1].as_str() {
        "claims" => assert!(matches!(claim(cache.cat(), &key(1), LEN as u64), Claimed::Mine(_))),
        "writes" => {
            assert!(matches!(claim(cache.cat(), &key(1), LEN as u64), Claimed::Mine(_)));
            fs::write(cache.path(&key(1)), "half").unwrap();
            std::mem::forget(cache.cat().dir().space().reserve(MIB, &|_| 0));
        }
        "removes" => {
            assert!(cache.put(1, LEN));
            let entry = cache.entry(&key(1)).unwrap();
            assert!(cache.cat().index().begin_removal(entry.at, cache.cat().me()).is_some());
        }
        "unlinks" => {
            assert!(cache.put(1, LEN));
            let entry = cache.entry(&key(1)).unwrap();
            assert!(cache.cat().index().begin_removal(entry.at, cache.cat().me()).is_some());
            fs::remove_file(cache.path(&key(1))).unwrap();
        }
        other => panic!("{other}"),
    }
    children::say("ready");
    children::wait();
}

#[test]
fn what_a_killed_process_was_at_is_taken_over() {
    if let Some((_, args)) = children::role() {
        return victim(&args);
    }
    for stage in ["claims", "writes", "removes", "unlinks"] {
        let cache = Cache::new(8 * MIB);
        assert!(cache.put(2, LEN));
        let name = "what_a_killed_process_was_at_is_taken_over";
        let mut child = Child::start(module_path!(), name, "victim", &[cache.root(), Path::new(stage)]);
        assert_eq!(child.hear(), "ready");
        assert!(matches!(claim(cache.cat(), &key(1), LEN as u64), Claimed::Busy(_)), "{stage}");
        assert_eq!(cache.get(1, LEN), Read::Miss, "{stage}");
        child.kill();
        let since = Instant::now();
        assert!(cache.put(1, LEN), "{stage}");
        assert_eq!(cache.get(1, LEN), Read::Hit, "{stage}");
        assert!(since.elapsed() < Duration::from_secs(2), "{stage}");
        cache.cat().dir().space().reap();
        cache.settle();
    }
}

/// Room for about half of the objects that the workers share: 40 small ones and 3 large ones.
const SHARED: u64 = 8 * MIB;
/// Of large objects: not of whole units.
const LARGE: usize = (3 << 20) + 100;

/// Works on the few objects that all share until it is killed.
fn worker(args: &[String]) {
    let cache = Cache::at(Path::new(&args[0]), SHARED);
    let volume = cache.volume();
    children::say("ready");
    loop {
        let n = random() % 40;
        match random() % 12 {
            0 => drop(cache.entry(&key(n)).map(|entry| remove(cache.cat(), &entry))),
            1..4 => drop(cache.put(n, LEN)),
            4 => drop(cache.entry(&key(100 + n % 3)).map(|entry| remove(cache.cat(), &entry))),
            5 | 6 => fill_some(&volume, 100 + n % 3),
            7 | 8 => check_some(&volume, 100 + n % 3),
            // Others remove and replace files all the time: never the wrong bytes.
            _ => assert_ne!(cache.get(n, LEN), Read::Later),
        }
    }
}

/// Fills a few units of a large object, as far as nobody else does.
fn fill_some(volume: &Volume, n: u64) {
    let Some(large) = volume.open_large(&key(n), LARGE as u64, true) else { return };
    let start = random() % LARGE as u64 / UNIT * UNIT;
    for piece in large.claim(start..(start + 5 * UNIT).min(LARGE as u64)) {
        if piece.claimed == crate::disk::claims::Claimed::Mine {
            let data = content(n, LARGE).slice(piece.range.start as usize..piece.range.end as usize);
            large.fill(piece.range.start, &[data]).unwrap();
            large.release(&piece.range);
        }
    }
}

/// Whatever is there of a large object is right.
fn check_some(volume: &Volume, n: u64) {
    let Some(large) = volume.open_large(&key(n), LARGE as u64, false) else { return };
    let mut at = 0;
    while at < LARGE as u64 {
        let (there, range) = large.resident(at..LARGE as u64);
        let (from, to) = (range.start as usize, range.end as usize);
        let mut data = vec![0; to - from];
        if there && large.read(range.start, &mut data).unwrap() {
            assert!(data == content(n, LARGE)[from..to], "wrong bytes of {n} in {from}..{to}");
        }
        at = range.end;
    }
}

/// J2, in small: processes that fill and evict the same objects are killed at any moment.
#[test]
fn kills_at_any_moment_leave_a_cache_that_is_right() {
    if let Some((_, args)) = children::role() {
        return worker(&args);
    }
    let rounds = if std::env::var_os("NEARFS_TEST_FULL").is_some() { 100 } else { 12 };
    let mut cache = Cache::new(SHARED);
    let name = "kills_at_any_moment_leave_a_cache_that_is_right";
    let mut janitor = crate::disk::recover::Janitor::new();
    let start = |cache: &Cache| Child::start(module_path!(), name, "worker", &[cache.root()]);
    let mut workers: Vec<Child> = (0..4).map(|_| start(&cache)).collect();
    workers.iter_mut().for_each(|w| assert_eq!(w.hear(), "ready"));
    for round in 0..rounds {
        std::thread::sleep(Duration::from_millis(random() % 60));
        assert!(workers.iter_mut().all(Child::runs), "a worker saw wrong bytes");
        let one = round % workers.len();
        workers[one].kill();
        (0..40).for_each(|n| assert_ne!(cache.get(n, LEN), Read::Later));
        (100..103).for_each(|n| check_some(&cache.volume(), n));
        assert!(cache.cat().dir().used() <= SHARED);
        workers[one] = start(&cache);
        assert_eq!(workers[one].hear(), "ready");
        janitor.pass(cache.cat());
    }
    workers.iter_mut().for_each(Child::kill);
    let report = verify::verify(cache.cat(), &mut |_| true);
    assert_eq!((report.dropped, report.unread), (0, 0), "{report:?}");
    assert_eq!(cache.cat().wrong(), 0);
    // What they were at is undone, and nothing of it stays on disk.
    let found =
        cache.cat().index().inspect(0..usize::MAX, cache.cat().me(), &|owner| cache.cat().is_alive(owner));
    assert!(found.dead.into_iter().all(|at| undo(cache.cat(), at)));
    verify::verify(cache.cat(), &mut |_| true);
    cache.reopen();
    cache.settle();
    for n in 0..60 {
        assert!(cache.put(n % 20, LEN));
        fill_some(&cache.volume(), 100);
    }
    check_some(&cache.volume(), 100);
    cache.settle();
}

#[derive(Debug, Clone)]
enum Op {
    Put(u64),
    Get(u64),
    TryGet(u64),
    Remove(u64),
    Pin(u64),
    Unpin(u64),
    Clear,
    Reopen,
    Boot(u64),
    Damage(u64),
    Sweep,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let n = || 0..30u64;
    let one = prop_oneof![
        12 => n().prop_map(Op::Put),
        12 => n().prop_map(Op::Get),
        6 => n().prop_map(Op::TryGet),
        3 => n().prop_map(Op::Remove),
        3 => n().prop_map(Op::Pin),
        3 => n().prop_map(Op::Unpin),
        1 => Just(Op::Clear),
        1 => Just(Op::Reopen),
        2 => (1..9u64).prop_map(Op::Boot),
        4 => n().prop_map(Op::Damage),
        2 => Just(Op::Sweep),
    ];
    proptest::collection::vec(one, 1..120)
}

/// Sizes differ, and some are larger than others by far.
fn len(n: u64) -> usize {
    [10, 5000, LEN, 300_000][n as usize % 4]
}

fn run(ops: &[Op]) {
    let mut cache = Cache::in_memory(2 * MIB);
    let mut damaged = std::collections::HashSet::new();
    let mut janitor = crate::disk::recover::Janitor::new();
    for op in ops {
        match *op {
            Op::Put(n) => {
                let there = cache.entry(&key(n)).is_some();
                if cache.put(n, len(n)) && !there {
                    damaged.remove(&n);
                }
            }
            Op::Get(n) => {
                let there = cache.entry(&key(n)).is_some();
                let expected = match (there, damaged.remove(&n) && there) {
                    (_, true) => Read::Wrong,
                    (true, _) => Read::Hit,
                    _ => Read::Miss,
                };
                assert_eq!(cache.get(n, len(n)), expected);
            }
            Op::TryGet(n) => {
                let read = cache.try_get(n, len(n));
                assert!(read != Read::Hit || !damaged.contains(&n));
                if read == Read::Wrong {
                    assert!(damaged.remove(&n));
                }
            }
            Op::Remove(n) => {
                let entry = cache.entry(&key(n));
                assert!(entry.is_none_or(|entry| remove(cache.cat(), &entry).is_some()));
                damaged.remove(&n);
            }
            Op::Pin(n) => drop(verify::pin(cache.cat(), &key(n))),
            Op::Unpin(n) => drop(verify::unpin(cache.cat(), &key(n))),
            Op::Clear => {
                verify::clear(cache.cat());
                damaged.clear();
                assert_eq!((cache.files().len(), cache.cat().dir().used()), (0, 0));
            }
            Op::Reopen => cache.reopen(),
            Op::Boot(tag) => cache.cat().set_boot(tag),
            Op::Damage(n) => {
                let path = cache.path(&key(n));
                if let Ok(mut data) = fs::read(&path) {
                    data[3] ^= 1;
                    // The same file, and a later time of change than any before.
                    fs::write(&path, data).unwrap();
                    let later = std::time::SystemTime::now() + Duration::from_secs(9);
                    File::options().write(true).open(&path).unwrap().set_modified(later).unwrap();
                    if !damaged.insert(n) {
                        damaged.remove(&n);
                    }
                }
            }
            Op::Sweep => {
                let pass = janitor.pass(cache.cat());
                assert_eq!((pass.undone, pass.files.orphans, pass.recovered, pass.gone), (0, 0, 0, false));
            }
        }
        assert!(cache.cat().dir().used() <= 2 * MIB);
        let pinned: u64 =
            cache.cat().index().live().filter(Entry::is_pinned).map(|e| small::charge(e.size)).sum();
        assert!(pinned <= MIB);
    }
    cache.settle();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_done_the_cache_is_right_or_silent(ops in ops()) {
        run(&ops);
    }
}
