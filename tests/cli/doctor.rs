//! `doctor`: what it finds, what it advises, how it exits.

use nearfs_lab::{AccessKey, Auth, Lab, Rights};
use serde_json::Value;

use crate::harness::{Printed, alone, cache_dir, nearfs, run};

fn finding(printed: &Printed, check: &str) -> Value {
    let all = printed.json();
    all.iter().find(|f| f["check"] == check).unwrap_or_else(|| panic!("no `{check}` in {all:?}")).clone()
}

#[test]
fn a_store_that_works_is_all_well() {
    let lab = Lab::builder().bucket("b").start().unwrap();
    lab.put("b", "p/f", &b"x"[..]);
    let printed = run(nearfs(&lab).args(["doctor", "--json", "s3://b/p"]));
    for check in [
        "kernel",
        "/dev/fuse",
        "fusermount3",
        "memory",
        "open files",
        "local reads",
        "cache",
        "cache files",
        "passthrough",
        "configuration",
        "store",
    ] {
        assert!(finding(&printed, check)["found"].is_string());
    }
    let credentials = finding(&printed, "credentials");
    assert_eq!(credentials["state"], "ok");
    let found = credentials["found"].as_str().unwrap();
    assert!(
        found.contains("environment") && found.contains("test") && !found.contains("test-secret"),
        "{found}"
    );
    assert_eq!(
        (&finding(&printed, "list")["state"], &finding(&printed, "read")["state"]),
        (&"ok".into(), &"ok".into())
    );
    let bad: Vec<_> =
        printed.json().into_iter().filter(|f| f["state"] == "attention" && f["check"] != "mount").collect();
    assert!(bad.is_empty(), "{bad:?}");
    let text = run(nearfs(&lab).args(["doctor", "s3://b/p"])).text();
    assert!(text.lines().any(|l| l.starts_with("ok   credentials")), "{text}");
}

#[test]
fn what_is_wrong_is_named_with_what_to_do() {
    let key = AccessKey::new("test", "test-secret").rights(Rights::no_list());
    let lab = Lab::builder().bucket("b").auth(Auth::Required).access_key(key).start().unwrap();
    lab.put("b", "f", &b"x"[..]);
    let check = |command: &mut std::process::Command, check: &str| {
        let printed = run(command.args(["doctor", "--json", "s3://b"]));
        assert_eq!(printed.code, 1, "{}", printed.err);
        let finding = finding(&printed, check);
        assert_eq!(finding["state"], "attention", "{finding}");
        assert!(
            finding["means"].is_null() && finding["meaning"].is_string() && finding["do"].is_string(),
            "{finding}"
        );
        finding.to_string()
    };
    let text = check(&mut nearfs(&lab), "list");
    assert!(text.contains("rights to list"), "{text}");
    let text = check(nearfs(&lab).env("AWS_SECRET_ACCESS_KEY", "wrong"), "list");
    assert!(text.contains("credentials"), "{text}");
    let text =
        check(alone().env("AWS_ENDPOINT_URL", lab.endpoint()).env("AWS_REGION", "us-east-1"), "credentials");
    assert!(text.contains("anonymous") || text.contains("AWS_PROFILE"), "{text}");
    let text = check(nearfs(&lab).env("AWS_ENDPOINT_URL", "http://127.0.0.1:9"), "list");
    assert!(text.contains("endpoint"), "{text}");

    let printed = run(nearfs(&lab).env("NEARFS_MEMROY", "1GiB").args(["doctor", "--json"]));
    assert_eq!(printed.code, 1);
    assert!(finding(&printed, "environment")["do"].as_str().unwrap().contains("NEARFS_MEMORY"));
    let printed = run(nearfs(&lab).args(["doctor", "s5://b"]));
    assert_eq!(printed.code, 1);
    assert!(printed.text().contains("FIX  store") && printed.text().contains("do: "), "{}", printed.text());
}

#[test]
fn the_cache_is_looked_at_and_not_made() {
    let lab = Lab::builder().bucket("b").start().unwrap();
    lab.put("b", "f", &b"x"[..]);
    let planned = finding(&run(nearfs(&lab).args(["doctor", "--json"])), "cache");
    assert!(
        planned["state"] == "ok" && planned["found"].as_str().unwrap().contains("not there yet"),
        "{planned}"
    );
    assert!(!cache_dir().exists());
    assert_eq!(run(nearfs(&lab).args(["cat", "s3://b/f"])).out, b"x");
    let printed = run(nearfs(&lab).args(["doctor", "--json"]));
    let used = finding(&printed, "cache");
    let found = used["found"].as_str().unwrap();
    assert!(
        found.contains("mode 0700") && found.contains("1 objects") && found.contains("of 1.0 GiB used"),
        "{used}"
    );
    let files = finding(&printed, "cache files");
    assert!(
        files["found"].as_str().unwrap().contains("unnamed files") || files["meaning"].is_string(),
        "{files}"
    );

    let off = finding(&run(nearfs(&lab).args(["--cache-size", "0", "doctor", "--json"])), "cache");
    assert!(off["state"] == "note" && off["meaning"].is_string(), "{off}");
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), "").unwrap();
    let place = dir.path().join("file");
    let printed = run(nearfs(&lab).args(["--cache-dir", place.to_str().unwrap(), "doctor", "--json"]));
    let bad = finding(&printed, "cache");
    assert_eq!((printed.code, &bad["state"]), (1, &"attention".into()), "{bad}");
    assert!(bad["meaning"].is_string() && bad["do"].is_string(), "{bad}");
    let memory = run(nearfs(&lab).args(["--cache-dir", "/dev/shm/none", "doctor", "--json"]));
    let memory = finding(&memory, "cache");
    assert!(memory["found"].as_str().unwrap().contains("tmpfs") && memory["state"] == "note", "{memory}");
}
