//! The library as programs use it: from any executor and any thread, through one trait.

use std::io::{Read, Seek, SeekFrom};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use nearfs::config::{Config, Size};
use nearfs::{Client, ClientBuilder, ErrorKind, FileExt, FileSystemExt, FsPath, OpenOptions};
use nearfs_lab::{Fault, Lab, Op, Rule, stamp};

#[path = "../examples/rust_tool.rs"]
#[allow(dead_code, unreachable_pub, reason = "it is a program of its own")]
mod rust_tool;

const SIZE: u64 = 12_000_001;

fn lab() -> Lab {
    let lab = Lab::builder().bucket("b").start().unwrap();
    lab.put("b", "dir/a", &b"hello"[..]);
    lab.put_synthetic("b", "dir/big", SIZE, 7);
    lab
}

thread_local! {
    /// The cache of this test, gone with its thread.
    static CACHE: tempfile::TempDir = tempfile::tempdir().unwrap();
}

/// Settings that see nothing of this machine, and a cache of this test's own.
fn isolated() -> ClientBuilder {
    let dir = CACHE.with(|dir| dir.path().join("cache"));
    Client::builder().config(Config::isolated()).cache_dir(dir).cache_size(1 << 30)
}

/// A client that sees the lab.
fn client(lab: &Lab) -> Client {
    isolated().endpoint_url(lab.endpoint()).anonymous(true).build().unwrap()
}

fn path(text: &str) -> FsPath {
    FsPath::parse(text).unwrap()
}

/// What any program does, whatever drives it.
async fn use_it(client: Client) {
    let fs = client.filesystem("s3://b/dir").await.unwrap();
    let names: Vec<_> = fs.walk(&FsPath::root()).map(|e| e.unwrap().path.to_string()).collect().await;
    assert_eq!(names, ["a", "big"]);
    assert_eq!(fs.read(&path("a"), 100).await.unwrap(), "hello");
    let file = fs.open(&path("big"), OpenOptions::default()).await.unwrap();
    let mut stream = file.read_stream(0..SIZE);
    let mut offset = 0;
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.unwrap();
        stamp::verify(&chunk, offset, 7).unwrap();
        offset += chunk.len() as u64;
    }
    assert_eq!(offset, SIZE);
    stamp::verify(&file.read_exact_at(5_000_000..5_100_000).await.unwrap(), 5_000_000, 7).unwrap();
    assert!(!fs.exists(&path("none")).await.unwrap());
    fs.write(&path("new"), "written".into()).await.unwrap();
    assert_eq!(fs.read(&path("new"), 100).await.unwrap(), "written", "own writes are seen at once");
    let mut deleted = fs.delete(futures::stream::iter([path("new")]).boxed());
    deleted.next().await.unwrap().1.unwrap();
    assert!(!fs.exists(&path("new")).await.unwrap());
}

