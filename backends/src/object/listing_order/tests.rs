use super::*;
use crate::metadata::Version;

fn file() -> Option<Metadata> {
    Some(Metadata::file(1, Version::Unknown))
}

/// The lines a store gives for `keys`, in its order.
fn rows(keys: &[&str], recursive: bool) -> Vec<Item> {
    let mut rows: Vec<(Vec<u8>, bool)> = Vec::new();
    for key in keys {
        match key.find('/') {
            Some(i) if !recursive => rows.push((key.as_bytes()[..=i].to_vec(), true)),
            _ => rows.push((key.as_bytes().to_vec(), false)),
        }
    }
    rows.sort();
    rows.dedup();
    rows.into_iter().map(|(key, dir)| Item { key, metadata: if dir { None } else { file() } }).collect()
}

fn shown(merge: &mut Merge) -> Vec<String> {
    std::iter::from_fn(|| merge.next())
        .map(|e| if e.metadata.is_dir() { format!("{}/", e.path) } else { e.path.to_string() })
        .collect()
}

fn list(keys: &[&str], recursive: bool) -> (Vec<String>, Tally) {
    let mut merge = Merge::new(FsPath::root(), Vec::new(), recursive, None);
    let mut all = Vec::new();
    for row in rows(keys, recursive) {
        merge.push(row).unwrap();
        all.extend(shown(&mut merge));
    }
    merge.finish();
    all.extend(shown(&mut merge));
    (all, merge.tally)
}

#[test]
fn a1_a_directory_hides_the_file_of_its_name() {
    let keys = ["out", "out/x", "out-a", "outer/y"];
    let (flat, tally) = list(&keys, false);
    assert_eq!(flat, ["out-a", "out/", "outer/"]);
    assert_eq!(tally.hidden, 1);
    assert_eq!(list(&keys, true).0, ["out-a", "out/", "out/x", "outer/", "outer/y"]);
    // With the directory gone the file is back, at the same place.
    assert_eq!(list(&["out", "out-a", "outer/y"], true).0, ["out-a", "out", "outer/", "outer/y"]);
}

#[test]
fn held_files_form_a_chain() {
    let keys = ["a", "a!", "a!!", "a!!/x", "a!/y", "a#", "b"];
    assert_eq!(list(&keys, true).0, ["a!!/", "a!!/x", "a!/", "a!/y", "a#", "a", "b"]);
    let (_, tally) = list(&keys, false);
    assert_eq!(tally.hidden, 2);
}

#[test]
fn a2_keys_that_no_path_can_name_are_counted() {
    let long = "data/".to_owned() + &"n".repeat(300);
    let keys = ["/", "/lead", "data/", "data//b.bin", "data/./c", "data/../d", "data/f0", "p/../q", &*long];
    let (all, tally) = list(&keys, true);
    assert_eq!(all, ["data/", "data/f0", "p/"]);
    assert_eq!(tally.skipped, 7, "{tally:?}");
    assert_eq!(list(&keys, false).0, ["data/", "p/"]);
}

#[test]
fn a3_prefixes_and_markers_are_directories_once() {
    let wanted = ["a/", "a/b/", "a/b/c", "e/"];
    assert_eq!(list(&["a/b/c", "e/"], true).0, wanted);
    assert_eq!(list(&["a/", "a/b/", "a/b/c", "e/"], true).0, wanted);
}

#[test]
fn order_is_that_of_paths_for_every_set_of_names() {
    // Every subset of names that sort around `/`, below one another.
    let names = ["x", "x/y", "x-", "x-/z", "x.y", "x0", "x/y-/q", "x/y/k", "x\u{1}"];
    for bits in 0..1u32 << names.len() {
        let keys: Vec<_> =
            names.iter().enumerate().filter(|(i, _)| bits >> i & 1 == 1).map(|(_, k)| *k).collect();
        let (all, _) = list(&keys, true);
        let paths: Vec<_> =
            all.iter().map(|s| FsPath::parse(unescape(s).trim_end_matches('/')).unwrap()).collect();
        assert!(paths.is_sorted_by(|a, b| a.cmp_listing(b).is_lt()), "{keys:?} gave {all:?}");
        let files = keys.iter().filter(|k| !keys.iter().any(|o| o.starts_with(&format!("{k}/"))));
        for file in files {
            assert!(
                paths.iter().any(|p| p.as_bytes() == file.as_bytes()),
                "{file:?} is missing from {all:?}"
            );
        }
    }
}

fn unescape(shown: &str) -> String {
    shown.replace("\\u{1}", "\u{1}")
}

#[test]
fn l1_repeated_rows_are_one_and_disorder_is_an_error() {
    let mut merge = Merge::new(FsPath::root(), Vec::new(), false, None);
    let row = |key: &str| Item { key: key.into(), metadata: file() };
    merge.push(row("a")).unwrap();
    merge.push(row("a")).unwrap();
    merge.push(row("b")).unwrap();
    assert_eq!(merge.push(row("a")).unwrap_err().kind(), ErrorKind::Corrupt);

    let mut below = Merge::new(FsPath::parse("d").unwrap(), b"d/".to_vec(), false, None);
    assert!(below.push(row("other")).is_err());
}

#[test]
fn resuming_anywhere_gives_the_rest() {
    let keys = ["a", "a!", "a!/y", "a#", "a/z", "b", "b-c/d", "b.e"];
    let (all, _) = list(&keys, true);
    for (i, after) in all.iter().enumerate() {
        let after = FsPath::parse(after.trim_end_matches('/')).unwrap();
        let start = place(after.as_bytes());
        let mut merge = Merge::new(FsPath::root(), Vec::new(), true, Some(&after));
        for candidate in earlier_keys(&after) {
            if keys.iter().any(|k| k.as_bytes() == candidate.as_bytes()) {
                merge.hold(candidate.as_bytes().to_vec(), file().unwrap());
            }
        }
        for row in rows(&keys, true).into_iter().filter(|r| r.key > start) {
            merge.push(row).unwrap();
        }
        merge.finish();
        assert_eq!(shown(&mut merge), all[i + 1..], "after {after}");
    }
}
