//! The rules one by one, and all of them on the traces of the bench, small enough to run always. Hit ratios
//! depend on seeds only, so they are asserted.

use std::sync::atomic::Ordering::Relaxed;

use super::rates::{AGES, Rates, kind_of, step_of, step_start};
use super::*;
use crate::disk::policy;

#[path = "../../../benches/eviction/exact.rs"]
mod exact;
#[path = "../../../benches/eviction/outcome.rs"]
mod outcome;
#[path = "../../../benches/eviction/sampled.rs"]
mod sampled;
#[path = "../../../benches/eviction/traces.rs"]
mod traces;

use traces::{Random, Target};

const KIB: u64 = 1 << 10;

/// What a cache of a thousand objects has learned so far: nothing.
struct World {
    learned: Vec<AtomicU64>,
    now: u64,
}

impl World {
    fn new(now: u64) -> Self {
        World { learned: (0..LEARNED_WORDS).map(|_| AtomicU64::new(0)).collect(), now }
    }

    fn scene(&self) -> Scene<'_> {
        Scene { now: self.now, seconds: 1_000_000, live: 1000, learned: &self.learned }
    }

    /// Shows the default policy objects that come back after `gap(i)` accesses, one a tick.
    fn teach(&mut self, ticks: u64, gap: impl Fn(u64) -> u64) {
        let mut objects: Vec<(u64, Access)> =
            (0..1000).map(|i| (i % gap(i), Access::first(0, 0, 100 * KIB))).collect();
        for now in 1..=ticks {
            self.now = now;
            for (i, (due, access)) in objects.iter_mut().enumerate() {
                if *due <= now {
                    Epochs.back(access, &self.scene());
                    *access = access.again(now, 0);
                    *due = now + gap(i as u64);
                }
            }
            let sample: Vec<Access> = (0..SAMPLE).map(|i| objects[i * 31].1).collect();
            Epochs.sampled(&sample, &self.scene());
        }
    }
}

/// Last accessed `age` ago, with this gap between accesses (0: accessed once).
fn object(world: &World, age: u64, gap: u64) -> Access {
    let count = if gap == 0 { 1 } else { 3 };
    Access { last: world.now - age, gap, count, seconds: 1_000_000, size: 100 * KIB }
}

#[test]
fn what_a_slot_stores_comes_back() {
    let access = Access::first(5, 1_800_000_000, 4096).again(9, 1_800_000_060).again(1 << 40, u32::MAX);
    assert_eq!(Access::from_words(access.words(), 4096), access);
    assert_eq!((access.count, access.last, access.gap), (3, 1 << 40, 4u64.midpoint((1 << 40) - 9)));
}

#[test]
fn clocks_that_go_back_do_no_harm() {
    let access = Access::first(100, 500, 1).again(90, 400);
    assert_eq!((access.last, access.gap, access.count), (100, 1, 2));
    assert_eq!(access.age(50), 0);
    let most = Access { count: u32::MAX, ..access };
    assert_eq!(most.again(200, 0).count, u32::MAX);
}

#[test]
fn the_score_has_the_digits_of_its_formula() {
    let access =
        |hours: u32, count, size| Access { last: 1, gap: 0, count, seconds: 1_000_000 - hours * 3600, size };
    for (access, score) in [
        // 1 × log10(2) × 1/2
        (access(0, 1, KIB), 0.150_515),
        // 1/2 × log10(10) × 1/(1 + 100)
        (access(1, 9, 100 * KIB), 0.004_950_5),
        // max(0.1, 1/100) × log10(100) × 1/(1 + 0)
        (access(99, 99, 0), 0.2),
        // 1/9.5 × 3 × 1/(1 + 0.5): still above the floor of 0.1
        (Access { seconds: 1_000_000 - 30_600, ..access(0, 999, 512) }, 0.210_526),
    ] {
        let found = Score::of(&access, 1_000_000);
        assert!((found - score).abs() < score * 1e-5, "{access:?}: {found}, expected {score}");
    }
}

#[test]
fn lru_takes_the_oldest_and_admits_all() {
    let world = World::new(5000);
    let sample = [object(&world, 7, 3), object(&world, 900, 1), object(&world, 899, 0)];
    assert_eq!(choose(&Lru, &sample, Some(&object(&world, 0, 0)), &world.scene()), Choice::Evict(1));
}