/// The same without async, on whatever thread this is.
fn use_it_blocking(client: Client) {
    let client = nearfs::blocking::Client::new(client);
    let fs = client.filesystem("s3://b/dir").unwrap();
    assert_eq!(fs.list("").unwrap().len(), 2);
    assert_eq!(fs.walk("/").unwrap().map(|e| e.unwrap().path.to_string()).collect::<Vec<_>>(), ["a", "big"]);
    assert_eq!(fs.stat("big").unwrap().size, SIZE);
    assert!(fs.exists("a").unwrap() && !fs.exists("none").unwrap());
    let mut text = String::new();
    fs.reader("a").unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "hello");
    let mut reader = client.open_file("s3://b/dir/big").unwrap().reader().unwrap();
    reader.seek(SeekFrom::End(-100_000)).unwrap();
    let mut tail = Vec::new();
    reader.read_to_end(&mut tail).unwrap();
    assert_eq!(tail.len(), 100_000);
    stamp::verify(&tail, SIZE - 100_000, 7).unwrap();
    fs.write("new", "written").unwrap();
    assert_eq!(fs.read("new", 10).unwrap(), "written");
    fs.delete("new").unwrap();
    assert_eq!(fs.open("none").unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn any_executor_may_wait_for_it() {
    let lab = lab();
    // One client for all of them: connections made under one runtime live on after it.
    let client = client(&lab);
    futures::executor::block_on(use_it(client.clone()));
    let current = tokio::runtime::Builder::new_current_thread().build().unwrap();
    current.block_on(use_it(client.clone()));
    drop(current);
    let full = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    full.block_on(use_it(client.clone()));
    full.block_on(async { tokio::spawn(use_it(client.clone())).await.unwrap() });
    drop(full);
    futures::executor::block_on(use_it(client.clone()));
    nearfs::blocking::wait(async move {
        use_it(client).await;
        Ok(())
    })
    .unwrap();
}

#[test]
fn blocking_calls_work_on_every_thread() {
    let lab = lab();
    let client = client(&lab);
    use_it_blocking(client.clone());
    // Inside foreign runtimes of both kinds, and on their blocking threads.
    for builder in [tokio::runtime::Builder::new_current_thread, || {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(1);
        builder
    }] {
        let runtime = builder().enable_all().build().unwrap();
        runtime.block_on(async { use_it_blocking(client.clone()) });
        let inner = client.clone();
        runtime.block_on(async move { tokio::spawn(async move { use_it_blocking(inner) }).await.unwrap() });
        let inner = client.clone();
        runtime.block_on(async move {
            tokio::task::spawn_blocking(move || use_it_blocking(inner)).await.unwrap()
        });
    }
    // On the runtime of nearfs itself, more callers than it has threads.
    let spawner = nearfs::spawner().unwrap();
    let tasks: Vec<_> = (0..32)
        .map(|_| {
            let client = client.clone();
            spawner.spawn(async move {
                let fs = nearfs::blocking::Client::new(client).filesystem("s3://b/dir").unwrap();
                fs.read("a", 10).unwrap()
            })
        })
        .collect();
    for task in tasks {
        assert_eq!(futures::executor::block_on(task).unwrap(), "hello");
    }
    // A panic in the work is an error of the call.
    let error = nearfs::blocking::wait::<_, ()>(async { panic!("on purpose") }).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Interrupted);
}

#[test]
fn a_client_asks_once_and_shares() {
    let lab = lab();
    let client = client(&lab);
    let fs = nearfs::blocking::Client::new(client.clone()).filesystem("s3://b/dir").unwrap();
    fs.read("a", 100).unwrap();
    lab.reset_counters();
    let again = nearfs::blocking::Client::new(client).filesystem("s3://b").unwrap();
    again.read("dir/a", 100).unwrap();
    assert_eq!(lab.counters().of(Op::GetObject), 0, "the same store, the same cache");
}

#[test]
fn settings_of_the_builder_win_and_bad_ones_are_refused() {
    let bad = isolated().endpoint_url("ftp://x").build().unwrap_err();
    assert!(bad.message().contains("endpoint_url") && bad.kind() == ErrorKind::InvalidInput, "{bad}");
    assert!(isolated().setting("nonsense", 1).build().is_err());
    assert!(isolated().deadline(Duration::ZERO).build().is_err());
    let client = isolated()
        .memory(64 << 20)
        .metadata_never_changes()
        .negative_ttl(Duration::from_millis(1500))
        .prefetch(false)
        .build()
        .unwrap();
    let settings = client.config().settings(None).unwrap();
    assert_eq!((settings.metadata_ttl, settings.negative_ttl), (None, Some(Duration::from_millis(1500))));
    assert!(!settings.prefetch);
    let client =
        isolated().cache_dir("/second:one").cache_size(0).cache_free(0.25).cache_group(0).build().unwrap();
    let settings = client.config().settings(None).unwrap();
    assert_eq!(settings.cache_dir[1], std::path::Path::new("/second:one"));
    assert_eq!((settings.cache_size, settings.cache_group), (Some(Size::Bytes(0)), Some(0)));
    assert!((settings.cache_free - 0.25).abs() < 1e-9);
    assert!(isolated().cache_free(2.0).build().is_err() && isolated().cache_size(1).build().is_err());
}

