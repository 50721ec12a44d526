//! What is left behind goes, what is not ours stays, and nothing stands in the way of opening.

use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use super::super::catalogue::fixture::{Cache, key};
use super::*;
use crate::disk::children::{self, Child};
use crate::disk::index::{COMPLETE, Facts, Moment};
use crate::disk::small::Read;

const LEN: usize = 10_000;
const MIB: u64 = 1 << 20;

/// Passes through everything once; the sum of what they found.
fn sweep(cat: &Catalogue) -> Pass {
    let mut janitor = Janitor::new();
    let mut sum = Pass::default();
    for _ in 0..256 {
        let pass = janitor.pass(cat);
        sum.undone += pass.undone;
        sum.files.orphans += pass.files.orphans;
        sum.files.foreign += pass.files.foreign;
        sum.recovered += pass.recovered;
        sum.gone |= pass.gone;
    }
    sum
}

#[test]
fn leftovers_go_and_strange_files_stay() {
    let cache = Cache::new(64 * MIB);
    assert!((0..5).all(|n| cache.put(n, LEN)));
    // Without entries: a data file, a data file with its state file, a state file, and a link.
    fs::write(cache.path(&key(10)), "data").unwrap();
    for name in [key(11).name(), key(11).state_name(), key(12).state_name()] {
        let fan = if name.starts_with(&key(11).name()[..4]) { key(11) } else { key(12) };
        fs::write(cache.path(&fan).with_file_name(name), vec![7; 5000]).unwrap();
    }
    std::os::unix::fs::symlink("/etc/passwd", cache.path(&key(13))).unwrap();
    let fan = cache.path(&key(0)).parent().unwrap().to_owned();
    fs::write(fan.join(".tmp-1-2-3"), "being written").unwrap();
    fs::write(fan.join(".tmp-4-5-6"), "written long ago").unwrap();
    let old = File::options().write(true).open(fan.join(".tmp-4-5-6")).unwrap();
    old.set_modified(SystemTime::now() - Duration::from_secs(4000)).unwrap();
    // Not ours: notes, a name in capitals, a directory, and a data file where it does not belong.
    fs::write(fan.join("notes"), "mine").unwrap();
    fs::write(fan.join(key(14).name().to_uppercase()), "").unwrap();
    fs::create_dir(fan.join(key(0).name().replace('0', "1"))).unwrap();
    fs::write(fan.join(key(1).name()), "").unwrap();

    let found = sweep(cache.cat());
    // Key 11 counts once or twice, as its two files are met.
    assert!((5..=6).contains(&found.files.orphans), "{found:?}");
    assert_eq!((found.files.foreign, found.undone, found.gone), (4, 0, false));
    let again = sweep(cache.cat());
    assert_eq!((again.files.orphans, again.files.foreign), (0, 4));
    let names = cache.files();
    assert_eq!(names.len(), 5 + 4 + 1, "{names:?}");
    assert!(fan.join(".tmp-1-2-3").exists() && fan.join("notes").exists());
    (0..5).for_each(|n| assert_eq!(cache.get(n, LEN), Read::Hit));
    assert!(Path::new("/etc/passwd").exists());
}

#[test]
fn slots_of_dead_processes_are_found() {
    if let Some((_, args)) = children::role() {
        let cache = Cache::at(Path::new(&args[0]), 64 * MIB);
        for n in 0..20 {
            assert!(matches!(evict::claim(cache.cat(), &key(n), 5), Claimed::Mine(_)));
        }
        fs::write(cache.path(&key(3)), "half").unwrap();
        std::mem::forget(cache.cat().dir().space().reserve(MIB, &|_| 0));
        children::say("ready");
        return children::wait();
    }
    let cache = Cache::new(64 * MIB);
    let mut child =
        Child::start(module_path!(), "slots_of_dead_processes_are_found", "filler", &[cache.root()]);
    assert_eq!(child.hear(), "ready");
    assert_eq!(sweep(cache.cat()).undone, 0, "it lives");
    assert!(cache.cat().dir().used() >= MIB && cache.path(&key(3)).exists());
    child.kill();
    assert_eq!(sweep(cache.cat()).undone, 20);
    cache.settle();
}

