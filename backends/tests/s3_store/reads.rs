//! Right bytes of one version at the right place.

use std::ops::Range;

use nearfs_backends::io::Buffer;
use nearfs_backends::{ErrorKind, Version};
use nearfs_lab::{Fault, Op, Replacement, Rule, stamp};

use super::*;

const MIB: u64 = 1 << 20;

#[tokio::test(flavor = "multi_thread")]
async fn every_way_of_reading_gives_the_same_bytes() {
    let lab = lab();
    lab.put_synthetic("b", "s", 3 * MIB + 5, 7);
    let fs = fs(&lab).await;
    let file = open(&fs, "s").await.unwrap();
    let whole = file.read_at(0..u64::MAX).await.unwrap();
    assert_eq!((whole.len() as u64, stamp::verify(&whole, 0, 7)), (3 * MIB + 5, Ok(1)));
    for range in [0..1, 15..17, 1000..1000, MIB - 1..2 * MIB + 1, 3 * MIB..9 * MIB, 9 * MIB..10 * MIB] {
        let Range { start, end } = range.clone();
        let wanted = &whole[start.min(whole.len() as u64) as usize..end.min(whole.len() as u64) as usize];
        assert_eq!(file.read_at(range.clone()).await.unwrap(), wanted, "{range:?}");
        let pieces: Vec<_> = file.read_stream(range.clone()).try_collect().await.unwrap();
        assert_eq!(pieces.concat(), wanted, "{range:?}");
        let mut buf = Buffer::with_capacity(3 + (end - start) as usize);
        buf.append(b"pre");
        let (n, buf) = file.read_into(start, buf).await;
        assert_eq!((n.unwrap(), &buf[..3], &buf[3..]), (wanted.len(), &b"pre"[..], wanted), "{range:?}");
    }
    let ranges = [5..10, 0..20, 2 * MIB..2 * MIB + 100, 9 * MIB..10 * MIB, 7..7, 3 * MIB..4 * MIB];
    lab.reset_counters();
    let read = file.read_ranges(&ranges).await.unwrap();
    for (range, bytes) in ranges.iter().zip(&read) {
        assert_eq!(*bytes, file.read_at(range.clone()).await.unwrap(), "{range:?}");
    }
    assert!(lab.log().iter().filter(|r| r.op == Op::GetObject).take(3).all(|r| r.if_match.is_some()));
}