#[test]
fn tiny_lfu_takes_the_rarest_behind_its_window() {
    let world = World::new(50_000);
    // In the window (1 % of 1000), rare, frequent.
    let sample = [object(&world, 9, 0), object(&world, 2000, 4000), object(&world, 500, 700)];
    assert_eq!(choose(&TinyLfu, &sample, None, &world.scene()), Choice::Evict(1));
    // Once out of the window, accessed once is the rarest; of two such the younger goes.
    let sample = [object(&world, 100, 0), object(&world, 11, 0), object(&world, 2000, 4000)];
    assert_eq!(choose(&TinyLfu, &sample, None, &world.scene()), Choice::Evict(1));
    // What was frequent long ago is not any more.
    let sample = [object(&world, 11, 0), object(&world, 20_000, 100)];
    assert_eq!(choose(&TinyLfu, &sample, None, &world.scene()), Choice::Evict(1));
}

#[test]
fn without_a_newcomer_something_always_goes_and_without_a_sample_nothing() {
    let world = World::new(100);
    let one = [object(&world, 1, 1)];
    for kind in [PolicyKind::Epochs, PolicyKind::Lru, PolicyKind::TinyLfu, PolicyKind::Score] {
        let policy = policy::policy(kind);
        assert_eq!(choose(&*policy, &one, None, &world.scene()), Choice::Evict(0), "{kind}");
        assert_eq!(choose(&*policy, &[], Some(&one[0]), &world.scene()), Choice::Nothing, "{kind}");
    }
}

#[test]
fn steps_of_age_meet_their_limits() {
    for age in (0..100_000).chain([u64::MAX / 2, u64::MAX]) {
        let step = step_of(age);
        assert!(step_start(step) <= age as f64, "{age}");
        assert!(step == AGES - 1 || (age as f64) < step_start(step + 1), "{age}");
    }
}

#[test]
fn in_epochs_the_unread_stay_and_the_newcomer_is_not_let_in() {
    let mut world = World::new(0);
    world.teach(30_000, |_| 4000);
    let (read, unread) = (object(&world, 500, 4000), object(&world, 3500, 4000));
    assert_eq!(choose(&Epochs, &[unread, read, unread], None, &world.scene()), Choice::Evict(1));
    let newcomer = object(&world, 0, 4000);
    assert_eq!(choose(&Epochs, &[unread; 8], Some(&newcomer), &world.scene()), Choice::Reject);
    assert_eq!(
        choose(&Epochs, &[newcomer; 8], Some(&newcomer), &world.scene()),
        Choice::Reject,
        "not worth writing"
    );
}

#[test]
fn what_is_long_overdue_is_dead() {
    let mut world = World::new(0);
    world.teach(30_000, |_| 4000);
    // Objects that stopped coming are seen to stand there.
    let dead: Vec<Access> = (0..SAMPLE).map(|_| object(&world, 9000, 4000)).collect();
    for _ in 0..8000 {
        world.now += 1;
        Epochs.sampled(
            &dead.iter().map(|a| Access { last: world.now - 9000, ..*a }).collect::<Vec<_>>(),
            &world.scene(),
        );
    }
    let (dead, fresh) = (object(&world, 9000, 4000), object(&world, 10, 4000));
    assert_eq!(choose(&Epochs, &[fresh, dead, fresh], None, &world.scene()), Choice::Evict(1));
    assert_eq!(choose(&Epochs, &[dead], Some(&object(&world, 0, 4000)), &world.scene()), Choice::Evict(0));
}

#[test]
fn what_comes_back_often_stays_when_others_come_once() {
    let mut world = World::new(0);
    // A third comes back every 300 accesses, the others practically never.
    world.teach(20_000, |i| if i % 3 == 0 { 300 } else { 1 << 30 });
    let (popular, once) = (object(&world, 150, 300), object(&world, 150, 0));
    assert_eq!(choose(&Epochs, &[popular, once], None, &world.scene()), Choice::Evict(1));
    assert_eq!(
        choose(&Epochs, &[popular; 4], Some(&object(&world, 0, 0)), &world.scene()),
        Choice::Reject,
        "a scan"
    );
}

