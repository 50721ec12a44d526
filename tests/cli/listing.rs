//! `ls`, `stat`, `find`, `du`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;

use nearfs_lab::Lab;

use crate::harness::{fails, nearfs, ok, run};

fn lab() -> Lab {
    let lab = Lab::builder().bucket("b").start().unwrap();
    for (key, size) in [("a.txt", 3), ("dir/one", 10), ("dir/sub/two", 2048), ("dir/sub/x.jpg", 1), ("z", 0)]
    {
        lab.put("b", key, vec![b'x'; size]);
    }
    lab
}

#[test]
fn ls_prints_one_level_and_more_on_demand() {
    let lab = lab();
    assert_eq!(ok(&lab, ["ls", "s3://b"]).lines(), ["a.txt", "dir/", "z"]);
    assert_eq!(ok(&lab, ["ls", "s3://b/dir/"]).lines(), ["one", "sub/"]);
    assert_eq!(ok(&lab, ["ls", "-r", "s3://b/dir"]).lines(), ["one", "sub/", "sub/two", "sub/x.jpg"]);
    assert_eq!(ok(&lab, ["ls", "s3://b/a.txt"]).lines(), ["s3://b/a.txt"]);
    let long = ok(&lab, ["ls", "-l", "s3://b"]).lines();
    let fields: Vec<_> = long[0].split_whitespace().collect();
    assert_eq!((fields[0], fields[2]), ("3", "a.txt"), "{long:?}");
    assert!(fields[1].ends_with('Z') && long[1].trim_start().starts_with("- "), "{long:?}");
    assert!(ok(&lab, ["ls", "-l", "--human", "s3://b/dir/sub"]).text().contains("2.0 KiB"));
    let several = ok(&lab, ["ls", "s3://b/dir", "s3://b/dir/sub"]).lines();
    assert_eq!(several, ["s3://b/dir:", "one", "sub/", "", "s3://b/dir/sub:", "two", "x.jpg"]);
    // One request for a listing: the place itself is not asked about first.
    lab.reset_counters();
    ok(&lab, ["ls", "s3://b/dir"]);
    assert_eq!(lab.counters().total(), 1, "{:?}", lab.counters());
}

#[test]
fn failures_name_the_place_and_are_counted() {
    let lab = lab();
    fails(&lab, 2, "error: s3://b/none: ", ["ls", "s3://b/none"]);
    let part = fails(&lab, 1, "s3://b/none", ["ls", "s3://b/none", "s3://b/dir"]);
    assert!(part.text().contains("one"));
    fails(&lab, 2, "expected a directory", ["ls", "s3://b/a.txt/"]);
    fails(&lab, 2, "s3://nobucket", ["ls", "s3://nobucket"]);
    fails(&lab, 2, "s4", ["ls", "s4://b"]);
    fails(&lab, 1, "s3://b/none", ["stat", "s3://b/none", "s3://b/z"]);
    fails(&lab, 2, "no such", ["find", "s3://b/none"]);
    fails(&lab, 2, "no such", ["du", "s3://b/none"]);
}

