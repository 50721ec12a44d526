use std::time::Duration;

use bytes::Bytes;
use futures::TryStreamExt;
use proptest::prelude::*;
use tokio::time::Instant;

use super::*;
use crate::error::Retry;
use crate::ext::FileSystemExt;
use crate::io::Buffer;
use crate::layer::{Fault, FaultAction, FaultLayer, Operation};
use crate::memory::MemoryFileSystem;

fn path(text: &str) -> FsPath {
    FsPath::parse(text).unwrap()
}

fn stack(memory: &MemoryFileSystem) -> (FaultLayer, RetryLayer) {
    let fault = FaultLayer::new(Arc::new(memory.clone()));
    let retry = RetryLayer::new(Arc::new(fault.clone()), RetryConfig::default()).unwrap();
    (fault, retry)
}

fn data(size: usize) -> Bytes {
    (0..size as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

const PASSING: [ErrorKind; 3] = [ErrorKind::Unavailable, ErrorKind::TimedOut, ErrorKind::Throttled];

fn paused() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap()
}

/// Something that ends an answer early.
fn cuts() -> impl Strategy<Value = Vec<FaultAction>> {
    let cut = (0..700_000u64, 0..3usize, any::<bool>()).prop_map(|(at, kind, silent)| {
        if silent { FaultAction::Short(at) } else { FaultAction::Cut(at, PASSING[kind]) }
    });
    prop::collection::vec(cut, 0..7)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn c1_reads_cut_anywhere_any_number_of_times_give_exact_bytes(
        size in 0..1_500_000usize, start in 0..1_600_000u64, length in 0..1_600_000u64, cuts in cuts()
    ) {
        paused().block_on(async {
            let memory = MemoryFileSystem::new();
            let data = data(size);
            memory.write(&path("f"), data.clone()).await.unwrap();
            let (fault, fs) = stack(&memory);
            let file = fs.open(&path("f"), OpenOptions::default()).await.unwrap();
            let range = crate::range::clamp(start..start + length, size as u64);
            let expected = data.slice(range.start as usize..range.end as usize);

            for cut in &cuts {
                fault.inject(Fault::on(Operation::Read, cut.clone()).times(1));
            }
            let streamed: Vec<Bytes> = file.read_stream(start..start + length).try_collect().await.unwrap();
            assert_eq!(streamed.concat(), expected);
            fault.heal();

            for cut in cuts.iter().filter(|c| matches!(c, FaultAction::Cut(..))) {
                fault.inject(Fault::on(Operation::Read, cut.clone()).times(1));
            }
            assert_eq!(file.read_at(start..start + length).await.unwrap(), expected);
            fault.heal();

            for cut in cuts.iter().filter(|c| matches!(c, FaultAction::Cut(..))) {
                fault.inject(Fault::on(Operation::Read, cut.clone()).times(1));
            }
            let mut buf = Buffer::with_capacity(length as usize + 3);
            buf.append(b"abc");
            let (result, buf) = file.read_into(start, buf).await;
            assert_eq!(result.unwrap(), expected.len());
            assert_eq!((&buf[..3], &buf[3..]), (&b"abc"[..], &expected[..]));
        });
    }

    #[test]
    fn listings_cut_anywhere_give_every_entry_once(
        files in 0..60usize, recursive in any::<bool>(), cuts in prop::collection::vec((0..40u64, 0..3usize), 0..7)
    ) {
        paused().block_on(async {
            let memory = MemoryFileSystem::new();
            for i in 0..files {
                memory.write(&path(&format!("d/{}/f{i}", i % 7)), Bytes::new()).await.unwrap();
                memory.write(&path(&format!("d/g{i}")), Bytes::new()).await.unwrap();
            }
            memory.write(&path("d/0-"), Bytes::new()).await.unwrap();
            let options = ListOptions { recursive, start_after: None };
            let expected: Vec<_> = memory.list(&path("d"), options.clone()).try_collect().await.unwrap();
            let (fault, fs) = stack(&memory);
            for (at, kind) in cuts {
                fault.inject(Fault::on(Operation::List, FaultAction::Cut(at, PASSING[kind])).times(1));
            }
            let found: Vec<_> = fs.list(&path("d"), options).try_collect().await.unwrap();
            assert_eq!(found, expected);
        });
    }
}

#[tokio::test(start_paused = true)]
async fn resumed_reads_ask_only_for_what_is_missing_and_progress_restores_patience() {
    let memory = MemoryFileSystem::new();
    memory.write(&path("f"), data(3 << 20)).await.unwrap();
    let (fault, fs) = stack(&memory);
    let file = fs.open(&path("f"), OpenOptions::default()).await.unwrap();
    // Far more failures than attempts allowed, each after some bytes.
    fault.inject(Fault::on(Operation::Read, FaultAction::Cut(100_000, ErrorKind::Unavailable)));
    let found: Vec<Bytes> = file.read_stream(0..u64::MAX).try_collect().await.unwrap();
    assert_eq!(found.concat(), data(3 << 20));
    assert_eq!(fault.calls(Operation::Read), (3u64 << 20).div_ceil(100_000));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_never_recovers_is_given_up_in_bounded_time_and_said_to_be_exhausted() {
    let memory = MemoryFileSystem::new();
    memory.write(&path("f"), data(10)).await.unwrap();
    let (fault, fs) = stack(&memory);
    let file = fs.open(&path("f"), OpenOptions::default()).await.unwrap();
    for operation in Operation::ALL {
        fault.inject(Fault::on(operation, FaultAction::Fail(ErrorKind::Unavailable)));
    }
    fault.reset_calls();
    let started = Instant::now();
    let (f, mut buf) = (path("f"), Buffer::with_capacity(4));
    buf.append(b"x");
    let (into, buf) = file.read_into(0, buf).await;
    assert_eq!(&buf[..], b"x", "the buffer comes back as it was");
    let one = stream::iter([f.clone()]).boxed();
    let deleted = fs.delete(one).next().await.unwrap().1;
    for e in [
        fs.stat(&f).await.unwrap_err(),
        fs.open(&f, OpenOptions::default()).await.unwrap_err(),
        fs.list(&path(""), ListOptions::default()).next().await.unwrap().unwrap_err(),
        file.read_at(0..4).await.unwrap_err(),
        file.read_ranges(&[0..1, 2..4]).await.unwrap_err(),
        file.read_stream(0..4).next().await.unwrap().unwrap_err(),
        into.unwrap_err(),
        deleted.unwrap_err(),
        fs.copy(&f, &path("g"), CopyOptions::default()).await.unwrap_err(),
        fs.create(&f, CreateOptions::default()).await.unwrap_err(),
    ] {
        assert_eq!((e.kind(), e.retry()), (ErrorKind::Unavailable, Retry::Exhausted), "{e}");
        assert_eq!(e.context("attempts"), Some("9"), "{e}");
        assert!(e.operation().is_some() && e.path().is_some(), "{e}");
    }
    assert_eq!(fault.total_calls(), 9 * 10);
    assert!(started.elapsed() < Duration::from_secs(61 * 10));
}

#[tokio::test(start_paused = true)]
async fn what_cannot_pass_is_not_tried_again() {
    let memory = MemoryFileSystem::new();
    let (fault, fs) = stack(&memory);
    for kind in [ErrorKind::NotFound, ErrorKind::PermissionDenied, ErrorKind::Stale, ErrorKind::Corrupt] {
        fault.heal();
        fault.reset_calls();
        fault.inject(Fault::on(Operation::Stat, FaultAction::Fail(kind)));
        let e = fs.stat(&path("f")).await.unwrap_err();
        assert_eq!((e.kind(), e.retry(), fault.calls(Operation::Stat)), (kind, Retry::Never, 1));
    }
}

/// The table in the documentation of the layer.
#[tokio::test(start_paused = true)]
async fn calls_whose_answer_was_lost_are_only_repeated_where_that_is_safe() {
    let memory = MemoryFileSystem::new();
    let lost = |operation| Fault::on(operation, FaultAction::LoseAnswer(ErrorKind::Unavailable)).times(1);
    let (f, g, d) = (path("f"), path("g"), path("d"));
    let no_replace = CopyOptions { no_replace: true };
    memory.write(&f, "x".into()).await.unwrap();
    let (fault, fs) = stack(&memory);

    fault.inject(lost(Operation::Copy));
    fs.copy(&f, &g, CopyOptions::default()).await.unwrap();
    assert_eq!(fault.calls(Operation::Copy), 2);
    fault.inject(lost(Operation::Delete));
    fs.delete(stream::iter([g.clone()]).boxed()).next().await.unwrap().1.unwrap();
    assert_eq!(fault.calls(Operation::Delete), 2);

    fault.reset_calls();
    for operation in [Operation::Copy, Operation::Rename, Operation::CreateDir, Operation::RemoveDir] {
        fault.inject(lost(operation));
    }
    for result in [
        fs.copy(&f, &g, no_replace.clone()).await,
        fs.rename(&f, &g, CopyOptions::default()).await,
        fs.create_dir(&d).await,
        fs.remove_dir(&d).await,
    ] {
        let e = result.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unavailable, "the true failure, not an echo of the lost success");
    }
    assert_eq!(fault.total_calls(), 4);

    // A refusal did nothing for sure.
    fault.reset_calls();
    for operation in [Operation::Copy, Operation::Rename, Operation::CreateDir, Operation::RemoveDir] {
        fault.inject(Fault::on(operation, FaultAction::Throttle(None)).times(2));
    }
    fs.copy(&g, &f, no_replace.clone()).await.unwrap();
    fs.rename(&f, &path("h"), no_replace).await.unwrap();
    fs.create_dir(&d).await.unwrap();
    fs.remove_dir(&d).await.unwrap();
    assert_eq!(fault.total_calls(), 4 * 3);
}

#[tokio::test(start_paused = true)]
async fn a_writer_is_not_repeated_and_a_failed_finish_is_reported() {
    let memory = MemoryFileSystem::new();
    let (fault, fs) = stack(&memory);
    fault.inject(Fault::on(Operation::Finish, FaultAction::Fail(ErrorKind::Unavailable)));
    let e = fs.write(&path("f"), "x".into()).await.unwrap_err();
    assert_eq!((e.kind(), fault.calls(Operation::Finish)), (ErrorKind::Unavailable, 1));
    assert!(!memory.exists(&path("f")).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn bulk_deletion_repeats_only_the_paths_that_failed() {
    let memory = MemoryFileSystem::new();
    let paths: Vec<_> = (0..2_500).map(|i| path(&format!("d/{i}"))).collect();
    for p in &paths {
        memory.write(p, Bytes::new()).await.unwrap();
    }
    let (fault, fs) = stack(&memory);
    fault.inject(
        Fault::on(Operation::Delete, FaultAction::Fail(ErrorKind::Unavailable)).at(&paths[7]).times(3),
    );
    fault.inject(Fault::on(Operation::Delete, FaultAction::Fail(ErrorKind::PermissionDenied)).at(&paths[8]));
    fault.inject(Fault::on(Operation::Delete, FaultAction::Fail(ErrorKind::Unavailable)).at(&paths[2_400]));
    let results: Vec<_> = fs.delete(stream::iter(paths.clone()).boxed()).collect().await;
    assert_eq!(results.len(), paths.len());
    for (p, result) in &results {
        let (expected, calls) = match p {
            p if *p == paths[7] => (None, 4),
            p if *p == paths[8] => (Some((ErrorKind::PermissionDenied, Retry::Never)), 1),
            p if *p == paths[2_400] => (Some((ErrorKind::Unavailable, Retry::Exhausted)), 9),
            _ => (None, 1),
        };
        assert_eq!(result.as_ref().err().map(|e| (e.kind(), e.retry())), expected, "{p}");
        assert_eq!(fault.calls_on(Operation::Delete, p), calls, "{p}");
    }
}

/// A store that allows 100 requests a second (and 50 at once), for eight processes with eight workers each.
mod throttling {
    use std::sync::Mutex;

    use super::*;

    #[derive(Debug)]
    struct Bucket {
        inner: MemoryFileSystem,
        state: Mutex<State>,
        retry_after: Option<Duration>,
    }

    #[derive(Debug)]
    struct State {
        tokens: f64,
        at: Instant,
        rate: f64,
        requests: u64,
    }

    impl Bucket {
        fn admit(&self) -> Result<()> {
            let mut s = self.state.lock().unwrap();
            let now = Instant::now();
            s.tokens = (s.tokens + (now - s.at).as_secs_f64() * s.rate).min(50.0_f64.max(s.rate / 10.0));
            s.at = now;
            s.requests += 1;
            if s.tokens >= 1.0 {
                s.tokens -= 1.0;
                return Ok(());
            }
            Err(Error::new(ErrorKind::Throttled, "slow down").with_retry(Retry::Later(self.retry_after)))
        }
    }

    #[async_trait]
    impl FileSystem for Bucket {
        fn identity(&self) -> Identity {
            self.inner.identity()
        }
        fn capabilities(&self) -> Capabilities {
            self.inner.capabilities()
        }
        async fn stat(&self, path: &FsPath) -> Result<Metadata> {
            tokio::time::sleep(Duration::from_millis(30)).await;
            self.admit()?;
            self.inner.stat(path).await
        }
        fn list(&self, dir: &FsPath, options: ListOptions) -> EntryStream {
            self.inner.list(dir, options)
        }
        async fn open(&self, path: &FsPath, options: OpenOptions) -> Result<Arc<dyn File>> {
            self.inner.open(path, options).await
        }
        async fn create(&self, path: &FsPath, options: CreateOptions) -> Result<Box<dyn FileWriter>> {
            self.inner.create(path, options).await
        }
        fn delete(&self, paths: BoxStream<'static, FsPath>) -> BoxStream<'static, (FsPath, Result<()>)> {
            self.inner.delete(paths)
        }
        async fn rename(&self, from: &FsPath, to: &FsPath, options: CopyOptions) -> Result<()> {
            self.inner.rename(from, to, options).await
        }
        async fn copy(&self, from: &FsPath, to: &FsPath, options: CopyOptions) -> Result<()> {
            self.inner.copy(from, to, options).await
        }
        async fn create_dir(&self, path: &FsPath) -> Result<()> {
            self.inner.create_dir(path).await
        }
        async fn remove_dir(&self, path: &FsPath) -> Result<()> {
            self.inner.remove_dir(path).await
        }
    }

    /// `objects` requests by 64 workers in eight processes (each with a gate of its own).
    async fn run(processes: &[RetryLayer], objects: u64) {
        let next = Arc::new(std::sync::atomic::AtomicU64::new(0));
        let workers: Vec<_> = processes
            .iter()
            .flat_map(|fs| std::iter::repeat_n(fs.clone(), 8))
            .map(|fs| {
                let next = next.clone();
                tokio::spawn(async move {
                    while next.fetch_add(1, std::sync::atomic::Ordering::Relaxed) < objects {
                        fs.stat(&path("f")).await.expect("every object arrives");
                    }
                })
            })
            .collect();
        for worker in workers {
            worker.await.unwrap();
        }
    }

    async fn storm(retry_after: Option<Duration>) {
        let inner = MemoryFileSystem::new();
        inner.write(&path("f"), "x".into()).await.unwrap();
        let state = State { tokens: 50.0, at: Instant::now(), rate: 100.0, requests: 0 };
        let bucket = Arc::new(Bucket { inner, state: Mutex::new(state), retry_after });
        let processes: Vec<_> =
            (0..8).map(|_| RetryLayer::new(bucket.clone(), RetryConfig::default()).unwrap()).collect();
        run(&processes, 5_000).await;
        let requests = {
            let mut s = bucket.state.lock().unwrap();
            // Lifted: as fast as 64 workers at 30 ms each can go.
            s.rate = 1e9;
            s.requests
        };
        assert!(requests <= 7_500, "{requests} requests for 5 000 objects");
        let lifted = Instant::now();
        run(&processes, 2_000).await;
        while lifted.elapsed() < Duration::from_secs(10) {
            run(&processes, 64).await;
        }
        let started = Instant::now();
        run(&processes, 4_000).await;
        let rate = 4_000.0 / started.elapsed().as_secs_f64();
        let free = 64.0 / 0.030;
        assert!(
            rate >= 0.8 * free,
            "{rate:.0} requests a second of {free:.0} ten seconds after the limit went"
        );
        println!("{requests} requests for 5000 objects, then {rate:.0} of {free:.0} a second");
    }

    #[tokio::test(start_paused = true)]
    async fn e3_a_throttled_store_is_not_stormed_and_the_rate_recovers() {
        storm(None).await;
    }

    #[tokio::test(start_paused = true)]
    async fn e3_retry_after_is_honoured() {
        storm(Some(Duration::from_secs(2))).await;
    }
}
