//! Options, settings and their origin; what is refused.

use std::fs;

use nearfs_lab::Lab;

use crate::harness::{Printed, alone, fails, run};

fn lab() -> Lab {
    Lab::builder().bucket("b").start().unwrap()
}

fn shown(printed: &Printed, key: &str) -> (String, String) {
    let entry = printed.json().into_iter().find(|e| e["key"] == key).unwrap();
    (entry["value"].as_str().unwrap_or_default().to_owned(), entry["origin"].as_str().unwrap().to_owned())
}

#[test]
fn the_strongest_place_wins_and_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let xdg = dir.path().join("xdg/nearfs");
    fs::create_dir_all(&xdg).unwrap();
    fs::write(xdg.join("nearfs.toml"), "retries = 1\nmetadata_ttl = '1s'\nnegative_ttl = '1s'\n").unwrap();
    fs::write(
        dir.path().join("nearfs.toml"),
        "metadata_ttl = '2s'\n[store.\"s3://b/x\"]\nmetadata_ttl = '3s'\n",
    )
    .unwrap();
    let show = |vars: &[(&str, &str)], args: &[&str]| {
        let mut command = alone();
        command.current_dir(dir.path()).env("XDG_CONFIG_HOME", dir.path().join("xdg"));
        command.envs(vars.iter().copied()).args(["--json", "config", "show"]).args(args);
        let printed = run(&mut command);
        assert_eq!(printed.code, 0, "{}", printed.err);
        printed
    };
    let plain = show(&[], &[]);
    assert_eq!(shown(&plain, "retries"), ("1".into(), xdg.join("nearfs.toml").display().to_string()));
    assert_eq!(shown(&plain, "metadata_ttl"), ("2s".into(), "nearfs.toml".into()));
    assert_eq!(shown(&plain, "deadline"), ("60s".into(), "default".into()));
    let section = show(&[], &["s3://b/x/y"]);
    assert_eq!(shown(&section, "metadata_ttl"), ("3s".into(), "nearfs.toml [store.\"s3://b/x\"]".into()));
    let env = show(&[("NEARFS_METADATA_TTL", "4s")], &["s3://b/x/y"]);
    assert_eq!(shown(&env, "metadata_ttl"), ("4s".into(), "environment NEARFS_METADATA_TTL".into()));
    let flag = show(&[("NEARFS_REGION", "env")], &["--region", "flag"]);
    assert_eq!(shown(&flag, "region"), ("flag".into(), "option --region".into()));
    let aws = show(&[("AWS_DEFAULT_REGION", "aws")], &[]);
    assert_eq!(shown(&aws, "region"), ("aws".into(), "environment AWS_DEFAULT_REGION".into()));
    // One file alone.
    let only = dir.path().join("only.toml");
    fs::write(&only, "retries = 7\n").unwrap();
    let only = show(&[], &["--config", only.to_str().unwrap()]);
    assert_eq!((shown(&only, "retries").0, shown(&only, "metadata_ttl").0), ("7".into(), "60s".into()));

    // Several directories: repeated, in a file an array, in the environment with `:` between them.
    let dirs = show(&[("NEARFS_CACHE_DIR", "/e/1:/e/2")], &[]);
    assert_eq!(shown(&dirs, "cache_dir"), ("/e/1:/e/2".into(), "environment NEARFS_CACHE_DIR".into()));
    let dirs = show(&[], &["--cache-dir", "/f/1", "--cache-dir=/f/2:x"]);
    assert_eq!(shown(&dirs, "cache_dir"), ("/f/1:/f/2\\:x".into(), "option --cache-dir".into()));

    let mut text = alone();
    let text = run(text.current_dir(dir.path()).args(["config", "show", "--origin"]));
    assert!(
        text.text().lines().any(|l| l.starts_with("metadata_ttl = \"2s\"") && l.ends_with("# nearfs.toml")),
        "{}",
        text.text()
    );
    // What is shown is a file that can be read again.
    fs::write(dir.path().join("again.toml"), text.text()).unwrap();
    let mut again = alone();
    let again = run(again.current_dir(dir.path()).args(["--config", "again.toml", "config", "show"]));
    assert_eq!(again.code, 0, "{}", again.err);
}

#[test]
fn slips_in_files_and_variables_are_found() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("nearfs.toml"), "metdata_ttl = '1s'\n").unwrap();
    let printed = run(alone().current_dir(dir.path()).args(["config", "show"]));
    assert_eq!(printed.code, 2);
    assert!(printed.err.contains("nearfs.toml: unknown setting `metdata_ttl`"), "{}", printed.err);
    assert!(printed.err.contains("hint: did you mean `metadata_ttl`?"), "{}", printed.err);
    let printed = run(alone().env("NEARFS_DEADLINE", "soon").args(["config", "show"]));
    assert_eq!(printed.code, 2);
    assert!(printed.err.contains("environment NEARFS_DEADLINE"), "{}", printed.err);
    let printed = run(alone().env("NEARFS_DEADLIEN", "1s").args(["config", "show"]));
    assert_eq!(printed.code, 0);
    assert!(printed.err.contains("did you mean NEARFS_DEADLINE?"), "{}", printed.err);
    let printed = run(alone().args(["--config", "/nonexistent.toml", "config", "show"]));
    assert_eq!(printed.code, 2);
    assert!(printed.err.contains("/nonexistent.toml: no such configuration file"), "{}", printed.err);
}