#[test]
fn every_call_ends_by_the_deadline() {
    let lab = lab();
    lab.fault(Rule::any(Fault::Drop));
    let client = isolated()
        .endpoint_url(lab.endpoint())
        .anonymous(true)
        .deadline(Duration::from_secs(2))
        .build()
        .unwrap();
    let start = std::time::Instant::now();
    let fs = nearfs::blocking::Client::new(client).filesystem("s3://b").unwrap();
    assert!(fs.stat("dir/a").is_err() && fs.list("").is_err() && fs.open("dir/a").is_err());
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}

#[test]
fn a_failure_that_passes_is_not_seen() {
    let lab = lab();
    lab.fault(Rule::any(Fault::status(503)).times(2));
    lab.fault(Rule::on(Op::GetObject, Fault::Cut { after: 1_000_000 }).key("dir/big").once());
    futures::executor::block_on(use_it(client(&lab)));
}

#[test]
fn local_paths_and_memory_are_stores_too() {
    let dir = tempfile::tempdir().unwrap();
    let client = isolated().build().unwrap();
    let blocking = nearfs::blocking::Client::new(client.clone());
    for url in [dir.path().to_str().unwrap().to_owned(), "memory://library".to_owned()] {
        let fs = blocking.filesystem(&url).unwrap();
        fs.write("x/y", "bytes").unwrap();
        assert_eq!(fs.walk("").unwrap().count(), 2, "{url}");
        assert_eq!(blocking.filesystem(&format!("{url}/x")).unwrap().read("y", 10).unwrap(), "bytes");
    }
    assert_eq!(std::fs::read(dir.path().join("x/y")).unwrap(), b"bytes");
    let error = blocking.filesystem("gopher://x").unwrap_err();
    assert!(error.message().contains("gopher"), "{error}");
}

#[test]
fn inspecting_a_store_shows_where_and_as_whom() {
    let lab = lab();
    let client = client(&lab);
    let inspection = nearfs::blocking::wait(async move { client.inspect("s3://b/dir").await }).unwrap();
    assert_eq!(inspection.endpoint.trim_end_matches('/'), lab.endpoint());
    assert!(inspection.credentials.unwrap().unwrap().source.contains("anonymous"));
}

#[test]
fn the_adapters_of_object_store_go_both_ways() {
    use object_store::{ObjectStore, ObjectStoreExt, path::Path};

    let lab = lab();
    let client = client(&lab);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let fs = client.filesystem("s3://b").await.unwrap();
        let store: Arc<dyn ObjectStore> = Arc::new(nearfs::interop::FileSystemObjectStore::new(fs));
        let got = store.get(&Path::parse("dir/a").unwrap()).await.unwrap().bytes().await.unwrap();
        assert_eq!(got, "hello");
        let there = nearfs::interop::ObjectStoreFileSystem::new(store, "wrapped:///", Default::default());
        assert_eq!(there.read(&path("dir/a"), 10).await.unwrap(), "hello");
    });
}

#[test]
fn the_example_tool_works_on_every_store() {
    let lab = lab();
    let client = client(&lab);
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().to_str().unwrap();
    let tool = |words: &[&str]| {
        let (client, words) = (client.clone(), words.iter().map(|w| w.to_string()).collect::<Vec<_>>());
        nearfs::blocking::wait(async move {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            rust_tool::run(&client, &words).await
        })
    };
    assert_eq!(tool(&["copy", "s3://b/dir", &format!("{place}/copy")]).unwrap(), "2 files, 12000006 bytes\n");
    assert_eq!(std::fs::read(dir.path().join("copy/a")).unwrap(), b"hello");
    stamp::verify(&std::fs::read(dir.path().join("copy/big")).unwrap(), 0, 7).unwrap();
    for url in ["s3://b/dir", &format!("{place}/copy")] {
        let listed = tool(&["list", url]).unwrap();
        assert!(listed.contains("           5 a\n") && listed.contains("12000001 big\n"), "{listed}");
        assert!(tool(&["stat", &format!("{url}/a")]).unwrap().starts_with("File of 5 bytes, version "));
        assert_eq!(tool(&["read", &format!("{url}/a"), "1", "3"]).unwrap(), "el\n");
    }
    assert!(tool(&["dance"]).unwrap_err().message().starts_with("usage"));
    assert!(tool(&["stat", "s3://b/none"]).is_err());
}
