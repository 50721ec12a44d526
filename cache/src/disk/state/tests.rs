use std::collections::{BTreeMap, BTreeSet, HashSet};

use proptest::prelude::*;

use super::memory::Memory;
use super::*;
use crate::disk::claims::{Claimed, Waiter};
use crate::disk::process::Owner;

const SECRET: u64 = 0x1234_5678_9abc_def0;

fn label(size: u64) -> Label {
    Label { key: std::array::from_fn(|i| i as u8), size }
}

const KNOWN: Known = Known { inode: 7, device: 8, changed: 9 };

#[test]
fn files_have_room_for_everything_and_whole_pages() {
    for size in [1, UNIT - 1, UNIT, UNIT + 1, (1 << 20) + 1, 64 * UNIT, 65 * UNIT, 5 << 30, 1 << 40] {
        let layout = Layout::new(size);
        assert_eq!(layout.units() as u64, size.div_ceil(UNIT));
        assert!(layout.file_len().is_multiple_of(4096));
        let [crcs, proofs, claims] = layout.arrays_at();
        assert_eq!(layout.bits_at(), HEADER);
        assert_eq!(crcs, HEADER + 16 * layout.words());
        assert!(crcs.is_multiple_of(8) && proofs.is_multiple_of(8) && claims.is_multiple_of(8));
        assert!(proofs >= crcs + 4 * layout.units() && claims >= proofs + 4 * layout.units());
        assert!(layout.file_len() as usize >= claims + 4 * layout.units());
        // About 12 bytes for each 64 KiB.
        assert!(layout.file_len() <= 8192 + size / 5000);
    }
    assert_eq!(Layout::new(5 << 30).units(), 81_920);
}

#[test]
fn ranges_touch_the_units_they_lie_in() {
    let layout = Layout::new(3 * UNIT + 1);
    for (range, units) in [
        (0..0, 0..0),
        (0..1, 0..1),
        (UNIT - 1..UNIT, 0..1),
        (UNIT - 1..UNIT + 1, 0..2),
        (UNIT..3 * UNIT + 1, 1..4),
        (3 * UNIT..u64::MAX, 3..4),
        (100 * UNIT..u64::MAX, 4..4),
    ] {
        assert_eq!(layout.units_of(&range), units, "{range:?}");
    }
}

#[test]
fn a_header_is_of_one_object_only() {
    let memory = Memory::<Real>::new(3);
    let state = memory.state();
    let size = 3 * UNIT;
    assert!(!state.is_of(&label(size)), "a file of zeros is of nobody");
    state.initialise(&label(size), 5, 6, KNOWN);
    assert!(state.is_of(&label(size)) && state.is_of_key(&label(size).key));
    assert!(!state.is_of(&label(size + 1)));
    for i in 0..32 {
        let mut other = label(size);
        other.key[i] ^= 1;
        assert!(!state.is_of(&other) && !state.is_of_key(&other.key), "byte {i}");
    }
    assert_eq!((state.boot(), state.known()), (5, KNOWN));
    assert!(!state.is_dead() && state.kill() && !state.kill() && state.is_dead());
}

#[test]
fn what_was_published_is_read_and_what_was_withdrawn_is_not() {
    let memory = Memory::<Real>::new(200);
    let state = memory.state();
    assert_eq!(state.stretch(0..200), (false, 200));
    assert_eq!(state.begin(5..6, SECRET), None);
    state.publish(60, &[1; 80], SECRET);
    assert_eq!(state.stretch(0..200), (false, 60));
    assert_eq!(state.stretch(60..200), (true, 140));
    assert_eq!(state.stretch(140..200), (false, 200));
    assert_eq!(state.stretch(61..70), (true, 70));
    assert_eq!(state.stretch(9..9), (true, 9));
    assert_eq!(state.resident_units(), 80);
    let epoch = state.begin(60..140, SECRET).unwrap();
    assert!(state.unchanged(60..140, epoch));
    assert_eq!(state.begin(59..61, SECRET), None);
    assert_eq!(state.begin(139..141, SECRET), None);
    let taken = state.withdraw(&[63..65, 130..135]);
    assert_eq!(taken, 7);
    assert!(!state.unchanged(60..140, epoch));
    assert_eq!(state.stretch(60..140), (true, 63));
    assert!(state.begin(65..130, SECRET).is_some());
    state.restore(&[63..65, 130..135]);
    assert!(state.begin(60..140, SECRET).is_some());
}

