//! A store that stops answering: who is not concerned goes on, who is gets an error in time.

use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nearfs_backends::layer::{Fault, FaultAction, Operation};

use crate::child::{self, Child, c};
use crate::support::*;

#[test]
fn a_stalled_object_with_64_readers_does_not_hold_up_another() {
    let rig = Rig::new(Setup::default());
    let stalled = content(1, 70 << 20);
    rig.put("stalled", stalled.clone());
    rig.put("healthy", content(2, 1 << 20));
    rig.stall(Operation::Read, "stalled");
    let file = Arc::new(std::fs::File::open(rig.at("stalled")).unwrap());
    let readers: Vec<_> = (0..64u64)
        .map(|i| {
            let file = Arc::clone(&file);
            std::thread::spawn(move || {
                let mut buf = [0; 100];
                file.read_exact_at(&mut buf, i << 20).map(|()| buf)
            })
        })
        .collect();
    eventually(SOON, "64 readers wait", || rig.number("in_flight") >= 64);
    let (send, receive) = std::sync::mpsc::channel();
    let (healthy, dir) = (rig.at("healthy"), rig.dir().to_owned());
    std::thread::spawn(move || {
        let bytes = std::fs::read(healthy).unwrap();
        let _ = send.send((bytes, names(&dir)));
    });
    let (bytes, listed) = receive.recv_timeout(SOON).expect("a healthy file and a listing go on");
    assert!(bytes == content(2, 1 << 20));
    assert_eq!(listed, ["healthy", "stalled"]);
    assert!(rig.number("oldest_request_ms") > 0);
    rig.faults.heal();
    for (i, reader) in readers.into_iter().enumerate() {
        assert_eq!(reader.join().unwrap().unwrap()[..], stalled[i << 20..(i << 20) + 100]);
    }
}

#[test]
fn lookups_in_one_directory_run_side_by_side() {
    let rig = Rig::new(Setup::default());
    for i in 0..8 {
        rig.put(&format!("d/{i}"), format!("{i}"));
    }
    assert!(std::fs::metadata(rig.at("d")).is_ok());
    rig.stall(Operation::Stat, "d");
    rig.stall(Operation::List, "d");
    let lookups: Vec<_> = (0..8)
        .map(|i| {
            let path = rig.at(&format!("d/{i}"));
            std::thread::spawn(move || std::fs::metadata(path).map(|m| m.len()))
        })
        .collect();
    eventually(SOON, "all eight wait at once", || rig.number("in_flight") == 8);
    rig.faults.heal();
    for lookup in lookups {
        assert_eq!(lookup.join().unwrap().unwrap(), 1);
    }
}

#[test]
fn every_call_ends_by_its_deadline_once() {
    let rig = Rig::new(Setup { ttl: seconds(0.3), ..Setup::deadline(2.0) });
    rig.put("d/f", content(1, 4 << 20));
    rig.put("known", "x");
    let file = std::fs::File::open(rig.at("d/f")).unwrap();
    std::fs::metadata(rig.at("known")).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    for operation in [Operation::Stat, Operation::List, Operation::Read, Operation::Open] {
        rig.stall(operation, "");
    }
    let late = |what: &str, call: &dyn Fn() -> i32| {
        let start = Instant::now();
        assert_eq!(call(), libc::ETIMEDOUT, "{what}");
        let took = start.elapsed();
        // Twice the deadline would be 4 s: a failed readahead or renewal must not make the caller wait again.
        assert!(
            took >= Duration::from_millis(1_900) && took < Duration::from_millis(3_700),
            "{what}: {took:?}"
        );
    };
    late("read", &|| errno(file.read_at(&mut [0; 100], 0)));
    late("renewed lookup", &|| errno(std::fs::metadata(rig.at("known"))));
    late("new lookup", &|| errno(std::fs::metadata(rig.at("new"))));
    let dir = c(rig.dir());
    late("readdir", &|| child::list(&dir));
    eventually(SOON, "each is counted", || rig.number("timed_out") >= 4);
    rig.faults.heal();
    assert_eq!(file.read_at(&mut [0; 100], 0).unwrap(), 100, "the mount goes on when the store does");
    assert_eq!(std::fs::read(rig.at("known")).unwrap(), b"x");
}

#[test]
fn a_harmless_signal_every_10_ms_never_fails_a_read() {
    let rig = Rig::new(Setup::default());
    rig.put("f", content(1, 1 << 20));
    for operation in [Operation::Stat, Operation::List, Operation::Read] {
        rig.faults.inject(Fault::on(operation, FaultAction::Delay(Duration::from_millis(300))));
    }
    let (file, dir) = (c(&rig.at("f")), c(rig.dir()));
    for work in [
        &(|| child::open_and_read(&file, libc::O_RDONLY)) as &dyn Fn() -> i32,
        &|| child::open_and_read(&file, libc::O_RDONLY | libc::O_DIRECT),
        &|| child::list(&dir),
    ] {
        let mut child = Child::run(|| {
            child::alarm_every_10ms();
            work()
        });
        assert_eq!(child.wait(SOON), Some(0));
    }
    assert_eq!(rig.number("interrupted"), 0);
}

#[test]
fn a_store_that_answers_with_too_little_is_an_error_never_the_end_of_the_file() {
    use nearfs_backends::ErrorKind;
    for action in [FaultAction::Short(1000), FaultAction::Cut(1000, ErrorKind::Corrupt)] {
        let rig = Rig::new(Setup::default());
        rig.put("f", content(1, 1 << 20));
        rig.faults.inject(Fault::on(Operation::Read, action.clone()));
        assert_eq!(errno(std::fs::read(rig.at("f"))), libc::EIO, "{action:?}");
        rig.faults.heal();
        assert!(std::fs::read(rig.at("f")).unwrap() == content(1, 1 << 20));
    }
}
