//! Several processes really.

use std::thread;
use std::time::{Duration, Instant};

use super::*;
use crate::disk::children::{self, Child};

const LIMIT: u64 = 64 * MIB;
const SIZE: u64 = 4 * MIB + 99;

fn get(world: &World) -> Arc<Large> {
    world.opened.get(&key("a", SIZE), world.slot("a", SIZE), SIZE).unwrap().unwrap()
}

/// Claims and fills until all of `large` is there, waiting for what others are filling. Returns the bytes filled.
fn complete(large: &Large) -> u64 {
    let deadline = Instant::now() + Duration::from_secs(30);
    let mut filled = 0;
    while !large.is_whole() {
        filled += fill(large, 0..SIZE);
        let mut waiter = Waiter::new();
        let (there, first) = large.resident(0..SIZE);
        let missing = if there { first.end } else { 0 };
        while let Some(pause) = large.wait(&mut waiter, &(missing..missing + 1)) {
            assert!(Instant::now() < deadline, "waiting for ever");
            thread::sleep(pause);
        }
        assert!(Instant::now() < deadline, "never complete");
    }
    filled
}

/// A process that was forked by a child for this test; killed when dropped.
struct Worker(i32);

impl Drop for Worker {
    fn drop(&mut self) {
        // SAFETY: plain system call. The process waits for ever, so its number is not somebody else's.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
    }
}

#[test]
fn j2_claims_of_a_killed_process_are_taken_over_within_two_seconds() {
    let name = "j2_claims_of_a_killed_process_are_taken_over_within_two_seconds";
    if let Some((_, args)) = children::role() {
        let world = World::at(Path::new(&args[0]), LIMIT);
        let large = get(&world);
        for piece in large.claim(0..SIZE) {
            assert_eq!(piece.claimed, Claimed::Mine);
            // A third of it is filled; the rest is in the middle of being written, in part.
            let at = SIZE / 3 / UNIT * UNIT;
            assert!(large.fill(0, &pieces(0..at)).unwrap());
            rustix::io::pwrite(&large.data, &content(at..at + 3 * UNIT / 2), at).unwrap();
        }
        children::say("filling");
        children::wait();
        return;
    }
    let world = World::new(LIMIT);
    let large = world.make("a", SIZE);
    for _ in 0..5 {
        let mut child = Child::start(module_path!(), name, "filler", &[&world.dir]);
        assert_eq!(child.hear(), "filling");
        let missing = SIZE / 3 / UNIT * UNIT..SIZE;
        let claims = large.claim(missing.clone());
        assert!(matches!(claims[..], [Piece { claimed: Claimed::Theirs(_), .. }]), "{claims:?}");
        let mut waiter = Waiter::new();
        for _ in 0..30 {
            thread::sleep(large.wait(&mut waiter, &missing).expect("it lives"));
        }
        child.kill();
        let killed = Instant::now();
        while let Some(pause) = large.wait(&mut waiter, &missing) {
            thread::sleep(pause);
        }
        let claims = large.claim(missing.clone());
        assert_eq!(claims, [Piece { range: missing.clone(), claimed: Claimed::Mine }]);
        assert!(killed.elapsed() < Duration::from_secs(2), "{:?}", killed.elapsed());
        assert_eq!(readable(&large).len() as u64, missing.start / UNIT, "nothing half-written is read");
        assert!(large.fill(missing.start, &pieces(missing)).unwrap());
        assert!(check(&large, 0..SIZE) && large.is_whole());
        assert!(world.open("a", SIZE).unwrap().is_whole(), "and no doubt is left");
        assert!(large.evict_units(u64::MAX) > 0);
        assert_eq!(large.resident_bytes(), 0);
    }
}