#[test]
fn what_goes_elsewhere_disturbs_nobody() {
    let units = 80 * 64;
    let memory = Memory::<Real>::new(units);
    let state = memory.state();
    state.publish(0, &vec![1; units], SECRET);
    let disturbed = |read: Range<usize>, gone: Range<usize>| {
        let epoch = state.begin(read.clone(), SECRET).unwrap();
        state.withdraw(std::slice::from_ref(&gone));
        state.restore(std::slice::from_ref(&gone));
        !state.unchanged(read, epoch)
    };
    assert!(disturbed(100..101, 100..101));
    assert!(!disturbed(100..101, 128..200) && !disturbed(100..101, 0..64));
    assert!(disturbed(0..200, 199..200));
    assert!(disturbed(0..units, units - 1..units) && disturbed(0..units, 5..6));
    assert!(disturbed(64..128, 0..units));
}

#[test]
fn proofs_end_with_the_boot_the_seed_and_any_other_hand() {
    let memory = Memory::<Real>::new(4);
    let state = memory.state();
    state.initialise(&label(4 * UNIT), 5, 6, KNOWN);
    let secret = state.secret(5);
    assert!(!state.is_whole(secret));
    state.publish(0, &[10, 11, 12, 0], secret);
    assert!(state.is_whole(secret));
    assert_ne!(state.secret(6), secret, "another boot");
    assert!(!state.is_whole(state.secret(6)));
    assert_eq!((state.crc(2), state.is_proven(2, secret)), (12, true));
    // A page of zeros, of ones, or of another place.
    for (crc, proof) in
        [(0, 0), (u32::MAX, u32::MAX), (state.crc(1), memory.state().proofs[1].load(Ordering::Relaxed))]
    {
        state.crcs[2].store(crc, Ordering::Relaxed);
        state.proofs[2].store(proof, Ordering::Relaxed);
        assert!(state.is_resident(2) && !state.is_proven(2, secret));
        assert_eq!(state.begin(0..4, secret), None);
    }
    state.crcs[2].store(12, Ordering::Relaxed);
    state.prove(2, 12, secret);
    assert!(state.begin(0..4, secret).is_some());
    state.distrust(99, Known { changed: 77, ..KNOWN });
    assert_eq!(state.known().changed, 77);
    assert_eq!(state.begin(0..4, state.secret(5)), None);
    state.take_over(6);
    assert_eq!(state.boot(), 6);
}

#[test]
fn bits_behind_the_last_unit_mean_nothing() {
    let memory = Memory::<Real>::new(70);
    let state = memory.state();
    state.resident.iter().for_each(|w| w.store(u64::MAX, Ordering::Relaxed));
    assert_eq!(state.resident_units(), 70);
    assert_eq!(state.stretch(0..70), (true, 70));
    let mut given = Vec::new();
    state.sweep(1000, |unit| {
        given.push(unit);
        true
    });
    assert!(given.iter().all(|u| *u < 70), "{given:?}");
}

#[test]
fn the_clock_spares_what_was_used_once() {
    let memory = Memory::<Real>::new(300);
    let state = memory.state();
    state.publish(0, &[1; 300], SECRET);
    let take = |want: usize| {
        let mut units = HashSet::new();
        // As with claims, nothing is taken twice.
        let taken = state.sweep(want, |unit| units.insert(unit));
        assert_eq!(taken, units.len());
        for unit in &units {
            assert_eq!(state.withdraw(std::slice::from_ref(&(*unit..*unit + 1))), 1);
        }
        let mut units: Vec<_> = units.into_iter().collect();
        units.sort_unstable();
        units
    };
    // All were used when they were filled, so the first turn only takes that from them.
    assert_eq!(take(10), (0..10).collect::<Vec<_>>());
    state.begin(10..30, SECRET).unwrap();
    let next = take(40);
    assert!(next.iter().all(|u| *u >= 30), "{next:?} were not used");
    // Everything goes in the end, and nothing twice.
    assert_eq!(take(1000).len(), 250);
    assert_eq!((state.resident_units(), take(5).len()), (0, 0));
}

