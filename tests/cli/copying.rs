//! `cp`: the table of the manual, row by row, and what must never happen.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use nearfs_lab::{Fault, Lab, Model, Op, Rule, stamp};

use crate::harness::{eventually, fails, finish, nearfs, ok, signal};

fn lab() -> Lab {
    let lab = Lab::builder().bucket("b").bucket("other").start().unwrap();
    lab.put("b", "f", &b"file"[..]);
    lab.put("b", "d/one", &b"1"[..]);
    lab.put("b", "d/sub/two", &b"22"[..]);
    lab
}

fn keys(lab: &Lab, bucket: &str) -> Vec<String> {
    lab.keys(bucket).into_iter().map(|k| String::from_utf8(k).unwrap()).collect()
}

/// Paths of everything below `dir`, directories with `/`.
fn tree(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(next) = dirs.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(dir).unwrap().to_str().unwrap().to_owned();
            if path.is_dir() {
                found.push(name + "/");
                dirs.push(path);
            } else {
                found.push(name);
            }
        }
    }
    found.sort();
    found
}

#[test]
fn files_down() {
    let lab = lab();
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| format!("{}/{name}", dir.path().display());
    ok(&lab, ["cp", "s3://b/f", &at("new")]);
    assert_eq!(fs::read(at("new")).unwrap(), b"file");
    fs::write(at("old"), "before").unwrap();
    ok(&lab, ["cp", "s3://b/f", &at("old")]);
    assert_eq!(fs::read(at("old")).unwrap(), b"file");
    fs::create_dir(at("there")).unwrap();
    ok(&lab, ["cp", "s3://b/f", &at("there")]);
    ok(&lab, ["cp", "s3://b/f", &at("made/by/slash/")]);
    ok(&lab, ["cp", "s3://b/f", "s3://b/d/one", &at("several/")]);
    assert_eq!(
        tree(dir.path()),
        [
            "made/",
            "made/by/",
            "made/by/slash/",
            "made/by/slash/f",
            "new",
            "old",
            "several/",
            "several/f",
            "several/one",
            "there/",
            "there/f"
        ]
    );
    fails(&lab, 2, "need a directory", ["cp", "s3://b/f", "s3://b/d/one", &at("nothing")]);
    fails(&lab, 2, "found a file", ["cp", "s3://b/f", &at("new/")]);
    fails(&lab, 2, "copy directories with `-r`", ["cp", "s3://b/d", &at("x")]);
    fails(&lab, 2, "s3://b/none: ", ["cp", "s3://b/none", &at("x")]);
    fails(&lab, 2, "", ["cp", "s3://b/f"]);
}

#[test]
fn directories_down() {
    let lab = lab();
    let dir = tempfile::tempdir().unwrap();
    let copied = |args: &[&str], target: &str| {
        let base = dir.path().join(target.trim_end_matches('/'));
        let target = format!("{}/{target}", dir.path().display());
        ok(&lab, ["cp", "-r"].into_iter().chain(args.iter().copied()).chain([target.as_str()]));
        let found = tree(&base);
        fs::remove_dir_all(base).unwrap();
        found
    };
    // The target becomes the copy, with or without `/` on either side.
    for (source, target) in [("s3://b/d", "n"), ("s3://b/d/", "n"), ("s3://b/d", "n/"), ("s3://b/d/.", "n")] {
        assert_eq!(copied(&[source], target), ["one", "sub/", "sub/two"], "{source} {target}");
    }
    for (source, target) in [("s3://b/d", "e"), ("s3://b/d/", "e/")] {
        fs::create_dir(dir.path().join("e")).unwrap();
        assert_eq!(copied(&[source], target), ["d/", "d/one", "d/sub/", "d/sub/two"], "{source} {target}");
    }
    fs::create_dir(dir.path().join("e")).unwrap();
    assert_eq!(copied(&["s3://b/d/."], "e"), ["one", "sub/", "sub/two"]);
    assert_eq!(copied(&["s3://b"], "all"), ["d/", "d/one", "d/sub/", "d/sub/two", "f"]);
    assert_eq!(copied(&["s3://b/d", "s3://b/f"], "m/"), ["d/", "d/one", "d/sub/", "d/sub/two", "f"]);
}