#[test]
fn j3_processes_that_want_the_same_bytes_fetch_them_once() {
    let name = "j3_processes_that_want_the_same_bytes_fetch_them_once";
    if let Some((_, args)) = children::role() {
        let world = World::at(Path::new(&args[0]), LIMIT);
        let large = get(&world);
        children::say("ready");
        children::wait();
        let filled = complete(&large);
        assert!(check(&large, 0..SIZE));
        children::say(filled);
        return;
    }
    let world = World::new(LIMIT);
    let large = world.make("a", SIZE);
    let mut children: Vec<_> =
        (0..4).map(|_| Child::start(module_path!(), name, "reader", &[&world.dir])).collect();
    children.iter_mut().for_each(|child| assert_eq!(child.hear(), "ready"));
    children.iter_mut().for_each(Child::go);
    let mine = complete(&large);
    let theirs: u64 = children.iter_mut().map(|child| child.hear().parse::<u64>().unwrap()).sum();
    children.into_iter().for_each(Child::end);
    assert_eq!(mine + theirs, SIZE);
    assert_eq!(world.charged("a", SIZE), Large::overhead(SIZE) + blocks(&(0..SIZE)));
}

#[test]
fn what_a_process_lends_is_free_when_it_dies_and_its_children_have() {
    let name = "what_a_process_lends_is_free_when_it_dies_and_its_children_have";
    if let Some((_, args)) = children::role() {
        let world = World::at(Path::new(&args[0]), LIMIT);
        let large = get(&world);
        let lent = large.lend().unwrap().unwrap();
        // A worker that is forked has the mapping too.
        // SAFETY: the child only waits for its end.
        match unsafe { libc::fork() } {
            0 => loop {
                // SAFETY: no arguments, no memory.
                unsafe { libc::pause() };
            },
            worker => children::say(worker),
        }
        children::wait();
        drop(lent);
        return;
    }
    let world = World::new(LIMIT);
    let large = world.whole("a", SIZE);
    let mut child = Child::start(module_path!(), name, "lender", &[&world.dir]);
    let worker = Worker(child.hear().parse().unwrap());
    assert_eq!(world.cat.dir().lent(), blocks(&(0..SIZE)));
    assert!(large.is_lent().unwrap());
    assert_eq!(large.evict_units(u64::MAX), 0);
    child.kill();
    world.cat.dir().space().reap();
    assert_eq!(world.cat.dir().lent(), 0, "given back once");
    assert!(large.is_lent().unwrap(), "the worker has it still");
    assert_eq!(large.evict_units(u64::MAX), 0);
    drop(worker);
    let deadline = Instant::now() + Duration::from_secs(10);
    while large.is_lent().unwrap() {
        assert!(Instant::now() < deadline, "nobody has it any more");
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(large.evict_units(u64::MAX), blocks(&(0..SIZE)));
    assert_eq!(world.cat.dir().lent(), 0);
}

#[test]
fn killed_processes_never_leave_wrong_bytes_behind() {
    let name = "killed_processes_never_leave_wrong_bytes_behind";
    if let Some((_, args)) = children::role() {
        let world = World::at(Path::new(&args[0]), LIMIT);
        let large = get(&world);
        children::say("working");
        // Fills and takes away until it is killed.
        for round in 0.. {
            fill(&large, 0..SIZE);
            large.evict_units((round % 9 + 1) * 3 * UNIT);
        }
        return;
    }
    let world = World::new(LIMIT);
    let large = world.make("a", SIZE);
    for round in 0..12 {
        let mut children: Vec<_> =
            (0..2).map(|_| Child::start(module_path!(), name, "worker", &[&world.dir])).collect();
        children.iter_mut().for_each(|child| assert_eq!(child.hear(), "working"));
        thread::sleep(Duration::from_millis(3 + round * 7 % 40));
        children.iter_mut().for_each(Child::kill);
        // Both the one who has it open all the time, and one who opens it now.
        let opened = world.open("a", SIZE).unwrap();
        readable(&large);
        readable(&opened);
        complete(&opened);
        assert!(check(&large, 0..SIZE) && opened.is_whole());
    }
}
