//! What the sampled policies are compared with: LRU and W-TinyLFU with their lists, and Belady's optimum.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::outcome::Outcome;
use super::sampled::charge;
use super::traces::{Random, Trace};

/// Evicts what is needed farthest in the future, the newcomer included (MIN with bypass). The optimum for objects of
/// one size; for mixed sizes a good reference, not a bound.
pub(crate) fn belady(trace: &Trace) -> Outcome {
    let mut next = vec![u64::MAX; trace.requests.len()];
    let mut seen = HashMap::new();
    for (i, request) in trace.requests.iter().enumerate().rev() {
        if let Some(later) = seen.insert(request.object, i as u64) {
            next[i] = later;
        }
    }
    let mut outcome = Outcome::default();
    let mut at: HashMap<u32, u64> = HashMap::new();
    let mut order: BTreeSet<(u64, u32, u64)> = BTreeSet::new();
    let mut used = 0;
    for (request, next) in trace.requests.iter().zip(next) {
        let size = charge(request.size);
        let hit = at.remove(&request.object).is_some_and(|now| order.remove(&(now, request.object, size)));
        outcome.count(request, hit);
        used -= if hit { size } else { 0 };
        if next == u64::MAX {
            continue;
        }
        order.insert((next, request.object, size));
        at.insert(request.object, next);
        used += size;
        while used > trace.limit
            && let Some((_, object, size)) = order.pop_last()
        {
            at.remove(&object);
            used -= size;
        }
    }
    outcome
}

/// A list in order of use.
#[derive(Default)]
struct List {
    at: HashMap<u32, (u64, u64)>,
    order: BTreeMap<u64, u32>,
    used: u64,
    clock: u64,
}

impl List {
    fn push(&mut self, object: u32, size: u64) {
        self.remove(object);
        self.clock += 1;
        self.at.insert(object, (self.clock, size));
        self.order.insert(self.clock, object);
        self.used += size;
    }

    fn remove(&mut self, object: u32) -> Option<u64> {
        let (at, size) = self.at.remove(&object)?;
        self.order.remove(&at);
        self.used -= size;
        Some(size)
    }

    fn oldest(&self) -> Option<u32> {
        self.order.first_key_value().map(|(_, object)| *object)
    }
}

/// Least recently used.
pub(crate) fn lru(trace: &Trace) -> Outcome {
    let mut outcome = Outcome::default();
    let mut list = List::default();
    for request in &trace.requests {
        let size = charge(request.size);
        outcome.count(request, list.remove(request.object).is_some());
        list.push(request.object, size);
        while list.used > trace.limit {
            list.oldest().and_then(|object| list.remove(object));
        }
    }
    outcome
}

/// Four-bit count-min sketch of four rows, halved after ten times as many additions as the cache has objects.
struct Sketch {
    rows: [Vec<u8>; 4],
    additions: u64,
    period: u64,
}

impl Sketch {
    fn new(objects: u64) -> Self {
        let width = (objects * 4).next_power_of_two().max(64) as usize;
        Sketch { rows: std::array::from_fn(|_| vec![0; width]), additions: 0, period: objects * 10 }
    }

    fn places(&self, object: u32) -> [usize; 4] {
        let mut random = Random(u64::from(object) << 8);
        std::array::from_fn(|row| random.next() as usize % self.rows[row].len())
    }

    fn get(&self, object: u32) -> u8 {
        let places = self.places(object);
        (0..4).map(|row| self.rows[row][places[row]]).min().unwrap_or(0)
    }

    fn add(&mut self, object: u32) {
        let (places, least) = (self.places(object), self.get(object));
        for (row, place) in self.rows.iter_mut().zip(places) {
            let count = &mut row[place];
            // Conservative update: only the counters that decide.
            if *count == least && least < 15 {
                *count += 1;
            }
        }
        self.additions += 1;
        if self.additions >= self.period {
            self.rows.iter_mut().flatten().for_each(|count| *count /= 2);
            self.additions /= 2;
        }
    }
}

/// W-TinyLFU: a window of 1 % in LRU order, main as a segmented LRU (80 % protected), admission by frequency.
pub(crate) fn w_tiny_lfu(trace: &Trace) -> Outcome {
    let mean = trace.requests.iter().map(|r| charge(r.size)).sum::<u64>() / trace.requests.len() as u64;
    let mut sketch = Sketch::new(trace.limit / mean);
    let window_limit = (trace.limit / 100).max(mean);
    let main_limit = trace.limit - window_limit;
    let (mut window, mut probation, mut protected) = (List::default(), List::default(), List::default());
    let mut outcome = Outcome::default();
    for request in &trace.requests {
        let (object, size) = (request.object, charge(request.size));
        sketch.add(object);
        let hit = if window.at.contains_key(&object) {
            window.push(object, size);
            true
        } else if protected.at.contains_key(&object) {
            protected.push(object, size);
            true
        } else if probation.remove(object).is_some() {
            protected.push(object, size);
            while protected.used > main_limit * 4 / 5
                && let Some(oldest) = protected.oldest()
                && let Some(size) = protected.remove(oldest)
            {
                probation.push(oldest, size);
            }
            true
        } else {
            window.push(object, size);
            false
        };
        outcome.count(request, hit);
        while window.used > window_limit
            && let Some(candidate) = window.oldest()
            && let Some(size) = window.remove(candidate)
        {
            let mut admitted = size <= main_limit;
            while admitted && probation.used + protected.used + size > main_limit {
                let from = if probation.used > 0 { &mut probation } else { &mut protected };
                match from.oldest() {
                    Some(victim) if sketch.get(candidate) > sketch.get(victim) => {
                        from.remove(victim);
                    }
                    _ => admitted = false,
                }
            }
            if admitted {
                probation.push(candidate, size);
            }
        }
    }
    outcome
}
