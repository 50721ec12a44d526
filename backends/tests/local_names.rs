//! What a directory may hold besides plain files: links, cycles, other kinds, odd names, what may not be looked at.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;

use futures::{StreamExt, TryStreamExt};
use nearfs_backends::{
    DirEntry, ErrorKind, FileKind, FileSystem, FsPath, ListOptions, LocalFileSystem, OpenOptions, Version,
};

mod support;

use support::{ENGINES, SLACK, local, path, put};

async fn list(fs: &LocalFileSystem, dir: &str, recursive: bool) -> Vec<DirEntry> {
    let entries = fs.list(&path(dir), ListOptions { recursive, start_after: None }).try_collect();
    tokio::time::timeout(SLACK, entries).await.expect("a listing ends").unwrap()
}

async fn names(fs: &LocalFileSystem, dir: &str, recursive: bool) -> Vec<String> {
    let name = |e: DirEntry| format!("{}{}", e.path, if e.metadata.is_dir() { "/" } else { "" });
    list(fs, dir, recursive).await.into_iter().map(name).collect()
}

fn fifo(path: &Path) {
    rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, 0o644.into(), 0).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn links_are_followed_and_those_that_lead_nowhere_left_out() {
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("far"), b"far away").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    std::fs::create_dir(root.join("d")).unwrap();
    std::fs::write(root.join("d/x"), b"xx").unwrap();
    symlink("d/x", root.join("relative")).unwrap();
    symlink(outside.path().join("far"), root.join("absolute")).unwrap();
    symlink("d", root.join("dir-link")).unwrap();
    symlink("nowhere", root.join("broken")).unwrap();
    symlink("itself", root.join("itself")).unwrap();
    let fs = local(root, ENGINES[0]).await;
    assert_eq!(names(&fs, "", false).await, ["absolute", "d/", "dir-link/", "relative"]);
    let all = ["absolute", "d/", "d/x", "dir-link/", "dir-link/x", "relative"];
    assert_eq!(names(&fs, "", true).await, all);
    for (name, data) in [("relative", "xx"), ("absolute", "far away"), ("dir-link/x", "xx")] {
        let file = fs.open(&path(name), OpenOptions::default()).await.unwrap();
        assert_eq!(file.read_at(0..100).await.unwrap(), data);
        assert_eq!(fs.stat(&path(name)).await.unwrap(), *file.metadata());
    }
    assert_eq!(fs.stat(&path("broken")).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(fs.stat(&path("itself")).await.unwrap_err().kind(), ErrorKind::Other);
    // Deleting takes the link, writing replaces it; what it led to stays.
    put(&fs, "relative", "new").await.unwrap();
    let paths = ["absolute", "dir-link"].map(path);
    let deleted: Vec<_> = fs.delete(futures::stream::iter(paths).boxed()).collect().await;
    assert!(deleted.iter().all(|(_, r)| r.is_ok()), "{deleted:?}");
    assert_eq!(std::fs::read(root.join("d/x")).unwrap(), b"xx");
    assert_eq!(std::fs::read(outside.path().join("far")).unwrap(), b"far away");
    assert_eq!(names(&fs, "", true).await, ["d/", "d/x", "relative"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recursive_listing_of_a_cycle_ends() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    std::fs::create_dir_all(root.join("a/b")).unwrap();
    std::fs::write(root.join("a/b/f"), b"").unwrap();
    symlink("..", root.join("a/b/up")).unwrap();
    symlink(root, root.join("a/top")).unwrap();
    let fs = local(root, ENGINES[0]).await;
    assert_eq!(names(&fs, "", true).await, ["a/", "a/b/", "a/b/f", "a/b/up/", "a/top/"]);
    assert_eq!(fs.stat(&path("a/b/up/b/up/b/f")).await.unwrap().kind, FileKind::File);
}

#[tokio::test(flavor = "multi_thread")]
async fn other_kinds_are_left_out_and_refused_without_waiting() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    fifo(&root.join("fifo"));
    let _socket = UnixListener::bind(root.join("socket")).unwrap();
    symlink("/dev/zero", root.join("device")).unwrap();
    std::fs::write(root.join("file"), b"data").unwrap();
    for engine in ENGINES {
        let fs = local(root, engine).await;
        assert_eq!(names(&fs, "", true).await, ["file"]);
        for name in ["fifo", "socket", "device"] {
            let odd = path(name);
            let open = tokio::time::timeout(SLACK, fs.open(&odd, OpenOptions::default()));
            let error = open.await.expect("open never waits").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert_eq!(fs.stat(&path(name)).await.unwrap_err().kind(), ErrorKind::Unsupported);
            let error = put(&fs, name, "over it").await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        }
        assert!(fs.stat(&path("fifo")).await.unwrap_err().to_string().contains("FIFO"));
        assert_eq!(fs.blocked_threads(), 0);
    }
    assert_eq!(support::raw_names(root), ["device", "fifo", "file", "socket"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_names_round_trip_byte_for_byte() {
    let dir = tempfile::tempdir().unwrap();
    let long = [b'n'; 255];
    let odd: Vec<&[u8]> = vec![
        b"run[1].tar",
        b"a*b",
        b"w?z",
        b"p{2}q",
        b"(x)^$.bin",
        b"back\\slash",
        b"%2F%00",
        b"a+b c",
        b" ",
        b"~",
        b"-",
        b"\xff\xfe",
        b"new\nline",
        b"\x01\x7f",
        "é".as_bytes(),
        "e\u{301}".as_bytes(),
        "🙂".as_bytes(),
        &long,
        b"...",
        b".hidden",
        b".nearfs",
        b".nearfs-tm",
    ];
    for (n, name) in odd.iter().enumerate() {
        let file = dir.path().join(std::ffi::OsStr::from_bytes(name));
        std::fs::write(file, n.to_string()).unwrap();
    }
    let fs = local(dir.path(), ENGINES[0]).await;
    let entries = list(&fs, "", true).await;
    assert_eq!(entries.len(), odd.len());
    assert!(entries.is_sorted_by(|a, b| a.path.cmp_listing(&b.path).is_lt()));
    let by_name: BTreeMap<_, _> = entries.iter().map(|e| (e.path.as_bytes(), &e.metadata)).collect();
    for (n, name) in odd.iter().enumerate() {
        let path = FsPath::parse(name).unwrap();
        assert_eq!(&fs.stat(&path).await.unwrap(), by_name[name]);
        let file = fs.open(&path, OpenOptions { metadata: Some(by_name[name].clone()) }).await.unwrap();
        assert_eq!(file.read_at(0..9).await.unwrap(), n.to_string());
        let mut writer = fs.create(&path, Default::default()).await.unwrap();
        writer.write("written".into()).await.unwrap();
        let made = writer.finish().await.unwrap();
        assert_eq!(fs.stat(&path).await.unwrap(), made);
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), odd.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listing_goes_on_after_any_mark() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["a/1", "a/2/x", "a/2/y", "a-b/z", "b", "c/d/e", "c/f"] {
        let file = dir.path().join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, b"").unwrap();
    }
    let fs = local(dir.path(), ENGINES[0]).await;
    for recursive in [true, false] {
        for root in ["", "a", "c"] {
            let all = list(&fs, root, recursive).await;
            let marks = ["a", "a/1", "a/2", "a/2/x", "a/2/zzz", "a-b", "a0", "b", "c/d/e", "c/f", "zz", "A"];
            for mark in marks.map(path) {
                let options = ListOptions { recursive, start_after: Some(mark.clone()) };
                let rest: Vec<_> = fs.list(&path(root), options).try_collect().await.unwrap();
                let right: Vec<_> =
                    all.iter().filter(|e| e.path.cmp_listing(&mark).is_gt()).cloned().collect();
                assert_eq!(rest, right, "{root:?} after {mark}, recursive {recursive}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn deep_and_wide_trees_are_listed_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let mut deep = dir.path().join("deep");
    for _ in 0..150 {
        deep.push("d");
        // Around the way down, so that the walk has to come back to every level.
        std::fs::create_dir_all(&deep).unwrap();
        std::fs::write(deep.join("z"), b"").unwrap();
    }
    std::fs::create_dir(dir.path().join("wide")).unwrap();
    for n in 0..3000 {
        std::fs::write(dir.path().join(format!("wide/{n}")), b"").unwrap();
    }
    let fs = local(dir.path(), ENGINES[0]).await;
    let entries = list(&fs, "", true).await;
    assert_eq!(entries.len(), 2 + 2 * 150 + 3000);
    assert!(entries.is_sorted_by(|a, b| a.path.cmp_listing(&b.path).is_lt()));
    let fds = std::fs::read_dir("/proc/self/fd").unwrap().count();
    assert!(fds < 150, "{fds} descriptors are open after the listing");
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_come_and_go_do_not_disturb_a_listing() {
    let dir = tempfile::tempdir().unwrap();
    for n in 0..2000 {
        std::fs::create_dir_all(dir.path().join(format!("d{}", n % 20))).unwrap();
        std::fs::write(dir.path().join(format!("d{}/{n}", n % 20)), b"").unwrap();
    }
    let fs = local(dir.path(), ENGINES[0]).await;
    let mut entries = fs.list(&path(""), ListOptions { recursive: true, start_after: None });
    let mut seen = vec![entries.next().await.unwrap().unwrap()];
    // Half of it goes while the listing waits to be asked on.
    for n in (10..20).chain([1]) {
        std::fs::remove_dir_all(dir.path().join(format!("d{n}"))).unwrap();
    }
    while let Some(entry) = entries.next().await {
        seen.push(entry.unwrap());
    }
    assert!(seen.is_sorted_by(|a, b| a.path.cmp_listing(&b.path).is_lt()));
    for stays in [0, 2, 9] {
        let below = seen.iter().filter(|e| e.path.strip_prefix(&path(format!("d{stays}"))).is_some());
        assert_eq!(below.count(), 101);
    }
}

/// The kernel lets root look anywhere, so this thread gives its rights up.
#[test]
fn a_directory_that_may_not_be_read_is_an_error_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::create_dir(dir.path().join("open")).unwrap();
    std::fs::create_dir(dir.path().join("shut")).unwrap();
    std::fs::write(dir.path().join("shut/f"), b"").unwrap();
    std::fs::set_permissions(dir.path().join("shut"), std::fs::Permissions::from_mode(0o000)).unwrap();
    // Threads made from here on inherit the rights of this one.
    let thread = std::thread::spawn({
        let root = dir.path().to_owned();
        move || {
            // SAFETY: the raw call changes this thread only, and takes no pointers.
            assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) }, 0);
            futures::executor::block_on(async {
                let fs = local(&root, ENGINES[1]).await;
                let items: Vec<_> =
                    fs.list(&path(""), ListOptions { recursive: true, start_after: None }).collect().await;
                let names: Vec<_> = items.iter().flatten().map(|e| e.path.to_string()).collect();
                assert_eq!(names, ["open", "shut"]);
                let error = items.last().unwrap().as_ref().unwrap_err();
                assert_eq!((error.kind(), error.path()), (ErrorKind::PermissionDenied, Some("shut")));
                assert_eq!(items.len(), 3, "the error is the last item");
                let error = fs.open(&path("shut/f"), OpenOptions::default()).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::PermissionDenied);
                let error = put(&fs, "open/new", "x").await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::PermissionDenied);
            });
        }
    });
    thread.join().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn metadata_tells_version_mode_and_time() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("f");
    std::fs::write(&file, b"12345").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
    let fs = local(dir.path(), ENGINES[0]).await;
    let metadata = fs.stat(&path("f")).await.unwrap();
    let real = std::fs::metadata(&file).unwrap();
    assert_eq!((metadata.size, metadata.mode), (5, Some(0o640)));
    assert_eq!(metadata.modified, real.modified().ok());
    let ino = std::os::unix::fs::MetadataExt::ino(&real);
    assert!(matches!(metadata.version, Version::Local { ino: i, size: 5, .. } if i == ino));
    assert!(fs.stat(&FsPath::root()).await.unwrap().is_dir());
}
