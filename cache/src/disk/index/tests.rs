//! The index against a map: every sequence of operations of one thread, with owners that die.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;

use super::*;

impl Memory for Vec<AtomicU64> {
    type Word = AtomicU64;

    fn words(&self) -> &[AtomicU64] {
        self
    }
}

pub(super) fn table(slots: usize) -> Index<Vec<AtomicU64>> {
    let words = Index::<Vec<AtomicU64>>::bytes(slots) as usize / 8;
    Index::new((0..words).map(|_| AtomicU64::new(0)).collect(), slots)
}

/// Key number `n`: eight keys more than fit into each of the four buckets of the smallest table.
fn key(n: u64) -> Key {
    Key::from_words([n % 4, n / 4, n, 99])
}

const KEYS: u64 = 4 * (BUCKET as u64 + 8);

fn moment(now: u64) -> Moment {
    Moment { now, seconds: now as u32 }
}

fn facts(ino: u64, charged: u64) -> Facts {
    Facts { ino, dev: 1, mtime_ns: 2, crc: 3, flags: 0, boot: 4, charged }
}

#[derive(Debug, Clone)]
enum Op {
    Claim(u64, u32),
    Publish(u64),
    Abandon(u64, bool),
    Remove(u64, bool),
    Charge(u64, u64),
    Touch(u64),
    Die(u32),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let one = prop_oneof![
        8 => (0..KEYS, 1..4u32).prop_map(|(k, o)| Op::Claim(k, o)),
        8 => (0..KEYS).prop_map(Op::Publish),
        2 => (0..KEYS, any::<bool>()).prop_map(|(k, r)| Op::Abandon(k, r)),
        3 => (0..KEYS, any::<bool>()).prop_map(|(k, r)| Op::Remove(k, r)),
        2 => (0..KEYS, 0..100_000u64).prop_map(|(k, n)| Op::Charge(k, n)),
        2 => (0..KEYS).prop_map(Op::Touch),
        1 => (1..4u32).prop_map(Op::Die),
    ];
    proptest::collection::vec(one, 1..400)
}

/// What the index should hold.
#[derive(Default)]
struct Model {
    filling: HashMap<u64, (SlotRef, u32)>,
    /// Slot, charge in units, accesses.
    live: HashMap<u64, (SlotRef, u64, u32)>,
    /// Owners are 1 to 3 at first; one that dies is followed by the one three further on.
    dead: HashSet<u32>,
}

impl Model {
    fn in_bucket(&self, k: u64) -> usize {
        self.filling.keys().chain(self.live.keys()).filter(|other| *other % 4 == k % 4).count()
    }
}

fn run(ops: Vec<Op>) {
    let index = table(64);
    let mut model = Model::default();
    let mut owners = [0u32, 1, 2, 3];
    for (now, op) in ops.into_iter().enumerate() {
        let now = now as u64 + 1;
        match op {
            Op::Claim(k, o) => {
                let me = Owner(owners[o as usize]);
                let dead = model.dead.clone();
                let alive = |owner: Owner| !dead.contains(&owner.0);
                match index.claim(&key(k), 1000 + k, me, moment(now), &alive) {
                    Claimed::Mine(at) => {
                        assert!(!model.live.contains_key(&k) && !model.filling.contains_key(&k));
                        model.filling.insert(k, (at, me.0));
                    }
                    Claimed::Live(at) => assert_eq!(model.live[&k].0, at),
                    Claimed::Busy(owner) => {
                        assert_eq!(model.filling[&k].1, owner.0);
                        assert!(alive(owner));
                    }
                    Claimed::Dead(at) => {
                        let (&k, _) = model.filling.iter().find(|(_, (slot, _))| *slot == at).unwrap();
                        assert!(dead.contains(&at.state.owner().0));
                        let at = index.adopt(at, me).unwrap();
                        assert_eq!(index.key_of(at), key(k));
                        assert_eq!(index.take_charge(at), 0);
                        index.vacate(at, false);
                        model.filling.remove(&k);
                    }
                    Claimed::Full => {
                        assert_eq!(model.in_bucket(k), BUCKET);
                        assert!(!model.live.contains_key(&k));
                    }
                }
            }
            Op::Publish(k) => {
                let Some((at, owner)) = model.filling.get(&k).copied() else { continue };
                if !model.dead.contains(&owner) {
                    let at = index.publish(at, &facts(k, 5000));
                    model.filling.remove(&k);
                    let count = index.entry(at).unwrap().access.count;
                    model.live.insert(k, (at, 2, count));
                }
            }
            Op::Abandon(k, remember) => {
                let Some((at, owner)) = model.filling.get(&k).copied() else { continue };
                if !model.dead.contains(&owner) {
                    index.vacate(at, remember);
                    model.filling.remove(&k);
                    let history = index.history(&key(k));
                    assert_eq!(history.is_some(), remember);
                }
            }
            Op::Remove(k, remember) => {
                let Some((at, units, count)) = model.live.remove(&k) else { continue };
                let removing = index.begin_removal(at, Owner(9)).unwrap();
                assert_eq!(index.begin_removal(at, Owner(8)), None, "one removes");
                assert_eq!(index.find(&key(k)), None);
                assert_eq!(index.take_charge(removing), units * CHARGE_UNIT);
                assert_eq!(index.take_charge(removing), 0, "a charge is taken once");
                assert!(!index.add_charge(at, 1), "and nothing is added afterwards");
                index.vacate(removing, remember);
                assert_eq!(index.history(&key(k)).map(|a| a.count), remember.then_some(count));
            }
            Op::Charge(k, n) => {
                let Some((at, units, _)) = model.live.get_mut(&k) else { continue };
                if n % 2 == 0 {
                    assert!(index.add_charge(*at, n));
                    *units += n.div_ceil(CHARGE_UNIT);
                } else {
                    let taken = n.div_ceil(CHARGE_UNIT).min(*units);
                    assert_eq!(index.sub_charge(*at, n), taken * CHARGE_UNIT);
                    *units -= taken;
                }
            }
            Op::Touch(k) => {
                let Some((at, _, count)) = model.live.get_mut(&k) else { continue };
                assert_eq!(index.touch(*at, moment(now)).count, *count);
                *count += 1;
            }
            Op::Die(o) => {
                model.dead.insert(owners[o as usize]);
                owners[o as usize] += 3;
            }
        }
        check(&index, &model);
    }
}

