//! The index under many schedules of threads that insert, evict, read and die.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use shuttle::sync::Mutex;
use shuttle::sync::atomic::{AtomicBool, AtomicU64};
use shuttle::thread;

use super::*;

const ROUNDS: usize = 3000;

impl Memory for Vec<AtomicU64> {
    type Word = AtomicU64;

    fn words(&self) -> &[AtomicU64] {
        self
    }
}

/// A directory in miniature: the table, files by key (each with the number of its maker), and the space used.
struct World {
    index: Index<Vec<AtomicU64>>,
    files: Mutex<HashMap<Key, u64>>,
    used: AtomicU64,
    next_file: AtomicU64,
    /// Whether owner `i` is dead.
    dead: [AtomicBool; 4],
}

fn key(n: u64) -> Key {
    Key::from_words([0, n, n, n])
}

fn moment() -> Moment {
    Moment { now: 1, seconds: 1 }
}

impl World {
    fn new() -> Arc<Self> {
        let words = Index::<Vec<AtomicU64>>::bytes(64) as usize / 8;
        Arc::new(World {
            index: Index::new((0..words).map(|_| AtomicU64::new(0)).collect(), 64),
            files: Mutex::default(),
            used: AtomicU64::new(0),
            next_file: AtomicU64::new(1),
            dead: std::array::from_fn(|_| AtomicBool::new(false)),
        })
    }

    fn alive(&self, owner: Owner) -> bool {
        !self.dead[owner.0 as usize].load(SeqCst)
    }

    fn claim(&self, n: u64, me: u32) -> Claimed {
        self.index.claim(&key(n), 10, Owner(me), moment(), &|o| self.alive(o))
    }

    /// Makes the file. Whoever fills a key is alone with its name, but for what the dead left.
    fn create(&self, n: u64) -> u64 {
        let file = self.next_file.fetch_add(1, SeqCst);
        self.used.fetch_add(CHARGE_UNIT, SeqCst);
        let old = self.files.lock().unwrap().insert(key(n), file);
        assert_eq!(old, None, "two fill one key");
        file
    }

    fn publish(&self, at: SlotRef, file: u64) {
        self.index.publish(at, &Facts { ino: file, charged: 1, ..Facts::default() });
    }

    fn fill(&self, n: u64, me: u32) -> bool {
        match self.claim(n, me) {
            Claimed::Mine(at) => {
                let file = self.create(n);
                self.publish(at, file);
                true
            }
            Claimed::Dead(at) => {
                self.bury(at, me);
                false
            }
            Claimed::Live(_) | Claimed::Busy(_) => false,
            Claimed::Full => panic!("a bucket of 16 holds what a test makes"),
        }
    }

    /// What a process does with the slot of a dead one. A file that the dead one made before it was published has no
    /// charge in the table; its reservation is given back with its process slot.
    fn bury(&self, at: SlotRef, me: u32) {
        if let Some(at) = self.index.adopt(at, Owner(me)) {
            self.finish(at);
        }
    }

    fn finish(&self, at: SlotRef) {
        self.files.lock().unwrap().remove(&self.index.key_of(at));
        let charge = self.index.take_charge(at);
        self.used.fetch_sub(charge, SeqCst);
        self.index.vacate(at, true);
    }

    fn evict(&self, n: u64, me: u32) {
        let Some(at) = self.index.find(&key(n)) else { return };
        if let Some(at) = self.index.begin_removal(at, Owner(me)) {
            self.finish(at);
        }
    }

    /// A reader never takes one file for another.
    fn read(&self, n: u64) {
        let Some(entry) = self.index.find(&key(n)).and_then(|at| self.index.entry(at)) else { return };
        assert_eq!(entry.key, key(n));
        let opened = self.files.lock().unwrap().get(&key(n)).copied();
        if let Some(file) = opened
            && self.index.is_current(entry.at)
        {
            assert_eq!(entry.ino, file, "the file of another generation");
        }
    }

    /// Everybody is done: the table, the files and the space agree.
    fn settle(&self) {
        for at in self.index.inspect(0..64, Owner(0), &|o| self.alive(o)).dead {
            self.bury(at, 0);
        }
        let live: Vec<Entry> = self.index.live().collect();
        let files = self.files.lock().unwrap();
        for entry in &live {
            assert_eq!(files.get(&entry.key), Some(&entry.ino));
            assert_eq!(live.iter().filter(|e| e.key == entry.key).count(), 1, "one slot per key");
        }
        assert_eq!(files.len(), live.len(), "no file without an entry");
        assert_eq!(self.used.load(SeqCst), live.len() as u64 * CHARGE_UNIT);
        assert_eq!(self.index.count().charged, live.len() as u64 * CHARGE_UNIT);
    }
}

fn explore(body: fn(&Arc<World>)) {
    let round = move || {
        let world = World::new();
        body(&world);
        world.settle();
    };
    shuttle::check_random(round, ROUNDS);
    shuttle::check_pct(round, ROUNDS, 3);
}

fn spawn(world: &Arc<World>, work: impl FnOnce(&World) + Send + 'static) -> thread::JoinHandle<()> {
    let world = world.clone();
    thread::spawn(move || work(&world))
}

