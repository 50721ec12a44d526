//! What a disk can do to small objects.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::super::catalogue::fixture::{Cache, content, key};
use super::*;
use crate::disk::index::Claimed;

const LEN: usize = 100_000;
const MIB: u64 = 1 << 20;

#[test]
fn objects_of_all_sizes_come_back_as_they_were_stored() {
    let mut cache = Cache::new(64 * MIB);
    let lengths = [0, 1, 4095, 4096, 4097, LEN, SMALL as usize];
    for (n, len) in lengths.into_iter().enumerate() {
        let n = n as u64;
        assert_eq!(cache.get(n, len), Read::Miss);
        assert!(cache.put(n, len));
        assert_eq!((cache.get(n, len), cache.try_get(n, len)), (Read::Hit, Read::Hit));
        assert_eq!(cache.get(n, len + 1), Read::Miss, "another size is another object");
        assert!(fs::read(cache.path(&key(n))).unwrap() == content(n, len), "exactly the bytes of the object");
        assert_eq!(cache.entry(&key(n)).unwrap().access.count, 3, "one to store, two to read");
    }
    let charged: u64 = lengths.iter().map(|len| charge(*len as u64)).sum();
    assert_eq!(cache.cat().dir().used(), charged);
    cache.settle();
    cache.reopen();
    for (n, len) in lengths.into_iter().enumerate() {
        assert_eq!(cache.get(n as u64, len), Read::Hit, "it survives");
    }
    cache.settle();
    assert_eq!(cache.cat().wrong(), 0);
}

/// What is done to a file (the second one is of another object of the same size), and what a read then finds.
type Damage = (&'static str, fn(&Cache, &Path, &Path), Read);

fn damages() -> Vec<Damage> {
    vec![
        ("nothing", |_, _, _| {}, Read::Hit),
        ("touched", |_, path, _| later(path), Read::Hit),
        (
            "shorter",
            |_, path, _| File::options().write(true).open(path).unwrap().set_len(4096).unwrap(),
            Read::Wrong,
        ),
        (
            "longer",
            |_, path, _| File::options().write(true).open(path).unwrap().set_len(200_000).unwrap(),
            Read::Wrong,
        ),
        ("empty", |_, path, _| drop(File::create(path).unwrap()), Read::Wrong),
        ("a bit flipped", |_, path, _| flip(path), Read::Wrong),
        ("one of the same size over it", |_, path, other| fs::rename(other, path).unwrap(), Read::Wrong),
        ("exchanged with another", |_, path, other| exchange(other, path), Read::Wrong),
        (
            "an equal copy",
            |_, path, _| {
                let data = fs::read(path).unwrap();
                fs::write(path.with_extension("copy"), data).unwrap();
                fs::rename(path.with_extension("copy"), path).unwrap();
            },
            Read::Wrong,
        ),
        ("missing", |_, path, _| fs::remove_file(path).unwrap(), Read::Wrong),
        (
            "a directory",
            |_, path, _| {
                fs::remove_file(path).unwrap();
                fs::create_dir(path).unwrap();
            },
            Read::Wrong,
        ),
        (
            "a link to itself elsewhere",
            |c, path, _| {
                let moved = c.root().join("moved");
                fs::rename(path, &moved).unwrap();
                symlink(moved, path).unwrap();
            },
            Read::Wrong,
        ),
        (
            "a dangling link",
            |_, path, _| {
                fs::remove_file(path).unwrap();
                symlink("/nowhere", path).unwrap();
            },
            Read::Wrong,
        ),
        (
            "a pipe",
            |_, path, _| {
                fs::remove_file(path).unwrap();
                rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, Mode::from(0o600), 0)
                    .unwrap();
            },
            Read::Wrong,
        ),
        (
            "its directory missing",
            |_, path, _| fs::remove_dir_all(path.parent().unwrap()).unwrap(),
            Read::Wrong,
        ),
        (
            "all directories missing",
            |_, path, _| {
                fs::remove_dir_all(path.ancestors().nth(2).unwrap()).unwrap();
            },
            Read::Wrong,
        ),
    ]
}

