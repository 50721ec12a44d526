//! Time is the tests' own. Reads of 4 MiB (in pieces of 1 MiB, as the memory store has it) take 30 ms to the first byte and nothing more, so that they are slow after
//! 80 ms (twice the 95th percentile is less than the median and 50 ms), and their bodies after 50 ms.

use std::sync::LazyLock;

use futures::TryStreamExt;
use proptest::prelude::*;
use tokio::time::Instant;

use super::*;
use crate::config::RetryConfig;
use crate::error::ErrorKind;
use crate::ext::FileSystemExt;
use crate::layer::{
    ConcurrencyLimitConfig, ConcurrencyLimitLayer, Fault, FaultAction, FaultLayer, Operation, RetryLayer,
    TimeoutConfig, TimeoutLayer,
};
use crate::memory::MemoryFileSystem;

const MIB: u64 = 1 << 20;
const SIZE: u64 = 16 * MIB;
/// What is read, in the middle of the file.
const PART: Range<u64> = MIB..5 * MIB;
/// As much up to its end.
const LAST: Range<u64> = SIZE - 4 * MIB..SIZE;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn path() -> FsPath {
    FsPath::parse("f").unwrap()
}

/// The file's bytes. Made once: in debug builds that takes longer than any test here.
static DATA: LazyLock<Bytes> =
    LazyLock::new(|| (0..SIZE).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect());

fn data(range: Range<u64>) -> Bytes {
    DATA.slice(range.start as usize..range.end as usize)
}

/// A hedged file. `when` says how long requests take, `what` how they then end.
struct Bench {
    when: FaultLayer,
    what: FaultLayer,
    layer: HedgeLayer,
    file: Arc<dyn File>,
}

impl Bench {
    async fn new(config: HedgeConfig) -> Self {
        let memory = MemoryFileSystem::new();
        memory.write(&path(), DATA.clone()).await.unwrap();
        let what = FaultLayer::new(Arc::new(memory));
        let when = FaultLayer::new(Arc::new(what.clone()));
        let layer = HedgeLayer::new(Arc::new(when.clone()), config);
        let file = layer.open(&path(), OpenOptions::default()).await.unwrap();
        let bench = Bench { when, what, layer, file };
        bench.next_take([]);
        bench
    }

    /// One that knows how long reads of 4 MiB take.
    async fn taught() -> Self {
        let bench = Bench::new(HedgeConfig::default()).await;
        for _ in 0..100 {
            assert_eq!(bench.read().await.0, ms(30));
        }
        assert_eq!(bench.layer.stats(), HedgeStats { requests: 100, ..HedgeStats::default() });
        bench.when.reset_calls();
        bench
    }

    /// What happens to the next requests; those after them take 30 ms.
    fn next_take<const N: usize>(&self, actions: [FaultAction; N]) {
        self.when.heal();
        for action in actions {
            self.when.inject(Fault::on(Operation::Read, action).times(1));
        }
        self.when.inject(Fault::on(Operation::Read, FaultAction::Delay(ms(30))));
    }

    async fn read(&self) -> (Duration, Result<Bytes>) {
        let started = Instant::now();
        let result = self.file.read_at(PART).await;
        if let Ok(found) = &result {
            assert_eq!(*found, data(PART));
        }
        (started.elapsed(), result)
    }

    fn requests(&self) -> u64 {
        self.when.calls(Operation::Read)
    }

