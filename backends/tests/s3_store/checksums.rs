//! A byte that changes on the way is found where the store knows the checksum of the whole object.

use nearfs_backends::config::RetryConfig;
use nearfs_backends::io::Buffer;
use nearfs_backends::layer::RetryLayer;
use nearfs_backends::{Error, ErrorKind, Retry};
use nearfs_lab::{AccessKey, Auth, Fault, Op, Rule};

use super::*;
use crate::moto::Moto;

const MIB: usize = 1 << 20;

/// The checksums of [`data`], as S3 writes them.
const SUMS: [(&str, &str); 5] = [
    ("x-amz-checksum-crc64nvme", "RLnT6NxmVtc="),
    ("x-amz-checksum-crc32c", "Nr9EjA=="),
    ("x-amz-checksum-crc32", "L0kPfg=="),
    ("x-amz-checksum-sha1", "75E4B34m7INv2/bq4eRO90gdZ8E="),
    ("x-amz-checksum-sha256", "l7IjuN/9MZeslPUDQSlwstdxELPHjWC0ZHyPos6+iXs="),
];

fn data() -> Vec<u8> {
    (0..3 * MIB + 5).map(|i| (i * 7 + i / 251) as u8).collect()
}

async fn opened(lab: &Lab) -> Arc<dyn File> {
    open(&*fs(lab).await, "k").await.unwrap()
}

fn flip(offset: u64) -> Rule {
    Rule::on(Op::GetObject, Fault::FlipByte { offset })
}

/// The ways of reading a whole file; what each gave.
async fn each_way(file: &Arc<dyn File>) -> Vec<Result<Vec<u8>>> {
    let stream = file.read_stream(0..u64::MAX).try_collect::<Vec<_>>().await.map(|pieces| pieces.concat());
    let (into, buf) = file.read_into(0, Buffer::with_capacity(4 * MIB)).await;
    let at = file.read_at(0..u64::MAX).await.map(|b| b.to_vec());
    let ranges = file.read_ranges(&[0..10, 10..file.metadata().size]).await.map(|r| r.concat());
    vec![stream, into.map(|_| buf.to_vec()), at, ranges]
}