#[test]
fn units_that_cannot_be_taken_do_not_hold_the_clock_up() {
    let memory = Memory::<Real>::new(100);
    let state = memory.state();
    state.publish(0, &[1; 100], SECRET);
    let taken = state.sweep(5, |unit| unit >= 90);
    assert_eq!(taken, 5);
    assert_eq!(state.sweep(5, |_| false), 0);
}

#[test]
fn a_waiter_asks_who_lives_now_and_then() {
    let memory = Memory::<Real>::new(4);
    let state = memory.state();
    let (me, other) = (Owner(1), Owner(2));
    let asked = std::cell::Cell::new(0);
    let mut alive = |_: Owner| {
        asked.set(asked.get() + 1);
        true
    };
    let mut waiter = Waiter::new();
    assert_eq!(waiter.step(&state, 0..1, &mut alive), None, "nobody is at it");
    for unit in 0..4 {
        assert_eq!(state.claim(unit, other, &mut |_| true), Claimed::Mine);
    }
    let mut slept = std::time::Duration::ZERO;
    let mut pauses = 0;
    while slept < std::time::Duration::from_secs(1) {
        let pause = waiter.step(&state, 0..4, &mut alive).unwrap();
        assert!(pause.as_millis() >= 2 && pause.as_millis() <= 20);
        slept += pause;
        pauses += 1;
    }
    assert!((50..=60).contains(&pauses), "{pauses}");
    assert!((7..=11).contains(&asked.get()), "asked {} times in a second", asked.get());
    // The one who died is noticed within the time between two questions.
    let mut slept = std::time::Duration::ZERO;
    while let Some(pause) = waiter.step(&state, 0..4, &mut |_| false) {
        slept += pause;
    }
    assert!(slept.as_millis() <= 120, "{slept:?}");
    assert_eq!(state.claim(0, me, &mut |_| false), Claimed::Mine);
    state.publish(1, &[5], SECRET);
    assert_eq!(Waiter::new().step(&state, 1..3, &mut |_| true), None, "one is there");
    assert!(Waiter::new().step(&state, 2..3, &mut |_| true).is_some());
    assert_eq!(Waiter::new().step(&state, 2..2, &mut |_| true), None);
}

#[test]
fn only_living_claimants_keep_a_state_busy() {
    let memory = Memory::<Real>::new(4);
    let state = memory.state();
    assert!(!state.is_busy(&mut |_| true));
    state.claim(3, Owner(7), &mut |_| true);
    assert!(state.is_busy(&mut |owner| owner == Owner(7)));
    assert!(!state.is_busy(&mut |_| false));
    state.release(3, Owner(8));
    assert!(state.holds(3, Owner(7)), "only the claimant gives a claim up");
    state.release(3, Owner(7));
    assert!(!state.is_busy(&mut |_| true));
}

#[derive(Debug, Clone)]
enum Step {
    Claim { unit: usize, who: u32 },
    Fill { first: usize, count: usize, who: u32 },
    Release { unit: usize, who: u32 },
    Evict { want: usize, who: u32 },
    Die(u32),
    Distrust,
    Prove { unit: usize },
    Read { first: usize, count: usize },
}

const UNITS: usize = 150;

fn step() -> impl Strategy<Value = Step> {
    let (unit, who, count) = (0..UNITS, 1..5u32, 1..70usize);
    prop_oneof![
        4 => (unit.clone(), who.clone()).prop_map(|(unit, who)| Step::Claim { unit, who }),
        6 => (unit.clone(), count.clone(), who.clone())
            .prop_map(|(first, count, who)| Step::Fill { first, count, who }),
        2 => (unit.clone(), who.clone()).prop_map(|(unit, who)| Step::Release { unit, who }),
        2 => (1..100usize, who.clone()).prop_map(|(want, who)| Step::Evict { want, who }),
        1 => who.prop_map(Step::Die),
        1 => Just(Step::Distrust),
        2 => unit.clone().prop_map(|unit| Step::Prove { unit }),
        6 => (unit, count).prop_map(|(first, count)| Step::Read { first, count }),
    ]
}

