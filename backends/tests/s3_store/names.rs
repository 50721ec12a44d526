//! Names and the shape of directories.

use futures::StreamExt;
use nearfs_backends::{CopyOptions, ErrorKind, FileSystem, FsPath, OpenOptions};
use nearfs_lab::Op;

use super::*;

/// Every kind of byte that some layer of some client treats as special.
const ODD: [&str; 12] = [
    "a b+%2F~[x]{y}*\n\t é e\u{301} 🙂 \"'&<>#?;=@,\\^|`",
    "%41",
    "+",
    " ",
    "~",
    "[",
    "]",
    "a\rb",
    "\u{1}\u{7f}",
    "..a",
    "é",
    "e\u{301}",
];

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_bytes_for_every_verb() {
    let lab = lab();
    let fs = fs(&lab).await;
    for (i, odd) in ODD.iter().enumerate() {
        let text = format!("dir {odd}/{odd}");
        let path = FsPath::parse(&text).unwrap();
        let data = format!("content {i}");

        write(&fs, &text, data.clone()).await.unwrap();
        assert_eq!(lab.get("b", &text).as_deref(), Some(data.as_bytes()), "put of {text:?}");
        let stat = fs.stat(&path).await.unwrap();
        assert_eq!(stat.size, data.len() as u64, "head of {text:?}");
        let parent = path.parent().unwrap();
        let listed: Vec<_> = fs.list(&parent, ListOptions::default()).try_collect().await.unwrap();
        assert_eq!(
            (listed.len(), &listed[0].path, &listed[0].metadata),
            (1, &path, &stat),
            "list of {text:?}"
        );
        let all = list(&fs, "", true).await.unwrap();
        assert!(all.iter().any(|e| e.path == path && e.metadata == stat), "recursive list of {text:?}");
        let file = fs.open(&path, OpenOptions { metadata: Some(stat) }).await.unwrap();
        assert_eq!(file.read_at(0..100).await.unwrap(), data, "get of {text:?}");

        let copy = FsPath::parse(format!("copy {odd}")).unwrap();
        fs.copy(&path, &copy, CopyOptions::default()).await.unwrap();
        assert_eq!(lab.get("b", copy.as_bytes()).as_deref(), Some(data.as_bytes()), "copy of {text:?}");
        let moved = FsPath::parse(format!("moved {odd}")).unwrap();
        fs.rename(&copy, &moved, CopyOptions::default()).await.unwrap();
        assert!(lab.get("b", copy.as_bytes()).is_none() && lab.get("b", moved.as_bytes()).is_some());
    }
    // Bulk and single deletes take exactly the keys named.
    lab.put("b", "neighbour", &b"x"[..]);
    let all: Vec<_> =
        list(&fs, "", true).await.unwrap().into_iter().filter(|e| e.metadata.is_file()).collect();
    let paths: Vec<_> = all.into_iter().map(|e| e.path).filter(|path| *path != p("neighbour")).collect();
    assert_eq!(paths.len(), ODD.len() * 2);
    let results: Vec<_> = fs.delete(futures::stream::iter(paths).boxed()).collect().await;
    for (path, result) in &results {
        assert!(result.is_ok(), "delete of {path}: {result:?}");
    }
    assert_eq!((results.len(), lab.keys("b")), (ODD.len() * 2, vec![b"neighbour".to_vec()]));
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_large_uploads_are_bytes_too() {
    let lab = lab();
    let fs = fs(&lab).await;
    let data = vec![7u8; 17 << 20];
    write(&fs, ODD[0], data.clone()).await.unwrap();
    assert_eq!(lab.keys("b"), [ODD[0].as_bytes()]);
    assert_eq!(lab.get("b", ODD[0]).unwrap(), data);
    assert!(lab.counters().of(Op::CompleteMultipartUpload) == 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_are_no_keys_are_absent_and_cannot_be_written() {
    let lab = lab();
    let fs = fs(&lab).await;
    let path = FsPath::parse(b"\xff\xfe").unwrap();
    assert_eq!(kind(fs.stat(&path).await), ErrorKind::NotFound);
    assert_eq!(kind(fs.open(&path, OpenOptions::default()).await), ErrorKind::NotFound);
    assert_eq!(kind(fs.create(&path, Default::default()).await), ErrorKind::InvalidInput);
    assert_eq!(kind(fs.create_dir(&path).await), ErrorKind::InvalidInput);
    assert_eq!(kind(fs.remove_dir(&path).await), ErrorKind::NotFound);
    assert_eq!(kind(list(&fs, "x", false).await), ErrorKind::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn a1_a_file_and_a_directory_of_one_name() {
    for late in [false, true] {
        let lab = lab();
        let fs = fs(&lab).await;
        for (key, size) in [("out/x", 200), ("out-a", 1), ("outer/y", 1)] {
            lab.put_synthetic("b", key, size, 1);
        }
        if late {
            assert_eq!(shown(&list(&fs, "", false).await.unwrap()), ["out-a", "out/", "outer/"]);
        }
        lab.put_synthetic("b", "out", 100, 1);
        for _ in 0..20 {
            assert_eq!(shown(&list(&fs, "", false).await.unwrap()), ["out-a", "out/", "outer/"]);
        }
        assert!(fs.stat(&p("out")).await.unwrap().is_dir());
        assert_eq!(kind(open(&fs, "out").await), ErrorKind::IsADirectory);
        assert_eq!(read(&fs, "out/x").await.unwrap().len(), 200);
        let walk = ["out-a", "out/", "out/x", "outer/", "outer/y"];
        assert_eq!(shown(&list(&fs, "", true).await.unwrap()), walk);
        let hidden: Vec<_> = fs.delete(futures::stream::iter([p("out")]).boxed()).collect().await;
        assert_eq!(hidden[0].1.as_ref().unwrap_err().kind(), ErrorKind::IsADirectory);

        lab.delete("b", "out/x");
        assert_eq!(fs.stat(&p("out")).await.unwrap().size, 100);
        assert_eq!(shown(&list(&fs, "", false).await.unwrap()), ["out-a", "out", "outer/"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a2_keys_that_no_path_can_name_hide_nothing_else() {
    let lab = lab();
    let fs = fs(&lab).await;
    let good: Vec<_> = (0..50).map(|i| format!("data/f{i:03}")).collect();
    for key in &good {
        lab.put("b", key, &b"good"[..]);
    }
    let long = format!("data/{}", "n".repeat(300));
    for key in ["data//b.bin", "data/./c", "data/../d", "data/", &long, "/", "/lead"] {
        lab.put("b", key, &b"odd"[..]);
    }
    assert_eq!(shown(&list(&fs, "data", false).await.unwrap()), good);
    assert_eq!(shown(&list(&fs, "", false).await.unwrap()), ["data/"]);
    let walk = tokio::time::timeout(SOON, list(&fs, "", true)).await.expect("the walk ends").unwrap();
    assert_eq!(shown(&walk)[1..], good);
    for entry in walk.iter().filter(|e| e.metadata.is_file()) {
        assert_eq!(fs.stat(&entry.path).await.unwrap(), entry.metadata);
        assert_eq!(&read(&fs, &entry.path.to_string()).await.unwrap()[..], b"good");
    }
    // Nothing resolves to them or through them.
    assert_eq!(kind(fs.stat(&p("d")).await), ErrorKind::NotFound);
    assert_eq!(kind(fs.stat(&p("data/c")).await), ErrorKind::NotFound);
    assert_eq!(kind(fs.stat(&p("lead")).await), ErrorKind::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn a3_directories_that_exist_only_as_prefixes() {
    for marker in [false, true] {
        let lab = lab();
        lab.put_synthetic("b", "a/b/c/d.bin", 1 << 20, 1);
        lab.put("b", "e/", &b""[..]);
        if marker {
            lab.put("b", "a/b/", &b"a marker may have bytes"[..]);
        }
        // The very first call, by full path.
        let cold = fs(&lab).await;
        assert_eq!(read(&cold, "a/b/c/d.bin").await.unwrap().len(), 1 << 20);
        let requests = lab.counters();
        assert!(requests.total() <= 3, "HEAD, LIST and GET: {requests:?}");

        let fs = fs(&lab).await;
        assert_eq!(shown(&list(&fs, "", false).await.unwrap()), ["a/", "e/"]);
        assert_eq!(shown(&list(&fs, "a", false).await.unwrap()), ["a/b/"]);
        assert_eq!(shown(&list(&fs, "a/b", false).await.unwrap()), ["a/b/c/"]);
        assert_eq!(shown(&list(&fs, "a/b/c", false).await.unwrap()), ["a/b/c/d.bin"]);
        let walk = ["a/", "a/b/", "a/b/c/", "a/b/c/d.bin", "e/"];
        assert_eq!(shown(&list(&fs, "", true).await.unwrap()), walk);
        assert!(fs.stat(&p("a/b")).await.unwrap().is_dir());
        assert!(list(&fs, "e", false).await.unwrap().is_empty());
        assert_eq!(kind(list(&fs, "a/nothing", false).await), ErrorKind::NotFound);
        assert_eq!(kind(list(&fs, "a/b/c/d.bin", false).await), ErrorKind::NotADirectory);
        assert_eq!(kind(fs.stat(&p("a/b/c/d.bin/below")).await), ErrorKind::NotFound);
        assert!(list(&fs, "", false).await.is_ok());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_of_the_bucket_as_root() {
    let lab = lab();
    for key in ["in side/a/x", "in side/y", "outside"] {
        lab.put("b", key, &b"1"[..]);
    }
    let fs = connect(S3Config { prefix: p("in side"), ..config(&lab) }).await;
    assert_eq!(shown(&list(&fs, "", true).await.unwrap()), ["a/", "a/x", "y"]);
    assert_eq!(&read(&fs, "a/x").await.unwrap()[..], b"1");
    assert_eq!(kind(fs.stat(&p("outside")).await), ErrorKind::NotFound);
    assert_eq!(fs.identity().url, "s3://b/in side");
    assert_eq!(fs.identity().endpoint, lab.endpoint());

    // The root exists even where there is nothing.
    let empty = connect(S3Config { prefix: p("not/there"), ..config(&lab) }).await;
    assert!(list(&empty, "", false).await.unwrap().is_empty());
    assert!(empty.stat(&FsPath::root()).await.unwrap().is_dir());
}
