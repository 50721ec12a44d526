//! What the local filesystem counts. One test: the recorder belongs to the whole process.

use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::TryStreamExt;
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use nearfs_backends::config::LocalConfig;
use nearfs_backends::{FileSystem, ListOptions, LocalFileSystem};

mod support;

use support::hung_fuse::HungFuse;
use support::{path, until};

/// Keeps every counter and gauge; a gauge's value is the bits of an `f64`.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<BTreeMap<String, Arc<AtomicU64>>>>);

impl Kept {
    fn cell(&self, key: &Key) -> Arc<AtomicU64> {
        let labels: Vec<_> = key.labels().map(|l| l.value().to_owned()).collect();
        let name = format!("{} {}", key.name(), labels.join(" "));
        self.0.lock().unwrap().entry(name.trim().into()).or_default().clone()
    }

    fn count(&self, name: &str) -> u64 {
        self.0.lock().unwrap().get(name).map_or(0, |c| c.load(Ordering::Relaxed))
    }

    fn level(&self, name: &str) -> f64 {
        f64::from_bits(self.count(name))
    }
}

impl Recorder for Kept {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.cell(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.cell(key))
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_listings_skip_and_what_hangs_is_counted() {
    let kept = Kept::default();
    metrics::set_global_recorder(kept.clone()).map_err(|_| "set once").unwrap();
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("d")).unwrap();
    symlink("..", dir.path().join("d/up")).unwrap();
    symlink("nowhere", dir.path().join("broken")).unwrap();
    symlink("itself", dir.path().join("itself")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("socket")).unwrap();
    let fs = LocalFileSystem::open(LocalConfig::new(dir.path())).await.unwrap();
    let options = ListOptions { recursive: true, start_after: None };
    let entries: Vec<_> = fs.list(&path(""), options).try_collect().await.unwrap();
    assert_eq!(entries.len(), 2);
    for (reason, count) in [("link", 2), ("special", 1), ("cycle", 1), ("name", 0)] {
        assert_eq!(kept.count(&format!("nearfs_list_skipped_total local {reason}")), count, "{reason}");
    }

    let fuse = HungFuse::mount();
    let io_timeout = Duration::from_millis(200);
    let config = LocalConfig { io_timeout, max_blocked: 1, ..LocalConfig::new(fuse.path()) };
    let fs = LocalFileSystem::open(config).await.unwrap();
    for _ in 0..2 {
        assert!(fs.stat(&path("dead")).await.is_err());
    }
    assert_eq!(kept.count("nearfs_local_timeouts_total"), 2, "one that hung and one that was refused");
    assert_eq!(kept.level("nearfs_local_blocked_threads"), 1.0);
    fuse.abort();
    until("the thread came back", || kept.level("nearfs_local_blocked_threads") == 0.0).await;
    assert_eq!(fs.blocked_threads(), 0);
}
