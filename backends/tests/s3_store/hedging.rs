//! Second requests, to a server of which a share of the answers is late or falls silent.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use nearfs_backends::config::RetryConfig;
use nearfs_backends::layer::{
    ConcurrencyLimitConfig, ConcurrencyLimitLayer, HedgeConfig, HedgeLayer, RetryLayer,
};
use nearfs_lab::{Fault, Model, Op, Rule, stamp};

use super::*;

const MIB: u64 = 1 << 20;

async fn hedged(lab: &Lab) -> (HedgeLayer, RetryLayer) {
    let limit = ConcurrencyLimitLayer::new(fs(lab).await, ConcurrencyLimitConfig::default());
    let hedge = HedgeLayer::new(Arc::new(limit), HedgeConfig::default());
    let retry = RetryLayer::new(Arc::new(hedge.clone()), RetryConfig::default()).unwrap();
    (hedge, retry)
}

/// `reads` of 1 MiB at scattered places by 8 tasks; how long each took, sorted.
async fn read(file: &Arc<dyn File>, id: u32, reads: u64) -> Vec<Duration> {
    let next = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let (file, next) = (file.clone(), next.clone());
            tokio::spawn(async move {
                let mut took = Vec::new();
                loop {
                    let i = next.fetch_add(1, Relaxed);
                    if i >= reads {
                        return took;
                    }
                    let at = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (file.metadata().size / MIB) * MIB;
                    let started = Instant::now();
                    let data = file.read_at(at..at + MIB).await.unwrap();
                    took.push(started.elapsed());
                    stamp::verify(&data, at, id).unwrap();
                }
            })
        })
        .collect();
    let mut all = Vec::new();
    for task in tasks {
        all.extend(task.await.unwrap());
    }
    all.sort();
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn two_percent_of_late_answers_are_asked_for_again_and_cost_few_requests() {
    let lab = lab();
    lab.put_synthetic("b", "big", 1 << 30, stamp::key_id("big"));
    let (hedge, fs) = hedged(&lab).await;
    let file = fs.open(&p("big"), OpenOptions::default()).await.unwrap();
    lab.set_model(Model::network(30.0, 90.0));
    lab.fault(Rule::on(Op::GetObject, Fault::Delay { ms: 970 }).probability(0.02, 7));
    lab.reset_counters();
    let reads = 2_000;
    let took = read(&file, stamp::key_id("big"), reads).await;
    let (counters, stats) = (lab.counters(), hedge.stats());
    let requests = counters.of(Op::GetObject);
    let late = lab.faults()[0].fired;
    println!(
        "p50 {:?}, p99 {:?}, longest {:?}; {requests} requests for {reads} reads, {late} late; {} connections; {stats:?}",
        took[took.len() / 2],
        took[took.len() * 99 / 100],
        took[took.len() - 1],
        counters.connections_total,
    );
    assert!(requests <= reads * 104 / 100, "{requests} requests for {reads} reads");
    assert!(late >= 10 && stats.won >= late / 3, "{late} answers were late: {stats:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_fall_silent_are_gone_on_with_and_a_dropped_request_costs_one_connection() {
    let lab = lab();
    lab.put_synthetic("b", "big", 64 * MIB, stamp::key_id("big"));
    let (hedge, fs) = hedged(&lab).await;
    let file = fs.open(&p("big"), OpenOptions::default()).await.unwrap();
    read(&file, stamp::key_id("big"), 200).await;
    let before = (lab.counters(), hedge.stats());
    for i in 0..4 {
        lab.fault(Rule::on(Op::GetObject, Fault::Stall { after: 300_000 }).once());
        // In the middle, and up to the end.
        let at = if i % 2 == 0 { MIB } else { 63 * MIB };
        let data = tokio::time::timeout(SOON / 2, file.read_at(at..at + MIB)).await.unwrap().unwrap();
        stamp::verify(&data, at, stamp::key_id("big")).unwrap();
    }
    let (counters, stats) = (lab.counters(), hedge.stats());
    assert!(stats.won >= before.1.won + 4, "{stats:?}");
    let hedges = stats.started - before.1.started;
    assert!(counters.connections_total - before.0.connections_total <= hedges + 1);
    let deadline = Instant::now() + SOON;
    while lab.counters().connections_open > 8 + 1 {
        assert!(Instant::now() < deadline, "dropped requests keep their connections");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_goes_on_with_a_whole_object_still_proves_it() {
    let lab = lab();
    let (hedge, fs) = hedged(&lab).await;
    let data: Vec<u8> = (0..4 * MIB).map(|i| (i % 251) as u8).collect();
    let sum = BASE64.encode(crc32c::crc32c(&data).to_be_bytes());
    let headers = [("x-amz-checksum-crc32c", &*sum), ("x-amz-checksum-type", "FULL_OBJECT")];
    for i in 0..41 {
        lab.put_with("b", format!("o{i}"), data.clone(), &headers);
    }
    for i in 0..40 {
        let file = fs.open(&p(&format!("o{i}")), OpenOptions::default()).await.unwrap();
        assert_eq!(file.read_at(0..4 * MIB).await.unwrap(), data);
    }
    // The first request brings a wrong byte and falls silent; the second brings the rest.
    let file = fs.open(&p("o40"), OpenOptions::default()).await.unwrap();
    lab.fault(Rule::on(Op::GetObject, Fault::FlipByte { offset: 1_000 }).key("o40").once());
    lab.fault(Rule::on(Op::GetObject, Fault::Stall { after: MIB }).key("o40").once());
    let streamed: Result<Vec<Bytes>> = file.read_stream(0..4 * MIB).try_collect().await;
    assert_eq!((kind(streamed), hedge.stats().won), (ErrorKind::Corrupt, 1));
}