fn check(index: &Index<Vec<AtomicU64>>, model: &Model) {
    for k in 0..KEYS {
        assert_eq!(index.find(&key(k)), model.live.get(&k).map(|(at, ..)| *at), "key {k}");
        assert_eq!(index.knows(&key(k)), model.live.contains_key(&k) || model.filling.contains_key(&k));
    }
    let entries: HashMap<Key, Entry> = index.live_from(37).map(|e| (e.key, e)).collect();
    assert_eq!(entries.len(), model.live.len());
    for (k, (at, units, count)) in &model.live {
        let entry = &entries[&key(*k)];
        assert_eq!((entry.at, entry.size, entry.ino), (*at, 1000 + k, *k));
        assert_eq!((entry.charged, entry.access.count), (units * CHARGE_UNIT, *count));
        assert_eq!((entry.crc, entry.boot, entry.dev, entry.mtime_ns), (3, 4, 1, 2));
    }
    let counts = index.count();
    let charged: u64 = model.live.values().map(|(_, units, _)| units * CHARGE_UNIT).sum();
    assert_eq!((counts.live, counts.charged), (model.live.len() as u64, charged));
    let found = index.inspect(0..usize::MAX, Owner(7), &|o| !model.dead.contains(&o.0));
    assert_eq!((found.odd.len(), found.unlisted), (0, 0));
    let dead: HashSet<SlotRef> = found.dead.into_iter().collect();
    let expected: HashSet<SlotRef> =
        model.filling.values().filter(|(_, o)| model.dead.contains(o)).map(|(at, _)| *at).collect();
    assert_eq!(dead, expected);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn every_sequence_leaves_what_a_map_would_hold(ops in ops()) {
        run(ops);
    }
}

