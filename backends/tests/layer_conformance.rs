//! The public suite through every layer, and through all of them at once: no layer loses or changes anything.

use std::sync::Arc;
use std::time::Duration;

use nearfs_backends::config::RetryConfig;
use nearfs_backends::conformance::{self, Options, Report};
use nearfs_backends::layer::{
    ConcurrencyLimitConfig, ConcurrencyLimitLayer, FaultLayer, HedgeConfig, HedgeLayer, MetricsLayer,
    PrefixLayer, ReadOnlyLayer, RetryLayer, SpawnedLayer, TimeoutConfig, TimeoutLayer, TracingConfig,
    TracingLayer,
};
use nearfs_backends::{FileSystem, FileSystemExt, FsPath, MemoryFileSystem, Spawner};

type Fs = Arc<dyn FileSystem>;

async fn run(wrap: impl Fn(Fs) -> Fs) -> Report {
    let make = || {
        let wrapped = wrap(Arc::new(MemoryFileSystem::new()));
        async move { wrapped }
    };
    let options = Options { large: 5 << 20, many: 700, bulk: 1_100, ..Options::default() };
    let report = conformance::run(make, options).await;
    println!("{report}");
    report.assert_passed();
    report
}

/// As many checks pass as on the bare filesystem.
async fn check(wrap: impl Fn(Fs) -> Fs) {
    let bare = run(|fs| fs).await;
    let wrapped = run(wrap).await;
    assert_eq!(wrapped.capabilities, bare.capabilities);
    assert_eq!(wrapped.passed(), bare.passed());
}

fn retry(fs: Fs) -> Fs {
    Arc::new(RetryLayer::new(fs, RetryConfig::default()).unwrap())
}

fn timeout(fs: Fs) -> Fs {
    Arc::new(TimeoutLayer::new(fs, TimeoutConfig::default()))
}

fn limit(fs: Fs) -> Fs {
    Arc::new(ConcurrencyLimitLayer::new(fs, ConcurrencyLimitConfig::default()))
}

fn tight_limit(fs: Fs) -> Fs {
    let config = ConcurrencyLimitConfig { data: 1, metadata: 1, ..Default::default() };
    Arc::new(ConcurrencyLimitLayer::new(fs, config))
}

fn hedge(fs: Fs) -> Fs {
    Arc::new(HedgeLayer::new(fs, HedgeConfig::default()))
}

/// Every read that waits at all has a second request.
fn eager_hedge(fs: Fs) -> Fs {
    let config = HedgeConfig { share: 1.0, slack: Duration::ZERO, least_samples: 1, ..Default::default() };
    Arc::new(HedgeLayer::new(fs, config))
}

fn metrics(fs: Fs) -> Fs {
    Arc::new(MetricsLayer::new(fs))
}

fn tracing(fs: Fs) -> Fs {
    Arc::new(TracingLayer::new(fs, TracingConfig::default()))
}

fn prefix(fs: Fs) -> Fs {
    Arc::new(PrefixLayer::new(fs, FsPath::parse("some/where").unwrap()))
}

