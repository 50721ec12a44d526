//! Opens without a round trip, and the control files that live with them.

use nearfs_mount::{MountOptions, OpenMode};
use serde_json::{Value, json};

use crate::support::*;

#[test]
fn open_and_close_are_asked_about_once_and_pages_are_kept() {
    let rig = Rig::new(Setup::default());
    assert_eq!(rig.session().open_mode(), OpenMode::Stateless);
    for i in 0..100 {
        rig.put(&format!("d/{i}"), content(i, 10_000));
    }
    let read_all = || {
        for i in 0..100u8 {
            assert_eq!(std::fs::read(rig.at(&format!("d/{i}"))).unwrap(), content(i, 10_000));
        }
    };
    read_all();
    let reads = rig.operations("read", "count");
    read_all();
    assert_eq!(rig.operations("read", "count"), reads, "pages are kept");
    assert_eq!((rig.operations("open", "count"), rig.operations("flush", "count")), (1, 1));
}

#[test]
fn control_files_are_snapshots_with_their_true_size() {
    let options = MountOptions { config: json!({"deadline": "60s"}), ..Default::default() };
    let rig = Rig::new(Setup { options, ..Default::default() });
    rig.put("f", "x");
    assert_eq!(rig.names(""), ["f"], "the directory is not listed");
    assert_eq!(rig.names(".nearfs"), ["config", "control", "stats"]);
    let read = |name: &str| std::fs::read(rig.at(".nearfs").join(name)).unwrap();
    let config: Value = serde_json::from_slice(&read("config")).unwrap();
    assert_eq!(config, json!({"deadline": "60s"}));
    let stats = || -> Value { serde_json::from_slice(&read("stats")).unwrap() };
    let lookups = |v: &Value| v["mount"]["operations"]["lookup"]["count"].as_u64().unwrap();
    let first = stats();
    assert_eq!(first["pid"], std::process::id());
    let _ = std::fs::metadata(rig.at("missing"));
    let second = stats();
    assert!(lookups(&second) > lookups(&first), "each open shows the numbers of its moment");
    let file = std::fs::File::open(rig.at(".nearfs/stats")).unwrap();
    let size = file.metadata().unwrap().len();
    let text = std::io::read_to_string(&file).unwrap();
    assert_eq!(text.len() as u64, size);
    for _ in 0..50 {
        stats();
    }
    eventually(SOON, "old snapshots are forgotten", || {
        crate::versions::drop_kernel_names();
        rig.number("inodes") <= 5
    });
    assert_eq!(std::io::read_to_string(&file).unwrap(), "", "and one that is open stays");
}

#[test]
fn a_name_of_the_store_that_is_the_control_directorys_is_hidden_in_the_root_only() {
    let rig = Rig::new(Setup::default());
    rig.put(".nearfs/mine", "x");
    rig.put("d/.nearfs/mine", "y");
    assert_eq!(rig.names(""), ["d"]);
    assert_eq!(errno(std::fs::metadata(rig.at(".nearfs/mine"))), libc::ENOENT);
    assert_eq!(rig.names("d"), [".nearfs"]);
    assert_eq!(std::fs::read(rig.at("d/.nearfs/mine")).unwrap(), b"y");
}
