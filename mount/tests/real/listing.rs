//! Listings: never frozen, whole, counted.

use std::collections::HashSet;
use std::time::Duration;

use nearfs_backends::ErrorKind;
use nearfs_backends::layer::{Fault, FaultAction, Operation};

use crate::support::*;
use crate::versions::drop_kernel_names;

fn readdirs(rig: &Rig) -> u64 {
    rig.operations("readdir", "count") + rig.operations("readdirplus", "count")
}

#[test]
fn a_listing_is_kept_by_the_kernel_while_it_lives_and_never_longer() {
    let rig = Rig::new(Setup::ttl(2.0));
    rig.put("d/a", "x");
    assert_eq!(rig.names("d"), ["a"]);
    assert_eq!(rig.names("d"), ["a"]);
    let (asked, lists) = (readdirs(&rig), rig.faults.calls(Operation::List));
    for _ in 0..5 {
        assert_eq!(rig.names("d"), ["a"]);
    }
    assert_eq!(readdirs(&rig), asked, "the kernel uses its copy");
    assert_eq!(rig.faults.calls(Operation::List), lists);
    for round in 0..3 {
        let new = format!("new-{round}");
        rig.put(&format!("d/{new}"), "x");
        eventually(SOON, "a new name appears", || rig.names("d").contains(&new));
        rig.delete(&format!("d/{new}"));
        eventually(SOON, "a removed name goes", || rig.names("d") == ["a"]);
    }
}

#[test]
fn without_a_lifetime_every_open_of_a_directory_shows_it_as_it_is() {
    let rig = Rig::new(Setup::ttl(0.0));
    rig.put("d/a", "x");
    for i in 0..5 {
        let name = format!("d/b{i}");
        rig.put(&name, "x");
        assert_eq!(rig.names("d").len(), i + 2);
    }
}

#[test]
fn l1_a_large_directory_has_every_name_once() {
    let rig = Rig::new(Setup::default());
    for i in 0..3_402 {
        let name = if i % 3 == 0 { format!("d/sub{i:05}/x") } else { format!("d/file{i:05}") };
        rig.put(&name, "");
    }
    let names = rig.names("d");
    assert_eq!(names.len(), 3_402);
    assert_eq!(names.iter().collect::<HashSet<_>>().len(), 3_402);
    let looked_up = rig.operations("lookup", "count");
    for entry in std::fs::read_dir(rig.at("d")).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(entry.metadata().unwrap().is_dir(), entry.file_type().unwrap().is_dir());
    }
    assert!(rig.operations("lookup", "count") - looked_up < 3_402, "attributes come with the listing");
}

#[test]
fn names_arrive_while_the_listing_still_does() {
    let rig = Rig::new(Setup::default());
    for i in 0..3_000 {
        rig.put(&format!("d/{i:05}"), "");
    }
    rig.faults.inject(Fault::on(Operation::List, FaultAction::Stall(2_500)).at(&path("d")));
    let mut entries = std::fs::read_dir(rig.at("d")).unwrap();
    for i in 0..1_000 {
        assert_eq!(entries.next().unwrap().unwrap().file_name().to_str().unwrap(), format!("{i:05}"));
    }
    // Healing frees what is stalled now: the listing may come to that only later.
    for _ in 0..50 {
        rig.faults.heal();
        std::thread::sleep(Duration::from_millis(10));
    }
    let rest: Vec<_> = entries.map(|e| e.unwrap()).collect();
    assert_eq!(rest.len(), 2_000);
}

#[test]
fn a_listing_that_fails_in_the_middle_is_an_error_and_is_not_remembered() {
    let rig = Rig::new(Setup::default());
    for i in 0..3_000 {
        rig.put(&format!("d/{i:05}"), "");
    }
    let cut = FaultAction::Cut(1_500, ErrorKind::Unavailable);
    rig.faults.inject(Fault::on(Operation::List, cut).at(&path("d")));
    let failed = std::fs::read_dir(rig.at("d")).unwrap().find_map(|e| e.err()).expect("not a short listing");
    assert_eq!(failed.raw_os_error(), Some(libc::EIO));
    rig.faults.heal();
    assert_eq!(rig.names("d").len(), 3_000);
}

#[test]
fn an_open_directory_can_be_read_again_from_any_place() {
    let rig = Rig::new(Setup::default());
    for i in 0..300 {
        rig.put(&format!("d/{i:03}"), "");
    }
    let path = crate::child::c(&rig.at("d"));
    // SAFETY: a directory stream of our own, closed at the end; entries are read before the next call.
    unsafe {
        let dir = libc::opendir(path.as_ptr());
        assert!(!dir.is_null());
        let next = || {
            let entry = libc::readdir(dir);
            (!entry.is_null()).then(|| std::ffi::CStr::from_ptr((*entry).d_name.as_ptr()).to_owned())
        };
        let mut all = Vec::new();
        let mut place = 0;
        while let Some(name) = next() {
            all.push(name);
            if all.len() == 100 {
                place = libc::telldir(dir);
            }
        }
        assert_eq!(all.len(), 302);
        libc::seekdir(dir, place);
        assert_eq!(next().as_ref(), all.get(100));
        libc::rewinddir(dir);
        let again: Vec<_> = std::iter::from_fn(next).collect();
        assert_eq!(again, all);
        libc::closedir(dir);
    }
}

#[test]
fn entries_of_a_listing_count_as_lookups_and_are_all_given_back() {
    let rig = Rig::new(Setup::default());
    for i in 0..500 {
        rig.put(&format!("d/{i:03}"), "");
    }
    assert_eq!(rig.names("d").len(), 500);
    assert!(rig.number("inodes") > 20, "the listing came with attributes");
    eventually(SOON, "every inode is given back", || {
        drop_kernel_names();
        rig.number("inodes") <= 3
    });
    assert_eq!(rig.number("open_directories"), 0);
    // Had too few been counted, an inode still known to the kernel would be gone here.
    assert_eq!(std::fs::metadata(rig.at("d/007")).unwrap().len(), 0);
}

#[test]
fn the_walk_of_an_expired_tree_costs_listings_and_no_single_lookups() {
    let rig = Rig::new(Setup::ttl(1.0));
    for i in 0..100 {
        rig.put(&format!("d/{i:03}"), format!("{i}"));
    }
    let walk = || {
        for name in rig.names("d") {
            assert_eq!(
                std::fs::metadata(rig.at("d").join(&name)).unwrap().len(),
                name.trim_start_matches('0').len().max(1) as u64
            );
        }
    };
    walk();
    std::thread::sleep(Duration::from_millis(1_200));
    let (stats, lists) = (rig.faults.calls(Operation::Stat), rig.faults.calls(Operation::List));
    for i in 0..100 {
        std::fs::metadata(rig.at(&format!("d/{i:03}"))).unwrap();
    }
    let stats = rig.faults.calls(Operation::Stat) - stats;
    let lists = rig.faults.calls(Operation::List) - lists;
    assert!(stats <= 1 && lists <= 4, "{stats} single lookups and {lists} listings for 100 expired names");
}