#[test]
fn removed_directories_of_files_come_back() {
    let cache = Cache::new(64 * MIB);
    assert!((0..20).all(|n| cache.put(n, LEN)));
    let objects = cache.cat().dir().path().join("objects");
    for fan in fs::read_dir(&objects).unwrap() {
        fs::remove_dir_all(fan.unwrap().path()).unwrap();
    }
    assert!(!sweep(cache.cat()).gone);
    assert!(cache.path(&key(3)).parent().unwrap().is_dir());
    assert_eq!(cache.get(3, LEN), Read::Wrong);
    fs::remove_dir_all(&objects).unwrap();
    Janitor::new().pass(cache.cat());
    assert!(objects.is_dir());
    for n in 0..20 {
        cache.get(n, LEN);
        assert!(cache.put(n, LEN));
        assert_eq!(cache.get(n, LEN), Read::Hit);
    }
    assert!(cache.cat().dir().writable());
    cache.settle();
}

/// `rm -rf` of the whole cache under a running process.
#[test]
fn a_removed_cache_harms_nobody_and_is_begun_anew() {
    let cache = Cache::new(64 * MIB);
    assert!((0..20).all(|n| cache.put(n, LEN)));
    fs::remove_dir_all(cache.cat().dir().path()).unwrap();
    assert!(Janitor::new().pass(cache.cat()).gone);
    for n in 0..40 {
        assert_ne!(cache.get(n, LEN), Read::Hit);
        if let Claimed::Mine(at) = evict::claim(cache.cat(), &key(n), 3) {
            let stored = crate::disk::small::store(cache.cat(), &key(n), at, &[b"123"[..].into()]);
            assert!(!matches!(stored, Ok(Some(_))), "nothing is stored where nobody finds it");
        }
    }
    assert_eq!(cache.cat().index().live().count(), 0);
    let again = Cache::at(cache.root(), 64 * MIB);
    assert!(again.put(1, LEN));
    assert_eq!(again.get(1, LEN), Read::Hit);
    assert!(!Janitor::new().pass(again.cat()).gone);
    again.settle();
    assert_eq!(cache.get(1, LEN), Read::Miss, "the old one stays empty");
    again.settle();
}

/// What 500 000 small objects cost at the start. The limit of one second is checked by eye: the times are printed.
#[test]
fn half_a_million_entries_do_not_delay_the_opening() {
    const COUNT: u64 = 500_000;
    let dir = tempfile::tempdir().unwrap();
    let limit = 32 << 30;
    let mut cache = Cache::at(dir.path(), limit);
    assert_eq!(cache.cat().index().slots(), 1 << 20);
    let (index, me) = (cache.cat().index(), cache.cat().me());
    let mut stored = 0;
    for n in 0..COUNT {
        let moment = Moment { now: n + 1, seconds: 1 };
        if let Claimed::Mine(at) = index.claim(&key(n), LEN as u64, me, moment, &|_| true) {
            let facts = Facts { charged: 12_288, flags: COMPLETE, ..Facts::default() };
            index.publish(at, &facts);
            stored += 1;
        }
    }
    assert!(stored > COUNT * 99 / 100, "{stored} fit into their buckets");
    assert!(cache.put(COUNT, LEN));
    stored += 1;
    let file = File::open(cache.cat().dir().path().join("index")).unwrap();
    for cold in [false, true] {
        let first = |cache: &Cache| assert_eq!(cache.get(COUNT, LEN), Read::Hit);
        drop(cache);
        if cold {
            file.sync_all().unwrap();
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        }
        let start = Instant::now();
        cache = Cache::at(dir.path(), limit);
        let opened = start.elapsed();
        first(&cache);
        println!("{stored} entries, cold: {cold}: opened after {opened:?}, first read {:?}", start.elapsed());
        assert!(start.elapsed() < Duration::from_secs(20));
        let charged = cache.cat().index().charged();
        assert_eq!(charged, stored * 12_288);
        assert!(cache.cat().dir().used() >= charged, "counted anew, the index as well");
    }
    let start = Instant::now();
    let pass = Janitor::new().pass(cache.cat());
    println!("a pass of the janitor: {:?}", start.elapsed());
    assert_eq!(pass.undone, 0);
}
