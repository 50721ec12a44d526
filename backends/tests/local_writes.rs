//! Writes to local files: whole or not at all, under conditions, on full disks, after crashes.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};
use nearfs_backends::config::LocalConfig;
use nearfs_backends::{
    Bytes, Condition, CopyOptions, CreateOptions, ErrorKind, FileSystem, FileWriter, ListOptions,
    LocalFileSystem, OpenOptions,
};

mod support;

use support::mounted::Mounted;
use support::{ENGINES, local, path, put, put_if, raw_names, stamped, until};

async fn fs(root: &std::path::Path) -> LocalFileSystem {
    local(root, ENGINES[0]).await
}

const NO_REPLACE: CopyOptions = CopyOptions { no_replace: true };
const REPLACE: CopyOptions = CopyOptions { no_replace: false };

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_visible_before_finish_and_nothing_is_left_without_it() {
    let dir = tempfile::tempdir().unwrap();
    let fs = fs(dir.path()).await;
    for end in ["finish", "abort", "drop"] {
        let mut writer = fs.create(&path("f"), CreateOptions::default()).await.unwrap();
        for _ in 0..40 {
            writer.write(Bytes::from(vec![7; 100_000])).await.unwrap();
        }
        assert_eq!(fs.stat(&path("f")).await.unwrap_err().kind(), ErrorKind::NotFound, "{end}");
        let listed: Vec<_> = fs.list(&path(""), ListOptions::default()).try_collect().await.unwrap();
        assert_eq!(listed, [], "{end}");
        match end {
            "finish" => {
                let made = writer.finish().await.unwrap();
                assert_eq!((made.size, &made), (4_000_000, &fs.stat(&path("f")).await.unwrap()));
                std::fs::remove_file(dir.path().join("f")).unwrap();
            }
            "abort" => writer.abort().await.unwrap(),
            _ => drop(writer),
        }
        until("nothing is left", || raw_names(dir.path()).is_empty()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_no_space_and_leaves_the_old_file_and_nothing_else() {
    let disk = Mounted::tmpfs(4 << 20);
    let fs = fs(disk.path()).await;
    put(&fs, "d/f", "old").await.unwrap();
    let mut writer = fs.create(&path("d/f"), CreateOptions::default()).await.unwrap();
    let mut failed = None;
    for _ in 0..16 {
        if let Err(e) = writer.write(Bytes::from(vec![1; 1 << 20])).await {
            failed = Some(e);
            break;
        }
    }
    let error = failed.expect("16 MiB do not fit into 4");
    assert_eq!((error.kind(), error.path()), (ErrorKind::NoSpace, Some("d/f")), "{error}");
    assert!(writer.write("more".into()).await.is_err(), "a failed writer stays failed");
    assert!(writer.finish().await.is_err());
    assert_eq!(raw_names(&disk.join("d")), ["f"]);
    assert_eq!(std::fs::read(disk.join("d/f")).unwrap(), b"old");
    // All of the room is back.
    put(&fs, "d/g", vec![2; 3 << 20]).await.unwrap();
    let error = fs.copy(&path("d/g"), &path("d/h"), REPLACE).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert_eq!(raw_names(&disk.join("d")), ["f", "g"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn conditions_hold_when_the_file_becomes_visible() {
    let dir = tempfile::tempdir().unwrap();
    let fs = fs(dir.path()).await;
    let first = put_if(&fs, "f", "1", Condition::Absent).await.unwrap();
    assert_eq!(put_if(&fs, "f", "2", Condition::Absent).await.unwrap_err().kind(), ErrorKind::AlreadyExists);
    let absent = CreateOptions { condition: Condition::Absent, ..Default::default() };
    let late = fs.create(&path("g"), absent).await.unwrap();
    std::fs::write(dir.path().join("g"), b"foreign").unwrap();
    assert_eq!(late.finish().await.unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(std::fs::read(dir.path().join("g")).unwrap(), b"foreign");

    let is_first = Condition::Version(first.version.clone());
    let third = put_if(&fs, "f", "333", is_first.clone()).await.unwrap();
    assert_ne!(third.version, first.version);
    assert_eq!(put_if(&fs, "f", "4", is_first.clone()).await.unwrap_err().kind(), ErrorKind::Stale);
    assert_eq!(put_if(&fs, "gone", "4", is_first).await.unwrap_err().kind(), ErrorKind::Stale);
    let is_third = CreateOptions { condition: Condition::Version(third.version), ..Default::default() };
    let mut late = fs.create(&path("f"), is_third).await.unwrap();
    late.write("5".into()).await.unwrap();
    std::fs::write(dir.path().join("f"), b"changed meanwhile").unwrap();
    assert_eq!(late.finish().await.unwrap_err().kind(), ErrorKind::Stale);
    assert_eq!(raw_names(dir.path()), ["f", "g"]);
    symlink("nowhere", dir.path().join("link")).unwrap();
    assert_eq!(
        put_if(&fs, "link", "6", Condition::Absent).await.unwrap_err().kind(),
        ErrorKind::AlreadyExists
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_many_writers_wins_by_each_condition() {
    let dir = tempfile::tempdir().unwrap();
    // Two filesystems over one directory, as two processes have them.
    let both = [fs(dir.path()).await, fs(dir.path()).await];
    for round in 0..10 {
        let name = format!("f{round}");
        let race = |condition: Condition| {
            let writers = (0..16usize).map(|n| {
                let (fs, name, condition) = (both[n % 2].clone(), name.clone(), condition.clone());
                tokio::spawn(async move { put_if(&fs, &name, format!("{n:>2}"), condition).await })
            });
            futures::future::join_all(writers)
        };
        let done: Vec<_> = race(Condition::Absent).await.into_iter().map(|r| r.unwrap()).collect();
        let won: Vec<_> = done.iter().flatten().collect();
        assert_eq!(won.len(), 1);
        assert!(done.iter().filter_map(|r| r.as_ref().err()).all(|e| e.kind() == ErrorKind::AlreadyExists));
        let version = won[0].version.clone();
        let done: Vec<_> = race(Condition::Version(version)).await.into_iter().map(|r| r.unwrap()).collect();
        assert_eq!(done.iter().flatten().count(), 1, "{done:?}");
        assert!(done.iter().filter_map(|r| r.as_ref().err()).all(|e| e.kind() == ErrorKind::Stale));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_crashed_writer_left_is_hidden_and_goes_with_its_directory() {
    let dir = tempfile::tempdir().unwrap();
    let fs = fs(dir.path()).await;
    put(&fs, "d/f", "x").await.unwrap();
    let left = dir.path().join("d/.nearfs-tmp-0123456789abcdef");
    std::fs::write(&left, b"half").unwrap();
    let listed: Vec<_> = fs.list(&path("d"), ListOptions::default()).try_collect().await.unwrap();
    assert_eq!(listed.iter().map(|e| e.path.to_string()).collect::<Vec<_>>(), ["d/f"]);
    let hidden = path("d/.nearfs-tmp-0123456789abcdef");
    assert_eq!(fs.stat(&hidden).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(fs.open(&hidden, OpenOptions::default()).await.unwrap_err().kind(), ErrorKind::NotFound);
    let error = fs.create(&hidden, CreateOptions::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert_eq!(fs.remove_dir(&path("d")).await.unwrap_err().kind(), ErrorKind::NotEmpty);
    assert!(
        left.exists() == raw_names(&dir.path().join("d")).contains(&".nearfs-tmp-0123456789abcdef".into())
    );
    let deleted: Vec<_> = fs.delete(futures::stream::iter([path("d/f")]).boxed()).collect().await;
    assert!(deleted[0].1.is_ok());
    // One that somebody is still writing is locked, and stays.
    let busy = dir.path().join("d/.nearfs-tmp-busy");
    let lock = std::fs::File::create(&busy).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    assert_eq!(fs.remove_dir(&path("d")).await.unwrap_err().kind(), ErrorKind::NotEmpty);
    assert!(busy.exists());
    drop(lock);
    fs.remove_dir(&path("d")).await.unwrap();
    assert_eq!(raw_names(dir.path()), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn renames_move_files_and_directories_and_never_replace_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let fs = fs(dir.path()).await;
    put(&fs, "a/x", "x").await.unwrap();
    put(&fs, "y", "y").await.unwrap();
    fs.create_dir(&path("empty")).await.unwrap();
    fs.rename(&path("a"), &path("new/parents/a"), NO_REPLACE).await.unwrap();
    assert_eq!(std::fs::read(dir.path().join("new/parents/a/x")).unwrap(), b"x");
    let kind = |e: nearfs_backends::Result<()>| e.unwrap_err().kind();
    assert_eq!(kind(fs.rename(&path("a"), &path("b"), REPLACE).await), ErrorKind::NotFound);
    assert_eq!(kind(fs.rename(&path("y"), &path("empty"), REPLACE).await), ErrorKind::IsADirectory);
    assert_eq!(kind(fs.rename(&path("new"), &path("empty"), REPLACE).await), ErrorKind::IsADirectory);
    assert_eq!(kind(fs.rename(&path("new"), &path("y"), REPLACE).await), ErrorKind::NotADirectory);
    assert_eq!(kind(fs.rename(&path("new"), &path("new/below"), REPLACE).await), ErrorKind::InvalidInput);
    assert_eq!(
        kind(fs.rename(&path("y"), &path("new/parents/a/x"), NO_REPLACE).await),
        ErrorKind::AlreadyExists
    );
    assert_eq!(kind(fs.rename(&path("y"), &path("y/z"), REPLACE).await), ErrorKind::NotADirectory);
    fs.rename(&path("y"), &path("y"), REPLACE).await.unwrap();
    fs.rename(&path("y"), &path("new/parents/a/x"), REPLACE).await.unwrap();
    assert_eq!(std::fs::read(dir.path().join("new/parents/a/x")).unwrap(), b"y");
    assert_eq!(raw_names(dir.path()), ["empty", "new"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_is_whole_has_the_mode_and_spares_the_target_on_failure() {
    let dir = tempfile::tempdir().unwrap();
    let other = Mounted::tmpfs(64 << 20);
    symlink(other.path(), dir.path().join("other-disk")).unwrap();
    let fs = fs(dir.path()).await;
    let data = stamped(1, 1, 20 << 20);
    put(&fs, "f", data.clone()).await.unwrap();
    std::fs::set_permissions(dir.path().join("f"), std::fs::Permissions::from_mode(0o700)).unwrap();
    for to in ["g", "other-disk/g", "new/dir/g"] {
        fs.copy(&path("f"), &path(to), NO_REPLACE).await.unwrap();
        assert!(std::fs::read(dir.path().join(to)).unwrap() == data, "{to}");
        assert_eq!(std::fs::metadata(dir.path().join(to)).unwrap().mode() & 0o777, 0o700);
        let error = fs.copy(&path("f"), &path(to), NO_REPLACE).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    }
    put(&fs, "g", "other").await.unwrap();
    fs.copy(&path("g"), &path("f"), REPLACE).await.unwrap();
    assert_eq!(std::fs::read(dir.path().join("f")).unwrap(), b"other");
    let error = fs.copy(&path("missing"), &path("f"), REPLACE).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(std::fs::read(dir.path().join("f")).unwrap(), b"other");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_filesystem_refuses_every_change() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("f"), b"data").unwrap();
    let config = LocalConfig { read_only: true, ..LocalConfig::new(dir.path()) };
    let fs = LocalFileSystem::open(config).await.unwrap();
    assert!(!fs.capabilities().write && !fs.capabilities().atomic_rename);
    let (f, g) = (path("f"), path("g"));
    let mut errors = vec![
        fs.create(&g, CreateOptions::default()).await.map(drop).unwrap_err(),
        fs.rename(&f, &g, REPLACE).await.unwrap_err(),
        fs.copy(&f, &g, REPLACE).await.unwrap_err(),
        fs.create_dir(&g).await.unwrap_err(),
        fs.remove_dir(&g).await.unwrap_err(),
    ];
    let deleted = fs.delete(futures::stream::iter([f.clone()]).boxed()).collect::<Vec<_>>().await;
    errors.extend(deleted.into_iter().map(|(_, r)| r.unwrap_err()));
    assert_eq!(errors.len(), 6);
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::ReadOnly, "{error}");
        assert!(error.operation().is_some() && error.path().is_some(), "{error}");
    }
    assert_eq!(raw_names(dir.path()), ["f"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_write_ends_the_writer_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let fs = fs(dir.path()).await;
    let data = Bytes::from(vec![1; 96 << 20]);
    // The disk may be done before the first look at the future; then it is tried again.
    let mut attempts = 0;
    let mut writer = loop {
        let mut writer: Box<dyn FileWriter> = fs.create(&path("f"), CreateOptions::default()).await.unwrap();
        attempts += 1;
        if futures::FutureExt::now_or_never(writer.write(data.clone())).is_none() {
            break writer;
        }
        assert!(attempts < 20, "a write of 96 MiB never waits");
    };
    let error = writer.write("more".into()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}");
    assert_eq!(writer.finish().await.unwrap_err().kind(), ErrorKind::Interrupted);
    until("nothing is left", || raw_names(dir.path()).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_root_is_refused_with_its_name() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), b"").unwrap();
    for (name, kind) in [("missing", ErrorKind::NotFound), ("file", ErrorKind::NotADirectory)] {
        let error = LocalFileSystem::open(LocalConfig::new(dir.path().join(name))).await.unwrap_err();
        assert_eq!(error.kind(), kind);
        assert!(error.to_string().contains(name), "{error}");
    }
    let here = std::env::current_dir().unwrap();
    let relative = LocalFileSystem::open(LocalConfig::new("src")).await.unwrap();
    assert_eq!(relative.identity().url, format!("file://{}/src", here.display()));
    let fs: Arc<dyn FileSystem> = Arc::new(fs(dir.path()).await);
    assert_eq!(fs.identity().url, format!("file://{}", dir.path().display()));
}