#[tokio::test(flavor = "multi_thread")]
async fn near_ranges_are_one_request() {
    let lab = lab();
    lab.put_synthetic("b", "s", 64 * MIB, 7);
    let fs = fs(&lab).await;
    let file = open(&fs, "s").await.unwrap();
    lab.reset_counters();
    let near: Vec<_> = (0..100).map(|i| i * 100_000..i * 100_000 + 1000).collect();
    file.read_ranges(&near).await.unwrap();
    assert_eq!(lab.counters().of(Op::GetObject), 1);
    let far: Vec<_> = (0..30).map(|i| i * 2 * MIB..i * 2 * MIB + 10).collect();
    let read = file.read_ranges(&far).await.unwrap();
    assert_eq!(lab.counters().of(Op::GetObject), 31);
    assert!(lab.counters().in_flight_max <= 17);
    for (range, bytes) in far.iter().zip(&read) {
        assert!(stamp::verify(bytes, range.start, 7).is_ok());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c2_empty_objects_need_no_request_for_data() {
    let lab = lab();
    lab.put("b", "d/empty", &b""[..]);
    lab.put("b", "d/one", &b"1"[..]);
    let fs = fs(&lab).await;
    for known in [false, true] {
        let listed = list(&fs, "d", false).await.unwrap();
        lab.reset_counters();
        let metadata = known.then(|| listed[0].metadata.clone());
        let file = fs.open(&p("d/empty"), OpenOptions { metadata }).await.unwrap();
        assert!(file.read_at(0..u64::MAX).await.unwrap().is_empty());
        assert!(file.read_at(0..1).await.unwrap().is_empty());
        assert_eq!(file.read_stream(0..9).try_collect::<Vec<_>>().await.unwrap().len(), 0);
        assert_eq!(file.read_into(0, Buffer::with_capacity(9)).await.0.unwrap(), 0);
        assert_eq!(file.read_ranges(&[0..5, 5..9]).await.unwrap().concat().len(), 0);
        assert_eq!(lab.counters().of(Op::GetObject), 0);
        assert_eq!(lab.counters().total(), if known { 0 } else { 2 });
    }
    assert_eq!(&read(&fs, "d/one").await.unwrap()[..], b"1");
}

#[tokio::test(flavor = "multi_thread")]
async fn c4_arithmetic_at_the_end_of_the_object() {
    const B: u64 = 64 * 1024;
    let lab = lab();
    let fs = fs(&lab).await;
    for size in [1, B - 1, B, B + 1, 3 * B - 1, 3 * B, 3 * B + 1] {
        let key = format!("s{size}");
        lab.put_synthetic("b", &key, size, 3);
        let file = open(&fs, &key).await.unwrap();
        assert_eq!(file.read_at(0..size + 10).await.unwrap().len() as u64, size);
        assert_eq!(file.read_at(0..2 << 30).await.unwrap().len() as u64, size);
        for start in [size - 1, size, size + 1] {
            for len in [1, B, 10 * B] {
                let got = file.read_at(start..start + len).await.unwrap();
                assert_eq!(got.len() as u64, size.saturating_sub(start).min(len), "{size}: {start}+{len}");
                assert!(stamp::verify(&got, start, 3).is_ok());
            }
        }
        lab.reset_counters();
        assert!(file.read_at(size..size + B).await.unwrap().is_empty());
        assert_eq!(lab.counters().total(), 0);
        let mut at = 0;
        while at < size {
            let piece = file.read_at(at..at + 4095).await.unwrap();
            assert!(stamp::verify(&piece, at, 3).is_ok());
            at += piece.len() as u64;
        }
        assert_eq!(at, size);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn b2_object_replaced_during_a_read() {
    let versions = [
        Replacement::Synthetic { size: 8 * MIB, key_id: 1 },
        Replacement::Synthetic { size: 4 * MIB, key_id: 1 },
        Replacement::Synthetic { size: 16 * MIB, key_id: 1 },
        Replacement::Delete,
    ];
    for with in versions {
        let lab = lab();
        lab.put_synthetic("b", "m", 8 * MIB, 1);
        let fs = fs(&lab).await;
        let file = open(&fs, "m").await.unwrap();
        assert_eq!(stamp::verify(&file.read_at(0..MIB).await.unwrap(), 0, 1), Ok(1));
        lab.fault(Rule::on(Op::GetObject, Fault::Swap { with: with.clone() }).once());
        assert_eq!(kind(file.read_at(MIB..2 * MIB).await), ErrorKind::Stale, "{with:?}");
        assert_eq!(kind(file.read_stream(0..MIB).try_collect::<Vec<_>>().await), ErrorKind::Stale);
        lab.reset_counters();
        assert_eq!(kind(file.read_at(7 * MIB..8 * MIB).await), ErrorKind::Stale, "it stays so");
        assert_eq!(kind(file.read_into(0, Buffer::with_capacity(9)).await.0), ErrorKind::Stale);
        assert_eq!(lab.counters().total(), 0, "and costs nothing");
        if with != Replacement::Delete {
            let new = read(&fs, "m").await.unwrap();
            assert_eq!(stamp::verify(&new, 0, 1), Ok(2));
        } else {
            assert_eq!(kind(open(&fs, "m").await), ErrorKind::NotFound);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn b2_parallel_readers_of_one_handle_never_mix_versions() {
    let lab = lab();
    lab.put_synthetic("b", "m", 16 * MIB, 1);
    let fs = fs(&lab).await;
    let file = open(&fs, "m").await.unwrap();
    let readers: Vec<_> = (0..8u64)
        .map(|i| {
            let file = Arc::clone(&file);
            tokio::spawn(async move {
                for step in 0..50u64 {
                    let at = (i * 7919 + step * 104_729) % (15 * MIB);
                    match file.read_at(at..at + 65_536).await {
                        Ok(bytes) => assert_eq!(stamp::verify(&bytes, at, 1), Ok(1)),
                        Err(e) => assert_eq!(e.kind(), ErrorKind::Stale, "{e:#}"),
                    }
                }
            })
        })
        .collect();
    lab.fault(
        Rule::on(Op::GetObject, Fault::Swap { with: Replacement::Synthetic { size: 16 * MIB, key_id: 1 } })
            .skip(100)
            .once(),
    );
    for reader in readers {
        reader.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_ignore_conditions_or_ranges_are_found_out() {
    let lab = lab();
    lab.put_synthetic("b", "m", 2 * MIB, 1);
    let fs = fs(&lab).await;
    let file = open(&fs, "m").await.unwrap();

    lab.fault(Rule::on(Op::GetObject, Fault::WrongRange { shift: 16 }).once());
    assert_eq!(retryable(file.read_at(0..MIB).await).kind(), ErrorKind::Corrupt);
    lab.fault(Rule::on(Op::GetObject, Fault::IgnoreRange).times(2));
    assert_eq!(retryable(file.read_at(MIB..2 * MIB).await).kind(), ErrorKind::Corrupt);
    let head = file.read_at(0..1000).await.unwrap();
    assert_eq!((head.len(), stamp::verify(&head, 0, 1)), (1000, Ok(1)), "from the beginning it is of use");

    lab.fault(Rule::on(Op::GetObject, Fault::WrongEtag).once());
    assert_eq!(kind(file.read_at(0..MIB).await), ErrorKind::Stale);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_that_was_not_known_is_pinned_by_the_first_answer() {
    let lab = lab();
    lab.put_synthetic("b", "m", MIB, 1);
    let fs = fs(&lab).await;
    let metadata = nearfs_backends::Metadata::file(MIB, Version::Unknown);
    let file = fs.open(&p("m"), OpenOptions { metadata: Some(metadata) }).await.unwrap();
    assert_eq!(stamp::verify(&file.read_at(0..1000).await.unwrap(), 0, 1), Ok(1));
    lab.put_synthetic("b", "m", MIB, 1);
    assert_eq!(kind(file.read_at(0..1000).await), ErrorKind::Stale);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_size_that_was_remembered_wrongly_is_never_served() {
    let lab = lab();
    lab.put_synthetic("b", "m", MIB, 1);
    let fs = fs(&lab).await;
    let now = fs.stat(&p("m")).await.unwrap();
    for size in [MIB / 2, 2 * MIB] {
        let metadata = nearfs_backends::Metadata { size, ..now.clone() };
        let file = fs.open(&p("m"), OpenOptions { metadata: Some(metadata) }).await.unwrap();
        assert_eq!(kind(file.read_at(0..u64::MAX).await), ErrorKind::Stale, "{size}");
    }
    let metadata = nearfs_backends::Metadata { size: 4 * MIB, ..now };
    let file = fs.open(&p("m"), OpenOptions { metadata: Some(metadata) }).await.unwrap();
    assert_eq!(kind(file.read_at(3 * MIB..4 * MIB).await), ErrorKind::Stale, "a 416 is looked into");
}

#[test]
fn futures_work_in_any_runtime_and_in_none() {
    let lab = lab();
    lab.put_synthetic("b", "s", 4 * MIB, 7);
    let ours = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let fs = ours.block_on(async { connect(hasty(&lab)).await });
    let work = async {
        let file = open(&fs, "s").await.unwrap();
        assert_eq!(list(&fs, "", false).await.unwrap().len(), 1);
        let pieces: Vec<_> = file.read_stream(0..4 * MIB).try_collect().await.unwrap();
        assert_eq!(stamp::verify(&pieces.concat(), 0, 7), Ok(1));
        write(&fs, "w", vec![1u8; 9 << 20]).await.unwrap();
        lab.fault(Rule::on(Op::GetObject, Fault::Stall { after: 1000 }).once());
        assert_eq!(kind(file.read_at(0..MIB).await), ErrorKind::TimedOut, "timers run too");
    };
    // No runtime at all.
    futures::executor::block_on(work);
    // Another runtime, without timers and network.
    let foreign = tokio::runtime::Builder::new_current_thread().build().unwrap();
    foreign.block_on(async {
        let file = open(&fs, "s").await.unwrap();
        assert_eq!(file.read_at(0..MIB).await.unwrap().len() as u64, MIB);
    });
}