#[test]
fn of_three_inserters_of_one_key_one_fills_it() {
    explore(|world| {
        let filled = Arc::new(AtomicU64::new(0));
        let threads: Vec<_> = (1..4)
            .map(|me| {
                let filled = filled.clone();
                spawn(world, move |w| {
                    filled.fetch_add(u64::from(w.fill(7, me)), SeqCst);
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        // All may have backed off (one waits for another that was never run), but never two may fill.
        assert!(filled.load(SeqCst) <= 1);
        assert!(world.fill(7, 1) || filled.load(SeqCst) == 1);
    });
}

#[test]
fn inserters_that_free_slots_of_the_bucket_meanwhile_do_not_fool_each_other() {
    explore(|world| {
        // Slots before and behind the ones that the inserters will take.
        (1..4).for_each(|n| assert!(world.fill(n, 1)));
        let threads = [
            spawn(world, |w| (1..4).for_each(|n| w.evict(n, 1))),
            spawn(world, |w| {
                w.fill(7, 2);
                w.evict(7, 2);
            }),
            spawn(world, |w| {
                w.fill(7, 3);
            }),
        ];
        threads.into_iter().for_each(|t| t.join().unwrap());
    });
}

#[test]
fn a_reader_sees_the_file_of_its_entry_or_notices() {
    explore(|world| {
        world.fill(7, 1);
        let threads = [
            spawn(world, |w| {
                w.evict(7, 2);
                w.fill(7, 2);
            }),
            spawn(world, |w| {
                w.read(7);
                w.read(7);
            }),
            spawn(world, |w| {
                w.evict(7, 3);
                w.read(7);
            }),
        ];
        threads.into_iter().for_each(|t| t.join().unwrap());
    });
}

#[test]
fn a_charge_that_changes_during_an_eviction_is_given_back_once() {
    explore(|world| {
        world.fill(7, 1);
        let at = world.index.find(&key(7)).unwrap();
        let grow = spawn(world, move |w| {
            w.used.fetch_add(CHARGE_UNIT, SeqCst);
            if !w.index.add_charge(at, CHARGE_UNIT) {
                w.used.fetch_sub(CHARGE_UNIT, SeqCst);
            } else {
                // What grew shrinks again, so that the books are simple at the end.
                w.used.fetch_sub(w.index.sub_charge(at, CHARGE_UNIT), SeqCst);
            }
        });
        let evict = spawn(world, |w| {
            w.evict(7, 2);
            w.fill(7, 2);
        });
        grow.join().unwrap();
        evict.join().unwrap();
    });
}

#[test]
fn nothing_is_taken_for_unlisted_while_it_comes_and_goes() {
    explore(|world| {
        world.fill(7, 1);
        let inspect = |w: &World| {
            let found = w.index.inspect(0..16, Owner(3), &|o| w.alive(o));
            assert_eq!((found.dead.len(), found.odd.len(), found.unlisted), (0, 0, 0));
        };
        let threads = [
            spawn(world, |w| {
                w.evict(7, 1);
                w.fill(7, 1);
            }),
            spawn(world, |w| {
                w.fill(8, 2);
                w.evict(7, 2);
            }),
            spawn(world, inspect),
        ];
        threads.into_iter().for_each(|t| t.join().unwrap());
        inspect(world);
    });
}

/// Owner 2 dies after each possible step of its insertion or eviction; two others want the same key.
#[test]
fn what_a_dead_process_left_is_taken_over_by_one() {
    for step in 0..5 {
        let round = move || {
            let world = World::new();
            if step >= 3 {
                world.fill(7, 1);
            }
            let dying = spawn(&world, move |w| {
                match step {
                    // Died with the slot, with the key in it, with the file made, before or after the unlink.
                    0 => {
                        let taken = State::new(Phase::Claimed, 1, Owner(2));
                        w.index.replace(5, STATE, 0, taken.0);
                    }
                    1 => {
                        let state = State::new(Phase::Claimed, 1, Owner(2));
                        if w.index.replace(5, STATE, 0, state.0) {
                            w.index.name(5, &key(7).words(), 10, state, None, moment());
                            let named = state.with_phase(Phase::Named);
                            w.index.advance(SlotRef { slot: 5, state }, named);
                        }
                    }
                    2 => {
                        if let Claimed::Mine(_) = w.claim(7, 2) {
                            w.create(7);
                            w.used.fetch_sub(CHARGE_UNIT, SeqCst);
                        }
                    }
                    _ => {
                        let found = w.index.find(&key(7));
                        if let Some(at) = found.and_then(|at| w.index.begin_removal(at, Owner(2)))
                            && step == 4
                        {
                            w.files.lock().unwrap().remove(&w.index.key_of(at));
                        }
                    }
                }
                w.dead[2].store(true, SeqCst);
            });
            let others: Vec<_> = [1, 3]
                .into_iter()
                .map(|me| {
                    spawn(&world, move |w| {
                        for _ in 0..3 {
                            w.fill(7, me);
                        }
                    })
                })
                .collect();
            dying.join().unwrap();
            others.into_iter().for_each(|t| t.join().unwrap());
            world.settle();
            // Whatever it left, the key can be had again.
            while world.index.find(&key(7)).is_none() {
                world.fill(7, 1);
            }
            world.settle();
        };
        shuttle::check_random(round, ROUNDS / 2);
        shuttle::check_pct(round, ROUNDS / 2, 3);
    }
}
