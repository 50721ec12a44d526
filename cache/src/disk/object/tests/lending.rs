//! What is in somebody's hands is not taken away.

use std::os::unix::fs::FileExt;

use super::*;

const SIZE: u64 = 2 * MIB + 5;

#[test]
fn what_is_lent_is_not_evicted_and_is_counted_once() {
    let world = World::new(64 * MIB);
    let large = world.whole("a", SIZE);
    let entry = || world.cat.index().entry(world.slot("a", SIZE)).unwrap();
    assert!(!large.is_lent().unwrap());
    let lent = large.lend().unwrap().unwrap();
    assert_eq!(world.cat.dir().lent(), blocks(&(0..SIZE)));
    let second = large.lend().unwrap().unwrap();
    assert_eq!(world.cat.dir().lent(), blocks(&(0..SIZE)), "the same bytes");
    assert!(large.is_lent().unwrap());

    let other = world.open("a", SIZE).unwrap();
    for handle in [&large, &other] {
        assert_eq!(handle.evict_units(u64::MAX), 0);
    }
    assert_eq!(evict::remove(&world.cat, &entry()), None);
    drop(lent);
    assert_eq!(other.evict_units(u64::MAX), 0, "still in somebody's hands");
    let file = std::fs::File::from(second.as_fd().try_clone_to_owned().unwrap());
    let mut bytes = vec![0; SIZE as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes == content(0..SIZE) && file.metadata().unwrap().len() == SIZE);
    assert!(file.write_at(b"x", 0).is_err(), "it is for reading");
    drop(second);
    assert_eq!(world.cat.dir().lent(), 0);
    assert_eq!(other.evict_units(u64::MAX), 0, "a copy of the descriptor keeps the lock");
    drop(file);
    assert!(!large.is_lent().unwrap());
    assert_eq!(other.evict_units(UNIT), UNIT);
    assert!(large.lend().unwrap().is_none(), "it is not whole any more");
    assert!(evict::remove(&world.cat, &entry()).is_some());
    assert!(large.is_dead() && other.is_dead());
}

#[test]
fn only_whole_living_untouched_objects_are_lent() {
    let world = World::new(64 * MIB);
    let large = world.make("a", SIZE);
    assert!(large.lend().unwrap().is_none(), "empty");
    fill(&large, 0..2 * MIB);
    assert!(large.lend().unwrap().is_none(), "the end is missing");
    fill(&large, 0..SIZE);
    assert!(large.lend().unwrap().is_some());
    // While units are being taken away.
    let alone = large.exclude().unwrap().unwrap();
    assert!(large.lend().unwrap().is_none());
    assert!(large.exclude().unwrap().is_none(), "one at a time");
    drop(alone);
    assert!(large.lend().unwrap().is_some());
    // Changed by a foreign hand while it is open.
    let (data, _) = world.files("a", SIZE);
    std::fs::File::options().write(true).open(&data).unwrap().write_all_at(b"?", 5).unwrap();
    assert!(large.lend().unwrap().is_none());
    let large = world.whole("b", SIZE);
    large.kill();
    assert!(large.lend().unwrap().is_none(), "dead");
    // Another file of that name.
    let large = world.whole("c", SIZE);
    let (data, _) = world.files("c", SIZE);
    std::fs::remove_file(&data).unwrap();
    std::fs::write(&data, content(0..SIZE)).unwrap();
    assert!(large.lend().unwrap().is_none());
    assert_eq!(world.cat.dir().lent(), 0);
}

#[test]
fn at_most_half_of_the_limit_is_lent() {
    let world = World::new(12 * MIB);
    let size = 2 * MIB;
    let objects: Vec<_> = ["a", "b", "c", "d"].iter().map(|name| world.whole(name, size)).collect();
    let mut lent: Vec<_> = objects.iter().filter_map(|large| large.lend().unwrap()).collect();
    assert_eq!((lent.len(), world.cat.dir().lent()), (3, 6 * MIB));
    assert!(!objects[3].is_lent().unwrap(), "a refusal leaves no lock behind");
    lent.pop();
    assert!(objects[3].lend().unwrap().is_some());
    drop(lent);
    assert_eq!(world.cat.dir().lent(), 0);
}

#[test]
fn a_lent_object_outlives_its_names() {
    let world = World::new(64 * MIB);
    let large = world.whole("a", SIZE);
    let lent = large.lend().unwrap().unwrap();
    // Somebody clears the cache.
    discard(&world.cat.ground(), &key("a", SIZE)).unwrap();
    assert!(large.is_dead() && !large.is_lent().unwrap());
    let mut bytes = vec![0; SIZE as usize];
    let file = std::fs::File::from(lent.as_fd().try_clone_to_owned().unwrap());
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes == content(0..SIZE));
    drop(lent);
    assert_eq!(world.cat.dir().lent(), 0);
}

#[test]
fn wrong_bytes_under_a_lent_descriptor_become_no_hole() {
    let world = World::new(64 * MIB);
    let large = world.whole("a", SIZE);
    let lent = large.lend().unwrap().unwrap();
    let (data, _) = world.files("a", SIZE);
    std::fs::File::options().write(true).open(&data).unwrap().write_all_at(b"?", UNIT).unwrap();
    // Somebody opens it, finds out, and fetches the unit again, over the wrong bytes.
    let other = world.open("a", SIZE).unwrap();
    assert!(!check(&other, UNIT..2 * UNIT));
    let blocks = std::fs::metadata(&data).unwrap().blocks();
    assert_eq!(fill(&other, 0..SIZE), UNIT);
    assert_eq!(std::fs::metadata(&data).unwrap().blocks(), blocks);
    assert_eq!(std::fs::read(&data).unwrap(), content(0..SIZE));
    drop(lent);
}
