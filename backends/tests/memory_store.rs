//! The memory filesystem beyond the public suite: what only it promises.

use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};
use nearfs_backends::{
    Condition, CopyOptions, CreateOptions, ErrorKind, FileSystem, ListOptions, MemoryFileSystem, OpenOptions,
    Version,
};

mod support;

use support::{path, put, put_if};

const REPLACE: CopyOptions = CopyOptions { no_replace: false };

#[tokio::test]
async fn a_handle_goes_on_reading_its_version_whatever_happens_to_the_name() {
    let fs = MemoryFileSystem::new();
    let first = put(&fs, "d/f", "first").await.unwrap();
    let file = fs.open(&path("d/f"), OpenOptions::default()).await.unwrap();
    put(&fs, "d/f", "second, longer").await.unwrap();
    assert_eq!(file.read_at(0..100).await.unwrap(), "first");
    fs.rename(&path("d"), &path("e"), REPLACE).await.unwrap();
    let deleted: Vec<_> = fs.delete(futures::stream::iter([path("e/f")]).boxed()).collect().await;
    assert!(deleted[0].1.is_ok());
    drop(fs.clone());
    assert_eq!((file.read_at(0..100).await.unwrap(), file.metadata()), ("first".into(), &first));
    assert!(file.as_fd().is_none());
    let pinned = OpenOptions { metadata: Some(first) };
    assert_eq!(fs.open(&path("e/f"), pinned).await.unwrap_err().kind(), ErrorKind::Stale);
}

#[tokio::test]
async fn versions_grow_and_are_what_conditions_compare() {
    let fs = MemoryFileSystem::new();
    let mut last = 0;
    for n in 0..5 {
        let made = put(&fs, "f", n.to_string()).await.unwrap();
        let Version::Generation(generation) = made.version else { panic!("{:?}", made.version) };
        assert!(generation > last);
        last = generation;
    }
    let current = Condition::Version(Version::Generation(last));
    put_if(&fs, "f", "6", current.clone()).await.unwrap();
    assert_eq!(put_if(&fs, "f", "7", current.clone()).await.unwrap_err().kind(), ErrorKind::Stale);
    assert_eq!(put_if(&fs, "g", "7", current).await.unwrap_err().kind(), ErrorKind::Stale);
    // The check is part of the step that makes the file visible.
    let absent = || CreateOptions { condition: Condition::Absent, ..Default::default() };
    let (one, two) =
        (fs.create(&path("h"), absent()).await.unwrap(), fs.create(&path("h"), absent()).await.unwrap());
    two.finish().await.unwrap();
    assert_eq!(one.finish().await.unwrap_err().kind(), ErrorKind::AlreadyExists);
}

#[tokio::test]
async fn clones_share_files_and_new_ones_do_not() {
    let fs = MemoryFileSystem::new();
    put(&fs.clone(), "f", "x").await.unwrap();
    assert!(fs.stat(&path("f")).await.is_ok());
    let other = MemoryFileSystem::new();
    assert_eq!(other.stat(&path("f")).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_ne!(fs.identity(), other.identity());
    assert_eq!(fs.identity(), fs.clone().identity());
}

#[tokio::test]
async fn a_listing_is_paged_in_order_and_jumps_over_subtrees() {
    let fs: Arc<dyn FileSystem> = Arc::new(MemoryFileSystem::new());
    for n in 0..1500 {
        put(&*fs, &format!("many/{n}/deep/{n}"), "").await.unwrap();
    }
    for name in ["a", "a-b/x", "a.c", "aa"] {
        put(&*fs, name, "").await.unwrap();
    }
    let list = |dir: &str, recursive, after: Option<&str>| {
        let options = ListOptions { recursive, start_after: after.map(path) };
        fs.list(&path(dir), options).map_ok(|e| e.path.to_string()).try_collect::<Vec<_>>()
    };
    assert_eq!(list("", false, None).await.unwrap(), ["a-b", "a.c", "a", "aa", "many"]);
    assert_eq!(list("many", false, None).await.unwrap().len(), 1500);
    let all = list("many", true, None).await.unwrap();
    assert_eq!(all.len(), 1500 * 3);
    assert!(all.is_sorted_by(|a, b| path(a).cmp_listing(&path(b)).is_lt()));
    assert_eq!(list("many", true, Some("many/7/deep")).await.unwrap()[0], "many/7/deep/7");
    assert_eq!(list("many", true, Some("many/999/zzz")).await.unwrap().len(), 0);
    assert_eq!(list("many", true, Some("a")).await.unwrap().len(), 1500 * 3);
    assert_eq!(list("many", true, Some("zzz")).await.unwrap().len(), 0);
    // Entries added behind the place of a listing in progress are seen, those before it are not repeated.
    let mut entries = fs.list(&path("many"), ListOptions { recursive: true, start_after: None });
    entries.next().await.unwrap().unwrap();
    put(&*fs, "many/zzz", "").await.unwrap();
    let rest: Vec<_> = entries.try_collect().await.unwrap();
    assert_eq!(rest.len(), 1500 * 3);
}

#[tokio::test]
async fn directories_are_real() {
    let fs = MemoryFileSystem::new();
    put(&fs, "a/b/f", "x").await.unwrap();
    let kind = |r: nearfs_backends::Result<()>| r.unwrap_err().kind();
    assert_eq!(kind(fs.remove_dir(&path("a/b")).await), ErrorKind::NotEmpty);
    assert_eq!(kind(fs.remove_dir(&path("a/b/f")).await), ErrorKind::NotADirectory);
    assert_eq!(kind(fs.create_dir(&path("a/b/f/g")).await), ErrorKind::NotADirectory);
    assert_eq!(kind(fs.create_dir(&path("a")).await), ErrorKind::AlreadyExists);
    assert_eq!(kind(fs.create_dir(&path("")).await), ErrorKind::AlreadyExists);
    assert_eq!(kind(fs.rename(&path("a"), &path("a/b/c"), REPLACE).await), ErrorKind::InvalidInput);
    assert_eq!(put(&fs, "a/b", "x").await.unwrap_err().kind(), ErrorKind::IsADirectory);
    assert_eq!(put(&fs, "a/b/f/g", "x").await.unwrap_err().kind(), ErrorKind::NotADirectory);
    fs.rename(&path("a/b"), &path("new/place"), REPLACE).await.unwrap();
    assert!(fs.stat(&path("new/place/f")).await.unwrap().is_file());
    fs.remove_dir(&path("a")).await.unwrap();
    assert_eq!(fs.stat(&path("a")).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert!(fs.stat(&path("")).await.unwrap().is_dir());
}