#[track_caller]
fn is_mismatch(e: &Error) {
    assert_eq!(e.kind(), ErrorKind::Corrupt, "{e:#}");
    assert!(e.to_string().contains("does not match what the store says"), "{e:#}");
    assert!(e.context("expected").is_some() && e.context("expected") != e.context("found"), "{e:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn c5_a_flipped_byte_is_found_by_each_checksum_and_each_way_of_reading() {
    let lab = lab();
    let data = data();
    for sum in SUMS {
        lab.put_with("b", "k", data.clone(), &[sum, ("x-amz-checksum-type", "FULL_OBJECT")]);
        let file = opened(&lab).await;
        for result in each_way(&file).await {
            assert!(result.unwrap() == data, "{sum:?}");
        }
        for offset in [0, MIB as u64 + 1, data.len() as u64 - 1] {
            for way in 0..4 {
                let id = lab.fault(flip(offset));
                let file = opened(&lab).await;
                let e = each_way(&file).await.swap_remove(way).unwrap_err();
                is_mismatch(&e);
                lab.remove_fault(id);
                assert!(each_way(&file).await.swap_remove(way).unwrap() == data, "it is well again");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c5_one_mismatch_is_worth_another_request_and_two_are_final() {
    let lab = lab();
    lab.put_with("b", "k", data(), &[SUMS[1]]);
    let file = opened(&lab).await;
    lab.fault(flip(5));
    assert_eq!(file.read_at(0..u64::MAX).await.unwrap_err().retry(), Retry::Later(None));
    assert_eq!(file.read_at(0..u64::MAX).await.unwrap_err().retry(), Retry::Exhausted);
    lab.clear_faults();
    assert!(file.read_at(0..u64::MAX).await.is_ok());
    lab.fault(flip(5));
    assert_eq!(file.read_at(0..u64::MAX).await.unwrap_err().retry(), Retry::Later(None));
}

#[tokio::test(flavor = "multi_thread")]
async fn c5_what_cannot_be_verified_is_read_as_it_comes() {
    let lab = lab();
    let data = data();
    let composite = [("x-amz-checksum-crc32c", "AAAAAA=="), ("x-amz-checksum-type", "COMPOSITE")];
    for headers in
        [&[][..], &composite, &[("x-amz-checksum-sha256", "AAAA-3")], &[("x-amz-checksum-crc32", "?")]]
    {
        lab.put_with("b", "k", data.clone(), headers);
        lab.set_etag("b", "k", "\"0123456789abcdef0123456789abcdef-5\"");
        let file = opened(&lab).await;
        for result in each_way(&file).await {
            assert!(result.unwrap() == data, "{headers:?}");
        }
    }
    // A part of an object has no checksum: the byte that changed is found only with the whole.
    lab.put_with("b", "k", data.clone(), &[SUMS[0]]);
    let file = opened(&lab).await;
    lab.fault(flip(5));
    assert_eq!(file.read_at(1..10).await.unwrap()[4], data[5] ^ 0xff);
    is_mismatch(&file.read_at(0..u64::MAX).await.unwrap_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn whole_objects_are_asked_for_without_a_range() {
    let lab = lab();
    lab.set_auth(Auth::Required);
    lab.set_access_key(AccessKey::new("id", "secret"));
    lab.put_with("b", "k", data(), &[SUMS[1]]);
    lab.put("b", "empty", &b""[..]);
    let fs = fs(&lab).await;
    let file = open(&fs, "k").await.unwrap();
    lab.reset_counters();
    assert!(file.read_at(0..u64::MAX).await.unwrap() == data());
    assert_eq!(file.read_at(0..100).await.unwrap(), data()[..100]);
    let asked: Vec<_> = lab.log().into_iter().map(|r| (r.range, r.if_match.is_some(), r.signed)).collect();
    assert_eq!(asked, [(None, true, true), (Some("bytes=0-99".to_owned()), true, true)]);
    assert!(read(&fs, "empty").await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn c5_retries_fetch_anew_and_a_broken_stream_is_still_proven() {
    let lab = lab();
    let data = data();
    lab.put_with("b", "k", data.clone(), &[SUMS[1]]);
    let fs = RetryLayer::new(fs(&lab).await, RetryConfig::default()).unwrap();
    let file = fs.open(&p("k"), OpenOptions::default()).await.unwrap();

    // In one call nothing was given out before the end, so the call is made again; twice wrong is wrong.
    lab.fault(flip(5).once());
    lab.reset_counters();
    assert!(file.read_at(0..u64::MAX).await.unwrap() == data);
    assert_eq!(lab.counters().of(Op::GetObject), 2);
    lab.fault(flip(5));
    lab.reset_counters();
    let e = file.read_at(0..u64::MAX).await.unwrap_err();
    is_mismatch(&e);
    assert_eq!((lab.counters().of(Op::GetObject), e.retry()), (2, Retry::Exhausted));
    lab.clear_faults();
    assert!(file.read_at(0..u64::MAX).await.unwrap() == data);

    // A stream that broke off goes on, and all of it is proven at its end.
    for (flipped, breaks) in [(true, 0), (false, 1), (true, 1), (false, 3), (true, 3)] {
        lab.clear_faults();
        if flipped {
            lab.fault(flip(5).once());
        }
        lab.fault(Rule::on(Op::GetObject, Fault::Cut { after: MIB as u64 / 2 }).times(breaks));
        lab.reset_counters();
        let read = file.read_stream(0..u64::MAX).try_collect::<Vec<_>>().await;
        assert_eq!(lab.counters().of(Op::GetObject), breaks + 1, "only what is missing is asked for");
        match read {
            Ok(pieces) => assert!(!flipped && pieces.concat() == data),
            Err(e) => {
                assert!(flipped, "{e:#}");
                is_mismatch(&e);
            }
        }
    }

    // Small files come in one piece: their streams start anew.
    let small = data[..1000].to_vec();
    let sum = base64(&crc32c::crc32c(&small).to_be_bytes());
    lab.clear_faults();
    lab.put_with("b", "small", small.clone(), &[("x-amz-checksum-crc32c", &sum)]);
    lab.fault(flip(5).once());
    lab.reset_counters();
    let file = fs.open(&p("small"), OpenOptions::default()).await.unwrap();
    assert_eq!(file.read_stream(0..1000).try_collect::<Vec<_>>().await.unwrap().concat(), small);
    assert_eq!(lab.counters().of(Op::GetObject), 2);
}

fn base64(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

#[tokio::test(flavor = "multi_thread")]
async fn c5_moto_tells_its_checksums() {
    let moto = Moto::start("bucket");
    let data = &b"123456789"[..];
    // It keeps what it is told, right or wrong.
    moto.put(
        "bucket/right",
        &[("x-amz-sdk-checksum-algorithm", "CRC32C"), ("x-amz-checksum-crc32c", "4waSgw==")],
        data,
    );
    moto.put(
        "bucket/wrong",
        &[("x-amz-sdk-checksum-algorithm", "CRC32C"), ("x-amz-checksum-crc32c", "AAAAAA==")],
        data,
    );
    moto.put("bucket/none", &[], data);
    let fs = connect(S3Config {
        endpoint: Some(moto.endpoint.clone()),
        region: Some("us-east-1".to_owned()),
        credentials: Some(S3Keys::new("id", "secret", None)),
        ..S3Config::new("bucket")
    })
    .await;
    assert_eq!(&read(&fs, "right").await.unwrap()[..], data);
    assert_eq!(&read(&fs, "none").await.unwrap()[..], data);
    let wrong = open(&fs, "wrong").await.unwrap();
    is_mismatch(&wrong.read_at(0..9).await.unwrap_err());
    assert_eq!(&wrong.read_at(0..8).await.unwrap()[..], &data[..8]);
}
