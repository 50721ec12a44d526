//! Every fault does what it says, when its rule says so, and to no other request.

mod common;

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use common::Client;
use nearfs_lab::{Fault, Lab, Op, Replacement, Rule, stamp};

const KEY_ID: u32 = 7;
const SIZE: u64 = 3 << 20;

fn lab() -> Lab {
    let lab = Lab::builder().bucket("b").start().unwrap();
    lab.put_synthetic("b", "k", SIZE, KEY_ID);
    lab.put_synthetic("b", "other", 1000, 8);
    lab
}

#[test]
fn status_with_code_and_retry_after() {
    let lab = lab();
    let mut c = Client::new(&lab);
    lab.fault(Rule::on(Op::GetObject, Fault::status(503)).or(Op::HeadObject).key("k").times(2));
    let slow = c.get("/b/k");
    assert_eq!((slow.status, slow.code().as_str(), slow.header("retry-after")), (503, "SlowDown", None));
    assert_eq!(c.get("/b/other").status, 200, "another key");
    assert_eq!(c.get("/b?list-type=2").status, 200, "another operation");
    let head = c.head_of("/b/k");
    assert_eq!((head.status, head.body.len()), (503, 0));
    assert_eq!(c.get("/b/k").status, 200, "twice and no more");
    let fault = Fault::Status { status: 429, code: "SlowUp".into(), retry_after: Some(2) };
    lab.fault(Rule::any(fault).prefix("ot"));
    let wait = c.get("/b/other");
    assert_eq!((wait.status, wait.code().as_str(), wait.header("retry-after")), (429, "SlowUp", Some("2")));
    assert_eq!(lab.counters().statuses[&503], 2);
    assert_eq!(lab.faults().iter().map(|r| r.fired).collect::<Vec<_>>(), [2, 1]);
}

#[test]
fn rules_skip_count_and_draw() {
    let lab = lab();
    let mut c = Client::new(&lab);
    let id = lab.fault(Rule::on(Op::GetObject, Fault::status(500)).skip(1).times(2));
    let seen: Vec<u16> = (0..5).map(|_| c.get("/b/other").status).collect();
    assert_eq!(seen, [200, 500, 500, 200, 200]);
    assert!(lab.remove_fault(id) && !lab.remove_fault(id));
    let draw = |c: &mut Client, seed| {
        lab.clear_faults();
        lab.fault(Rule::on(Op::HeadObject, Fault::status(503)).probability(0.3, seed));
        (0..200).map(|_| c.head_of("/b/k").status).collect::<Vec<_>>()
    };
    let first = draw(&mut c, 42);
    let refused = first.iter().filter(|s| **s == 503).count();
    assert!((30..90).contains(&refused), "{refused} of 200");
    assert_eq!(draw(&mut c, 42), first, "the same seed draws the same");
    assert_ne!(draw(&mut c, 43), first);
    lab.clear_faults();
    lab.fault(Rule::any(Fault::status(503)).bucket("elsewhere"));
    assert_eq!(c.get("/b/k").status, 200);
}

#[test]
fn cut_sends_exactly_so_many_bytes() {
    let lab = lab();
    for after in [0, 1, 100_000, 1 << 20, SIZE - 1] {
        lab.clear_faults();
        lab.fault(Rule::on(Op::GetObject, Fault::Cut { after }).key("k"));
        let cut = Client::new(&lab).get("/b/k");
        assert_eq!((cut.status, cut.header("content-length")), (200, Some("3145728")), "after {after}");
        assert_eq!(
            (cut.body.len() as u64, cut.broken),
            (after, Some(ErrorKind::UnexpectedEof)),
            "after {after}"
        );
        assert!(stamp::verify(&cut.body, 0, KEY_ID).is_ok());
    }
    lab.clear_faults();
    lab.fault(Rule::on(Op::GetObject, Fault::Cut { after: SIZE }));
    let whole = Client::new(&lab).get("/b/k");
    assert_eq!((whole.body.len() as u64, whole.broken), (SIZE, None), "beyond the body it does nothing");
}