fn later(path: &Path) {
    let file = File::options().write(true).open(path).unwrap();
    file.set_modified(SystemTime::now() + Duration::from_secs(100)).unwrap();
}

fn flip(path: &Path) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 77_777).unwrap();
    file.write_all_at(&[byte[0] ^ 4], 77_777).unwrap();
}

fn exchange(a: &Path, b: &Path) {
    let aside = a.with_extension("aside");
    fs::rename(a, &aside).unwrap();
    fs::rename(b, a).unwrap();
    fs::rename(aside, b).unwrap();
}

#[test]
fn whatever_happens_to_a_file_no_wrong_byte_is_read_and_all_else_goes_on() {
    let mut cache = Cache::new(64 * MIB);
    let variants = [(false, 0), (false, 77), (true, 0), (true, 77)];
    let cases =
        damages().into_iter().flat_map(|damage| variants.map(|(reopened, boot)| (damage, reopened, boot)));
    for (i, ((what, damage, expected), reopened, boot)) in cases.enumerate() {
        let context = format!("{what}, reopened: {reopened}, boot {boot}");
        let [one, two, three] = [0, 1, 2].map(|n| 3 * i as u64 + n);
        assert!([one, two, three].into_iter().all(|n| cache.put(n, LEN)), "{context}");
        let path = cache.path(&key(one));
        damage(&cache, &path, &cache.path(&key(two)));
        if reopened {
            cache.reopen();
        }
        if boot > 0 {
            cache.cat().set_boot(boot + i as u64);
        }
        let wrong = cache.cat().wrong();
        let at_once = cache.try_get(one, LEN);
        assert!([expected, Read::Later].contains(&at_once), "{context}: {at_once:?}");
        let read = if at_once == Read::Wrong { at_once } else { cache.get(one, LEN) };
        assert_eq!(read, expected, "{context}");
        if expected == Read::Hit {
            assert_eq!(cache.try_get(one, LEN), Read::Hit, "{context}: believed from now on");
            assert_eq!(cache.cat().wrong(), wrong, "{context}");
            continue;
        }
        assert_eq!(cache.cat().wrong(), wrong + 1, "{context}");
        assert!(cache.entry(&key(one)).is_none(), "{context}: the entry is gone");
        assert_eq!(cache.get(one, LEN), Read::Miss);
        let there = cache.path(&key(three)).exists();
        assert_eq!(cache.get(three, LEN), if there { Read::Hit } else { Read::Wrong }, "{context}");
        for n in [one, two, three] {
            cache.get(n, LEN);
            assert!(cache.put(n, LEN), "{context}: object {n} is taken");
            assert_eq!(cache.get(n, LEN), Read::Hit, "{context}");
        }
        assert!(cache.cat().dir().writable(), "{context}");
    }
    // Those that nobody asked for since their files went.
    (0..200).for_each(|n| assert_ne!(cache.get(n, LEN), Read::Later));
    cache.settle();
}

/// Somebody made a directory with files where our file should be: it stays, and only that object is not kept.
#[test]
fn what_somebody_else_put_there_is_left_alone() {
    let cache = Cache::new(64 * MIB);
    assert!(cache.put(1, LEN));
    let path = cache.path(&key(1));
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    fs::write(path.join("notes"), "mine").unwrap();
    assert_eq!(cache.get(1, LEN), Read::Wrong);
    let Claimed::Mine(at) = evict::claim(cache.cat(), &key(1), LEN as u64) else {
        panic!("it can be claimed")
    };
    assert!(store(cache.cat(), &key(1), at, &[content(1, LEN)]).is_err());
    assert_eq!((cache.get(1, LEN), cache.cat().dir().used()), (Read::Miss, 0));
    assert_eq!(fs::read(path.join("notes")).unwrap(), b"mine");
}

