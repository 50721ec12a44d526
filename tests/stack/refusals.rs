//! Errors of the store keep their meaning: only a 404 is "not there".

use std::fs;
use std::io::{self, Read};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use nearfs_lab::{Fault, Op, Rule, stamp};

use crate::harness::{BUCKET, Mount, lab, nearfs, output, within};

fn read(path: std::path::PathBuf) -> io::Result<Vec<u8>> {
    within(Duration::from_secs(60), move || {
        let mut data = Vec::new();
        fs::File::open(path)?.read_to_end(&mut data)?;
        Ok(data)
    })
}

#[test]
fn d1_busy_is_never_reported_as_not_there() {
    for fault in [
        Fault::status(503),
        Fault::status(500),
        Fault::status(502),
        Fault::Status { status: 429, code: "SlowDown".into(), retry_after: None },
        Fault::Reset { after: 0 },
        Fault::Hangup,
    ] {
        let lab = lab();
        let keys = lab.tree(BUCKET, "shards", 4, 25, 256 << 10);
        let mount = Mount::start(&lab, "s3://data", &["--metadata-ttl", "1s", "--negative-ttl", "1s"]);
        lab.fault(Rule::on(Op::HeadObject, fault.clone()).or(Op::ListObjectsV2).probability(0.3, 11));
        lab.fault(Rule::on(Op::GetObject, fault.clone()).probability(0.3, 12));
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..32 {
                scope.spawn(|| {
                    loop {
                        let i = next.fetch_add(1, Relaxed);
                        let Some(key) = keys.get(i * 37 % keys.len()).filter(|_| i < keys.len()) else {
                            break;
                        };
                        let data =
                            read(mount.join(key)).unwrap_or_else(|e| panic!("{key} under {fault:?}: {e}"));
                        assert_eq!(data.len(), 256 << 10);
                        stamp::verify(&data, 0, stamp::key_id(key)).unwrap();
                    }
                });
            }
        });
        assert!(lab.faults().iter().all(|f| f.fired > 0), "the faults happened: {:?}", lab.faults());
    }
}

#[test]
fn d1_heads_that_fail_for_a_while_are_errors_or_waits_never_absence() {
    let lab = lab();
    let keys = lab.tree(BUCKET, "shards", 2, 10, 4096);
    let mount =
        Mount::start(&lab, "s3://data", &["--metadata-ttl", "0", "--negative-ttl", "1h", "--deadline", "3s"]);
    let id = lab.fault(Rule::on(Op::HeadObject, Fault::status(503)).or(Op::ListObjectsV2));
    let start = Instant::now();
    for key in &keys[..3] {
        let error = fs::metadata(mount.join(key)).expect_err("no answer is no answer");
        assert!(matches!(error.raw_os_error(), Some(libc::EIO | libc::ETIMEDOUT)), "{error}");
    }
    assert!(start.elapsed() < Duration::from_secs(30), "each ends by its deadline");
    assert!(lab.remove_fault(id));
    // A failure is remembered for a second, for those who wait behind it.
    std::thread::sleep(Duration::from_millis(1500));
    for key in &keys {
        assert_eq!(read(mount.join(key)).unwrap().len(), 4096, "nothing was remembered as absent");
    }
}

#[test]
fn d2_without_list_permission_present_keys_are_readable_and_absent_ones_refused() {
    let lab = lab();
    for key in ["open/a.bin", "open/b.bin"] {
        lab.put_synthetic(BUCKET, key, 10_000, stamp::key_id(key));
    }
    let denied = || Fault::Status { status: 403, code: "AccessDenied".into(), retry_after: None };
    lab.fault(Rule::on(Op::ListObjectsV2, denied()).or(Op::ListObjects));
    lab.fault(Rule::on(Op::HeadObject, denied()).or(Op::GetObject).key("open/absent.bin"));
    let mount = Mount::start(&lab, "s3://data/open", &[]);
    for key in ["a.bin", "b.bin"] {
        let data = read(mount.join(key)).unwrap();
        stamp::verify(&data, 0, stamp::key_id(format!("open/{key}"))).unwrap();
    }
    let error = fs::metadata(mount.join("absent.bin")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EACCES));
    let error = fs::read_dir(mount.path()).and_then(|mut d| d.next().transpose()).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EACCES));
    let out = output(nearfs(&lab).args(["stat", "s3://data/open/absent.bin"]));
    let text = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{text}");
    assert!(text.contains("absen"), "says that absence cannot be told from refusal: {text}");
}

#[test]
fn d2_archived_objects_are_refused_at_open_with_the_cause() {
    let lab = lab();
    for key in ["cold.bin", "restored.bin", "warm.bin"] {
        lab.put_synthetic(BUCKET, key, 10_000, stamp::key_id(key));
    }
    assert!(lab.set_storage_class(BUCKET, "cold.bin", "GLACIER", false));
    assert!(lab.set_storage_class(BUCKET, "restored.bin", "GLACIER", true));
    for listed in [false, true] {
        let mount = Mount::bucket(&lab);
        if listed {
            assert_eq!(fs::read_dir(mount.path()).unwrap().count(), 3);
        }
        assert_eq!(fs::metadata(mount.join("cold.bin")).unwrap().len(), 10_000);
        // A stateless open cannot refuse; the first read does.
        let error = read(mount.join("cold.bin")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EACCES), "{error}");
        assert!(mount.log().contains("archived"), "the log names the cause:\n{}", mount.log());
        for key in ["restored.bin", "warm.bin"] {
            stamp::verify(&read(mount.join(key)).unwrap(), 0, stamp::key_id(key)).unwrap();
        }
    }
    let out = output(nearfs(&lab).args(["cat", "s3://data/cold.bin"]));
    assert_eq!(out.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&out.stderr).contains("archived"));
}

#[test]
fn d2_a_wrong_region_is_followed_or_named_within_seconds() {
    for redirect in [true, false] {
        let lab = lab();
        lab.put_synthetic(BUCKET, "a.bin", 10_000, stamp::key_id("a.bin"));
        lab.fault(Rule::any(Fault::Region { region: "eu-west-1".into(), redirect }));
        let start = Instant::now();
        let out = output(nearfs(&lab).args(["cat", "s3://data/a.bin"]));
        assert!(start.elapsed() < Duration::from_secs(10));
        if out.status.success() {
            stamp::verify(&out.stdout, 0, stamp::key_id("a.bin")).unwrap();
        } else {
            let text = String::from_utf8_lossy(&out.stderr);
            assert!(text.contains("eu-west-1"), "names the right region: {text}");
        }
    }
}

#[test]
fn d2_a_refusal_is_not_retried() {
    let lab = lab();
    lab.put_synthetic(BUCKET, "a.bin", 10_000, 1);
    let mount = Mount::bucket(&lab);
    assert_eq!(fs::read_dir(mount.path()).unwrap().count(), 1);
    lab.fault(Rule::on(
        Op::GetObject,
        Fault::Status { status: 403, code: "AccessDenied".into(), retry_after: None },
    ));
    lab.reset_counters();
    assert_eq!(read(mount.join("a.bin")).unwrap_err().raw_os_error(), Some(libc::EACCES));
    // The kernel itself asks once more after a failed readahead.
    assert!(lab.counters().of(Op::GetObject) <= 3, "{:?}", lab.counters());
}