#[test]
fn up_with_empty_directories_and_odd_names() {
    let lab = lab();
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("t/empty/deep")).unwrap();
    fs::create_dir_all(dir.path().join("t/full")).unwrap();
    fs::write(dir.path().join("t/full/a b+%2F[x]*?#é"), "odd").unwrap();
    let source = dir.path().join("t");
    let source = source.to_str().unwrap();
    ok(&lab, ["cp", "-r", source, "s3://other/up"]);
    let found = keys(&lab, "other");
    assert!(
        found.contains(&"up/empty/deep/".to_owned()) && found.contains(&"up/full/a b+%2F[x]*?#é".to_owned()),
        "{found:?}"
    );
    assert!(
        !found.contains(&"up/full/".to_owned()),
        "a directory with something in it needs no marker: {found:?}"
    );
    // Again: now the target is a directory.
    ok(&lab, ["cp", "-r", source, "s3://other/up"]);
    assert!(keys(&lab, "other").contains(&"up/t/full/a b+%2F[x]*?#é".to_owned()));
    // And back, byte for byte.
    let back = dir.path().join("back");
    ok(&lab, ["cp", "-r", "s3://other/up/.", back.to_str().unwrap()]);
    assert!(tree(&back).contains(&"empty/deep/".to_owned()));
    assert_eq!(fs::read(back.join("full/a b+%2F[x]*?#é")).unwrap(), b"odd");

    fs::write(dir.path().join("one"), "1").unwrap();
    let one = dir.path().join("one");
    ok(&lab, ["cp", one.to_str().unwrap(), "s3://other/file"]);
    ok(&lab, ["cp", one.to_str().unwrap(), "s3://other/dir/"]);
    ok(&lab, ["cp", one.to_str().unwrap(), "s3://other"]);
    for key in ["file", "dir/one", "one"] {
        assert_eq!(lab.get("other", key).unwrap(), "1", "{key}");
    }
}

#[test]
fn large_files_both_ways() {
    let lab = lab();
    let size = 40_000_003;
    let dir = tempfile::tempdir().unwrap();
    let big = dir.path().join("big");
    fs::write(&big, stamp::make(size, 3, 1)).unwrap();
    ok(&lab, ["cp", big.to_str().unwrap(), "s3://b/big"]);
    assert!(lab.counters().of(Op::UploadPart) > 1);
    stamp::verify(&lab.get("b", "big").unwrap(), 0, 3).unwrap();
    assert_eq!(lab.size("b", "big"), Some(size as u64));
    let back = dir.path().join("back");
    ok(&lab, ["cp", "s3://b/big", back.to_str().unwrap()]);
    assert!(fs::read(back).unwrap() == stamp::make(size, 3, 1));
}

#[test]
fn across_stores_and_within_one() {
    let lab = lab();
    ok(&lab, ["cp", "-r", "s3://b/d", "s3://other/copy"]);
    assert_eq!(keys(&lab, "other"), ["copy/one", "copy/sub/two"]);
    // Inside one store no byte passes through here.
    lab.reset_counters();
    ok(&lab, ["cp", "-r", "s3://b/d", "s3://b/again"]);
    assert_eq!(lab.get("b", "again/sub/two").unwrap(), "22");
    assert_eq!((lab.counters().of(Op::CopyObject), lab.counters().of(Op::GetObject)), (2, 0));
    fails(&lab, 2, "are the same", ["cp", "s3://b/f", "s3://b/f"]);
    fails(&lab, 2, "are the same", ["cp", "s3://b/f", "s3://b/"]);
    fails(&lab, 2, "inside the source", ["cp", "-r", "s3://b/d", "s3://b/d/x/y"]);
}

