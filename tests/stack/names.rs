//! Names and the shape of directories.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use nearfs_lab::{Op, stamp};

use crate::harness::{BUCKET, Mount, lab, read_stamped, within};

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// All files below `dir`, relative.
fn walk(dir: &Path) -> BTreeSet<String> {
    fn go(root: &Path, dir: &Path, found: &mut BTreeSet<String>) {
        for entry in fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            let path = entry.path();
            let relative = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
            // What readdir says and what stat says must agree.
            assert_eq!(
                entry.file_type().unwrap().is_dir(),
                fs::metadata(&path).unwrap().is_dir(),
                "{relative}"
            );
            if path.is_dir() { go(root, &path, found) } else { assert!(found.insert(relative)) }
        }
    }
    let dir = dir.to_owned();
    within(Duration::from_secs(10), move || {
        let mut found = BTreeSet::new();
        go(&dir, &dir, &mut found);
        found
    })
}

#[test]
fn a1_a_file_and_a_directory_of_the_same_name() {
    for directory_first in [false, true] {
        let lab = lab();
        let put = |key: &str, size| lab.put_synthetic(BUCKET, key, size, stamp::key_id(key));
        if directory_first {
            put("out/x", 200);
            put("out", 100);
        } else {
            put("out", 100);
            put("out/x", 200);
        }
        put("out-a", 1);
        put("outer/y", 1);
        let mount =
            Mount::start(&lab, &format!("s3://{BUCKET}"), &["--metadata-ttl", "1s", "--negative-ttl", "1s"]);
        for round in 0..20 {
            assert_eq!(names(mount.path()), ["out", "out-a", "outer"], "round {round}");
            assert!(fs::metadata(mount.join("out")).unwrap().is_dir());
            if round % 5 == 4 {
                sleep(Duration::from_millis(400));
            }
        }
        let file = fs::File::open(mount.join("out/x")).unwrap();
        read_stamped(&file, "out/x", 0..200).unwrap();
        assert_eq!(walk(mount.path()), BTreeSet::from(["out/x", "out-a", "outer/y"].map(String::from)));

        // By name first, nothing listed before.
        let fresh = Mount::bucket(&lab);
        assert!(fs::metadata(fresh.join("out")).unwrap().is_dir());
        read_stamped(&fs::File::open(fresh.join("out/x")).unwrap(), "out/x", 0..200).unwrap();

        // The loser becomes visible when the winner goes away.
        lab.delete(BUCKET, "out/x");
        sleep(Duration::from_millis(2500));
        assert_eq!(names(mount.path()), ["out", "out-a", "outer"]);
        assert_eq!(fs::metadata(mount.join("out")).unwrap().len(), 100);
        read_stamped(&fs::File::open(mount.join("out")).unwrap(), "out", 0..100).unwrap();
    }
}

#[test]
fn a2_keys_that_no_path_can_name_do_not_harm_their_neighbours() {
    let lab = lab();
    let mut good = BTreeSet::new();
    for i in 0..50 {
        let key = format!("data/f{i:03}");
        lab.put_synthetic(BUCKET, &key, 1000 + i, stamp::key_id(&key));
        good.insert(key);
    }
    let long = format!("data/{}", "n".repeat(300));
    for odd in ["data//b.bin", "data/./c", "data/../d", "data/", "/", "/lead", "//", long.as_str()] {
        lab.put(BUCKET, odd, &b"odd"[..]);
    }
    let mount = Mount::bucket(&lab);
    assert_eq!(walk(mount.path()), good);
    assert_eq!(names(mount.path()), ["data"]);
    for key in &good {
        let file = fs::File::open(mount.join(key)).unwrap();
        read_stamped(&file, key, 0..file.metadata().unwrap().len()).unwrap();
    }
    for absent in ["data/b.bin", "data/c", "data/d", "d", "lead", "data//b.bin"] {
        assert_eq!(fs::metadata(mount.join(absent)).unwrap_err().kind(), io::ErrorKind::NotFound, "{absent}");
    }
    let too_long = fs::metadata(mount.join(&long)).unwrap_err();
    assert_eq!(too_long.raw_os_error(), Some(libc::ENAMETOOLONG));
    assert!(mount.log().contains("skipped"), "the skipped keys are reported:\n{}", mount.log());
}

#[test]
fn a3_directories_that_exist_only_as_key_prefixes() {
    for marker in [false, true] {
        let lab = lab();
        let key = "a/b/c/d.bin";
        lab.put_synthetic(BUCKET, key, 1 << 20, stamp::key_id(key));
        lab.put(BUCKET, "e/", &b""[..]);
        if marker {
            lab.put(BUCKET, "a/b/", &b""[..]);
        }
        // The very first call on a fresh mount opens by full path.
        let mount = Mount::bucket(&lab);
        lab.reset_counters();
        let file = fs::File::open(mount.join(key)).unwrap();
        read_stamped(&file, key, 0..1 << 20).unwrap();
        let counters = lab.counters();
        // Depth 4: HEAD and LIST for each component, side by side, and one GET.
        assert!(counters.of(Op::HeadObject) <= 4 && counters.lists() <= 5, "{counters:?}");
        assert_eq!(counters.of(Op::GetObject), 1);

        // Level by level on another one.
        let mount = Mount::bucket(&lab);
        assert_eq!(names(mount.path()), ["a", "e"]);
        assert_eq!(names(&mount.join("a")), ["b"]);
        assert_eq!(names(&mount.join("a/b")), ["c"]);
        assert!(fs::metadata(mount.join("a/b/")).unwrap().is_dir());
        assert_eq!(names(&mount.join("a/b/c")), ["d.bin"]);
        assert_eq!(names(&mount.join("e")), [""; 0]);

        // A missing path costs a bounded number of requests.
        lab.reset_counters();
        assert_eq!(fs::metadata(mount.join("a/b/nothing")).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(lab.counters().total() <= 2, "{:?}", lab.counters());
    }
}

#[test]
fn a5_pattern_characters_and_every_legal_byte_are_literal() {
    let lab = lab();
    let keys: Vec<&[u8]> = vec![
        b"run[1].tar",
        b"run1.tar",
        b"a*b",
        b"ab",
        b"w?z",
        b"p{2}q",
        b"(x)^$.bin",
        b"back\\slash",
        b"per%20cent",
        b"a b",
        b"a+b",
        b"tab\there",
        b"new\nline",
        b"\x01control\x7f",
        "caf\u{e9}".as_bytes(),
        "cafe\u{301}".as_bytes(),
        "emoji \u{1f642}".as_bytes(),
        b"quote\"'&<>",
        b"#hash?query=1;x",
        b"~tilde",
        b"@:,=",
        b" leading and trailing ",
        b"-dash",
        b".hidden",
    ];
    for key in &keys {
        lab.put(BUCKET, key, [b"content of ", *key].concat());
    }
    let check = |mount: &Mount| {
        for key in &keys {
            let path = mount.join(OsStr::from_bytes(key));
            assert_eq!(fs::read(&path).unwrap(), [b"content of ", *key].concat(), "{path:?}");
        }
    };
    // By name on a fresh mount, then from the listing.
    check(&Mount::bucket(&lab));
    let mount = Mount::bucket(&lab);
    let listed: BTreeSet<Vec<u8>> =
        fs::read_dir(mount.path()).unwrap().map(|e| e.unwrap().file_name().as_bytes().to_vec()).collect();
    assert_eq!(listed, keys.iter().map(|k| k.to_vec()).collect());
    check(&mount);
}
