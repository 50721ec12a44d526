//! The eviction policies on traces of training jobs, side by side with exact LRU, exact W-TinyLFU and Belady's
//! optimum.
//!
//! `cargo bench -p nearfs-cache --bench eviction [-- OBJECTS]`: objects that the cache holds, default 4000.

use nearfs_cache::PolicyKind;
use nearfs_cache::policy;

mod exact;
mod sampled;
mod traces;

use traces::Request;

/// What a policy made of a trace.
#[derive(Debug, Default, Clone, Copy)]
pub struct Outcome {
    pub requests: u64,
    pub hits: u64,
    pub bytes: u64,
    pub hit_bytes: u64,
}

impl Outcome {
    pub fn count(&mut self, request: &Request, hit: bool) {
        self.requests += 1;
        self.bytes += u64::from(request.size);
        self.hits += u64::from(hit);
        self.hit_bytes += if hit { u64::from(request.size) } else { 0 };
    }

    fn ratio(&self) -> f64 {
        self.hits as f64 / self.requests as f64
    }

    fn byte_ratio(&self) -> f64 {
        self.hit_bytes as f64 / self.bytes as f64
    }
}

fn main() {
    let objects = std::env::args().skip(1).find_map(|a| a.parse().ok()).unwrap_or(4000);
    for trace in traces::all(objects, 42) {
        let best = exact::belady(&trace);
        let (lru, tiny) = (exact::lru(&trace), exact::w_tiny_lfu(&trace));
        println!("{} ({} accesses)", trace.name, trace.requests.len());
        let mut line = |name: &str, o: &Outcome| {
            println!(
                "  {name:22} {:.4} {:.4}  /belady {:.3}  /bound {:5}  /max(lru,w-tiny-lfu) {:.3}",
                o.ratio(),
                o.byte_ratio(),
                o.ratio() / best.ratio(),
                trace.bound.map_or("-".into(), |b| format!("{:.3}", o.hits as f64 / b as f64)),
                o.ratio() / lru.ratio().max(tiny.ratio())
            );
        };
        line("belady", &best);
        line("exact lru", &lru);
        line("exact w-tiny-lfu", &tiny);
        for kind in [PolicyKind::Lru, PolicyKind::TinyLfu, PolicyKind::Score, PolicyKind::Epochs] {
            line(&kind.to_string(), &sampled::run(&*policy::policy(kind), &trace));
        }
    }
}
