//! Reads through real mounts, beside a plain parallel client and other mounts of the same lab server, in one run.
//!
//! `cargo bench --bench mount_read -- [--reps N] [--only WORKLOAD,…] [--nearfs-only]`; needs root (it mounts and drops
//! the page cache). Peers: `s3fs` from the distribution, `rclone` from the tests' virtual environment
//! (`NEARFS_TEST_VENV`). Every byte read through a mount is checked. Systems take turns, each on a fresh mount with
//! empty caches; medians are printed, and ratios only between figures of this run.

mod systems;
mod warm;
mod workloads;

use std::collections::BTreeMap;

use nearfs_lab::Lab;
use systems::System;
use warm::Warm;
use workloads::{Figures, Workload};

/// One bucket for the data sets, one for the tree that is walked.
const BUCKET: &str = "bench";
const WALK_BUCKET: &str = "meta";
const GIB: u64 = 1 << 30;
const SMALL: u64 = 100 << 10;

fn main() {
    let mut reps = 3;
    let mut only: Option<Vec<String>> = None;
    let mut systems = vec![System::Nearfs, System::NearfsMemory, System::Rclone, System::S3fs];
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--bench" => {}
            "--reps" => reps = args.next().and_then(|n| n.parse().ok()).expect("--reps takes a number"),
            "--only" => only = args.next().map(|l| l.split(',').map(str::to_owned).collect()),
            "--nearfs-only" => systems.truncate(2),
            other => panic!("unknown argument `{other}`: --reps N, --only WORKLOAD,…, --nearfs-only"),
        }
    }
    let chosen: Vec<Workload> = Workload::ALL
        .into_iter()
        .filter(|w| only.as_ref().is_none_or(|o| o.iter().any(|n| n == w.name())))
        .collect();
    let warm: Vec<Warm> = Warm::ALL
        .into_iter()
        .filter(|w| only.as_ref().is_none_or(|o| o.iter().any(|n| n == w.name())))
        .collect();
    assert!(
        !(chosen.is_empty() && warm.is_empty()),
        "no such workload; there are {:?} {:?}",
        Workload::ALL.map(|w| w.name()),
        Warm::ALL.map(|w| w.name())
    );

    let lab = Lab::builder().bucket(BUCKET).bucket(WALK_BUCKET).start().expect("the lab listens on loopback");
    workloads::seed(&lab);
    for workload in chosen {
        let mut figures: BTreeMap<String, Vec<Figures>> = BTreeMap::new();
        for rep in 0..reps {
            if let Some(reference) = workload.reference(&lab) {
                figures.entry("plain client".into()).or_default().push(reference);
            }
            // The order rotates, so that nobody always comes first.
            for i in 0..systems.len() {
                let system = systems[(i + rep) % systems.len()];
                if workload.runs_on(system) {
                    let result = workload.run(&lab, system, rep as u64);
                    figures.entry(system.name().into()).or_default().push(result);
                }
            }
        }
        print(workload, &figures);
    }
    for warm in warm {
        // An odd number, so that the median is a pair's.
        warm.run(&lab, (reps | 1).max(7));
    }
}

fn print(workload: Workload, figures: &BTreeMap<String, Vec<Figures>>) {
    println!("\n## {}: {}", workload.name(), workload.describe());
    let medians: BTreeMap<&str, Figures> = figures.iter().map(|(s, f)| (s.as_str(), median(f))).collect();
    for (system, values) in &medians {
        let text: Vec<_> = values.iter().map(|(name, value)| format!("{name} {}", number(*value))).collect();
        println!("{system:>13}: {}", text.join(", "));
    }
    for (system, runs) in figures {
        let all: Vec<_> = runs.iter().map(|f| number(f[workload.rate()])).collect();
        println!("{system:>13}  {} of each run: {}", workload.rate(), all.join(" "));
    }
    let Some(own) = medians.get(System::Nearfs.name()) else { return };
    for (system, values) in medians.iter().filter(|(s, _)| **s != System::Nearfs.name()) {
        println!("    ratio nearfs / {system}: {:.2}", own[workload.rate()] / values[workload.rate()]);
    }
    println!("    target: {}", workload.target());
}

fn median(runs: &[Figures]) -> Figures {
    let mut out = Figures::new();
    for name in runs[0].keys() {
        let mut values: Vec<f64> = runs.iter().filter_map(|f| f.get(name).copied()).collect();
        values.sort_by(f64::total_cmp);
        out.insert(name, values[values.len() / 2]);
    }
    out
}

fn number(value: f64) -> String {
    if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.3}") }
}