#[test]
fn after_another_boot_bytes_are_compared_once() {
    let cache = Cache::new(64 * MIB);
    assert!(cache.put(1, LEN) && cache.put(2, LEN));
    cache.cat().set_boot(77);
    assert_eq!(cache.try_get(1, LEN), Read::Later, "the checksum may take too long");
    assert_eq!((cache.get(1, LEN), cache.try_get(1, LEN)), (Read::Hit, Read::Hit));
    assert_eq!(cache.entry(&key(1)).unwrap().boot, 77);
    // A power cut left zeros, in a file that looks as it should.
    let path = cache.path(&key(2));
    let before = fs::metadata(&path).unwrap();
    fs::write(&path, vec![0; LEN]).unwrap();
    File::options().write(true).open(&path).unwrap().set_modified(before.modified().unwrap()).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().ino(), before.ino());
    assert_eq!(cache.get(2, LEN), Read::Wrong);
    assert_eq!(cache.cat().wrong(), 1);
}

/// The device number changes when the filesystem is mounted anew; the file does not.
#[test]
fn another_device_number_is_reason_to_compare_not_to_drop() {
    let cache = Cache::new(64 * MIB);
    assert!(cache.put(1, LEN));
    let entry = cache.entry(&key(1)).unwrap();
    cache.cat().index().believe(entry.at, entry.boot, entry.dev + 1, entry.mtime_ns);
    assert_eq!(
        (cache.try_get(1, LEN), cache.get(1, LEN), cache.try_get(1, LEN)),
        (Read::Later, Read::Hit, Read::Hit)
    );
    assert_eq!(cache.entry(&key(1)).unwrap().dev, entry.dev);
}

/// Bytes that are only on the disk are not waited for.
#[test]
fn an_instant_read_does_not_go_to_the_disk() {
    let cache = Cache::new(64 * MIB);
    assert!(cache.put(1, LEN));
    let file = File::open(cache.path(&key(1))).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let mut byte = [0];
    let slice = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    // SAFETY: one byte is read into one byte that is borrowed mutably by nobody else.
    let cached = unsafe { libc::preadv2(file.as_raw_fd(), &slice, 1, 50_000, libc::RWF_NOWAIT) } == 1;
    // Filesystems in memory keep everything.
    assert_eq!(cache.try_get(1, LEN), if cached { Read::Hit } else { Read::Later });
    assert_eq!((cache.get(1, LEN), cache.try_get(1, LEN)), (Read::Hit, Read::Hit));
}

#[test]
fn what_a_dead_process_left_under_the_name_is_replaced() {
    let cache = Cache::new(64 * MIB);
    fs::write(cache.path(&key(1)), "half an obj").unwrap();
    assert!(cache.put(1, LEN));
    assert_eq!(cache.get(1, LEN), Read::Hit);
    cache.settle();
}

#[test]
fn a_store_that_is_refused_leaves_nothing_behind() {
    let cache = Cache::new(4 * MIB);
    assert!(!cache.put(1, 5 << 20), "larger than the limit");
    assert_eq!((cache.cat().dir().used(), cache.files().len()), (0, 0));
    assert!(cache.cat().index().history(&key(1)).is_some(), "it is remembered that it was asked for");
    cache.cat().dir().failed(&io::Error::from_raw_os_error(libc::ENOSPC));
    assert!(!cache.put(2, LEN), "switched off");
    assert!(matches!(evict::claim(cache.cat(), &key(2), 5), Claimed::Mine(_)), "and the slot is free");
    cache.settle();
}

/// Four threads that store, read and remove the same few objects.
#[test]
fn threads_do_not_disturb_each_other() {
    let cache = Cache::new(64 * MIB);
    std::thread::scope(|scope| {
        for t in 0..4 {
            let cache = &cache;
            scope.spawn(move || {
                for i in 0..300u64 {
                    let n = (i * 7 + t) % 5;
                    match (i + t) % 5 {
                        0 => drop(cache.entry(&key(n)).map(|entry| evict::remove(cache.cat(), &entry))),
                        1 | 2 => drop(cache.put(n, LEN)),
                        _ => drop(cache.get(n, LEN)),
                    }
                }
            });
        }
    });
    cache.settle();
}
