//! The latency model, counters, the log, starting and stopping.

mod common;

use std::net::TcpStream;
use std::time::{Duration, Instant};

use common::Client;
use nearfs_lab::{Fault, Lab, Model, Op, Rule, stamp};

#[test]
fn answers_wait_as_the_model_says() {
    let lab = Lab::builder().bucket("b").latency(Duration::from_millis(60)).start().unwrap();
    lab.put_synthetic("b", "k", 1000, 1);
    let mut c = Client::new(&lab);
    let mut time = |method: &str, target: &str| {
        let start = Instant::now();
        assert!(c.ask(method, target, &[], b"").unwrap().status < 300);
        start.elapsed()
    };
    for (method, target) in [("GET", "/b/k"), ("HEAD", "/b/k"), ("GET", "/b?list-type=2"), ("PUT", "/b/new")]
    {
        assert!(time(method, target) >= Duration::from_millis(60), "{method} {target}");
    }
    lab.set_model(Model { list_ms: Some(120.0), head_ms: Some(80.0), ..Model::default() });
    assert!(time("GET", "/b?list-type=2") >= Duration::from_millis(120));
    assert!(time("HEAD", "/b/k") >= Duration::from_millis(80));
    lab.set_model(Model { slow_percent: 100.0, slow_ms: 90.0, ..Model::default() });
    assert!(time("GET", "/b/k") >= Duration::from_millis(90));
    lab.set_model(Model { first_byte_ms: 20.0, jitter_ms: 40.0, ..Model::default() });
    assert!(time("GET", "/b/k") >= Duration::from_millis(20));
    assert_eq!(lab.model().jitter_ms, 40.0);
}

#[test]
fn bodies_keep_to_their_rates() {
    let lab = Lab::builder().bucket("b").model(Model::network(0.0, 10.0)).start().unwrap();
    lab.put_synthetic("b", "k", 2_000_000, 1);
    let fetch = |lab: &Lab| {
        let got = Client::new(lab).get("/b/k");
        assert_eq!(stamp::verify(&got.body, 0, 1), Ok(1));
    };
    let start = Instant::now();
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| fetch(&lab));
        }
    });
    // 2 MB at 10 MB/s, less the 20 ms that may be caught up.
    assert!(start.elapsed() >= Duration::from_millis(180));
    lab.set_model(Model { total_mbps: 20.0, ..Model::default() });
    let start = Instant::now();
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| fetch(&lab));
        }
    });
    assert!(start.elapsed() >= Duration::from_millis(380), "8 MB at 20 MB/s in all");
    lab.set_model(Model::network(0.0, 10.0));
    let start = Instant::now();
    let mut c = Client::new(&lab);
    assert_eq!(c.put("/b/up", &[], &vec![0; 2_000_000]).status, 200);
    assert!(start.elapsed() >= Duration::from_millis(150), "uploads too");
}

