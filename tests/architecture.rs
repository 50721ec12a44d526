//! Dependencies between our crates run one way, and the library carries nothing of the command line.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

/// What each crate may depend on (normal and build dependencies) among ours.
const ALLOWED: &[(&str, &[&str])] = &[
    ("nearfs-backends", &[]),
    ("nearfs-cache", &["nearfs-backends"]),
    ("nearfs-mount", &["nearfs-cache", "nearfs-backends"]),
    ("nearfs", &["nearfs-mount", "nearfs-cache", "nearfs-backends"]),
    ("nearfs-lab", &[]),
];

/// Crates that only the binary needs.
const COMMAND_LINE_ONLY: &[&str] = &["clap", "clap_complete", "indicatif", "tracing-subscriber"];

fn cargo(args: &[&str]) -> String {
    let out =
        Command::new(env!("CARGO")).args(args).current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    assert!(out.status.success(), "cargo {args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

#[test]
fn dependencies_run_one_way() {
    let metadata: Value =
        serde_json::from_str(&cargo(&["metadata", "--format-version=1", "--no-deps", "--offline"])).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let ours: BTreeSet<&str> = packages.iter().map(|p| p["name"].as_str().unwrap()).collect();
    let allowed: BTreeMap<_, _> = ALLOWED.iter().copied().collect();
    assert_eq!(ours, allowed.keys().copied().collect(), "a crate came or went: place it in ALLOWED");
    for package in packages {
        let name = package["name"].as_str().unwrap();
        for dependency in package["dependencies"].as_array().unwrap() {
            let target = dependency["name"].as_str().unwrap();
            let dev = dependency["kind"] == "dev";
            if ours.contains(target) && !allowed[name].contains(&target) {
                // Tests may use the lab, and their own crate with more features; nothing may name the root (two copies of a crate would meet).
                assert!(
                    dev && (target == "nearfs-lab" || target == name),
                    "{name} must not depend on {target}"
                );
            }
        }
    }
}

#[test]
fn the_library_does_not_carry_the_command_line() {
    let tree = cargo(&[
        "tree",
        "--offline",
        "-p",
        "nearfs",
        "--no-default-features",
        "-e",
        "normal",
        "--prefix",
        "none",
        "-f",
        "{p}",
    ]);
    let found: BTreeSet<&str> = tree.lines().filter_map(|l| l.split(' ').next()).collect();
    assert!(found.contains("nearfs-cache"), "the tree is not that of the library: {tree}");
    for name in COMMAND_LINE_ONLY {
        assert!(!found.contains(name), "the library depends on {name} without the feature `cli`");
    }
}