#[test]
fn json_is_one_object_a_line() {
    let lab = lab();
    let all = ok(&lab, ["ls", "--json", "s3://b"]).json();
    assert_eq!(all.len(), 3);
    assert_eq!(
        (&all[0]["path"], &all[0]["kind"], &all[0]["size"]),
        (&"s3://b/a.txt".into(), &"file".into(), &3.into())
    );
    assert!(all[0]["modified"].is_string() && all[0]["version"].is_string());
    assert_eq!((&all[1]["path"], &all[1]["kind"]), (&"s3://b/dir".into(), &"dir".into()));
    assert!(all[1].get("size").is_none());
    let stat = ok(&lab, ["stat", "--json", "s3://b/dir/sub/two", "s3://b/dir"]).json();
    assert_eq!((&stat[0]["size"], &stat[1]["kind"]), (&2048.into(), &"dir".into()));
    let found = ok(&lab, ["--json", "find", "s3://b/dir/sub"]).json();
    let paths: Vec<_> = found.iter().map(|v| v["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["s3://b/dir/sub", "s3://b/dir/sub/two", "s3://b/dir/sub/x.jpg"]);
    let sums = ok(&lab, ["du", "--json", "s3://b/dir"]).json();
    assert_eq!((&sums[0]["bytes"], &sums[0]["files"]), (&2059.into(), &3.into()));
}

#[test]
fn stat_tells_what_is_known() {
    let lab = lab();
    let text = ok(&lab, ["stat", "s3://b/dir/sub/two"]).text();
    for part in [
        "path:     s3://b/dir/sub/two",
        "kind:     file",
        "size:     2048 (2.0 KiB)",
        "modified: 20",
        "version:  ",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert!(ok(&lab, ["stat", "s3://b/dir"]).text().contains("kind:     dir"));
    fails(&lab, 2, "expected a directory", ["stat", "s3://b/z/"]);
}

#[test]
fn find_filters_by_kind_and_name() {
    let lab = lab();
    let all = ok(&lab, ["find", "s3://b/"]).lines();
    assert_eq!(
        all,
        [
            "s3://b/",
            "s3://b/a.txt",
            "s3://b/dir",
            "s3://b/dir/one",
            "s3://b/dir/sub",
            "s3://b/dir/sub/two",
            "s3://b/dir/sub/x.jpg",
            "s3://b/z"
        ]
    );
    assert_eq!(ok(&lab, ["find", "--type", "d", "s3://b/dir"]).lines(), ["s3://b/dir", "s3://b/dir/sub"]);
    assert_eq!(
        ok(&lab, ["find", "--name", "*.{jpg,txt}", "s3://b"]).lines(),
        ["s3://b/a.txt", "s3://b/dir/sub/x.jpg"]
    );
    assert_eq!(ok(&lab, ["find", "s3://b/z"]).lines(), ["s3://b/z"]);
    fails(&lab, 2, "not a pattern", ["find", "--name", "[", "s3://b"]);
    fails(&lab, 2, "cannot be used with", ["find", "-0", "--json", "s3://b"]);
}

#[test]
fn du_sums_up_by_depth() {
    let lab = lab();
    assert_eq!(ok(&lab, ["du", "s3://b"]).lines(), ["2062\t5\ts3://b"]);
    assert_eq!(ok(&lab, ["du", "-d1", "s3://b"]).lines(), ["2059\t3\ts3://b/dir", "2062\t5\ts3://b"]);
    assert_eq!(
        ok(&lab, ["du", "-d", "9", "s3://b/dir"]).lines(),
        ["2049\t2\ts3://b/dir/sub", "2059\t3\ts3://b/dir"]
    );
    assert_eq!(ok(&lab, ["du", "s3://b/a.txt"]).lines(), ["3\t1\ts3://b/a.txt"]);
    assert_eq!(ok(&lab, ["du", "--human", "s3://b/dir/sub"]).lines(), ["2.0 KiB\t2\ts3://b/dir/sub"]);
}

#[test]
fn names_are_bytes_raw_in_pipes_and_escaped_on_terminals() {
    let lab = lab();
    let odd = "odd/a b+%2F\n\u{1b}[31m é";
    lab.put("b", odd, &b"?"[..]);
    let printed = ok(&lab, ["find", "-0", "--type", "f", "s3://b/odd"]);
    assert_eq!(printed.out, format!("s3://b/{odd}\0").into_bytes());
    assert_eq!(
        ok(&lab, ["find", "--json", "--type", "f", "s3://b/odd"]).json()[0]["path"],
        format!("s3://b/{odd}")
    );
    // What was printed can be given back.
    assert_eq!(ok(&lab, ["cat", &format!("s3://b/{odd}")]).out, b"?");

    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join(OsStr::from_bytes(b"bad\xff\n")), "x").unwrap();
    let place = dir.path().to_str().unwrap();
    assert_eq!(ok(&lab, ["ls", place]).out, b"bad\xff\n\n");
    let json = ok(&lab, ["ls", "--json", place]).json();
    assert_eq!(json[0]["path"], format!("{place}/bad\\xff\\n"));
    let exact = [place.as_bytes(), b"/bad\xff\n"].concat();
    assert_eq!(decode_base64(json[0]["path_base64"].as_str().unwrap()), exact);
    // util-linux's `script` gives the command a terminal.
    let line = format!("{} ls {place}", env!("CARGO_BIN_EXE_nearfs"));
    let shown = run(Command::new("script").args(["-qec", &line, "/dev/null"]));
    assert_eq!((shown.code, shown.text().trim_end()), (0, "bad\\xff\\n"), "{}", shown.err);
}

#[test]
fn a_listing_nobody_reads_any_more_ends_well() {
    let lab = lab();
    for i in 0..5000 {
        lab.put("b", format!("many/{i:05}-{}", "n".repeat(100)), &b""[..]);
    }
    let mut child = nearfs(&lab)
        .args(["find", "s3://b/many"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let printed = crate::harness::finish(child);
    assert_eq!((printed.code, printed.err.as_str()), (0, ""));
}

fn decode_base64(text: &str) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits: Vec<u32> =
        text.bytes().filter_map(|b| DIGITS.iter().position(|d| *d == b)).map(|d| d as u32).collect();
    bits.chunks(4)
        .flat_map(|four| {
            let word = four.iter().enumerate().fold(0, |word, (i, d)| word | d << (18 - 6 * i));
            word.to_be_bytes()[1..four.len()].to_vec()
        })
        .collect()
}
