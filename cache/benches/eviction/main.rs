//! The eviction policies on traces of training jobs, side by side with exact LRU, exact W-TinyLFU and Belady's
//! optimum. What is simulated is the disk tier's own mechanism and code; nothing here is measured in time.
//!
//! `cargo bench -p nearfs-cache --bench eviction [-- OBJECTS]`: objects that the cache holds, default 4000.
//!
//! "of bound" is the share of the hits that any policy can have, with foreknowledge or without. For epochs it is
//! derived, not simulated: every object is read once in an epoch, so each hit of an epoch is of an object that was in
//! the cache when the epoch began, and an epoch after the first has as many hits as the cache has places, at most.
//! Belady's optimum has exactly that many: knowing the order of a shuffled epoch gains nothing in this measure.

use nearfs_cache::{PolicyKind, policy};

mod exact;
mod outcome;
mod sampled;
mod traces;

use outcome::Outcome;
use traces::{Target, Trace};

fn main() {
    let objects = std::env::args().skip(1).find_map(|a| a.parse().ok()).unwrap_or(4000);
    println!("A cache of {objects} objects of 100 KiB. Ratios are by objects, \"bytes\" apart.\n");
    let mut reached = Vec::new();
    for trace in traces::all(objects, 42) {
        reached.push(compare(&trace));
    }
    println!("The default policy and its targets:");
    for line in reached {
        println!("  {line}");
    }
}

/// Prints the table of one trace, and returns what the default policy reached in it.
fn compare(trace: &Trace) -> String {
    println!("{}: {} accesses", trace.name, trace.requests.len());
    println!(
        "  {:18} {:>7} {:>7} {:>10} {:>9} {:>12}",
        "", "objects", "bytes", "of belady", "of bound", "of the best*"
    );
    let belady = exact::belady(trace);
    let (lru, tiny) = (exact::lru(trace), exact::w_tiny_lfu(trace));
    let others = lru.objects().max(tiny.objects());
    let line = |name: &str, outcome: &Outcome| {
        let bound =
            trace.bound.map_or("-".into(), |bound| format!("{:.3}", outcome.hits as f64 / bound as f64));
        println!(
            "  {name:18} {:7.4} {:7.4} {:10.3} {bound:>9} {:>12}",
            outcome.objects(),
            outcome.bytes(),
            outcome.objects() / belady.objects(),
            ratio(outcome.objects(), others),
        );
    };
    line("belady", &belady);
    line("exact lru", &lru);
    line("exact w-tiny-lfu", &tiny);
    let mut default = Outcome::default();
    for kind in [PolicyKind::Lru, PolicyKind::TinyLfu, PolicyKind::Score, PolicyKind::Epochs] {
        let outcome = sampled::run(&*policy::policy(kind), trace);
        line(&kind.to_string(), &outcome);
        if kind == PolicyKind::default() {
            default = outcome;
        }
    }
    println!("  * the better of exact lru and exact w-tiny-lfu\n");
    let (of, objects, bytes, target) = match trace.target {
        Target::Optimum => ("belady", belady.objects(), belady.bytes(), 0.95),
        Target::Others => ("the best*", others, lru.bytes().max(tiny.bytes()), 0.9),
    };
    let (objects, bytes) = (default.objects() / objects, default.bytes() / bytes);
    let verdict = if objects >= target { "reached" } else { "MISSED" };
    format!("{:30} {objects:6.3} (by bytes {bytes:6.3}) of {of:9} target {target:.2} {verdict}", trace.name)
}

/// A ratio that may have nothing to compare with.
fn ratio(value: f64, other: f64) -> String {
    if other > 0.0 { format!("{:.3}", value / other) } else { "-".into() }
}
