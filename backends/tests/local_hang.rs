//! Local paths that hang: a FUSE filesystem that stops answering, as a dead network mount does.

use std::time::{Duration, Instant};

use nearfs_backends::config::LocalConfig;
use nearfs_backends::io::{Buffer, EngineChoice};
use nearfs_backends::{ErrorKind, FileSystem, ListOptions, LocalFileSystem, OpenOptions};

use futures::StreamExt;

mod support;

use support::hung_fuse::{FILE_SIZE, HungFuse};
use support::{SLACK, path, until};

const TIMEOUT: Duration = Duration::from_millis(300);

async fn open(root: &std::path::Path, engine: EngineChoice, max_blocked: usize) -> LocalFileSystem {
    let config =
        LocalConfig { engine, io_timeout: TIMEOUT, max_blocked, threads: 2, ..LocalConfig::new(root) };
    LocalFileSystem::open(config).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hung_file_times_out_and_its_neighbour_goes_on() {
    for engine in [EngineChoice::Psync, EngineChoice::Auto, EngineChoice::Uring] {
        let fuse = HungFuse::mount();
        let fs = open(fuse.path(), engine, 8).await;
        let hung = fs.open(&path("hung"), OpenOptions::default()).await.unwrap();
        let healthy = fs.open(&path("healthy"), OpenOptions::default()).await.unwrap();
        assert_eq!(hung.metadata().size, FILE_SIZE);

        let begun = Instant::now();
        let mut buf = Buffer::with_capacity(100_000);
        buf.append(b"kept");
        let (result, buf) = hung.read_into(0, buf).await;
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{engine}: {error}");
        assert_eq!((error.operation(), error.path()), (Some("read"), Some("hung")));
        assert!(begun.elapsed() >= TIMEOUT && begun.elapsed() < SLACK);
        assert_eq!((&buf[..], buf.capacity()), (&b"kept"[..], 100_000));
        assert!(fs.blocked_threads() > 0, "{engine}: the kernel still has the read");

        for at in 0..20 {
            let data = healthy.read_at(at * 1000..at * 1000 + 5000).await;
            let data = data.unwrap_or_else(|e| panic!("{engine}: read {at}: {e}"));
            assert_eq!(data, [0; 5000][..]);
        }
        fuse.abort();
        until("what hung came back", || fs.blocked_threads() == 0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hung_metadata_calls_are_bounded_and_then_refused_at_once() {
    let fuse = HungFuse::mount();
    let fs = open(fuse.path(), EngineChoice::Auto, 3).await;
    assert!(fs.stat(&path("healthy")).await.unwrap().is_file());
    for n in 1..=3 {
        let error = fs.stat(&path("dead")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        assert_eq!(fs.blocked_threads(), n);
    }
    let begun = Instant::now();
    for _ in 0..50 {
        let error = fs.stat(&path("healthy")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(error.to_string().contains("hang"), "the message names the cause: {error}");
        let error = fs.list(&path(""), ListOptions::default()).next().await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    }
    assert!(begun.elapsed() < TIMEOUT * 20, "refusals do not wait");
    assert_eq!(fs.blocked_threads(), 3, "and cost no threads");
    fuse.abort();
    until("what hung came back", || fs.blocked_threads() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hung_corner_below_a_healthy_root_holds_nobody_up() {
    let fuse = HungFuse::mount();
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("good"), b"good").unwrap();
    std::os::unix::fs::symlink(fuse.path(), root.path().join("nfs")).unwrap();
    let config = LocalConfig { io_timeout: SLACK, threads: 2, ..LocalConfig::new(root.path()) };
    let fs = LocalFileSystem::open(config).await.unwrap();
    let hung: Vec<_> = (0..6)
        .map(|_| {
            let fs = fs.clone();
            tokio::spawn(async move { fs.stat(&path("nfs/dead")).await })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(50)).await;
    let begun = Instant::now();
    for _ in 0..20 {
        let file = fs.open(&path("good"), OpenOptions::default()).await.unwrap();
        assert_eq!(file.read_at(0..100).await.unwrap(), "good");
    }
    assert!(begun.elapsed() < SLACK / 2, "healthy calls did not wait for the hung ones");
    assert_eq!(fs.blocked_threads(), 0, "nothing has reached its deadline yet");
    fuse.abort();
    for call in hung {
        assert!(call.await.unwrap().is_err());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_calls_on_a_hung_path_stay_bounded() {
    let fuse = HungFuse::mount();
    let fs = open(fuse.path(), EngineChoice::Auto, 4).await;
    for _ in 0..50 {
        let dead = path("dead");
        let call = fs.stat(&dead);
        let _ = tokio::time::timeout(Duration::from_millis(20), call).await;
    }
    let threads = std::fs::read_dir("/proc/self/task").unwrap().count();
    assert!(threads < 120, "{threads} threads for 50 dropped calls");
    assert!(fs.blocked_threads() <= 6, "{} blocked", fs.blocked_threads());
    fuse.abort();
    until("what hung came back", || fs.blocked_threads() == 0).await;
}
