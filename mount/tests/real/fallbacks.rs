//! What a mount does where something is missing: it works all the same, and says what it costs.

use nearfs_mount::{MountOptions, OpenMode};
use serde_json::Value;

use crate::support::*;

/// What the statistics note as missing.
fn notes(rig: &Rig) -> Vec<(String, String)> {
    let stats = rig.session().stats();
    let text = |v: &Value| v.as_str().unwrap().to_owned();
    let notes = stats["mount"]["notes"].as_array().unwrap().iter();
    notes
        .map(|n| {
            assert!(!text(&n["costs"]).is_empty());
            (text(&n["what"]), text(&n["why"]))
        })
        .collect()
}

fn with(open: OpenMode, protocol: Option<(u32, u32)>, disk: u64) -> Rig {
    let options = MountOptions { open, protocol, ..Default::default() };
    let rig = Rig::new(Setup { options, disk, ..Default::default() });
    let data = content(1, 2_500_000);
    rig.put("f", data.clone());
    for _ in 0..3 {
        assert!(std::fs::read(rig.at("f")).unwrap() == data);
        assert_eq!(names(rig.dir()), ["f"]);
    }
    rig
}

#[test]
fn nothing_is_noted_where_nothing_is_missing() {
    for open in [OpenMode::Auto, OpenMode::Plain, OpenMode::Passthrough] {
        assert_eq!(notes(&with(open, None, 1 << 30)), []);
    }
}

#[test]
fn without_a_cache_on_disk_nothing_is_passed_through() {
    let rig = with(OpenMode::Passthrough, None, 0);
    assert_eq!(rig.session().open_mode(), OpenMode::Plain);
    let stats = rig.session().stats();
    assert_eq!(stats["mount"]["open_mode"], "plain");
    assert_eq!(stats["mount"]["passthrough"]["available"], false);
    let why = "there is no cache on disk".to_owned();
    assert_eq!(stats["mount"]["passthrough"]["reason"], why);
    assert_eq!(notes(&rig), [("passthrough".to_owned(), why)]);
}

#[test]
fn on_an_older_kernel_less_is_used() {
    // As Linux 5.14: all but passthrough.
    let rig = with(OpenMode::Passthrough, Some((7, 34)), 1 << 30);
    assert_eq!(rig.session().open_mode(), OpenMode::Plain);
    let noted = notes(&rig);
    assert!(noted.len() == 1 && noted[0].1.contains("Linux 6.9"), "{noted:?}");
    assert_eq!(rig.session().stats()["mount"]["kernel"]["abi"], "7.34");
    let rig = with(OpenMode::Auto, Some((7, 34)), 1 << 30);
    assert_eq!(rig.session().open_mode(), OpenMode::Stateless);
    assert_eq!(notes(&rig), []);
    // As Linux 4.4.
    let rig = with(OpenMode::Auto, Some((7, 23)), 1 << 30);
    let what: Vec<_> = notes(&rig).into_iter().map(|(what, _)| what).collect();
    assert_eq!(what, ["parallel_dirops", "max_pages"]);
    // Before stateless opens.
    let rig = with(OpenMode::Auto, Some((7, 22)), 1 << 30);
    assert_eq!(rig.session().open_mode(), OpenMode::Plain);
    assert!(notes(&rig).iter().any(|(what, _)| what == "no_open"));
}