    fn counts(&self) -> (u64, u64) {
        (self.layer.stats().started, self.layer.stats().won)
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_first_byte_gets_a_second_request_and_the_faster_one_wins() {
    let bench = Bench::taught().await;
    bench.next_take([FaultAction::Delay(ms(1_000))]);
    assert_eq!(bench.read().await.0, ms(80 + 30));
    assert_eq!((bench.requests(), bench.counts()), (2, (1, 1)));

    bench.next_take([FaultAction::Delay(ms(100))]);
    assert_eq!(bench.read().await.0, ms(100), "the first was faster after all");
    assert_eq!((bench.requests(), bench.counts()), (4, (2, 1)));

    bench.next_take([FaultAction::Delay(ms(79))]);
    assert_eq!(bench.read().await.0, ms(79));
    assert_eq!((bench.requests(), bench.counts()), (5, (2, 1)));
}

#[tokio::test(start_paused = true)]
async fn every_way_of_reading_is_hedged() {
    let bench = Bench::taught().await;
    let (range, expected) = (PART, data(PART));
    let slow = || bench.next_take([FaultAction::Delay(ms(1_000))]);
    let started = Instant::now();
    slow();
    assert_eq!(bench.file.read_at(range.clone()).await.unwrap(), expected);
    slow();
    let ranges = [MIB..MIB + 7, MIB + 7..5 * MIB, 0..0, SIZE..SIZE + 5];
    let found = bench.file.read_ranges(&ranges).await.unwrap();
    assert_eq!(found.concat(), expected);
    slow();
    let streamed: Vec<Bytes> = bench.file.read_stream(range.clone()).try_collect().await.unwrap();
    assert_eq!(streamed.concat(), expected);
    slow();
    let mut buf = Buffer::with_capacity(4 * MIB as usize + 3);
    buf.append(b"abc");
    let (n, buf) = bench.file.read_into(MIB, buf).await;
    assert_eq!((n.unwrap(), &buf[..3], &buf[3..]), (4 * MIB as usize, &b"abc"[..], &expected[..]));
    assert_eq!((started.elapsed(), bench.counts()), (ms(4 * 110), (4, 4)));
}

#[tokio::test(start_paused = true)]
async fn a_silent_middle_is_asked_for_anew_from_the_first_missing_byte() {
    let bench = Bench::taught().await;
    // In the middle of the file, and up to its end.
    for (i, range) in [PART, LAST].into_iter().enumerate() {
        bench.next_take([FaultAction::Stall(300_000)]);
        let started = Instant::now();
        let found = bench.file.read_at(range.clone()).await.unwrap();
        assert_eq!(found, data(range.clone()));
        assert_eq!(started.elapsed(), ms(50 + 30));
        assert_eq!(bench.counts(), (i as u64 + 1, i as u64 + 1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_dripping_body_is_overtaken() {
    let bench = Bench::taught().await;
    for range in [PART, LAST] {
        bench.next_take([FaultAction::Drip(ms(40))]);
        let started = Instant::now();
        let found = bench.file.read_at(range.clone()).await.unwrap();
        assert_eq!(found, data(range.clone()));
        assert_eq!(started.elapsed(), ms(40 + 50 + 30));
    }
    assert_eq!(bench.counts(), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn a_first_request_that_goes_on_delivers_to_the_end() {
    let bench = Bench::taught().await;
    bench.next_take([FaultAction::Drip(ms(20)), FaultAction::Delay(ms(5_000))]);
    let (_, result) = bench.read().await;
    assert_eq!((result.is_ok(), bench.counts()), (true, (1, 0)));
}

#[tokio::test(start_paused = true)]
async fn the_readers_own_pauses_do_not_count() {
    let bench = Bench::taught().await;
    bench.next_take([FaultAction::Drip(ms(10))]);
    let mut stream = bench.file.read_stream(PART);
    let mut got = 0;
    while let Some(chunk) = stream.next().await {
        got += chunk.unwrap().len() as u64;
        tokio::time::sleep(ms(1_000)).await;
        if got >= 3 * MIB {
            break;
        }
    }
    assert_eq!((bench.requests(), bench.counts()), (1, (0, 0)));
}

#[tokio::test(start_paused = true)]
async fn of_two_requests_one_must_succeed_and_the_error_of_both_is_the_firsts() {
    let fail = |kind| Fault::on(Operation::Read, FaultAction::Cut(0, kind)).times(1);
    let kind = |(_, result): (Duration, Result<Bytes>)| result.unwrap_err().kind();
    let bench = Bench::taught().await;
    // The first fails at 100 ms, the second answers at 110.
    bench.next_take([FaultAction::Delay(ms(100))]);
    bench.what.inject(fail(ErrorKind::Unavailable));
    let (took, result) = bench.read().await;
    assert_eq!((took, result.is_ok()), (ms(110), true));
    // The second fails at 110 ms, the first answers at 200.
    bench.next_take([FaultAction::Delay(ms(200))]);
    bench.what.inject(fail(ErrorKind::Unavailable));
    let (took, result) = bench.read().await;
    assert_eq!((took, result.is_ok()), (ms(200), true));
    assert_eq!(bench.counts(), (2, 1));
    // Both fail, in either order.
    for first in [100, 200] {
        bench.next_take([FaultAction::Delay(ms(first))]);
        let kinds = [ErrorKind::Unavailable, ErrorKind::TimedOut];
        kinds.into_iter().for_each(|k| bench.what.inject(fail(k)));
        assert_eq!(kind(bench.read().await), kinds[usize::from(first == 200)]);
    }
    // One request alone.
    bench.what.inject(fail(ErrorKind::Stale));
    assert_eq!(kind(bench.read().await), ErrorKind::Stale);
    assert_eq!(bench.requests(), 4 * 2 + 1);
}

#[tokio::test(start_paused = true)]
async fn there_are_no_second_requests_while_the_store_refuses() {
    let bench = Bench::taught().await;
    let throttle = Fault::on(Operation::Stat, FaultAction::Throttle(None)).times(1);
    bench.what.inject(throttle);
    assert_eq!(bench.layer.stat(&path()).await.unwrap_err().kind(), ErrorKind::Throttled);
    bench.next_take([FaultAction::Delay(ms(1_000))]);
    assert_eq!(bench.read().await.0, ms(1_000));
    assert_eq!((bench.counts(), bench.layer.stats().refused_throttled), ((0, 0), 1));
    tokio::time::sleep(ms(5_000)).await;
    bench.next_take([FaultAction::Delay(ms(1_000))]);
    assert_eq!(bench.read().await.0, ms(110));
}

#[tokio::test(start_paused = true)]
async fn a_read_is_hedged_once_at_most() {
    let bench = Bench::taught().await;
    bench.next_take([FaultAction::Delay(ms(1_000)), FaultAction::Delay(ms(2_000))]);
    assert_eq!(bench.read().await.0, ms(1_000));
    bench.next_take([FaultAction::Delay(ms(1_000)), FaultAction::Stall(1_000)]);
    let silent = tokio::time::timeout(ms(60_000), bench.read()).await;
    assert!(silent.is_err(), "who won and fell silent is left to the time-outs");
    assert_eq!(bench.requests(), 4);
}

#[tokio::test(start_paused = true)]
async fn two_of_a_hundred_slow_requests_leave_no_trace_in_the_tail() {
    let bench = Bench::taught().await;
    let mut slow = 0;
    for i in 0..5_000u64 {
        if i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32 & 0xff < 5 {
            bench.next_take([FaultAction::Delay(ms(1_000))]);
        }
        slow += u64::from(bench.read().await.0 > ms(110));
    }
    let stats = bench.layer.stats();
    println!("{slow} of 5000 reads were slow; {stats:?}");
    assert!(slow <= 10, "{slow} of 5 000");
    assert!(bench.requests() <= 5_000 * 103 / 100 + 4);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_gets_slow_as_a_whole_sees_no_flood_and_is_taken_as_it_is() {
    let bench = Bench::taught().await;
    bench.when.heal();
    bench.when.inject(Fault::on(Operation::Read, FaultAction::Delay(ms(1_000))));
    for _ in 0..1_000 {
        bench.read().await.1.unwrap();
    }
    let stats = bench.layer.stats();
    assert!(bench.requests() <= 1_034, "{} requests for 1 000 reads", bench.requests());
    assert!(stats.started <= 15, "it is not slow for long: {stats:?}");
}

#[tokio::test(start_paused = true)]
async fn dropped_requests_give_their_places_back() {
    let memory = MemoryFileSystem::new();
    memory.write(&path(), DATA.clone()).await.unwrap();
    let fault = FaultLayer::new(Arc::new(memory));
    let config = ConcurrencyLimitConfig { data: 3, max_wait: ms(500), ..Default::default() };
    let limit = Arc::new(ConcurrencyLimitLayer::new(Arc::new(fault.clone()), config));
    let config = HedgeConfig { share: 1.0, least_samples: 1, ..HedgeConfig::default() };
    let layer = HedgeLayer::new(limit, config);
    let file = layer.open(&path(), OpenOptions::default()).await.unwrap();
    file.read_at(0..MIB).await.unwrap();
    for i in 0..200 {
        // Never answered, silent in the middle, and given up by the reader with two requests under way.
        let action = if i % 2 == 0 { FaultAction::Stall(0) } else { FaultAction::Stall(1_000) };
        fault.inject(Fault::on(Operation::Read, action).times(1));
        assert_eq!(file.read_at(0..MIB).await.unwrap().len() as u64, MIB);
        fault.inject(Fault::on(Operation::Read, FaultAction::Stall(0)).times(2));
        assert!(tokio::time::timeout(ms(1_500), file.read_at(0..MIB)).await.is_err());
    }
    assert_eq!((layer.stats().started, layer.stats().won), (400, 200));
    let all = futures::future::join_all((0..3).map(|_| file.read_at(0..MIB))).await;
    assert!(all.iter().all(Result::is_ok));
}

#[tokio::test(start_paused = true)]
async fn without_second_requests_files_are_passed_on_as_they_are() {
    let bench = Bench::new(HedgeConfig { enabled: false, ..HedgeConfig::default() }).await;
    for _ in 0..50 {
        bench.read().await.1.unwrap();
    }
    bench.next_take([FaultAction::Delay(ms(1_000))]);
    assert_eq!(bench.read().await.0, ms(1_000));
    assert_eq!(bench.layer.stats(), HedgeStats::default());
}

fn trouble() -> impl Strategy<Value = FaultAction> {
    prop_oneof![
        (0..300u64).prop_map(|t| FaultAction::Delay(ms(t))),
        (1..60u64).prop_map(|t| FaultAction::Drip(ms(t))),
        (0..4 * MIB).prop_map(FaultAction::Stall),
        (0..4 * MIB).prop_map(|at| FaultAction::Cut(at, ErrorKind::Unavailable)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whatever_happens_to_whichever_request_the_bytes_are_exact(
        start in 0..SIZE, length in 1..5 * MIB, troubles in prop::collection::vec((trouble(), trouble()), 1..8)
    ) {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let bench = Bench::new(HedgeConfig::default()).await;
            let limits = TimeoutConfig { first_item: ms(2_000), gap: ms(2_000), ..Default::default() };
            let config = HedgeConfig { share: 1.0, least_samples: 1, ..HedgeConfig::default() };
            let hedge = HedgeLayer::new(Arc::new(TimeoutLayer::new(Arc::new(bench.when.clone()), limits)), config);
            let retry = RetryLayer::new(Arc::new(hedge), RetryConfig::default()).unwrap();
            let file = retry.open(&path(), OpenOptions::default()).await.unwrap();
            let end = (start + length).min(SIZE);
            let expected = data(start..end);
            for (first, second) in troubles {
                bench.next_take([first, second]);
                let read = file.read_stream(start..end).try_collect::<Vec<Bytes>>();
                let found = tokio::time::timeout(Duration::from_secs(60), read).await.expect("every read ends");
                assert_eq!(found.unwrap().concat(), expected);
            }
        });
    }
}