#[test]
fn what_comes_round_among_the_ghosts_gets_in() {
    let mut world = World::new(0);
    world.teach(30_000, |_| 4000);
    let (unread, newcomer) = (object(&world, 3500, 4000), object(&world, 0, 100));
    assert_eq!(
        choose(&Epochs, &[unread; 4], Some(&newcomer), &world.scene()),
        Choice::Reject,
        "not proven yet"
    );
    // 100 objects are refused again and again, and come round every 100 accesses.
    for _ in 0..3000 {
        world.now += 1;
        Epochs.back(&object(&world, 100, 100), &world.scene());
        let ghosts: Vec<Access> = (0..10).map(|i| object(&world, i * 10 + 5, 100)).collect();
        Epochs.ghosts(&ghosts, 10.0, &world.scene());
    }
    let (unread, newcomer) = (object(&world, 3500, 4000), object(&world, 0, 100));
    assert_eq!(choose(&Epochs, &[unread; 4], Some(&newcomer), &world.scene()), Choice::Evict(0));
}

#[test]
fn a_small_object_is_worth_more_per_byte_and_a_large_one_is_not_worth_nothing() {
    let world = World::new(100_000);
    let sized = |size| Epochs.worth(&Access { size, ..object(&world, 500, 700) }, &world.scene());
    assert!(sized(10 * KIB) > 5.0 * sized(100 * KIB));
    assert!(sized(1 << 30) > 0.9 * sized(100 << 20), "beyond a few MiB it is the bytes that cost");
    assert!(sized(0) == sized(4096), "an empty object takes a block");
}

#[test]
fn damaged_words_decide_something_and_heal() {
    let mut random = Random(3);
    for round in 0..200 {
        let mut world = World::new(1_000_000);
        for word in &world.learned {
            let damage =
                [random.next(), f64::NAN.to_bits(), f64::INFINITY.to_bits(), (-1.0f64).to_bits(), u64::MAX];
            word.store(damage[random.below(5) as usize], Relaxed);
        }
        let sample: Vec<Access> =
            (0..8).map(|_| object(&world, random.below(900_000), random.below(99))).collect();
        for access in &sample {
            assert!(Epochs.worth(access, &world.scene()).is_finite(), "round {round}");
            Epochs.back(access, &world.scene());
        }
        for _ in 0..2 * AGES {
            world.now += 1;
            assert!(matches!(choose(&Epochs, &sample, None, &world.scene()), Choice::Evict(_)));
        }
        let rate = Rates::of(&world.scene()).rate(kind_of(&sample[0]), 3, 1000);
        assert!(rate.is_finite() && rate >= 0.0);
    }
}

#[test]
fn the_sampled_lru_is_nearly_the_exact_one() {
    for trace in traces::all(100, 7).into_iter().filter(|t| t.name.contains("zipf")) {
        let (exact, sampled) = (exact::lru(&trace).objects(), sampled::run(&Lru, &trace).objects());
        assert!((exact - sampled).abs() < 0.03, "{}: {exact} and {sampled}", trace.name);
    }
}

#[test]
fn the_default_reaches_its_targets_on_every_trace() {
    for trace in traces::all(100, 42) {
        let found = sampled::run(&Epochs, &trace);
        let belady = exact::belady(&trace);
        if let Some(bound) = trace.bound {
            assert!(
                belady.hits <= bound && found.hits <= bound,
                "{}: more hits than there can be",
                trace.name
            );
        }
        let (other, share) = match trace.target {
            Target::Optimum => (belady.objects(), 0.95),
            Target::Others => (exact::lru(&trace).objects().max(exact::w_tiny_lfu(&trace).objects()), 0.9),
        };
        assert!(found.objects() >= share * other, "{}: {} of {other}", trace.name, found.objects());
        assert!((0.0..=1.0).contains(&found.bytes()));
    }
}

#[test]
fn belady_gains_nothing_from_knowing_a_shuffled_order() {
    for trace in traces::all(100, 1).iter().filter(|t| t.target == Target::Optimum) {
        assert_eq!(Some(exact::belady(trace).hits), trace.bound, "{}", trace.name);
    }
}
