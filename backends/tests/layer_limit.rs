//! `ConcurrencyLimitLayer` above a store of which part has fallen silent. Time is the test's own and costs none.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::StreamExt;
use nearfs_backends::config::RetryConfig;
use nearfs_backends::layer::{
    ConcurrencyLimitConfig, ConcurrencyLimitLayer, Fault, FaultAction, FaultLayer, Operation, RetryLayer,
    TimeoutConfig, TimeoutLayer,
};
use nearfs_backends::{ErrorKind, FileSystem, FileSystemExt, FsPath, MemoryFileSystem};
use tokio::time::Instant;

const HEALTHY: usize = 32;
const STALLED: usize = 8;

fn path(text: &str) -> FsPath {
    FsPath::parse(text).unwrap()
}

async fn stack() -> (FaultLayer, Arc<dyn FileSystem>) {
    let memory = MemoryFileSystem::new();
    for i in 0..HEALTHY {
        memory.write(&path(&format!("healthy/{i}")), vec![1; 1 << 20].into()).await.unwrap();
    }
    for i in 0..STALLED {
        memory.write(&path(&format!("stalled/{i}")), vec![2; 1 << 20].into()).await.unwrap();
    }
    let fault = FaultLayer::new(Arc::new(memory));
    // Every answer takes 30 ms.
    fault.inject(
        Fault::on(Operation::Read, FaultAction::Delay(Duration::from_millis(30))).at(&path("healthy")),
    );
    let limits = TimeoutConfig {
        first_item: Duration::from_secs(15),
        gap: Duration::from_secs(15),
        ..TimeoutConfig::default()
    };
    let timeout = Arc::new(TimeoutLayer::new(Arc::new(fault.clone()), limits));
    let limit = Arc::new(ConcurrencyLimitLayer::new(timeout, ConcurrencyLimitConfig::default()));
    (fault, Arc::new(RetryLayer::new(limit, RetryConfig::default()).unwrap()))
}

/// Reads of healthy files by 32 tasks in a minute.
async fn healthy_reads(fs: &Arc<dyn FileSystem>) -> u64 {
    let count = Arc::new(AtomicU64::new(0));
    let until = Instant::now() + Duration::from_secs(60);
    let tasks: Vec<_> = (0..HEALTHY)
        .map(|i| {
            let (fs, count, path) = (fs.clone(), count.clone(), path(&format!("healthy/{i}")));
            tokio::spawn(async move {
                while Instant::now() < until {
                    assert_eq!(fs.read(&path, 1 << 20).await.unwrap().len(), 1 << 20);
                    count.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    count.load(Ordering::Relaxed)
}

#[tokio::test(start_paused = true)]
async fn e1_readers_on_stalled_objects_leave_other_files_their_rate() {
    let (fault, fs) = stack().await;
    let alone = healthy_reads(&fs).await;
    fault.inject(Fault::on(Operation::Read, FaultAction::Stall(1_000)).at(&path("stalled")));
    let stalled: Vec<_> = (0..128)
        .map(|i| {
            let (fs, path) = (fs.clone(), path(&format!("stalled/{}", i % STALLED)));
            tokio::spawn(async move { fs.read(&path, 1 << 20).await.map(|data| data.len()) })
        })
        .collect();
    // The silent ones are there first.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let beside = healthy_reads(&fs).await;
    println!("{alone} reads alone, {beside} beside stalled ones");
    assert!(beside * 10 >= alone * 8, "{beside} reads beside stalled ones, {alone} without");
    let before = Instant::now();
    for reader in stalled {
        match reader.await.unwrap() {
            Err(e) => assert!(matches!(e.kind(), ErrorKind::TimedOut), "{e}"),
            Ok(n) => assert_eq!(n, 1 << 20),
        }
    }
    assert!(before.elapsed() < Duration::from_secs(600), "every call ends");
}

#[tokio::test(start_paused = true)]
async fn stalled_reads_go_on_when_the_store_does() {
    let (fault, fs) = stack().await;
    fault.inject(Fault::on(Operation::Read, FaultAction::Stall(1_000)).at(&path("stalled")));
    let readers: Vec<_> = (0..128)
        .map(|i| {
            let (fs, path) = (fs.clone(), path(&format!("stalled/{}", i % STALLED)));
            tokio::spawn(async move { fs.read(&path, 1 << 20).await.unwrap().len() })
        })
        .collect();
    tokio::time::sleep(Duration::from_secs(20)).await;
    fault.heal();
    for reader in readers {
        assert_eq!(reader.await.unwrap(), 1 << 20);
    }
}

#[tokio::test(start_paused = true)]
async fn look_ups_do_not_wait_for_transfers() {
    let (fault, fs) = stack().await;
    fault.inject(Fault::on(Operation::Read, FaultAction::Stall(0)));
    let mut streams = Vec::new();
    for i in 0..128 {
        let file = fs.open(&path(&format!("healthy/{}", i % HEALTHY)), Default::default()).await.unwrap();
        let mut stream = file.read_stream(0..u64::MAX);
        streams.push(tokio::spawn(async move { stream.next().await.map(|r| r.is_ok()) }));
    }
    tokio::task::yield_now().await;
    let started = Instant::now();
    for i in 0..HEALTHY {
        fs.stat(&path(&format!("healthy/{i}"))).await.unwrap();
    }
    assert_eq!(fs.list_all(&path("healthy"), Default::default(), 100).await.unwrap().len(), HEALTHY);
    assert_eq!(started.elapsed(), Duration::ZERO);
    streams.iter().for_each(|s| s.abort());
}

#[tokio::test(start_paused = true)]
async fn never_more_requests_than_places_while_all_are_healthy() {
    let memory = MemoryFileSystem::new();
    memory.write(&path("f"), "x".into()).await.unwrap();
    let fault = FaultLayer::new(Arc::new(memory));
    fault.inject(Fault::on(Operation::Stat, FaultAction::Delay(Duration::from_millis(100))));
    let config = ConcurrencyLimitConfig { metadata: 10, ..Default::default() };
    let fs = Arc::new(ConcurrencyLimitLayer::new(Arc::new(fault), config));
    let started = Instant::now();
    let calls = (0..100).map(|i| {
        let fs = fs.clone();
        async move { fs.stat(&path(&format!("f{i}"))).await.unwrap_err() }
    });
    let calls = futures::future::join_all(calls).await;
    assert_eq!(calls.len(), 100);
    // 100 calls of 100 ms, ten at a time.
    assert!(started.elapsed() >= Duration::from_secs(1), "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_a_place_ends() {
    let memory = MemoryFileSystem::new();
    let fault = FaultLayer::new(Arc::new(memory));
    fault.inject(Fault::on(Operation::Stat, FaultAction::Stall(0)));
    let fs = Arc::new(ConcurrencyLimitLayer::new(Arc::new(fault), ConcurrencyLimitConfig::default()));
    let stuck: Vec<_> = (0..200)
        .map(|_| {
            let fs = fs.clone();
            tokio::spawn(async move { fs.stat(&path("f")).await })
        })
        .collect();
    tokio::time::sleep(Duration::from_secs(70)).await;
    let ended = stuck.iter().filter(|s| s.is_finished()).count();
    assert!(ended > 0, "waiting requests give up");
    stuck.iter().for_each(|s| s.abort());
}
