use std::cell::Cell;
use std::os::fd::AsFd;
use std::path::Path;

use super::*;
use crate::disk::MIN_LIMIT;
use crate::disk::control::Found;
use crate::disk::place::prepare;
use crate::disk::rights::Rights;

const MIB: u64 = 1 << 20;

/// The space of a new directory with a limit of 64 MiB, of which `base` is taken.
fn space(path: &Path, base: u64, free: f64) -> (Space, Clock) {
    let place = prepare(path, Rights::private()).unwrap();
    let made = Control::create(place.dir.as_fd(), place.rights, 1 << 16, 64 * MIB).unwrap();
    let Found::Control(control) = made else { panic!("a new directory has no control file") };
    let clock = Clock::manual();
    let health = Arc::new(Health::new(path, clock.clone()));
    let space = Space::new(control, Arc::new(place.dir), health, clock.clone(), base, free);
    space.recount(0);
    (space, clock)
}

fn none(_: u64) -> u64 {
    0
}

#[test]
fn what_is_reserved_is_committed_or_given_back() {
    let dir = tempfile::tempdir().unwrap();
    let (space, _) = space(dir.path(), 0, 0.0);
    let reserved = space.reserve(10 * MIB, &none).unwrap();
    assert_eq!((space.used(), space.control.reserved()), (10 * MIB, 10 * MIB));
    reserved.commit(4 * MIB);
    assert_eq!((space.used(), space.control.reserved()), (4 * MIB, 0));
    drop(space.reserve(60 * MIB, &none).unwrap());
    assert_eq!((space.used(), space.control.reserved()), (4 * MIB, 0));
    // More than was reserved is counted all the same.
    space.reserve(MIB, &none).unwrap().commit(2 * MIB);
    assert_eq!(space.used(), 6 * MIB);
    space.release(6 * MIB);
    assert_eq!(space.used(), 0);
}

#[test]
fn room_is_made_for_exactly_what_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let (space, _) = space(dir.path(), 8 * MIB, 0.0);
    assert_eq!(space.used(), 8 * MIB, "a large index counts");
    space.reserve(50 * MIB, &none).unwrap().commit(50 * MIB);
    assert!(space.reserve(7 * MIB, &none).is_none(), "nothing can go");
    assert_eq!(space.wanted(7 * MIB), MIB);
    let asked = Cell::new(0);
    let evict = |bytes| {
        asked.set(asked.get() + bytes);
        space.release(bytes);
        bytes
    };
    let reserved = space.reserve(7 * MIB, &evict).unwrap();
    assert_eq!((asked.get(), space.used()), (MIB, 64 * MIB));
    drop(reserved);
    // More than there ever can be is refused without pushing anything out.
    assert!(space.reserve(57 * MIB, &|_| panic!("nothing must go")).is_none());
    assert_eq!(space.used(), 57 * MIB);
    space.set_limit(MIN_LIMIT.max(20 * MIB));
    assert_eq!(space.wanted(0), 37 * MIB);
    assert!(space.reserve(MIB, &evict).is_some());
    assert_eq!(space.used(), 19 * MIB, "the reservation is dropped again");
}

#[test]
fn the_limit_holds_over_many_threads() {
    let dir = tempfile::tempdir().unwrap();
    let (space, _) = space(dir.path(), 0, 0.0);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let space = &space;
            scope.spawn(move || {
                for i in 0..500 {
                    let bytes = (thread * 7 + i * 13) % 20 * MIB + 4096;
                    let Some(reserved) = space.reserve(bytes, &none) else { continue };
                    assert!(space.used() <= 64 * MIB);
                    if i % 3 == 0 {
                        reserved.commit(bytes / 2);
                        space.release(bytes / 2);
                    }
                }
            });
        }
    });
    assert_eq!((space.used(), space.control.reserved()), (0, 0));
}

#[test]
fn the_filesystem_keeps_its_free_share() {
    let dir = tempfile::tempdir().unwrap();
    let (space, clock) = space(dir.path(), 0, 0.0);
    drop(space.reserve(MIB, &none).unwrap());
    // No filesystem that tests run on has 99.9 % free.
    space.set_free(0.999);
    assert!(space.wanted(0) > 0);
    assert!(space.reserve(MIB, &none).is_none());
    assert_eq!(space.used(), 0);
    // What goes makes room, as far as known, until the filesystem is asked again.
    let missing = space.wanted(MIB);
    space.control.used().store(missing, Ordering::SeqCst);
    let evict = |bytes| {
        space.release(bytes);
        bytes
    };
    assert!(space.reserve(MIB, &evict).is_some());
    clock.skip(LOOK);
    assert!(space.reserve(MIB, &none).is_none());
}

#[test]
fn at_most_half_of_the_limit_is_lent() {
    let dir = tempfile::tempdir().unwrap();
    let (space, _) = space(dir.path(), 0, 0.0);
    let first = space.lend(20 * MIB).unwrap();
    assert!(space.lend(13 * MIB).is_none());
    let second = space.lend(12 * MIB).unwrap();
    assert_eq!(space.lent(), 32 * MIB);
    drop(first);
    assert_eq!(space.lent(), 12 * MIB);
    drop(second);
    assert_eq!(space.lent(), 0);
}

#[test]
fn bytes_that_nobody_has_are_found_in_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let (space, clock) = space(dir.path(), MIB, 0.0);
    space.reserve(10 * MIB, &none).unwrap().commit(10 * MIB);
    // 4 MiB of them were lost by somebody who died.
    assert_eq!(space.reconcile(6 * MIB), 0, "seen for the first time");
    clock.skip(Duration::from_secs(9));
    assert_eq!(space.reconcile(6 * MIB), 0, "not for long enough");
    clock.skip(Duration::from_secs(1));
    assert_eq!(space.reconcile(6 * MIB), 4 * MIB);
    assert_eq!(space.used(), 7 * MIB);
    // Neither while somebody has a reservation, nor if anything changed meanwhile.
    let reserved = space.reserve(MIB, &none).unwrap();
    for _ in 0..3 {
        clock.skip(PROOF);
        assert_eq!(space.reconcile(5 * MIB), 0);
    }
    reserved.commit(MIB);
    assert_eq!(space.reconcile(6 * MIB), 0);
    clock.skip(PROOF);
    space.reserve(MIB, &none).unwrap().commit(MIB);
    assert_eq!(space.reconcile(6 * MIB), 0);
    clock.skip(PROOF);
    assert_eq!(space.reconcile(8 * MIB), 0, "nothing is missing");
    assert_eq!(space.used(), 9 * MIB);
}

#[test]
fn a_directory_that_fails_or_is_gone_takes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (space, clock) = space(dir.path(), 0, 0.0);
    space.health.failed(&std::io::Error::from_raw_os_error(libc::EIO));
    assert!(space.reserve(MIB, &none).is_none());
    clock.skip(Duration::from_secs(30));
    assert!(space.reserve(MIB, &none).is_some());
    std::fs::remove_file(dir.path().join("nearfs-v1/control")).unwrap();
    clock.skip(LOOK);
    space.wanted(0);
    assert!(space.health.is_gone());
    assert!(space.reserve(MIB, &none).is_none());
}