#[test]
fn reset_sends_so_many_bytes_and_resets() {
    let lab = lab();
    for after in [0, 1000, 1 << 20] {
        lab.clear_faults();
        lab.fault(Rule::on(Op::GetObject, Fault::Reset { after }));
        let reset = Client::new(&lab).get("/b/k");
        assert_eq!(reset.broken, Some(ErrorKind::ConnectionReset), "after {after}");
        assert_eq!(reset.body.len() as u64, after, "after {after}");
    }
    lab.clear_faults();
    lab.fault(Rule::on(Op::HeadObject, Fault::Reset { after: 0 }));
    let error = Client::new(&lab).ask("HEAD", "/b/k", &[], b"").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "an answer without a body");
    lab.clear_faults();
    lab.fault(Rule::on(Op::HeadObject, Fault::Hangup));
    let error = Client::new(&lab).ask("HEAD", "/b/k", &[], b"").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
}

#[test]
fn stall_and_drop_keep_the_connection_open() {
    let lab = lab();
    lab.fault(Rule::on(Op::GetObject, Fault::Stall { after: 100_000 }));
    lab.fault(Rule::on(Op::HeadObject, Fault::Drop));
    let mut c = Client::new(&lab).patience(Duration::from_millis(300));
    let stalled = c.get_with("/b/k", &[("range", "bytes=16-")]);
    assert_eq!((stalled.status, stalled.body.len()), (206, 100_000));
    assert_eq!(stalled.broken, Some(ErrorKind::WouldBlock), "silence, not an end");
    let silent = Client::new(&lab).patience(Duration::from_millis(300)).ask("HEAD", "/b/k", &[], b"");
    assert_eq!(silent.unwrap_err().kind(), ErrorKind::WouldBlock);
    assert!(lab.counters().in_flight >= 1, "the stalled answer is still being given");
    assert_eq!(Client::new(&lab).get("/b?list-type=2").status, 200, "others are served meanwhile");
    drop(c);
    let deadline = Instant::now() + Duration::from_secs(10);
    while lab.counters().in_flight > 0 {
        assert!(Instant::now() < deadline, "answers nobody waits for are given up");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn delay_and_drip_take_their_time() {
    let lab = lab();
    let mut c = Client::new(&lab);
    lab.fault(Rule::on(Op::HeadObject, Fault::Delay { ms: 200 }));
    lab.fault(Rule::on(Op::GetObject, Fault::Drip { bytes_per_second: 5000 }));
    let start = Instant::now();
    assert_eq!(c.head_of("/b/k").status, 200);
    assert!(start.elapsed() >= Duration::from_millis(200));
    let start = Instant::now();
    let dripped = c.get("/b/other");
    assert!(stamp::verify(&dripped.body, 0, 8).is_ok());
    assert!(start.elapsed() >= Duration::from_millis(150), "1000 bytes at 5000 a second");
}

#[test]
fn swap_replaces_before_serving() {
    let lab = lab();
    let mut c = Client::new(&lab);
    let old = lab.etag("b", "k").unwrap();
    let with = Replacement::Synthetic { size: SIZE, key_id: KEY_ID };
    lab.fault(Rule::on(Op::GetObject, Fault::Swap { with }).key("k").skip(1).once());
    let part = [("range", "bytes=1048576-1052671")];
    assert_eq!(stamp::verify(&c.get_with("/b/k", &part).body, 1 << 20, KEY_ID), Ok(1));
    let pinned = c.get_with("/b/k", &[part[0], ("if-match", &old)]);
    assert_eq!(pinned.status, 412, "the pinned version is gone");
    assert_eq!(stamp::verify(&c.get_with("/b/k", &part).body, 1 << 20, KEY_ID), Ok(2));
    lab.fault(Rule::on(Op::GetObject, Fault::Swap { with: Replacement::Data(b"new".to_vec()) }).once());
    assert_eq!(c.get("/b/k").text(), "new");
    lab.fault(Rule::on(Op::GetObject, Fault::Swap { with: Replacement::Delete }).once());
    assert_eq!(c.get("/b/k").status, 404);
}

#[test]
fn wrong_ranges_wrong_etags_and_wrong_bytes() {
    let lab = lab();
    let mut c = Client::new(&lab);
    let part = [("range", "bytes=4096-8191")];
    lab.fault(Rule::on(Op::GetObject, Fault::WrongRange { shift: 4096 }).once());
    let shifted = c.get_with("/b/k", &part);
    assert_eq!((shifted.status, shifted.header("content-range")), (206, Some("bytes 8192-12287/3145728")));
    assert!(stamp::verify(&shifted.body, 8192, KEY_ID).is_ok(), "honest about what it is");
    lab.fault(Rule::on(Op::GetObject, Fault::WrongRange { shift: -1_000_000 }).once());
    assert_eq!(c.get_with("/b/k", &part).header("content-range"), Some("bytes 0-4095/3145728"));
    lab.fault(Rule::on(Op::GetObject, Fault::IgnoreRange).once());
    let whole = c.get_with("/b/k", &part);
    assert_eq!((whole.status, whole.body.len() as u64, whole.header("content-range")), (200, SIZE, None));
    lab.fault(Rule::on(Op::GetObject, Fault::WrongEtag).or(Op::HeadObject).times(2));
    assert_ne!(c.get("/b/other").header("etag").unwrap(), lab.etag("b", "other").unwrap());
    assert_ne!(c.head_of("/b/other").header("etag").unwrap(), lab.etag("b", "other").unwrap());
    lab.fault(Rule::on(Op::GetObject, Fault::FlipByte { offset: 5000 }).key("k").times(2));
    let flipped = c.get_with("/b/k", &part);
    assert_eq!(stamp::verify(&flipped.body, 4096, KEY_ID).unwrap_err().offset, 4992);
    assert!(
        stamp::verify(&c.get_with("/b/k", &[("range", "bytes=0-4095")]).body, 0, KEY_ID).is_ok(),
        "not in range"
    );
    lab.fault(Rule::on(Op::GetObject, Fault::EmptyBody).once());
    let empty = c.get_with("/b/k", &part);
    assert_eq!((empty.status, empty.header("content-length"), empty.body.len()), (200, Some("0"), 0));
    assert_eq!(c.get("/b/other").status, 200, "the connection goes on");
}

#[test]
fn chunked_encoding_cut_before_its_last_chunk() {
    let lab = lab();
    for after in [0, 100_000, u64::MAX] {
        lab.clear_faults();
        lab.fault(Rule::on(Op::GetObject, Fault::TruncatedChunked { after }));
        let cut = Client::new(&lab).get("/b/k");
        assert_eq!((cut.header("transfer-encoding"), cut.header("content-length")), (Some("chunked"), None));
        assert_eq!(cut.broken, Some(ErrorKind::UnexpectedEof), "after {after}");
        assert_eq!(cut.body.len() as u64, after.min(SIZE));
    }
}

#[test]
fn regions_are_insisted_on() {
    let lab = lab();
    let mut c = Client::new(&lab);
    let signed = |region: &str| {
        format!(
            "AWS4-HMAC-SHA256 Credential=id/20250101/{region}/s3/aws4_request, SignedHeaders=host, Signature=00"
        )
    };
    let redirect = lab.fault(Rule::any(Fault::Region { region: "eu-west-1".into(), redirect: true }));
    let away = c.get_with("/b/k", &[("authorization", &signed("us-east-1"))]);
    assert_eq!((away.status, away.code().as_str()), (301, "PermanentRedirect"));
    assert_eq!(away.header("x-amz-bucket-region"), Some("eu-west-1"));
    assert_eq!(c.get_with("/b/other", &[("authorization", &signed("eu-west-1"))]).status, 200);
    lab.remove_fault(redirect);
    lab.fault(Rule::any(Fault::Region { region: "eu-west-1".into(), redirect: false }));
    let wrong = c.get_with("/b/k", &[("authorization", &signed("us-east-1"))]);
    assert_eq!((wrong.status, wrong.code().as_str()), (400, "AuthorizationHeaderMalformed"));
    assert_eq!(
        (wrong.one("Region").as_str(), wrong.header("x-amz-bucket-region")),
        ("eu-west-1", Some("eu-west-1"))
    );
    assert_eq!(c.head_of("/b/k").header("x-amz-bucket-region"), Some("eu-west-1"));
}

#[test]
fn a_token_bucket_throttles() {
    let lab = lab();
    let mut c = Client::new(&lab);
    let fault = Fault::Throttle { per_second: 0.001, burst: 3.0, status: 429, retry_after: Some(2) };
    lab.fault(Rule::on(Op::GetObject, fault));
    let seen: Vec<u16> = (0..5).map(|_| c.get("/b/other").status).collect();
    assert_eq!(seen, [200, 200, 200, 429, 429]);
    assert_eq!(c.get("/b/other").header("retry-after"), Some("2"));
    lab.clear_faults();
    lab.fault(Rule::any(Fault::Throttle { per_second: 50.0, burst: 1.0, status: 503, retry_after: None }));
    assert_eq!(c.get("/b/other").status, 200);
    let deadline = Instant::now() + Duration::from_secs(10);
    while c.get("/b/other").status != 200 {
        assert!(Instant::now() < deadline, "the bucket fills again");
    }
}
