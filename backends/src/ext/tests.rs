use std::time::Duration;

use super::*;
use crate::error::Retry;
use crate::layer::{Fault, FaultAction, FaultLayer, Operation};
use crate::memory::MemoryFileSystem;

fn path(text: &str) -> FsPath {
    FsPath::parse(text).unwrap()
}

async fn tree() -> MemoryFileSystem {
    let fs = MemoryFileSystem::new();
    for i in 0..200 {
        fs.write(&path(&format!("src/d{}/f{i}", i % 9)), vec![i as u8; i * 100].into()).await.unwrap();
    }
    fs.create_dir(&path("src/empty/inner")).await.unwrap();
    fs.write(&path("beside"), "x".into()).await.unwrap();
    fs
}

async fn contents(fs: &dyn FileSystem, dir: &str) -> Vec<(FsPath, Option<Bytes>)> {
    let mut all = Vec::new();
    for entry in
        fs.list_all(&path(dir), ListOptions { recursive: true, start_after: None }, 10_000).await.unwrap()
    {
        let data =
            if entry.metadata.is_file() { Some(fs.read(&entry.path, 1 << 20).await.unwrap()) } else { None };
        all.push((entry.path.strip_prefix(&path(dir)).unwrap(), data));
    }
    all
}

#[tokio::test]
async fn a_tree_is_copied_whole_between_stores_and_inside_one() {
    let source = tree().await;
    let target = MemoryFileSystem::new();
    let copied =
        source.copy_tree(&path("src"), &target, &path("to/here"), TreeCopyOptions::default()).await.unwrap();
    assert_eq!((copied.files, copied.directories), (200, 11));
    assert_eq!(copied.bytes, (0..200).map(|i| i * 100).sum::<u64>());
    assert_eq!(contents(&target, "to/here").await, contents(&source, "src").await);

    let counted = FaultLayer::new(Arc::new(source.clone()));
    counted.copy_tree(&path("src"), &counted, &path("again"), TreeCopyOptions::default()).await.unwrap();
    assert_eq!(contents(&source, "again").await, contents(&source, "src").await);
    assert_eq!((counted.calls(Operation::Copy), counted.calls(Operation::Read)), (200, 0));

    let one =
        source.copy_tree(&path("beside"), &target, &path("file"), TreeCopyOptions::default()).await.unwrap();
    assert_eq!(one, TreeCopied { files: 1, directories: 0, bytes: 1 });
    assert_eq!(target.read(&path("file"), 1).await.unwrap(), "x");
}

#[tokio::test]
async fn a_tree_is_not_copied_into_itself_nor_over_what_must_stay() {
    let source = tree().await;
    for to in ["src", "src/empty"] {
        let e =
            source.copy_tree(&path("src"), &source, &path(to), TreeCopyOptions::default()).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidInput);
    }
    // A neighbour with the same beginning is no part of it.
    source.copy_tree(&path("src"), &source, &path("src-2"), TreeCopyOptions::default()).await.unwrap();

    let target = MemoryFileSystem::new();
    target.write(&path("d3/f3"), "stays".into()).await.unwrap();
    let options = TreeCopyOptions { no_replace: true, ..Default::default() };
    let e = source.copy_tree(&path("src"), &target, &FsPath::root(), options).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::AlreadyExists);
    assert_eq!(target.read(&path("d3/f3"), 10).await.unwrap(), "stays");

    let target = MemoryFileSystem::new();
    target.write(&path("d3"), "a file".into()).await.unwrap();
    let copied = source.copy_tree(&path("src"), &target, &FsPath::root(), TreeCopyOptions::default()).await;
    assert_eq!(copied.unwrap_err().kind(), ErrorKind::NotADirectory);
    let e = source
        .copy_tree(&path("no"), &target, &FsPath::root(), TreeCopyOptions::default())
        .await
        .unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn a_failed_copy_leaves_whole_files_only() {
    let source = FaultLayer::new(Arc::new(tree().await));
    source.inject(Fault::on(Operation::Read, FaultAction::Cut(500, ErrorKind::Unavailable)).after(50));
    let target = MemoryFileSystem::new();
    let e = source
        .copy_tree(&path("src"), &target, &FsPath::root(), TreeCopyOptions::default())
        .await
        .unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unavailable);
    for (name, data) in contents(&target, "").await {
        if let Some(data) = data {
            assert_eq!(source.stat(&path("src").join_path(&name)).await.unwrap().size, data.len() as u64);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn no_more_files_are_under_way_than_asked_for() {
    let source = FaultLayer::new(Arc::new(tree().await));
    source.inject(Fault::on(Operation::Open, FaultAction::Delay(Duration::from_secs(1))));
    let target = MemoryFileSystem::new();
    let options = TreeCopyOptions { parallel: 4, ..Default::default() };
    let started = tokio::time::Instant::now();
    source.copy_tree(&path("src"), &target, &FsPath::root(), options).await.unwrap();
    // 200 files of one second each, four at a time.
    assert!(started.elapsed() >= Duration::from_secs(50), "{:?}", started.elapsed());
    assert!(started.elapsed() < Duration::from_secs(120), "{:?}", started.elapsed());
}

#[tokio::test]
async fn only_not_found_is_absence() {
    let fs = FaultLayer::new(Arc::new(tree().await));
    assert!(fs.exists(&path("beside")).await.unwrap() && fs.exists(&path("src")).await.unwrap());
    assert!(!fs.exists(&path("missing")).await.unwrap());
    for kind in [ErrorKind::PermissionDenied, ErrorKind::Throttled, ErrorKind::Unavailable] {
        fs.heal();
        fs.inject(Fault::on(Operation::Stat, FaultAction::Fail(kind)));
        assert_eq!(fs.exists(&path("missing")).await.unwrap_err().kind(), kind);
    }
}

#[tokio::test]
async fn limits_are_kept_before_anything_is_read() {
    let fs = FaultLayer::new(Arc::new(tree().await));
    let e = fs.read(&path("src/d1/f10"), 999).await.unwrap_err();
    assert_eq!((e.kind(), e.retry(), fs.calls(Operation::Read)), (ErrorKind::InvalidInput, Retry::Never, 0));
    assert_eq!(fs.read(&path("src/d1/f10"), 1_000).await.unwrap().len(), 1_000);
    let all = ListOptions { recursive: true, start_after: None };
    assert_eq!(
        fs.list_all(&path("src"), all.clone(), 210).await.unwrap_err().kind(),
        ErrorKind::InvalidInput
    );
    assert_eq!(fs.list_all(&path("src"), all, 211).await.unwrap().len(), 211);

    let file = fs.open(&path("src/d1/f10"), OpenOptions::default()).await.unwrap();
    assert_eq!(file.read_exact_at(990..1_000).await.unwrap().len(), 10);
    for range in [990..1_001, 1_001..1_001, 0..u64::MAX] {
        assert_eq!(file.read_exact_at(range).await.unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    fs.inject(Fault::on(Operation::Read, FaultAction::Short(3)));
    assert_eq!(file.read_exact_at(0..10).await.unwrap_err().kind(), ErrorKind::Corrupt);
}
