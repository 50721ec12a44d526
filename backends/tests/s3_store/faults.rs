//! Failures on the way: an error within its time limit, never a short success.

use std::time::Instant;

use nearfs_backends::io::Buffer;
use nearfs_lab::{Fault, Op, Rule, stamp};

use super::*;

const MIB: u64 = 1 << 20;
const SIZE: u64 = 4 * MIB;

/// The three ways of reading, all of `range`; the number of bytes each gave.
async fn each_way(file: &Arc<dyn File>) -> Vec<Result<usize>> {
    let mut streamed = file.read_stream(0..SIZE);
    let mut seen = 0;
    let stream = loop {
        match streamed.try_next().await {
            Ok(Some(piece)) => {
                assert!(stamp::verify(&piece, seen as u64, 1).is_ok());
                seen += piece.len();
            }
            Ok(None) => break Ok(seen),
            Err(e) => break Err(e),
        }
    };
    let (into, buf) = file.read_into(0, Buffer::with_capacity(SIZE as usize)).await;
    assert_eq!(buf.len(), *into.as_ref().unwrap_or(&0), "an error gives the buffer back as it was");
    vec![stream, into, file.read_at(0..SIZE).await.map(|b| b.len())]
}

#[tokio::test(flavor = "multi_thread")]
async fn c1_a_failure_never_looks_like_the_end_of_the_file() {
    let lab = lab();
    lab.put_synthetic("b", "r", SIZE, 1);
    let fs = fs(&lab).await;
    let file = open(&fs, "r").await.unwrap();
    let faults = [
        Fault::Cut { after: 0 },
        Fault::Cut { after: 1 },
        Fault::Cut { after: MIB },
        Fault::Cut { after: SIZE - 1 },
        Fault::Reset { after: MIB },
        Fault::Hangup,
        Fault::status(500),
        Fault::TruncatedChunked { after: MIB },
        Fault::EmptyBody,
    ];
    for fault in faults {
        let id = lab.fault(Rule::on(Op::GetObject, fault.clone()));
        for result in each_way(&file).await {
            retryable(result.inspect(|n| panic!("{n} bytes as a success under {fault:?}")));
        }
        lab.remove_fault(id);
        for result in each_way(&file).await {
            assert_eq!(result.unwrap() as u64, SIZE, "after {fault:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_status_has_its_kind_and_its_wait() {
    use ErrorKind::*;
    let lab = lab();
    lab.put_synthetic("b", "r", SIZE, 1);
    let fs = fs(&lab).await;
    let file = open(&fs, "r").await.unwrap();
    for (status, wanted) in
        [(500, Unavailable), (502, Unavailable), (503, Throttled), (504, Unavailable), (429, Throttled)]
    {
        lab.clear_faults();
        lab.fault(Rule::any(Fault::Status { status, code: String::new(), retry_after: Some(7) }));
        let e = retryable(file.read_at(0..10).await);
        assert_eq!(e.retry(), nearfs_backends::Retry::Later(Some(Duration::from_secs(7))), "{status}");
        assert_eq!((e.kind(), e.context("status")), (wanted, Some(&*status.to_string())));
        assert_eq!(retryable(fs.stat(&p("r")).await).kind(), wanted, "d1: never absent");
        assert_eq!(retryable(open(&fs, "nothing").await).kind(), wanted);
        assert_eq!(retryable(list(&fs, "", false).await).kind(), wanted);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn e1_silence_is_a_timeout_and_slowness_is_not() {
    let lab = lab();
    lab.put_synthetic("b", "r", SIZE, 1);
    let fs = connect(hasty(&lab)).await;
    let file = open(&fs, "r").await.unwrap();
    let start = Instant::now();
    for fault in
        [Fault::Drop, Fault::Stall { after: 0 }, Fault::Stall { after: MIB }, Fault::Delay { ms: 60_000 }]
    {
        let id = lab.fault(Rule::any(fault.clone()));
        let read = tokio::time::timeout(SOON, file.read_at(0..SIZE)).await.expect("a limit of 1 s");
        assert_eq!(retryable(read).kind(), ErrorKind::TimedOut, "{fault:?}");
        let stat = tokio::time::timeout(SOON, fs.stat(&p("r"))).await.expect("a limit of 1 s");
        if matches!(fault, Fault::Drop | Fault::Delay { .. }) {
            assert_eq!(retryable(stat).kind(), ErrorKind::TimedOut, "{fault:?}");
        }
        lab.remove_fault(id);
    }
    assert!(start.elapsed() > Duration::from_secs(4));

    // Slower in all than every limit, but never still for long.
    lab.put_synthetic("b", "slow", 3 * MIB, 1);
    lab.fault(Rule::on(Op::GetObject, Fault::Drip { bytes_per_second: MIB }));
    assert_eq!(read(&fs, "slow").await.unwrap().len() as u64, 3 * MIB);
}

#[tokio::test(flavor = "multi_thread")]
async fn e2_a_slow_reader_is_not_a_stall() {
    let lab = lab();
    lab.put_synthetic("b", "r", 16 * MIB, 1);
    let fs = connect(hasty(&lab)).await;
    let mut pieces = open(&fs, "r").await.unwrap().read_stream(0..16 * MIB);
    let mut total = pieces.try_next().await.unwrap().unwrap().len();
    tokio::time::sleep(Duration::from_millis(2500)).await;
    while let Some(piece) = pieces.try_next().await.unwrap() {
        total += piece.len();
    }
    assert_eq!(total as u64, 16 * MIB);
    assert_eq!(lab.counters().of(Op::GetObject), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_read_frees_its_connection() {
    let lab = lab();
    lab.put_synthetic("b", "r", 64 * MIB, 1);
    let fs = fs(&lab).await;
    let file = open(&fs, "r").await.unwrap();
    for _ in 0..20 {
        let mut pieces = file.read_stream(0..64 * MIB);
        pieces.try_next().await.unwrap().unwrap();
    }
    let deadline = Instant::now() + SOON;
    while lab.counters().in_flight > 0 {
        assert!(Instant::now() < deadline, "requests go on after nobody reads: {:?}", lab.counters());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(lab.counters().body_bytes < 20 * 64 * MIB / 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_store_is_named_as_such() {
    let lab = lab();
    let config = config(&lab);
    drop(lab);
    let fs = connect(config).await;
    assert_eq!(retryable(fs.stat(&p("x")).await).kind(), ErrorKind::Unavailable);
    let nowhere =
        S3Config { endpoint: Some("http://no-such-host.invalid:1".into()), ..super::config(&super::lab()) };
    let e = retryable(connect(nowhere).await.stat(&p("x")).await);
    assert_eq!(e.kind(), ErrorKind::Unavailable, "{e:#}");
}