fn spawned(fs: Fs) -> Fs {
    Arc::new(SpawnedLayer::new(fs, Spawner::current().unwrap()))
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_passes() {
    check(retry).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn timeout_passes() {
    check(timeout).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn limit_passes() {
    check(limit).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hedge_passes() {
    check(hedge).await;
    check(eager_hedge).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_passes() {
    check(metrics).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tracing_passes() {
    check(tracing).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn prefix_passes() {
    check(prefix).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_without_faults_passes() {
    check(|fs| Arc::new(FaultLayer::new(fs))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn spawned_passes() {
    check(spawned).await;
}

/// The order of the stack that the module documents.
#[tokio::test(flavor = "multi_thread")]
async fn the_whole_stack_passes() {
    check(|fs| spawned(tracing(metrics(retry(hedge(limit(timeout(prefix(fs))))))))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_single_place_is_enough_for_everything() {
    check(tight_limit).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn read_only_refuses_in_an_orderly_way_and_the_report_counts_what_it_could_not_check() {
    let report = run(|fs| Arc::new(ReadOnlyLayer::new(fs))).await;
    let not_applicable: Vec<_> = report.not_applicable().collect();
    assert!(not_applicable.len() > 30 && not_applicable.iter().all(|(_, reason)| !reason.is_empty()));
    assert!(report.checks.iter().any(|(name, outcome, _)| {
        *name == "errors::writes_are_refused_where_not_possible" && *outcome == conformance::Outcome::Passed
    }));
}

/// The suite itself: a filesystem that breaks one rule fails exactly the checks that are about it.
#[tokio::test(flavor = "multi_thread")]
async fn the_suite_finds_broken_rules() {
    use nearfs_backends::layer::{Fault, FaultAction, Operation};

    let broken = [
        (Fault::on(Operation::Read, FaultAction::Flip(3)), "reads::all_ways_of_reading_agree"),
        (Fault::on(Operation::Read, FaultAction::Short(1 << 20)), "reads::ranges_are_clamped_to_the_size"),
        (Fault::on(Operation::List, FaultAction::Short(1_000)), "listing::many_entries_come_exactly_once"),
        (
            Fault::on(Operation::Stat, FaultAction::Fail(nearfs_backends::ErrorKind::NotFound)),
            "listing::stat_tells_kinds_and_absence",
        ),
        (
            Fault::on(Operation::Delete, FaultAction::Fail(nearfs_backends::ErrorKind::NotFound)),
            "removal::deleting_is_idempotent",
        ),
        (
            Fault::on(Operation::Rename, FaultAction::LoseAnswer(nearfs_backends::ErrorKind::Other)),
            "relocate::rename_moves_the_whole_file",
        ),
    ];
    for (fault, check) in broken {
        let make = || {
            let fs = FaultLayer::new(Arc::new(MemoryFileSystem::new()));
            fs.inject(fault.clone());
            async move { Arc::new(fs) as Fs }
        };
        let report = conformance::run_named(make, Options::default(), |name| name == check).await;
        let failed: Vec<_> = report.failures().map(|(name, _)| name).collect();
        assert_eq!(failed, [check], "{report}");
    }
    let hanging = || {
        let fs = FaultLayer::new(Arc::new(MemoryFileSystem::new()));
        fs.inject(Fault::on(Operation::Stat, FaultAction::Stall(0)));
        async move { Arc::new(fs) as Fs }
    };
    let options = Options { check_limit: std::time::Duration::from_millis(300), ..Options::default() };
    let report =
        conformance::run_named(hanging, options, |name| name == "listing::the_root_exists_and_starts_empty")
            .await;
    assert!(report.failures().any(|(_, what)| what.contains("still running")), "{report}");
    let panicked = std::panic::catch_unwind(|| report.assert_passed()).unwrap_err();
    assert!(panicked.downcast_ref::<String>().unwrap().contains("1 failed"));
}

/// Callers from anywhere: no runtime at all, and a foreign one without timers.
#[test]
fn spawned_works_where_nothing_else_would() {
    let ours = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let fs = {
        let _inside = ours.enter();
        spawned(tracing(metrics(retry(hedge(limit(timeout(Arc::new(MemoryFileSystem::new()))))))))
    };
    let use_it = async {
        let path = FsPath::parse("d/f").unwrap();
        fs.write(&path, vec![1; 3 << 20].into()).await.unwrap();
        assert_eq!(fs.read(&path, 4 << 20).await.unwrap().len(), 3 << 20);
        let entries = fs.list_all(&FsPath::root(), Default::default(), 10).await.unwrap();
        assert_eq!(entries.len(), 1);
        // Dropped half-way, outside of any runtime.
        let mut writer = fs.create(&path, Default::default()).await.unwrap();
        writer.write("half".into()).await.unwrap();
        drop(writer);
        assert_eq!(fs.stat(&path).await.unwrap().size, 3 << 20);
    };
    futures::executor::block_on(use_it);
    let foreign = tokio::runtime::Builder::new_current_thread().build().unwrap();
    foreign.block_on(async { assert!(fs.exists(&FsPath::parse("d").unwrap()).await.unwrap()) });
    // Without our runtime every call ends with an error.
    ours.shutdown_timeout(std::time::Duration::from_secs(5));
    futures::executor::block_on(async {
        assert!(fs.stat(&FsPath::root()).await.is_err());
        assert!(fs.list_all(&FsPath::root(), Default::default(), 10).await.is_err());
    });
}