#[test]
fn what_is_not_there_yet_is_refused() {
    let lab = lab();
    for verb in
        ["mv", "rm", "mkdir", "sync", "warm", "manifest", "bench", "prefetch", "trace", "presign", "hash"]
    {
        fails(&lab, 2, "unrecognized subcommand", [verb, "s3://b/x"]);
    }
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().to_str().unwrap();
    for option in [
        "--write-back",
        "--on-conflict=fail",
        "--posix-metadata",
        "--warm=auto",
        "--stale-if-error=1h",
        "--metrics=:1",
        "--manifest=f",
    ] {
        fails(&lab, 2, "unexpected argument", ["mount", option, "s3://b", dir]);
    }
    fails(
        &lab,
        2,
        "`--read-write` is not available in this version",
        ["mount", "--read-write", "s3://b", dir],
    );
    fails(&lab, 2, "not available in this version", ["s3://b", dir, "-o", "read_write"]);
}

#[test]
fn wrong_use_is_told_before_anything_happens() {
    let lab = lab();
    for (part, args) in [
        ("is not a size", vec!["--memory", "much", "ls", "s3://b"]),
        ("the unit is missing", vec!["mount", "--deadline", "60", "s3://b", "/nonexistent"]),
        ("`plain` or `passthrough`", vec!["mount", "--open", "fast", "s3://b", "/nonexistent"]),
        ("octal", vec!["mount", "--umask", "9", "s3://b", "/nonexistent"]),
        ("log filter", vec!["--log", "nearfs=loudly", "ls", "s3://b"]),
        ("`text` or `json`", vec!["--log-format", "xml", "ls", "s3://b"]),
        ("only one operand", vec!["mount", "s3://b"]),
        ("unknown mount option `cache_sise`", vec!["s3://b", "/nonexistent", "-o", "cache_sise=1GiB"]),
        ("did you mean `cache_size`", vec!["s3://b", "/nonexistent", "-o", "cache_sise=1GiB"]),
        ("is not a size", vec!["s3://b", "/nonexistent", "-o", "cache_size=lots"]),
        ("at least 16MiB", vec!["--cache-size", "1MiB", "ls", "s3://b"]),
        ("--cache-dir: expected a directory, found an empty path", vec!["--cache-dir", "", "ls", "s3://b"]),
        ("`/x` is given twice", vec!["--cache-dir", "/x", "--cache-dir", "/x", "ls", "s3://b"]),
        ("`0%` to `90%`", vec!["--cache-free", "5", "ls", "s3://b"]),
        ("`tiny-lfu`", vec!["--cache-policy", "best", "ls", "s3://b"]),
        ("a group that exists", vec!["--cache-group", "no-such-group", "ls", "s3://b"]),
        ("user name, key or password", vec!["ls", "s3://key:secret@b"]),
        ("required", vec!["ls"]),
        ("unrecognized subcommand", vec!["lss", "s3://b"]),
        ("--map", vec!["mount", "--map", "a", "/nonexistent"]),
        ("given twice", vec!["mount", "--map", "a=s3://b", "--map", "a=s3://c", "/nonexistent"]),
    ] {
        let printed = fails(&lab, 2, part, args);
        assert!(!printed.err.contains("secret"), "{}", printed.err);
    }
    assert_eq!(lab.counters().total(), 0, "nothing was asked of the store");
}

#[test]
fn help_version_and_completions() {
    assert!(run(alone().arg("--version")).text().starts_with("nearfs 0."));
    let help = run(alone().arg("--help"));
    assert_eq!(help.code, 0);
    for verb in ["mount", "unmount", "ls", "cp", "doctor"] {
        assert!(help.text().contains(verb));
        assert_eq!(run(alone().args([verb, "--help"])).code, 0);
    }
    assert_eq!(run(&mut alone()).code, 2);
    for shell in ["bash", "zsh", "fish"] {
        let script = run(alone().args(["completions", shell]));
        assert_eq!(script.code, 0);
        assert!(script.text().contains("metadata-ttl") && script.text().contains("unmount"));
    }
    // The script is accepted by the shell it is for.
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("c"), run(alone().args(["completions", "bash"])).out).unwrap();
    let bash = std::process::Command::new("bash").arg("-n").arg(dir.path().join("c")).status().unwrap();
    assert!(bash.success());
}

#[test]
fn logs_go_where_they_are_told_in_the_form_asked_for() {
    let lab = lab();
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let path = log.to_str().unwrap();
    let log_options = ["--log", "nearfs_backends=debug", "--log-format", "json", "--log-file", path];
    let printed = fails(&lab, 2, "s3://b/none", log_options.into_iter().chain(["ls", "s3://b/none"]));
    assert!(!printed.err.contains("DEBUG"), "{}", printed.err);
    let text = fs::read_to_string(&log).unwrap();
    assert!(!text.is_empty());
    for line in text.lines() {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(value["level"].is_string());
    }
    assert!(!text.contains("test-secret"));
    // Without a file they go to standard error.
    let printed = fails(&lab, 2, "s3://b/none", ["ls", "-vv", "s3://b/none"]);
    assert!(printed.err.contains("DEBUG"), "{}", printed.err);
}