proptest! {
    /// The state against sets: what is there, proven and claimed by whom, after any steps of four processes.
    #[test]
    fn the_state_does_what_a_map_does(steps in prop::collection::vec(step(), 1..200)) {
        let memory = Memory::<Real>::new(UNITS);
        let state = memory.state();
        state.initialise(&label(UNITS as u64 * UNIT), 1, 1, KNOWN);
        let mut there: BTreeMap<usize, bool> = BTreeMap::new();
        let mut claims: BTreeMap<usize, u32> = BTreeMap::new();
        let mut dead: BTreeSet<u32> = BTreeSet::new();
        let mut seed = 1;
        for step in steps {
            let secret = state.secret(1);
            let alive = dead.clone();
            let mut alive = |owner: Owner| !alive.contains(&owner.0);
            match step {
                Step::Claim { unit, who } if !dead.contains(&who) => {
                    let claimed = state.claim(unit, Owner(who), &mut alive);
                    let other = claims.get(&unit).copied();
                    let free = other.is_none_or(|o| dead.contains(&o));
                    let expected = match (there.contains_key(&unit), free) {
                        (true, _) => Claimed::Resident,
                        (false, true) => Claimed::Mine,
                        (false, false) => Claimed::Theirs(Owner(other.unwrap())),
                    };
                    prop_assert_eq!(claimed, expected);
                    if claimed == Claimed::Mine {
                        claims.insert(unit, who);
                    }
                }
                Step::Fill { first, count, who } if !dead.contains(&who) => {
                    for unit in first..(first + count).min(UNITS) {
                        if state.claim(unit, Owner(who), &mut alive) == Claimed::Mine {
                            state.publish(unit, &[unit as u32], secret);
                            state.release(unit, Owner(who));
                            there.insert(unit, true);
                            claims.remove(&unit);
                        }
                    }
                }
                Step::Release { unit, who } => {
                    state.release(unit, Owner(who));
                    if claims.get(&unit) == Some(&who) {
                        claims.remove(&unit);
                    }
                }
                Step::Evict { want, who } if !dead.contains(&who) => {
                    let mut units = Vec::new();
                    state.sweep(want, |unit| {
                        let mine = state.claim_resident(unit, Owner(who), &mut alive);
                        if mine {
                            units.push(unit);
                        }
                        mine
                    });
                    prop_assert_eq!(units.len(), want.min(there.len()));
                    for unit in units {
                        prop_assert!(there.remove(&unit).is_some());
                        prop_assert_eq!(state.withdraw(std::slice::from_ref(&(unit..unit + 1))), 1);
                        state.release(unit, Owner(who));
                        claims.remove(&unit);
                    }
                }
                // Nobody who lives holds a claim on what is there: it is released in the same step.
                Step::Die(who) => {
                    dead.insert(who);
                }
                Step::Distrust => {
                    seed += 1;
                    state.distrust(seed, KNOWN);
                    there.values_mut().for_each(|proven| *proven = false);
                }
                Step::Prove { unit } => {
                    if let Some(proven) = there.get_mut(&unit) {
                        prop_assert!(state.begin_unproven(unit).is_some());
                        state.prove(unit, state.crc(unit), secret);
                        *proven = true;
                    } else {
                        prop_assert!(state.begin_unproven(unit).is_none());
                    }
                }
                Step::Read { first, count } => {
                    let range = first..(first + count).min(UNITS);
                    let ready = range.clone().all(|unit| there.get(&unit) == Some(&true));
                    prop_assert_eq!(state.begin(range.clone(), secret).is_some(), ready);
                    let same = there.contains_key(&first);
                    let end = range.clone().find(|u| there.contains_key(u) != same).unwrap_or(range.end);
                    prop_assert_eq!(state.stretch(range), (same, end));
                }
                _ => {}
            }
            prop_assert_eq!(state.resident_units(), there.len() as u64);
            let whole = there.len() == UNITS && there.values().all(|proven| *proven);
            prop_assert_eq!(state.is_whole(state.secret(1)), whole);
        }
    }
}
