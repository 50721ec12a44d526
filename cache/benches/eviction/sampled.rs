//! The tier's own mechanism with the disk left out: buckets of slots, ghosts in the slots that are left, a random
//! sample of what is live, and [`choose`].

use std::sync::atomic::AtomicU64;

use super::outcome::Outcome;
use super::policy::{Access, Choice, LEARNED_WORDS, Policy, SAMPLE, Scene, choose};
use super::traces::{Random, Trace};

const BUCKET: usize = 16;

#[derive(Clone, Copy)]
enum Slot {
    Empty,
    Live(u32, Access),
    Ghost(u32, Access),
}

struct Sampled<'a> {
    policy: &'a dyn Policy,
    slots: Vec<Slot>,
    learned: Vec<AtomicU64>,
    live: u64,
    used: u64,
    limit: u64,
    random: Random,
}

/// Accesses in an hour of wall time, for rules that look at the clock: an epoch of some hours.
const AN_HOUR: u64 = 10_000;

pub(crate) fn run(policy: &dyn Policy, trace: &Trace) -> Outcome {
    // As many slots as the index has: a power of two near one for 32 KiB.
    let slots = ((trace.limit >> 15) as usize).next_power_of_two();
    let mut cache = Sampled {
        policy,
        slots: vec![Slot::Empty; slots.max(BUCKET)],
        learned: (0..LEARNED_WORDS).map(|_| AtomicU64::new(0)).collect(),
        live: 0,
        used: 0,
        limit: trace.limit,
        random: Random(1),
    };
    let mut outcome = Outcome::default();
    for (i, request) in trace.requests.iter().enumerate() {
        let hit = cache.access(request.object, charge(request.size), i as u64 + 1);
        outcome.count(request, hit);
    }
    outcome
}

/// What an object costs on disk.
pub(crate) fn charge(size: u32) -> u64 {
    u64::from(size.next_multiple_of(4096))
}

fn seconds(now: u64) -> u32 {
    (now * 3600 / AN_HOUR) as u32
}

impl Sampled<'_> {
    fn access(&mut self, object: u32, size: u64, now: u64) -> bool {
        let bucket = (Random(u64::from(object)).next() as usize % (self.slots.len() / BUCKET)) * BUCKET;
        let found = (bucket..bucket + BUCKET)
            .find(|i| matches!(self.slots[*i], Slot::Live(o, _) | Slot::Ghost(o, _) if o == object));
        let newcomer = match found.map(|i| (i, self.slots[i])) {
            Some((i, Slot::Live(_, before))) => {
                self.policy.back(&before, &scene(&self.learned, self.live, now));
                self.slots[i] = Slot::Live(object, before.again(now, seconds(now)));
                return true;
            }
            Some((i, Slot::Ghost(_, before))) => {
                self.policy.back(&before, &scene(&self.learned, self.live, now));
                self.slots[i] = Slot::Empty;
                before.again(now, seconds(now))
            }
            _ => Access::first(now, seconds(now), size),
        };
        if self.make_room(&newcomer, now)
            && let Some(i) = self.place(bucket, Some(&newcomer), now)
        {
            self.slots[i] = Slot::Live(object, newcomer);
            self.live += 1;
            self.used += size;
        } else if let Some(i) = self.place(bucket, None, now) {
            self.slots[i] = Slot::Ghost(object, newcomer);
        }
        false
    }

    /// A slot for the newcomer (`None`: for a ghost, which pushes no live object out).
    fn place(&mut self, bucket: usize, newcomer: Option<&Access>, now: u64) -> Option<usize> {
        let range = bucket..bucket + BUCKET;
        if let Some(i) = range.clone().find(|i| matches!(self.slots[*i], Slot::Empty)) {
            return Some(i);
        }
        let oldest = range.clone().filter_map(|i| match self.slots[i] {
            Slot::Ghost(_, access) => Some((access.last, i)),
            _ => None,
        });
        if let Some((_, i)) = oldest.min() {
            return Some(i);
        }
        let newcomer = newcomer?;
        let sample: Vec<Access> = range.clone().filter_map(|i| live(&self.slots[i])).collect();
        match choose(self.policy, &sample, Some(newcomer), &scene(&self.learned, self.live, now)) {
            Choice::Evict(i) => {
                self.live -= 1;
                self.used -= sample[i].size;
                Some(bucket + i)
            }
            Choice::Reject | Choice::Nothing => None,
        }
    }

    fn make_room(&mut self, newcomer: &Access, now: u64) -> bool {
        while self.used + newcomer.size > self.limit {
            let (at, sample) = self.sample();
            let (ghosts, each) = self.ghosts();
            self.policy.ghosts(&ghosts, each, &scene(&self.learned, self.live, now));
            match choose(self.policy, &sample, Some(newcomer), &scene(&self.learned, self.live, now)) {
                Choice::Evict(i) => {
                    let Slot::Live(object, access) = self.slots[at[i]] else { unreachable!() };
                    self.slots[at[i]] = Slot::Ghost(object, access);
                    self.live -= 1;
                    self.used -= access.size;
                }
                Choice::Reject | Choice::Nothing => return false,
            }
        }
        true
    }

    /// The ghosts in two neighbouring buckets, and how many each stands for.
    fn ghosts(&mut self) -> (Vec<Access>, f64) {
        let slots = self.slots.len();
        let start = self.random.below((slots / BUCKET) as u64) as usize * BUCKET;
        let found = (start..start + SAMPLE.min(slots)).filter_map(|i| match self.slots[i % slots] {
            Slot::Ghost(_, access) => Some(access),
            _ => None,
        });
        (found.collect(), slots as f64 / SAMPLE.min(slots) as f64)
    }

    fn sample(&mut self) -> (Vec<usize>, Vec<Access>) {
        let start = self.random.below(self.slots.len() as u64) as usize;
        let all = (start..self.slots.len()).chain(0..start);
        all.filter_map(|i| live(&self.slots[i]).map(|access| (i, access))).take(SAMPLE).unzip()
    }
}

fn live(slot: &Slot) -> Option<Access> {
    match slot {
        Slot::Live(_, access) => Some(*access),
        Slot::Empty | Slot::Ghost(..) => None,
    }
}

fn scene(learned: &[AtomicU64], live: u64, now: u64) -> Scene<'_> {
    Scene { now, seconds: seconds(now), live, learned }
}
