//! Readers, writers and evictors of one object at the same time, in one process.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use super::*;

#[test]
fn readers_get_right_bytes_or_none_while_units_come_and_go() {
    let world = World::new(64 * MIB);
    let size = 4 * MIB + 321;
    drop(world.whole("a", size));
    // Two processes that both live.
    let mine = world.open_with(&world.other(|other| other.me = world.cat.me()), "a", size).unwrap();
    let theirs = world.open_with(&world.other(|_| ()), "a", size).unwrap();
    let over = AtomicBool::new(false);
    let (hits, evicted) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for (i, large) in [&mine, &theirs, &mine].into_iter().enumerate() {
            let (over, hits) = (&over, &hits);
            scope.spawn(move || {
                let mut at = i as u64 * 777_777;
                while !over.load(Ordering::Relaxed) {
                    at = (at * 31 + 12_345) % size;
                    let range = at..(at + 100_000).min(size);
                    hits.fetch_add(u64::from(check(large, range)), Ordering::Relaxed);
                }
            });
        }
        let evictors = [&mine, &theirs].map(|large| {
            let evicted = &evicted;
            scope.spawn(move || {
                for round in 0..150 {
                    evicted.fetch_add(large.evict_units((round % 20 + 1) * UNIT), Ordering::Relaxed);
                    fill(large, 0..size);
                }
            })
        });
        let ended = evictors.map(|e| e.join());
        over.store(true, Ordering::Relaxed);
        ended.into_iter().for_each(|e| e.unwrap());
    });
    assert!(hits.load(Ordering::Relaxed) > 100 && evicted.load(Ordering::Relaxed) > 100 * UNIT);
    fill(&mine, 0..size);
    assert!(check(&theirs, 0..size) && mine.is_whole());
    assert_eq!(world.charged("a", size), Large::overhead(size) + blocks(&(0..size)));
}

#[test]
fn what_was_read_around_an_eviction_is_not_believed() {
    let world = World::new(64 * MIB);
    let size = 2 * MIB;
    let large = world.whole("a", size);
    let other = world.open_with(&world.other(|_| ()), "a", size).unwrap();
    let token = large.begin(&(0..size)).unwrap();
    assert!(large.finish(token));
    let token = large.begin(&(0..size)).unwrap();
    assert_eq!(other.evict_units(UNIT), UNIT);
    assert!(!large.finish(token));
    assert!(large.begin(&(0..size)).is_none());
    assert_eq!(fill(&large, 0..size), UNIT);
    let token = large.begin(&(0..size)).unwrap();
    large.kill();
    assert!(large.finish(token), "death takes no bytes away");
}

#[test]
fn evicted_bytes_are_back_on_the_disk_and_off_the_charge() {
    let world = World::new(64 * MIB);
    let size = 8 * MIB;
    let large = world.whole("a", size);
    let used = world.cat.dir().used();
    let on_disk = || std::fs::metadata(world.files("a", size).0).unwrap().blocks() * 512;
    let before = on_disk();
    // Of what was read just now, nothing goes.
    assert_eq!(large.evict_units(UNIT), UNIT);
    assert!(check(&large, 2 * MIB..4 * MIB));
    assert_eq!(large.evict_units(5 * MIB), 5 * MIB);
    assert!(check(&large, 2 * MIB..4 * MIB));
    assert_eq!(world.cat.dir().used(), used - 5 * MIB - UNIT);
    assert_eq!(on_disk(), before - 5 * MIB - UNIT);
    assert!(large.evict_units(u64::MAX) > 0);
    assert_eq!(large.resident_bytes(), 0);
    assert_eq!(world.charged("a", size), Large::overhead(size));
    assert!(on_disk() <= 64 * 1024);
    assert_eq!(std::fs::metadata(world.files("a", size).0).unwrap().len(), size);
    assert_eq!(large.evict_units(u64::MAX), 0);
    // Eviction is no damage.
    fill(&large, 0..size);
    assert_eq!(large.evict_units(MIB), MIB);
    let again = world.open("a", size).unwrap();
    assert_eq!(readable(&again).len() as u64, size.div_ceil(UNIT) - 16);
}

#[test]
fn units_being_filled_are_not_evicted_and_the_claims_of_the_dead_are() {
    let world = World::new(64 * MIB);
    let size = 2 * MIB;
    let dead = Owner(0x6000_0001);
    let large = world.make("a", size);
    fill(&large, 0..MIB);
    let killed = world.open_with(&world.other(|other| other.me = dead), "a", size).unwrap();
    assert_eq!(killed.claim(MIB..size)[0].claimed, Claimed::Mine);
    // It also died between publishing a unit and giving its claim up.
    assert!(killed.state().claim_resident(3, dead, &mut |_| true));
    let mourning = world.other(|other| other.dead = [dead].into());
    let heir = world.open_with(&mourning, "a", size).unwrap();
    assert_eq!(heir.claim(MIB..MIB + UNIT)[0].claimed, Claimed::Mine);
    heir.release(&(0..size));
    assert_eq!(heir.evict_units(u64::MAX), MIB);
    assert_eq!(fill(&heir, 0..size), size);
    assert!(check(&heir, 0..size));
    // What the living are at stays.
    let busy = world.open_with(&world.other(|other| other.me = Owner(5)), "a", size).unwrap();
    assert!(busy.state().claim_resident(7, Owner(5), &mut |_| true));
    assert_eq!(heir.evict_units(u64::MAX), size - UNIT);
    assert_eq!(readable(&heir), [7]);
}

#[test]
fn a_removed_object_is_dropped_by_all_and_can_be_made_anew() {
    let world = World::new(64 * MIB);
    let size = 2 * MIB;
    let old = world.whole("a", size);
    let ground = world.cat.ground();
    // A mapping of the state stays usable when the names are gone.
    discard(&ground, &key("a", size)).unwrap();
    assert!(old.is_dead() && check(&old, 0..size));
    assert!(world.opened.find(&key("a", size), world.slot("a", size)).is_none());
    assert!(world.open("a", size).is_none());
    let new = Large::create(&ground, &key("a", size), world.slot("a", size), size).unwrap();
    assert!(!new.is_dead() && readable(&new).is_empty());
    // Made again over what is there, as when its maker died: the files of then are dead.
    let newer = Large::create(&ground, &key("a", size), world.slot("a", size), size).unwrap();
    assert!(new.is_dead() && !newer.is_dead());
    fill(&newer, 0..size);
    assert!(check(&newer, 0..size) && readable(&new).is_empty());
    discard(&ground, &key("a", size)).unwrap();
    discard(&ground, &key("a", size)).unwrap();
}