#[test]
fn pipes() {
    let lab = lab();
    assert_eq!(ok(&lab, ["cp", "s3://b/f", "-"]).out, b"file");
    let data = stamp::make(20_000_001, 4, 1);
    let mut child = nearfs(&lab)
        .args(["cp", "-", "s3://b/piped"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(&data).unwrap();
    let printed = finish(child);
    assert_eq!(printed.code, 0, "{}", printed.err);
    assert!(lab.get("b", "piped").unwrap() == data);
    fails(&lab, 2, "no name to keep", ["cp", "-", "s3://b/d"]);
    fails(&lab, 2, "stands alone", ["cp", "-", "s3://b/f", "s3://b/d/"]);
    fails(&lab, 2, "stands alone", ["cp", "-", "-"]);
    fails(&lab, 2, "directory", ["cp", "s3://b/d", "-"]);
    let empty = ok(&lab, ["cp", "-", "s3://b/empty"]);
    assert_eq!((empty.err.as_str(), lab.size("b", "empty")), ("", Some(0)));
}

#[test]
fn what_fails_is_listed_and_the_rest_is_copied() {
    let lab = lab();
    for i in 0..20 {
        lab.put("b", format!("many/{i:02}"), &b"x"[..]);
    }
    let denied = Fault::Status { status: 403, code: "AccessDenied".into(), retry_after: None };
    lab.fault(Rule::on(Op::GetObject, denied.clone()).key("many/07"));
    lab.fault(Rule::on(Op::GetObject, denied.clone()).key("many/13"));
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("t");
    let target = target.to_str().unwrap();
    let printed = fails(&lab, 1, "2 not copied, 18 copied", ["cp", "-r", "s3://b/many", target]);
    for key in ["s3://b/many/07: ", "s3://b/many/13: ", "\n  s3://b/many/07"] {
        assert!(printed.err.contains(key), "{}", printed.err);
    }
    assert_eq!(tree(Path::new(target)).len(), 18, "neither parts nor temporary files stay");
    // A source that is missing does not keep the others away.
    fails(&lab, 1, "s3://b/none", ["cp", "s3://b/none", "s3://b/f", &format!("{target}/")]);
    assert!(Path::new(target).join("f").exists());
    lab.fault(Rule::on(Op::GetObject, denied));
    // What is in the cache would be copied from there.
    fails(&lab, 2, "not copied", ["--cache-size", "0", "cp", "-r", "s3://b/many", &format!("{target}2")]);
}

#[test]
fn ctrl_c_leaves_nothing_half_done() {
    let lab = lab();
    lab.put_synthetic("b", "big", 1 << 30, 9);
    lab.set_model(Model { total_mbps: 20.0, ..Model::default() });
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("big");
    fs::write(&target, "before").unwrap();
    let child = nearfs(&lab)
        .args(["cp", "s3://b/big"])
        .arg(&target)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    eventually("bytes move", || (lab.key_counters("b", "big").body_bytes > 1 << 20).then_some(()));
    std::thread::sleep(std::time::Duration::from_millis(300));
    signal(child.id(), libc::SIGINT);
    let printed = finish(child);
    assert_eq!(printed.code, 130, "{}", printed.err);
    assert_eq!((tree(dir.path()), fs::read(&target).unwrap()), (vec!["big".to_owned()], b"before".to_vec()));

    // Upwards: the upload is given up, not forgotten.
    lab.set_model(Model { connection_mbps: 4.0, ..Model::default() });
    lab.reset_counters();
    let source = dir.path().join("up");
    fs::File::create(&source).unwrap().set_len(200 << 20).unwrap();
    let child = nearfs(&lab)
        .args(["cp"])
        .arg(&source)
        .arg("s3://b/up")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    eventually("the upload begins", || (lab.counters().of(Op::CreateMultipartUpload) > 0).then_some(()));
    std::thread::sleep(std::time::Duration::from_millis(500));
    signal(child.id(), libc::SIGINT);
    let printed = finish(child);
    assert_eq!(printed.code, 130, "{}", printed.err);
    assert_eq!(lab.size("b", "up"), None);
    assert_eq!(lab.counters().of(Op::AbortMultipartUpload), 1, "{:?}", lab.counters());
}

#[test]
fn a_file_that_changes_while_it_is_copied_arrives_whole() {
    let lab = lab();
    lab.put_synthetic("b", "moving", 30 << 20, 8);
    let with = nearfs_lab::Replacement::Synthetic { size: 30 << 20, key_id: 8 };
    lab.fault(Rule::on(Op::GetObject, Fault::Swap { with }).key("moving").skip(1).once());
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("moving");
    ok(&lab, ["cp", "s3://b/moving", target.to_str().unwrap()]);
    let bytes = fs::read(&target).unwrap();
    assert_eq!(bytes.len(), 30 << 20);
    stamp::verify(&bytes, 0, 8).unwrap();
}

#[test]
fn long_copies_show_progress_unless_told_not_to() {
    let lab = lab();
    lab.put_synthetic("b", "slow", 24 << 20, 9);
    lab.set_model(Model { total_mbps: 8.0, ..Model::default() });
    let dir = tempfile::tempdir().unwrap();
    let line = |more: &str, name: &str| {
        format!(
            "{} --cache-size 0 --anonymous --endpoint-url {} {more} cp s3://b/slow {}/{name}",
            env!("CARGO_BIN_EXE_nearfs"),
            lab.endpoint(),
            dir.path().display()
        )
    };
    let on_terminal = |line: &str| {
        let printed =
            crate::harness::run(std::process::Command::new("script").args(["-qec", line, "/dev/null"]));
        assert_eq!(printed.code, 0, "{}", printed.text());
        printed.text()
    };
    assert!(on_terminal(&line("", "a")).contains("copied"));
    assert_eq!(on_terminal(&line("-q", "b")), "");
    // Nothing is drawn into a file.
    let printed = ok(&lab, ["cp", "s3://b/slow", &format!("{}/c", dir.path().display())]);
    assert!(!printed.err.contains('\u{1b}'), "{}", printed.err);
}