fn claim(index: &Index<Vec<AtomicU64>>, n: u64, now: u64) -> SlotRef {
    match index.claim(&key(n), 1, Owner(1), moment(now), &|_| true) {
        Claimed::Mine(at) => at,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_entry_is_not_taken_for_what_comes_after_it() {
    let index = table(64);
    let old = index.publish(claim(&index, 0, 1), &facts(1, 4096));
    let removing = index.begin_removal(old, Owner(1)).unwrap();
    index.take_charge(removing);
    index.vacate(removing, true);
    let new = index.publish(claim(&index, 0, 2), &facts(2, 4096));
    assert_eq!(old.number(), new.number());
    assert!(index.entry(old).is_none() && !index.is_current(old));
    assert!(!index.set_flags(old, PINNED) && !index.add_charge(old, 4096));
    index.believe(old, 77, 7, 7);
    let entry = index.entry(new).unwrap();
    assert_eq!((entry.flags, entry.boot, entry.charged, entry.access.count), (0, 4, 4096, 2));
    assert!(index.set_flags(new, PINNED) && index.entry(new).unwrap().is_pinned());
    assert!(index.clear_flags(new, PINNED) && !index.entry(new).unwrap().is_pinned());
    assert_eq!(index.entry(new).unwrap().crc, 3, "flags leave the checksum alone");
}

#[test]
fn the_oldest_memory_makes_room_when_no_slot_is_empty() {
    let index = table(64);
    for n in 0..BUCKET as u64 {
        index.vacate(claim(&index, n * 4, 100 - n), true);
    }
    let oldest = key(4 * (BUCKET as u64 - 1));
    assert!(index.history(&oldest).is_some());
    let at = claim(&index, 4 * BUCKET as u64, 200);
    assert_eq!(index.history(&oldest), None);
    assert_eq!((0..BUCKET as u64).filter(|n| index.history(&key(n * 4)).is_some()).count(), BUCKET - 1);
    index.vacate(at, false);
}

#[test]
fn a_full_bucket_takes_the_slot_of_a_dead_process_before_a_live_object() {
    let index = table(64);
    let slots: Vec<_> = (0..BUCKET as u64).map(|n| claim(&index, n * 4, 1)).collect();
    for at in &slots[1..] {
        index.publish(*at, &facts(1, 4096));
    }
    let extra = key(4 * BUCKET as u64);
    assert_eq!(index.claim(&extra, 1, Owner(2), moment(2), &|_| true), Claimed::Full);
    assert_eq!(index.claim(&extra, 1, Owner(2), moment(2), &|o| o == Owner(2)), Claimed::Dead(slots[0]));
    assert_eq!(index.neighbours(&extra).count(), BUCKET - 1);
}

/// A power cut: some pages on disk are older than others.
#[test]
fn what_a_power_cut_leaves_out_is_found() {
    let index = table(64);
    let live: Vec<_> = (0..8).map(|n| index.publish(claim(&index, n, 1), &facts(n, 5000))).collect();
    let half = claim(&index, 8, 1);
    // Two bits are lost, one charge is another's, and one object is in the wrong bucket.
    live[..2].iter().for_each(|at| index.leave(at.number()));
    index.set(live[2].number(), CHARGE, slot::charge(State::new(Phase::Live, 99, Owner(0)), 4096));
    index.set(live[3].number(), KEY, 77);
    assert_eq!(index.live().count(), 6);
    assert_eq!(index.disown(), 5 * 8192);
    assert_eq!(index.worker(&key(8)), Some(Owner(0)), "whoever filled it is dead");
    let nobody = State::new(Phase::Filling, half.state.generation(), Owner(0));
    let found = index.inspect(0..64, Owner(1), &|owner| owner == Owner(1));
    assert_eq!(found.dead, [SlotRef { slot: half.slot, state: nobody }]);
    assert_eq!(found.odd, [live[2], live[3]]);
    assert_eq!(found.unlisted, 2 * 8192);
    assert_eq!(index.live().count(), 8);
    let again = index.inspect(0..64, Owner(1), &|owner| owner == Owner(1));
    assert_eq!((again.dead.len(), again.odd.len(), again.unlisted), (1, 2, 0), "counted once");
}

/// Whatever a power cut leaves in the pages, nothing panics and nothing hangs.
#[test]
fn garbage_in_the_table_is_survived() {
    let mut seed = 1u64;
    let mut random = move || {
        seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        seed ^ seed >> 29
    };
    let words = Index::<Vec<AtomicU64>>::bytes(64) as usize / 8;
    for _ in 0..200 {
        let index = Index::new((0..words).map(|_| AtomicU64::new(random())).collect::<Vec<_>>(), 64);
        let _ = (index.count(), index.live().count(), index.inspect(0..64, Owner(1), &|o| o.0 % 2 == 0));
        for k in 0..KEYS {
            if let Claimed::Dead(at) = index.claim(&key(k), 1, Owner(1), moment(1), &|_| false) {
                let at = index.adopt(at, Owner(1)).unwrap();
                index.take_charge(at);
                index.vacate(at, false);
            }
            if let Some(at) = index.find(&key(k)) {
                assert_eq!(index.entry(at).unwrap().key, key(k));
            }
        }
    }
}

#[test]
fn a_look_at_a_few_slots_tells_of_all_that_is_remembered() {
    let index = table(64);
    for n in 0..60 {
        let at = claim(&index, n, n + 1);
        match n % 3 {
            0 => index.vacate(at, true),
            1 => index.vacate(at, false),
            _ => drop(index.publish(at, &facts(n, CHARGE_UNIT))),
        }
    }
    let looks = [0, u64::MAX - 31].map(|start| index.ghosts_at(start));
    let mut ghosts: Vec<u64> = looks.iter().flat_map(|(found, _)| found).map(|access| access.last).collect();
    ghosts.sort_unstable();
    assert_eq!(ghosts, (0..60).step_by(3).map(|n| n + 1).collect::<Vec<u64>>());
    assert!(looks.iter().all(|(_, each)| *each == 2.0));
}