#[test]
fn a_frozen_network_sends_nothing_and_then_goes_on() {
    let lab = Lab::builder().bucket("b").start().unwrap();
    lab.put_synthetic("b", "k", 100_000_000, 1);
    let mut early = Client::new(&lab);
    early.send("GET", "/b/k", &[], b"");
    let mut answer = early.head().unwrap();
    lab.set_model(Model { frozen: true, ..Model::default() });
    let mut late = Client::new(&lab).patience(Duration::from_millis(200));
    late.send("HEAD", "/b/k", &[], b"");
    assert_eq!(late.head().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    lab.set_model(Model::default());
    early.body(&mut answer);
    assert_eq!((answer.body.len(), answer.broken), (100_000_000, None));
    assert_eq!(stamp::verify(&answer.body, 0, 1), Ok(1));
    assert_eq!(late.patience(Duration::from_secs(20)).head().unwrap().status, 200);
}

#[test]
fn counters_tell_what_was_asked() {
    let lab = Lab::builder().bucket("b").start().unwrap();
    lab.put_synthetic("b", "k", 1000, 1);
    let mut clients: Vec<Client> = (0..3).map(|_| Client::new(&lab)).collect();
    for c in &mut clients {
        c.get_with("/b/k", &[("range", "bytes=0-99")]);
    }
    clients[0].head_of("/b/k");
    clients[0].get("/b/none");
    clients[0].put("/b/up", &[], b"12345");
    let counters = lab.counters();
    assert_eq!((counters.of(Op::GetObject), counters.of(Op::HeadObject), counters.total()), (4, 1, 6));
    assert_eq!((counters.body_bytes, counters.received_bytes), (300, 5));
    assert_eq!((counters.connections_open, counters.connections_total, counters.connections_max), (3, 3, 3));
    assert_eq!((counters.statuses[&206], counters.statuses[&404]), (3, 1));
    assert!(counters.in_flight_max >= 1);
    let key = lab.key_counters("b", "k");
    assert_eq!((key.of(Op::GetObject), key.of(Op::HeadObject), key.body_bytes), (3, 1, 300));
    assert_eq!(lab.all_key_counters().len(), 3);
    lab.reset_counters();
    let counters = lab.counters();
    assert_eq!((counters.total(), counters.body_bytes, counters.connections_total), (0, 0, 0));
    assert_eq!((counters.connections_open, counters.connections_max), (3, 3), "what is open stays counted");
    assert_eq!(lab.key_counters("b", "k").body_bytes, 0);
}

#[test]
fn the_log_keeps_the_latest_requests() {
    let lab = Lab::builder().bucket("b").log_size(3).start().unwrap();
    lab.put("b", "a//b c", &b"x"[..]);
    let mut c = Client::new(&lab);
    c.get("/b/older");
    let headers = [("range", "bytes=0-0"), ("if-match", "*"), ("user-agent", "test/1")];
    c.get_with("/b/a//b%20c", &headers);
    c.get_with("/b?list-type=2&prefix=a%2F", &[("authorization", "AWS4-HMAC-SHA256 x")]);
    Client::new(&lab).get("/b/../b/z?X-Amz-Signature=1");
    let log = lab.log();
    assert_eq!(log.iter().map(|e| e.seq).collect::<Vec<_>>(), [2, 3, 4]);
    assert_eq!((log[0].path.as_str(), log[0].key.as_str(), log[0].status), ("/b/a//b%20c", "a//b c", 206));
    assert_eq!(log[0].range.as_deref(), Some("bytes=0-0"));
    assert_eq!((log[0].if_match.as_deref(), log[0].user_agent.as_deref()), (Some("*"), Some("test/1")));
    assert_eq!(
        (log[1].op, log[1].query.as_str(), log[1].signed),
        (Op::ListObjectsV2, "list-type=2&prefix=a%2F", true)
    );
    assert_eq!((log[2].path.as_str(), log[2].key.as_str(), log[2].signed), ("/b/../b/z", "../b/z", true));
    assert_eq!((log[0].connection, log[1].connection, log[2].connection), (1, 1, 2));
    assert!(log[0].at <= log[2].at);
    let quiet = Lab::builder().bucket("b").log_size(0).start().unwrap();
    Client::new(&quiet).get("/b/k");
    assert!(quiet.log().is_empty());
    assert_eq!(quiet.counters().total(), 1);
}

#[test]
fn dropping_it_stops_it_whatever_goes_on() {
    let lab = Lab::builder().bucket("b").start().unwrap();
    lab.put_synthetic("b", "k", 1 << 40, 1);
    lab.fault(Rule::on(Op::GetObject, Fault::Stall { after: 0 }));
    lab.fault(Rule::on(Op::HeadObject, Fault::Drop));
    let (mut stalled, mut dropped) = (Client::new(&lab), Client::new(&lab));
    stalled.send("GET", "/b/k", &[], b"");
    assert_eq!(stalled.head().unwrap().status, 200);
    dropped.send("HEAD", "/b/k", &[], b"");
    let address = lab.address();
    let start = Instant::now();
    drop(lab);
    assert!(start.elapsed() < Duration::from_secs(5));
    assert!(TcpStream::connect(address).is_err(), "nobody listens");
    assert!(dropped.head().is_err(), "connections are closed");
}

#[test]
fn it_starts_and_stops_inside_any_runtime() {
    let current = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let multi = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    for runtime in [current, multi] {
        runtime.block_on(async {
            let lab = Lab::builder().bucket("b").start().unwrap();
            let other = Lab::builder().bucket("b").start().unwrap();
            assert_ne!(lab.endpoint(), other.endpoint());
            let stream = tokio::net::TcpStream::connect(lab.address()).await.unwrap();
            drop((stream, lab, other));
        });
    }
}

#[test]
fn a_synthetic_object_may_be_larger_than_memory() {
    let lab = Lab::builder().bucket("b").start().unwrap();
    lab.put_synthetic("b", "huge", 1 << 50, 3);
    let mut c = Client::new(&lab);
    assert_eq!(c.head_of("/b/huge").header("content-length"), Some("1125899906842624"));
    let end = c.get_with("/b/huge", &[("range", "bytes=-100000")]);
    assert_eq!(stamp::verify(&end.body, (1 << 50) - 100_000, 3), Ok(1));
}
