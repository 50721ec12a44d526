//! Writing: whole or not at all, by condition, in parts.

use futures::StreamExt;
use nearfs_backends::{Condition, CopyOptions, CreateOptions, Version};
use nearfs_lab::{Fault, Op, Rule};

use super::*;

const MIB: usize = 1 << 20;

fn when(condition: Condition) -> CreateOptions {
    CreateOptions { condition, ..CreateOptions::default() }
}

async fn write_when(fs: &S3FileSystem, path: &str, data: Vec<u8>, options: CreateOptions) -> Result<Version> {
    let mut writer = fs.create(&p(path), options).await?;
    for piece in data.chunks(3 * MIB + 1) {
        writer.write(Bytes::copy_from_slice(piece)).await?;
    }
    Ok(writer.finish().await?.version)
}

#[tokio::test(flavor = "multi_thread")]
async fn small_files_are_one_request_and_large_ones_many_parts() {
    let lab = lab();
    let fs = fs(&lab).await;
    for size in [0, 1, 8 * MIB, 8 * MIB + 1, 40 * MIB + 3] {
        lab.reset_counters();
        let data: Vec<u8> = (0..size).map(|i| (i / 7) as u8).collect();
        let mut writer = fs
            .create(&p("f"), CreateOptions { content_type: Some("text/x".into()), ..Default::default() })
            .await
            .unwrap();
        for piece in data.chunks(MIB * 3 / 2) {
            writer.write(Bytes::copy_from_slice(piece)).await.unwrap();
        }
        let made = writer.finish().await.unwrap();
        assert_eq!((lab.get("b", "f").unwrap(), made.size as usize), (Bytes::from(data), size));
        let stat = fs.stat(&p("f")).await.unwrap();
        assert_eq!((stat.size, stat.version), (made.size, made.version), "{size}");
        let counters = lab.counters();
        let parts = if size > 8 * MIB { size.div_ceil(8 * MIB) as u64 } else { 0 };
        assert_eq!((counters.of(Op::UploadPart), counters.of(Op::PutObject)), (parts, u64::from(parts == 0)));
        assert!(counters.in_flight_max <= 9);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn conditions_are_enforced_by_the_store() {
    let lab = lab();
    let fs = fs(&lab).await;
    for size in [10, 9 * MIB] {
        lab.delete("b", "f");
        let data = vec![1u8; size];
        let v1 = write_when(&fs, "f", data.clone(), when(Condition::Absent)).await.unwrap();
        assert_eq!(
            kind(write_when(&fs, "f", data.clone(), when(Condition::Absent)).await),
            ErrorKind::AlreadyExists
        );
        let other = vec![2u8; size];
        let v2 = write_when(&fs, "f", other.clone(), when(Condition::Version(v1.clone()))).await.unwrap();
        assert_ne!(v1, v2);
        let stale = write_when(&fs, "f", data.clone(), when(Condition::Version(v1))).await;
        assert_eq!(kind(stale), ErrorKind::Stale);
        assert_eq!(lab.get("b", "f").unwrap(), other);
        lab.delete("b", "f");
        let gone = write_when(&fs, "f", data, when(Condition::Version(v2))).await;
        assert_eq!((kind(gone), lab.get("b", "f")), (ErrorKind::Stale, None));
    }
    let unknown = write_when(&fs, "f", vec![1], when(Condition::Version(Version::Generation(1)))).await;
    assert_eq!(kind(unknown), ErrorKind::InvalidInput);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_given_up_leaves_nothing() {
    let lab = lab();
    lab.put("b", "f", &b"old"[..]);
    let fs = fs(&lab).await;
    for way in ["drop", "abort", "drop small"] {
        let mut writer = fs.create(&p("f"), CreateOptions::default()).await.unwrap();
        let size = if way == "drop small" { 10 } else { 25 * MIB };
        writer.write(vec![1u8; size].into()).await.unwrap();
        if way == "abort" {
            writer.abort().await.unwrap();
        } else {
            drop(writer);
        }
    }
    let deadline = std::time::Instant::now() + SOON;
    while lab.counters().of(Op::AbortMultipartUpload) < 2 {
        assert!(std::time::Instant::now() < deadline, "{:?}", lab.counters());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(lab.counters().of(Op::CreateMultipartUpload), 2);
    assert_eq!((lab.keys("b"), lab.get("b", "f").unwrap()), (vec![b"f".to_vec()], Bytes::from("old")));
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_are_repeated_and_lasting_failures_reported() {
    let lab = lab();
    let fs = fs(&lab).await;
    lab.fault(Rule::on(Op::UploadPart, Fault::status(503)).times(3));
    lab.fault(Rule::on(Op::PutObject, Fault::Hangup).times(1));
    write_when(&fs, "f", vec![1u8; 30 * MIB], CreateOptions::default()).await.unwrap();
    assert_eq!(lab.size("b", "f"), Some(30 * MIB as u64));
    write_when(&fs, "g", vec![1u8; 10], CreateOptions::default()).await.unwrap();

    lab.clear_faults();
    lab.fault(Rule::on(Op::UploadPart, Fault::status(403)));
    let refused = write_when(&fs, "h", vec![1u8; 30 * MIB], CreateOptions::default()).await;
    assert_eq!((kind(refused), lab.size("b", "h")), (ErrorKind::PermissionDenied, None));

    // A conditional write whose fate is unknown is not repeated: it could meet its own first attempt.
    lab.clear_faults();
    lab.fault(Rule::on(Op::PutObject, Fault::Hangup));
    lab.reset_counters();
    retryable(write_when(&fs, "i", vec![1u8; 10], when(Condition::Absent)).await);
    assert_eq!(lab.counters().of(Op::PutObject), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn directories_are_not_overwritten() {
    let lab = lab();
    lab.put("b", "d/x", &b"1"[..]);
    lab.put("b", "f", &b"2"[..]);
    let fs = fs(&lab).await;
    for size in [1, 9 * MIB] {
        let e = write_when(&fs, "d", vec![1u8; size], CreateOptions::default()).await;
        assert_eq!(kind(e), ErrorKind::IsADirectory);
    }
    assert_eq!(kind(fs.create(&FsPath::root(), CreateOptions::default()).await), ErrorKind::IsADirectory);
    for (from, to) in [("d", "e"), ("f", "d")] {
        assert_eq!(kind(fs.copy(&p(from), &p(to), CopyOptions::default()).await), ErrorKind::IsADirectory);
        assert_eq!(kind(fs.rename(&p(from), &p(to), CopyOptions::default()).await), ErrorKind::IsADirectory);
    }
    assert_eq!(lab.keys("b"), [b"d/x".to_vec(), b"f".to_vec()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_and_renames() {
    let lab = lab();
    lab.put("b", "a", &b"A"[..]);
    lab.put("b", "c", &b"C"[..]);
    let fs = fs(&lab).await;
    let keep = CopyOptions { no_replace: true };
    assert_eq!(kind(fs.copy(&p("a"), &p("c"), keep.clone()).await), ErrorKind::AlreadyExists);
    assert_eq!(kind(fs.rename(&p("a"), &p("a"), keep.clone()).await), ErrorKind::AlreadyExists);
    assert_eq!(kind(fs.copy(&p("none"), &p("c"), CopyOptions::default()).await), ErrorKind::NotFound);
    fs.rename(&p("a"), &p("a"), CopyOptions::default()).await.unwrap();
    fs.copy(&p("a"), &p("new"), keep.clone()).await.unwrap();
    fs.rename(&p("a"), &p("c"), CopyOptions::default()).await.unwrap();
    assert_eq!(
        (lab.get("b", "c").unwrap(), lab.get("b", "new").unwrap()),
        (Bytes::from("A"), Bytes::from("A"))
    );
    assert_eq!(lab.keys("b").len(), 2);

    // Whatever fails, one whole copy remains.
    lab.fault(Rule::on(Op::DeleteObject, Fault::status(500)));
    assert_eq!(
        retryable(fs.rename(&p("c"), &p("d"), CopyOptions::default()).await).kind(),
        ErrorKind::Unavailable
    );
    assert_eq!(lab.get("b", "d").unwrap(), "A");
    lab.put_synthetic("b", "huge", 6 << 30, 1);
    assert_eq!(kind(fs.copy(&p("huge"), &p("huge2"), CopyOptions::default()).await), ErrorKind::Unsupported);
}

#[tokio::test(flavor = "multi_thread")]
async fn directories_are_made_and_removed() {
    let lab = lab();
    let fs = fs(&lab).await;
    fs.create_dir(&p("a/b")).await.unwrap();
    assert_eq!(lab.keys("b"), [b"a/".to_vec(), b"a/b/".to_vec()]);
    assert!(fs.stat(&p("a/b")).await.unwrap().is_dir() && fs.stat(&p("a")).await.unwrap().is_dir());
    assert_eq!(kind(fs.create_dir(&p("a/b")).await), ErrorKind::AlreadyExists);
    assert_eq!(kind(fs.create_dir(&p("a")).await), ErrorKind::AlreadyExists);
    assert_eq!(kind(fs.create_dir(&FsPath::root()).await), ErrorKind::AlreadyExists);
    assert_eq!(kind(fs.remove_dir(&p("a")).await), ErrorKind::NotEmpty);
    write(&fs, "a/b/f", "1").await.unwrap();
    assert_eq!(kind(fs.remove_dir(&p("a/b")).await), ErrorKind::NotEmpty);
    assert_eq!(kind(fs.remove_dir(&p("a/b/f")).await), ErrorKind::NotADirectory);
    lab.delete("b", "a/b/f");
    fs.remove_dir(&p("a/b")).await.unwrap();
    assert!(fs.stat(&p("a")).await.unwrap().is_dir());
    fs.remove_dir(&p("a")).await.unwrap();
    assert!(lab.keys("b").is_empty());
    assert_eq!(kind(fs.remove_dir(&p("a/b")).await), ErrorKind::NotFound);
    // Keys that no path can name are entries too: they would be lost from sight, not deleted.
    lab.put("b", "odd/", &b""[..]);
    lab.put("b", "odd//x", &b"1"[..]);
    assert_eq!(kind(fs.remove_dir(&p("odd")).await), ErrorKind::NotEmpty);
}

#[tokio::test(flavor = "multi_thread")]
async fn deletes_are_bulk_and_exact() {
    let lab = lab();
    let keys = lab.tree("b", "t", 3, 700, 1);
    lab.put("b", "other", &b"1"[..]);
    let fs = fs(&lab).await;
    let mut paths: Vec<_> = keys.iter().map(|k| p(k)).collect();
    paths.extend([p("missing"), p("t/d0000/missing"), p("t/d0000/missing")]);
    let results: Vec<_> = fs.delete(futures::stream::iter(paths.clone()).boxed()).collect().await;
    assert_eq!(results.len(), paths.len());
    assert!(results.iter().all(|(_, r)| r.is_ok()), "{:?}", results.iter().find(|(_, r)| r.is_err()));
    assert_eq!(lab.keys("b"), [b"other".to_vec()]);
    assert_eq!(lab.counters().of(Op::DeleteObjects), 3);

    // A store without the bulk call.
    lab.put("b", "x", &b"1"[..]);
    lab.fault(Rule::on(
        Op::DeleteObjects,
        Fault::Status { status: 501, code: "NotImplemented".into(), retry_after: None },
    ));
    let results: Vec<_> = fs.delete(futures::stream::iter([p("x"), p("other")]).boxed()).collect().await;
    assert!(results.iter().all(|(_, r)| r.is_ok()) && lab.keys("b").is_empty());

    lab.fault(Rule::on(Op::DeleteObject, Fault::status(403)));
    lab.put("b", "x", &b"1"[..]);
    let refused: Vec<_> = fs.delete(futures::stream::iter([p("x")]).boxed()).collect().await;
    assert_eq!(refused[0].1.as_ref().unwrap_err().kind(), ErrorKind::PermissionDenied);
}
