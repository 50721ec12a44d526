//! What people see and do.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use super::super::catalogue::fixture::{Cache, key};
use super::*;
use crate::disk::UNIT;
use crate::disk::locks::{self, Lock};

const LEN: usize = 100_000;
const MIB: u64 = 1 << 20;
/// Of large objects: not of whole units.
const LARGE: usize = (3 << 20) + 100;

/// Changes a byte so that nobody can see it from outside.
fn damage(cache: &Cache, n: u64, at: u64) {
    let path = cache.path(&key(n));
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let before = fs::metadata(&path).unwrap().modified().unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
    file.set_modified(before).unwrap();
}

#[test]
fn everything_is_compared_whatever_is_believed() {
    let cache = Cache::new(64 * MIB);
    assert!((0..10).all(|n| cache.put(n, LEN)));
    cache.put_large(20, LARGE, 0..49);
    cache.put_large(21, LARGE, 3..10);
    cache.put_large(22, LARGE, 0..5);
    let clean = verify(cache.cat(), &mut |_| true);
    let bytes = 10 * LEN as u64 + LARGE as u64 + 12 * UNIT;
    assert_eq!(clean, Report { entries: 13, bytes, ..Report::default() });

    damage(&cache, 0, 99_999);
    fs::remove_file(cache.path(&key(1))).unwrap();
    damage(&cache, 20, 20 * UNIT + 5);
    fs::remove_file(cache.path(&key(22)).with_file_name(key(22).state_name())).unwrap();
    fs::write(cache.path(&key(30)), "an orphan").unwrap();
    fs::write(cache.path(&key(30)).with_file_name("notes"), "mine").unwrap();
    assert_eq!(cache.get(0, 5), Read::Miss);
    let mut steps = 0;
    let found = verify(cache.cat(), &mut |_| {
        steps += 1;
        true
    });
    let bytes = bytes - 2 * LEN as u64 - UNIT - 5 * UNIT;
    let files = Files { orphans: 1, foreign: 1 };
    assert_eq!(found, Report { entries: 13, bytes, dropped: 4, unread: 0, files });
    assert_eq!(steps, 13);
    let again = verify(cache.cat(), &mut |_| true);
    let files = Files { orphans: 0, foreign: 1 };
    assert_eq!(again, Report { entries: 10, bytes, files, ..Report::default() });
    fs::remove_file(cache.path(&key(30)).with_file_name("notes")).unwrap();
    cache.settle();
    let stopped = verify(cache.cat(), &mut |report| report.entries < 3);
    assert_eq!(stopped.entries, 3);
}

#[test]
fn clear_takes_all_but_what_is_lent() {
    let cache = Cache::new(64 * MIB);
    assert!((0..10).all(|n| cache.put(n, LEN)));
    cache.put_large(20, LARGE, 0..49);
    assert!(pin(cache.cat(), &key(0)).unwrap());
    let lent = File::open(cache.path(&key(1))).unwrap();
    assert!(locks::try_lock(&lent, Lock::Shared).unwrap());
    let used = cache.cat().dir().used();
    let charge = small::charge(LEN as u64);
    let removed = clear(cache.cat());
    assert_eq!(removed, Removed { entries: 10, bytes: used - charge, kept: 1 });
    assert_eq!((cache.get(1, LEN), cache.get(0, LEN)), (Read::Hit, Read::Miss));
    assert_eq!(cache.cat().dir().used(), charge);
    cache.settle();
    drop(lent);
    assert_eq!(clear(cache.cat()), Removed { entries: 1, bytes: charge, kept: 0 });
    assert!(cache.files().is_empty());
}

#[test]
fn evict_takes_what_it_is_told_to_and_nothing_pinned() {
    let cache = Cache::new(64 * MIB);
    assert!((0..5).all(|n| cache.put(n, LEN)));
    assert!(pin(cache.cat(), &key(0)).unwrap());
    let removed = evict(cache.cat(), [0, 1, 2, 99].map(key));
    assert_eq!(removed, Removed { entries: 2, bytes: 2 * small::charge(LEN as u64), kept: 1 });
    assert!(unpin(cache.cat(), &key(0)) && !unpin(cache.cat(), &key(1)));
    assert_eq!(evict(cache.cat(), [key(0)]).entries, 1);
    assert_eq!(cache.cat().index().live().count(), 2);
}

#[test]
fn half_of_the_limit_can_be_pinned() {
    let cache = Cache::new(8 * MIB);
    assert!((0..2).all(|n| cache.put(n, SMALL as usize)));
    cache.put_large(20, LARGE, 0..1);
    assert!(!pin(cache.cat(), &key(99)).unwrap(), "it is not here");
    assert!(pin(cache.cat(), &key(20)).unwrap(), "counts with all that it may come to have");
    assert!(pin(cache.cat(), &key(20)).unwrap(), "twice is once");
    let e = pin(cache.cat(), &key(0)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NoSpace);
    assert!(!cache.entry(&key(0)).unwrap().is_pinned());
    assert!(unpin(cache.cat(), &key(20)));
    assert!(pin(cache.cat(), &key(0)).unwrap() && pin(cache.cat(), &key(1)).unwrap());
    let status = status(cache.cat());
    assert_eq!((status.pinned, status.pinned_bytes), (2, 2 * SMALL));
}

#[test]
fn the_status_counts_what_is_there() {
    let cache = Cache::new(64 * MIB);
    assert!((0..7).all(|n| cache.put(n, LEN)));
    cache.put_large(20, LARGE, 0..2);
    evict(cache.cat(), [key(6)]);
    let status = status(cache.cat());
    let bytes = 6 * small::charge(LEN as u64) + Large::overhead(LARGE as u64) + 2 * UNIT;
    let expected = Status {
        small: 6,
        large: 1,
        bytes,
        used: bytes,
        limit: 64 * MIB,
        remembered: 1,
        processes: 1,
        ..Status::default()
    };
    assert_eq!(status, expected);
}
