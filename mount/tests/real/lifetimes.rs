//! The kernel is told what remains of a lifetime, never a whole one.

use std::time::{Duration, Instant};

use nearfs_backends::ErrorKind;
use nearfs_backends::layer::{Fault, FaultAction, Operation};

use crate::support::*;

const TTL: f64 = 2.0;

fn sleep_until(start: Instant, seconds: f64) {
    std::thread::sleep((start + Duration::from_secs_f64(seconds)).saturating_duration_since(Instant::now()));
}

/// The old size may be believed until `TTL` after the store was asked, and not until `TTL` after the kernel was told.
fn new_size_is_seen_in_time(rig: &Rig, start: Instant) {
    rig.put("d/f", "a longer text");
    sleep_until(start, TTL + 0.2);
    assert_eq!(std::fs::metadata(rig.at("d/f")).unwrap().len(), 13);
}

#[test]
fn of_a_lookup_only_the_remaining_lifetime_is_told() {
    let rig = Rig::new(Setup::ttl(TTL));
    rig.put("d/f", "x");
    let start = Instant::now();
    let known = rig.runtime.block_on(rig.fs.lookup(&path("d/f"))).unwrap();
    assert!(known.expires <= Instant::now() + Duration::from_secs_f64(TTL));
    sleep_until(start, 1.5);
    assert_eq!(std::fs::metadata(rig.at("d/f")).unwrap().len(), 1);
    new_size_is_seen_in_time(&rig, start);
}

#[test]
fn of_a_listing_only_the_remaining_lifetime_is_told() {
    let rig = Rig::new(Setup::ttl(TTL));
    rig.put("d/f", "x");
    let start = Instant::now();
    rig.runtime.block_on(async {
        let listing = rig.fs.read_dir(&path("d")).await.unwrap();
        assert_eq!(listing.entries(0, 10).await.unwrap().entries.len(), 1);
    });
    sleep_until(start, 1.5);
    assert_eq!(rig.names("d"), ["f"]);
    assert_eq!(std::fs::metadata(rig.at("d/f")).unwrap().len(), 1);
    new_size_is_seen_in_time(&rig, start);
}

#[test]
fn of_attributes_only_the_remaining_lifetime_is_told_and_the_store_is_not_asked() {
    let rig = Rig::new(Setup::ttl(TTL));
    rig.put("d/f", "x");
    let start = Instant::now();
    let file = std::fs::File::open(rig.at("d/f")).unwrap();
    sleep_until(start, 1.5);
    assert_eq!(file.metadata().unwrap().len(), 1);
    rig.delete("d/f");
    sleep_until(start, TTL + 0.2);
    let asked = rig.operations("getattr", "count");
    let stats = rig.faults.calls(Operation::Stat);
    for _ in 0..10 {
        assert_eq!(file.metadata().unwrap().len(), 1, "of an open file nothing changes");
    }
    assert!(rig.operations("getattr", "count") > asked, "the kernel asks again");
    assert_eq!(rig.faults.calls(Operation::Stat), stats);
}

#[test]
fn b3_remembered_absence_ends_with_its_own_short_lifetime() {
    let rig = Rig::new(Setup { ttl: seconds(3600.0), negative: seconds(1.0), ..Default::default() });
    rig.put("ck/step-1.pt", "x");
    assert_eq!(rig.names("ck"), ["step-1.pt"]);
    let new = rig.at("ck/step-4.pt");
    assert_eq!(errno(std::fs::metadata(&new)), libc::ENOENT);
    let asked = rig.operations("lookup", "count");
    for _ in 0..20 {
        assert!(std::fs::metadata(&new).is_err());
    }
    assert!(rig.operations("lookup", "count") - asked <= 2, "the kernel remembers absence");
    rig.put("ck/step-4.pt", "data");
    // Polling does not make it last longer.
    eventually(Duration::from_secs(5), "the new file is seen", || std::fs::metadata(&new).is_ok());
    rig.put("ck/new/x", "y");
    eventually(Duration::from_secs(5), "a new directory is seen", || rig.at("ck/new/x").exists());
}

#[test]
fn d1_a_store_that_fails_is_never_absence() {
    let rig = Rig::new(Setup::default());
    rig.put("d/f", "x");
    for (kind, expected) in [
        (ErrorKind::Unavailable, libc::EIO),
        (ErrorKind::Throttled, libc::EIO),
        (ErrorKind::PermissionDenied, libc::EACCES),
        (ErrorKind::TimedOut, libc::ETIMEDOUT),
    ] {
        for operation in [Operation::Stat, Operation::List] {
            rig.faults.inject(Fault::on(operation, FaultAction::Fail(kind)));
        }
        assert_eq!(errno(std::fs::metadata(rig.at("d/f"))), expected, "{kind:?}");
        rig.faults.heal();
    }
    assert_eq!(std::fs::read(rig.at("d/f")).unwrap(), b"x", "no failure was remembered");
}
