//! The public suite on the filesystems that need no server: memory, and local by each engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nearfs_backends::config::LocalConfig;
use nearfs_backends::conformance::{self, Options, Report};
use nearfs_backends::io::EngineChoice;
use nearfs_backends::{FileSystem, LocalFileSystem, MemoryFileSystem};

#[tokio::test(flavor = "multi_thread")]
async fn memory_passes() {
    let report = conformance::run(
        || async { Arc::new(MemoryFileSystem::new()) as Arc<dyn FileSystem> },
        Options::default(),
    );
    check(report.await);
}

#[tokio::test(flavor = "multi_thread")]
async fn local_by_threads_passes() {
    local(EngineChoice::Psync).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn local_by_io_uring_passes() {
    local(EngineChoice::Uring).await;
}

async fn local(engine: EngineChoice) {
    let dir = tempfile::tempdir().unwrap();
    let count = AtomicUsize::new(0);
    let report = conformance::run(
        || {
            let root = dir.path().join(format!("fs{}", count.fetch_add(1, Ordering::Relaxed)));
            async move {
                std::fs::create_dir(&root).unwrap();
                let config = LocalConfig { engine, ..LocalConfig::new(root) };
                Arc::new(LocalFileSystem::open(config).await.unwrap()) as Arc<dyn FileSystem>
            }
        },
        Options::default(),
    );
    check(report.await);
}

fn check(report: Report) {
    println!("{report}");
    report.assert_passed();
    assert!(report.passed() > 30, "the suite ran: {report}");
}
