//! Both bridges to the `object_store` crate: our suite on its stores, its suite on our filesystems.

use std::sync::Arc;

use nearfs_backends::config::LocalConfig;
use nearfs_backends::conformance::{self, Options, Report};
use nearfs_backends::interop::{FileSystemObjectStore, ObjectStoreFileSystem, ObjectStoreOptions};
use nearfs_backends::{FileSystem, FileSystemExt, FsPath, LocalFileSystem, MemoryFileSystem};
use object_store::integration as suite;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};

fn path(text: &str) -> FsPath {
    FsPath::parse(text).unwrap()
}

fn check(report: Report, passed: usize) {
    println!("{report}");
    report.assert_passed();
    assert!(report.passed() >= passed, "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn our_suite_passes_on_the_memory_store() {
    let make = || async {
        let options = ObjectStoreOptions { remote: false, part_size: 5 << 20, ..Default::default() };
        Arc::new(ObjectStoreFileSystem::new(Arc::new(InMemory::new()), "test:///", options))
            as Arc<dyn FileSystem>
    };
    check(conformance::run(make, Options::default()).await, 45);
}

#[tokio::test(flavor = "multi_thread")]
async fn our_suite_passes_on_the_local_store() {
    let root = tempfile::tempdir().unwrap();
    let count = std::sync::atomic::AtomicUsize::new(0);
    let make = || {
        let dir = root.path().join(count.fetch_add(1, std::sync::atomic::Ordering::Relaxed).to_string());
        async move {
            std::fs::create_dir(&dir).unwrap();
            let store = object_store::local::LocalFileSystem::new_with_prefix(dir).unwrap();
            let options = ObjectStoreOptions {
                remote: false,
                conditional_write: false,
                content_type: false,
                real_directories: true,
                ..ObjectStoreOptions::default()
            };
            Arc::new(ObjectStoreFileSystem::new(Arc::new(store), "test:///", options)) as Arc<dyn FileSystem>
        }
    };
    // Their store turns paths into URLs and back, in which `|` is not what it was.
    let all =
        conformance::run_named(make, Options::default(), |name| name != "names::odd_names_round_trip").await;
    check(all, 47);
}

/// There and back again: what is left of a filesystem seen through both bridges.
#[tokio::test(flavor = "multi_thread")]
async fn our_suite_passes_through_both_bridges() {
    let make = || async {
        let store = FileSystemObjectStore::new(Arc::new(MemoryFileSystem::new()));
        let options = ObjectStoreOptions { remote: false, real_directories: true, ..Default::default() };
        Arc::new(ObjectStoreFileSystem::new(Arc::new(store), "test:///", options)) as Arc<dyn FileSystem>
    };
    check(conformance::run(make, Options::default()).await, 45);
}

async fn their_suite(make: impl AsyncFn() -> FileSystemObjectStore, supports_update: bool) {
    // A store each: some of their tests leave prefixes behind that real directories keep.
    suite::put_get_delete_list(&make().await).await;
    suite::get_opts(&make().await).await;
    suite::put_opts(&make().await, supports_update).await;
    suite::stream_get(&make().await).await;
    suite::list_uses_directories_correctly(&make().await).await;
    suite::list_with_delimiter(&make().await).await;
    suite::list_with_offset_exclusivity(&make().await).await;
    suite::rename_and_copy(&make().await).await;
    suite::copy_if_not_exists(&make().await).await;
    suite::copy_rename_nonexistent_object(&make().await).await;
    suite::multipart_race_condition(&make().await, true).await;
    suite::multipart_out_of_order(&make().await).await;
    let e = suite::get_nonexistent_object(&make().await, None).await.unwrap_err();
    assert!(matches!(e, object_store::Error::NotFound { .. }), "{e}");
}

#[tokio::test(flavor = "multi_thread")]
async fn their_suite_passes_on_our_memory_filesystem() {
    their_suite(async || FileSystemObjectStore::new(Arc::new(MemoryFileSystem::new())), true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn their_suite_passes_on_our_local_filesystem() {
    let root = tempfile::tempdir().unwrap();
    let count = std::sync::atomic::AtomicUsize::new(0);
    let make = async || {
        let dir = root.path().join(count.fetch_add(1, std::sync::atomic::Ordering::Relaxed).to_string());
        std::fs::create_dir(&dir).unwrap();
        let fs = LocalFileSystem::open(LocalConfig::new(dir)).await.unwrap();
        FileSystemObjectStore::new(Arc::new(fs))
    };
    let supports_update = make().await.to_string().contains("file") && {
        let dir = root.path().join("probe");
        std::fs::create_dir(&dir).unwrap();
        LocalFileSystem::open(LocalConfig::new(dir)).await.unwrap().capabilities().conditional_write
    };
    their_suite(make, supports_update).await;
}

#[tokio::test]
async fn parts_are_written_in_order_whoever_is_polled_and_an_abort_leaves_nothing() {
    let fs = MemoryFileSystem::new();
    let store = FileSystemObjectStore::new(Arc::new(fs.clone()));
    let location = Path::parse("d/f").unwrap();
    let mut upload = store.put_multipart(&location).await.unwrap();
    let parts: Vec<_> = (0..10u8).map(|i| upload.put_part(vec![i; 1_000].into())).collect();
    for part in parts.into_iter().rev() {
        part.await.unwrap();
    }
    assert!(!fs.exists(&path("d/f")).await.unwrap());
    upload.complete().await.unwrap();
    let expected: Vec<u8> = (0..10u8).flat_map(|i| vec![i; 1_000]).collect();
    assert_eq!(fs.read(&path("d/f"), 1 << 20).await.unwrap(), expected);
    assert!(upload.complete().await.is_err(), "an upload completes once");

    let mut upload = store.put_multipart(&Path::parse("gone").unwrap()).await.unwrap();
    upload.put_part("x".into()).await.unwrap();
    upload.abort().await.unwrap();
    assert!(upload.put_part("y".into()).await.is_err());
    assert!(!fs.exists(&path("gone")).await.unwrap());
}

#[tokio::test]
async fn what_the_other_side_cannot_say_is_refused_and_never_dropped_in_silence() {
    use object_store::{Attribute, Attributes, GetOptions, PutOptions, TagSet};

    let fs = MemoryFileSystem::new();
    fs.write(&path("nl\nx"), "odd".into()).await.unwrap();
    fs.write(&path("f"), "data".into()).await.unwrap();
    let store = FileSystemObjectStore::new(Arc::new(fs));
    // A key that their paths cannot hold is skipped, and its neighbours are listed.
    let listed = store.list_with_delimiter(None).await.unwrap();
    assert_eq!(listed.objects.len(), 1);
    let location = Path::parse("f").unwrap();
    let attributes: Attributes = [(Attribute::CacheControl, "no-store")].into_iter().collect();
    let options = PutOptions { attributes, ..Default::default() };
    assert!(store.put_opts(&location, "x".into(), options).await.is_err());
    let mut tags = TagSet::default();
    tags.push("k", "v");
    assert!(store.put_opts(&location, "x".into(), PutOptions { tags, ..Default::default() }).await.is_err());
    let options = GetOptions { version: Some("1".into()), ..Default::default() };
    assert!(store.get_opts(&location, options).await.is_err());
    assert_eq!(store.get(&location).await.unwrap().bytes().await.unwrap(), "data");
}
