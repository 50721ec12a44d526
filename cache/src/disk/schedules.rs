//! The state of a large object under many schedules of threads: nobody reads a hole, nobody fills or destroys what
//! another one does, and what the dead leave is taken over once.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use shuttle::sync::atomic::{AtomicU32, AtomicU64};
use shuttle::thread;

use super::claims::Claimed;
use super::process::Owner;
use super::state::State;
use super::state::memory::Memory;
use super::words::Modelled;

const ROUNDS: usize = 4000;
const SECRET: u64 = 42;
const UNITS: usize = 3;

/// A state and the file it is of: one number per unit, 0 being a hole.
struct World {
    memory: Memory<Modelled>,
    file: Vec<AtomicU32>,
    /// Who writes or punches a unit right now.
    inside: Vec<AtomicU32>,
    fills: AtomicU64,
}

impl World {
    fn new() -> Arc<Self> {
        let numbers = || (0..UNITS).map(|_| AtomicU32::new(0)).collect();
        Arc::new(World {
            memory: Memory::new(UNITS),
            file: numbers(),
            inside: numbers(),
            fills: AtomicU64::new(0),
        })
    }

    fn state(&self) -> State<'_, Modelled> {
        self.memory.state()
    }

    /// Changes a unit's bytes, which only one may do at a time.
    fn change(&self, unit: usize, value: u32) {
        assert_eq!(self.inside[unit].fetch_add(1, SeqCst), 0, "two change a unit at once");
        self.file[unit].store(value, SeqCst);
        self.inside[unit].fetch_sub(1, SeqCst);
    }

    fn fill(&self, me: Owner) {
        let state = self.state();
        for unit in 0..UNITS {
            if state.claim(unit, me, &mut |_| true) == Claimed::Mine {
                self.change(unit, value(unit));
                self.fills.fetch_add(1, SeqCst);
                state.publish(unit, &[value(unit)], SECRET);
                state.release(unit, me);
            }
        }
    }

    fn evict(&self, me: Owner, want: usize) {
        let state = self.state();
        let mut units = Vec::new();
        state.sweep(want, |unit| {
            let mine = state.claim_resident(unit, me, &mut |_| true);
            if mine {
                units.push(unit..unit + 1);
            }
            mine
        });
        if units.is_empty() {
            return;
        }
        state.withdraw(&units);
        for unit in units.into_iter().flatten() {
            self.change(unit, 0);
            state.release(unit, me);
        }
    }

    fn read(&self) {
        let state = self.state();
        let Some(epoch) = state.begin(0..UNITS, SECRET) else { return };
        let found: Vec<_> = self.file.iter().map(|unit| unit.load(SeqCst)).collect();
        if state.unchanged(0..UNITS, epoch) {
            let right: Vec<_> = (0..UNITS).map(value).collect();
            assert_eq!(found, right, "a reader was told that holes are bytes");
        }
    }
}

fn value(unit: usize) -> u32 {
    unit as u32 + 100
}

fn run(threads: Vec<Box<dyn FnOnce() + Send>>) {
    let threads: Vec<_> = threads.into_iter().map(thread::spawn).collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
}

#[test]
fn nobody_reads_a_hole_while_units_come_and_go() {
    shuttle::check_random(
        || {
            let world = World::new();
            world.fill(Owner(1));
            let mut threads: Vec<Box<dyn FnOnce() + Send>> = Vec::new();
            for who in [1, 2] {
                let world = world.clone();
                threads.push(Box::new(move || (0..2).for_each(|_| world.fill(Owner(who)))));
            }
            for (who, want) in [(3, 1), (4, 3)] {
                let world = world.clone();
                threads.push(Box::new(move || (0..2).for_each(|_| world.evict(Owner(who), want))));
            }
            let reader = world.clone();
            threads.push(Box::new(move || (0..4).for_each(|_| reader.read())));
            run(threads);
            world.fill(Owner(9));
            assert!(world.state().is_whole(SECRET));
            world.read();
        },
        ROUNDS,
    );
}

/// The test above can fail: destroying bytes before their residency is gone is found out.
#[test]
#[should_panic(expected = "a reader was told that holes are bytes")]
fn a_hole_punched_too_early_is_found_out() {
    shuttle::check_random(
        || {
            let world = World::new();
            world.fill(Owner(1));
            let (evictor, reader) = (world.clone(), world);
            run(vec![
                Box::new(move || {
                    evictor.change(1, 0);
                    #[allow(clippy::single_range_in_vec_init)]
                    evictor.state().withdraw(&[1..2]);
                }),
                Box::new(move || reader.read()),
            ]);
        },
        ROUNDS,
    );
}

#[test]
fn a_unit_is_filled_once_however_many_want_it() {
    shuttle::check_random(
        || {
            let world = World::new();
            run((1..=4)
                .map(|who| {
                    let world = world.clone();
                    Box::new(move || world.fill(Owner(who))) as Box<dyn FnOnce() + Send>
                })
                .collect());
            assert_eq!(world.fills.load(SeqCst), UNITS as u64);
            assert!(world.state().is_whole(SECRET));
            assert!(!world.state().is_busy(&mut |_| true), "a claim was left behind");
        },
        ROUNDS,
    );
}

#[test]
fn claims_of_the_dead_are_taken_over_by_one() {
    shuttle::check_random(
        || {
            let world = World::new();
            let dead = Owner(7);
            // It died while filling unit 0, and right after publishing unit 1.
            assert_eq!(world.state().claim(0, dead, &mut |_| true), Claimed::Mine);
            assert_eq!(world.state().claim(1, dead, &mut |_| true), Claimed::Mine);
            world.file[1].store(value(1), SeqCst);
            world.state().publish(1, &[value(1)], SECRET);
            let taken = Arc::new(AtomicU32::new(0));
            run((1..=3)
                .map(|who| {
                    let (world, taken) = (world.clone(), taken.clone());
                    Box::new(move || {
                        let mut alive = |owner: Owner| owner != Owner(7);
                        let state = world.state();
                        assert_eq!(state.claim(1, Owner(who), &mut alive), Claimed::Resident);
                        match state.claim(0, Owner(who), &mut alive) {
                            Claimed::Mine => {
                                taken.fetch_add(1, SeqCst);
                                world.change(0, value(0));
                                state.publish(0, &[value(0)], SECRET);
                                state.release(0, Owner(who));
                            }
                            Claimed::Resident => {}
                            Claimed::Theirs(other) => assert_ne!(other, Owner(7)),
                            Claimed::Refused => panic!("everybody here has a slot"),
                        }
                    }) as Box<dyn FnOnce() + Send>
                })
                .collect());
            assert_eq!(taken.load(SeqCst), 1);
            assert!(!world.state().is_busy(&mut |owner| owner != Owner(7)));
            assert_eq!(world.state().stretch(0..UNITS), (true, 2));
        },
        ROUNDS,
    );
}
