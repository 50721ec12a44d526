//! The cache on disk: what is kept between commands, and the commands that look at it and change it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use nearfs_lab::{Lab, Op, stamp};
use serde_json::Value;

use crate::harness::{alone, cache_dir, eventually, fails, nearfs, ok, run};

const BIG: u64 = 9_000_001;

fn lab() -> Lab {
    let lab = Lab::builder().bucket("b").start().unwrap();
    for i in 0..20 {
        lab.put_synthetic("b", format!("set/{i:02}"), 30_000 + i, i as u32);
    }
    lab.put_synthetic("b", "big", BIG, 77);
    lab
}

/// GETs of objects while `work` runs.
fn gets(lab: &Lab, work: impl FnOnce()) -> u64 {
    lab.reset_counters();
    work();
    lab.counters().of(Op::GetObject)
}

fn status(lab: &Lab) -> Value {
    ok(lab, ["cache", "status", "--json"]).json().remove(0)
}

#[test]
fn what_one_command_fetched_the_next_one_finds() {
    let lab = lab();
    let read = || {
        stamp::verify(&ok(&lab, ["cat", "s3://b/big"]).out, 0, 77).unwrap();
        let small = ok(&lab, ["cat", "s3://b/set/00", "s3://b/set/01"]).out;
        stamp::verify(&small[..30_000], 0, 0).unwrap();
        assert_eq!(small.len(), 60_001);
    };
    assert!(gets(&lab, read) >= 3);
    assert_eq!(gets(&lab, read), 0, "everything came from the cache");
    // The same objects, seen from elsewhere in the bucket.
    let target = tempfile::tempdir().unwrap();
    let copied = gets(&lab, || {
        ok(&lab, ["cp", "-r", "s3://b/set/", target.path().join("t").to_str().unwrap()]);
    });
    assert_eq!(copied, 18);
    let off = gets(&lab, || drop(ok(&lab, ["--cache-size", "0", "cat", "s3://b/set/00"])));
    assert_eq!(off, 1, "without the cache everything is fetched");
    // A new version is another object.
    lab.put_synthetic("b", "set/00", 40_000, 55);
    stamp::verify(&ok(&lab, ["cat", "s3://b/set/00"]).out, 0, 55).unwrap();
}

#[test]
fn a_mount_of_a_prefix_and_commands_share_objects() {
    let lab = lab();
    let (dir, log) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let place = dir.path().to_str().unwrap();
    ok(&lab, ["cat", "s3://b/set/05"]);
    let mounted = gets(&lab, || {
        let mut mount = nearfs(&lab);
        mount.env("NEARFS_LOG_FILE", log.path().join("log")).args(["mount", "--prefetch", "off"]);
        let mounted = run(mount.args(["s3://b/set", place]));
        assert_eq!(mounted.code, 0, "{}", mounted.err);
        stamp::verify(&fs::read(dir.path().join("05")).unwrap(), 0, 5).unwrap();
        stamp::verify(&fs::read(dir.path().join("06")).unwrap(), 0, 6).unwrap();
    });
    assert_eq!(mounted, 1, "one of two was there");
    eventually("the bytes on disk", || (status(&lab)["objects"] == 2).then_some(()));
    // While the mount goes on, too.
    assert_eq!(gets(&lab, || drop(ok(&lab, ["cat", "s3://b/set/06"]))), 0);
    assert!(ok(&lab, ["cache", "evict", "s3://b/set"]).text().starts_with("2 objects"));
    ok(&lab, ["unmount", place]);
}

#[test]
fn local_and_memory_stores_are_not_kept_on_disk() {
    let lab = lab();
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("f"), "local").unwrap();
    assert_eq!(ok(&lab, ["cat", dir.path().join("f").to_str().unwrap()]).text(), "local");
    assert!(!cache_dir().exists(), "no cache was made for it");
}

#[test]
fn status_shows_what_is_there() {
    let lab = lab();
    let none = ok(&lab, ["cache", "status"]);
    assert!(none.text().contains("not there yet") && !cache_dir().exists(), "{}", none.text());
    assert!(ok(&lab, ["cache", "status", "--json"]).out.is_empty());
    ok(&lab, ["cache", "clear"]);
    assert_eq!(ok(&lab, ["cache", "verify", "--json"]).json()[0]["objects"], 0);
    assert!(!cache_dir().exists(), "looking makes no directories");

    ok(&lab, ["cat", "s3://b/big", "s3://b/set/00"]);
    let full = status(&lab);
    assert_eq!(full["path"].as_str(), cache_dir().to_str());
    assert_eq!((&full["objects"], &full["small"]), (&2.into(), &1.into()), "{full}");
    assert_eq!((&full["limit"], &full["processes"]), (&(1_u64 << 30).into(), &1.into()), "{full}");
    let used = full["used"].as_u64().unwrap();
    assert!((BIG..BIG + (4 << 20)).contains(&used), "{full}");
    assert_eq!(full["writable"], true);
    let text = ok(&lab, ["cache", "status"]).text();
    assert!(text.contains("of 1.0 GiB") && text.contains("objects     2"), "{text}");
}

#[test]
fn damage_is_found_and_mended() {
    let lab = lab();
    ok(&lab, ["cat", "s3://b/big", "s3://b/set/00", "s3://b/set/01"]);
    let sound = ok(&lab, ["cache", "verify", "--json"]).json().remove(0);
    assert_eq!((&sound["objects"], &sound["damaged"]), (&3.into(), &0.into()), "{sound}");
    assert_eq!(sound["bytes"], BIG + 60_001, "{sound}");
    let mut hurt = 0;
    for file in files(&cache_dir()) {
        let size = fs::metadata(&file).unwrap().len();
        if size == 30_000 || size == BIG {
            let mut bytes = fs::read(&file).unwrap();
            bytes[20_000] ^= 1;
            fs::write(&file, bytes).unwrap();
            hurt += 1;
        }
    }
    assert_eq!(hurt, 2);
    let printed = run(nearfs(&lab).args(["cache", "verify", "--json"]));
    assert_eq!(printed.code, 1, "{}", printed.text());
    assert_eq!(printed.json()[0]["damaged"], 2);
    let again = gets(&lab, || {
        stamp::verify(&ok(&lab, ["cat", "s3://b/big"]).out, 0, 77).unwrap();
        stamp::verify(&ok(&lab, ["cat", "s3://b/set/00"]).out, 0, 0).unwrap();
    });
    assert!((2..6).contains(&again), "the damaged parts were fetched again, and only they: {again}");
    let text = ok(&lab, ["cache", "verify"]).text();
    assert!(text.starts_with("3 objects"), "{text}");
}

#[test]
fn clear_removes_everything_also_under_a_running_mount() {
    let lab = lab();
    let dir = tempfile::tempdir().unwrap();
    let log = tempfile::tempdir().unwrap();
    let place = dir.path().to_str().unwrap();
    let mounted =
        run(nearfs(&lab).env("NEARFS_LOG_FILE", log.path().join("log")).args(["mount", "s3://b", place]));
    assert_eq!(mounted.code, 0, "{}", mounted.err);
    stamp::verify(&fs::read(dir.path().join("big")).unwrap(), 0, 77).unwrap();
    let full =
        eventually("the bytes on disk", || Some(status(&lab)).filter(|s| s["used"].as_u64() >= Some(BIG)));
    assert_eq!(full["processes"], 2, "the mount and the command: {full}");
    let stats = ok(&lab, ["stats", "--json", place]).json().remove(0);
    let cache = &stats["filesystems"][""]["cache"];
    assert_eq!(
        (&cache["disk_written"], &cache["disk_limit"]),
        (&BIG.into(), &(1_u64 << 30).into()),
        "{cache}"
    );
    assert!(cache["disk_used"].as_u64() >= Some(BIG), "{cache}");
    let cleared = ok(&lab, ["cache", "clear"]);
    assert!(cleared.text().contains("1 objects removed"), "{}", cleared.text());
    assert_eq!(status(&lab)["objects"], 0);
    for i in 0..20 {
        stamp::verify(&fs::read(dir.path().join(format!("set/{i:02}"))).unwrap(), 0, i).unwrap();
    }
    stamp::verify(&fs::read(dir.path().join("big")).unwrap(), 0, 77).unwrap();
    ok(&lab, ["unmount", place]);
    // What was fetched after the clearing is there when the mount has ended.
    eventually("the mount's end", || Some(status(&lab)).filter(|s| s["processes"] == 1));
    assert!(status(&lab)["objects"].as_u64() >= Some(20));
}

#[test]
fn files_are_evicted_by_name() {
    let lab = lab();
    ok(&lab, ["cp", "-r", "s3://b", tempfile::tempdir().unwrap().path().join("t").to_str().unwrap()]);
    assert_eq!(status(&lab)["objects"], 21);
    let evicted = ok(&lab, ["cache", "evict", "s3://b/set/03", "s3://b/big"]);
    assert!(evicted.text().starts_with("2 objects removed"), "{}", evicted.text());
    assert_eq!(status(&lab)["objects"], 19);
    assert_eq!(gets(&lab, || drop(ok(&lab, ["cat", "s3://b/set/03", "s3://b/set/04"]))), 1);
    let evicted = ok(&lab, ["cache", "evict", "s3://b/set"]);
    assert!(evicted.text().starts_with("20 objects removed"), "{}", evicted.text());
    assert_eq!(status(&lab)["objects"], 0);
    let printed = fails(&lab, 1, "s3://b/none: ", ["cache", "evict", "s3://b/none", "s3://b/big"]);
    assert!(printed.text().starts_with("0 objects removed"), "{}", printed.text());
    fails(&lab, 2, "s3://b/none: ", ["cache", "evict", "s3://b/none"]);
}

#[test]
fn pinned_files_are_fetched_and_stay() {
    let lab = lab();
    let pinned = ok(&lab, ["cache", "pin", "s3://b/set", "s3://b/big"]);
    assert_eq!(pinned.text(), "21 files pinned\n");
    let full = status(&lab);
    assert_eq!((&full["objects"], &full["pinned"]), (&21.into(), &21.into()), "{full}");
    assert_eq!(gets(&lab, || drop(ok(&lab, ["cat", "s3://b/set/03", "s3://b/big"]))), 0);
    assert_eq!(gets(&lab, || drop(ok(&lab, ["cache", "pin", "s3://b/set"]))), 0, "it is all there");
    let printed = run(nearfs(&lab).args(["cache", "evict", "s3://b/set"]));
    assert_eq!(printed.code, 1);
    assert!(printed.text().contains("20 pinned or in use stay"), "{}", printed.text());
    // Room is made of what is not pinned.
    ok(&lab, ["cache", "set-limit", "24MiB"]);
    for i in 0..4 {
        lab.put_synthetic("b", format!("more/{i}"), 8 << 20, i);
        ok(&lab, ["--cache-size", "24MiB", "cat", &format!("s3://b/more/{i}")]);
    }
    let none = gets(&lab, || drop(ok(&lab, ["--cache-size", "24MiB", "cat", "s3://b/set/03", "s3://b/big"])));
    assert_eq!(none, 0, "pinned files stay");
    // More than half of the limit is not pinned.
    let printed =
        fails(&lab, 2, "half of the limit", ["--cache-size", "24MiB", "cache", "pin", "s3://b/more/0"]);
    assert!(printed.err.contains("s3://b/more/0") && printed.err.contains("hint: "), "{}", printed.err);
    assert_eq!(status(&lab)["pinned"], 21);
    assert_eq!(
        ok(&lab, ["cache", "pin", "--unpin", "s3://b/set", "s3://b/big"]).text(),
        "21 files unpinned\n"
    );
    assert_eq!(status(&lab)["pinned"], 0);
    fails(&lab, 1, "s3://b/none: ", ["cache", "pin", "s3://b/none", "s3://b/set/01"]);
}

#[test]
fn the_limit_is_kept_in_the_directory() {
    let lab = lab();
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("c");
    let command = |args: &[&str]| {
        let mut command = nearfs(&lab);
        command.env_remove("NEARFS_CACHE_SIZE").arg("--cache-dir").arg(&place).args(args);
        run(&mut command)
    };
    let set = command(&["cache", "set-limit", "64MiB"]);
    assert!(set.code == 0 && set.text().contains("at most 64 MiB"), "{}{}", set.text(), set.err);
    for i in 0..12 {
        lab.put_synthetic("b", format!("l/{i}"), 8 << 20, i);
        let read = command(&["cat", &format!("s3://b/l/{i}")]);
        stamp::verify(&read.out, 0, i).unwrap();
    }
    let shown = command(&["cache", "status", "--json"]).json().remove(0);
    assert_eq!(shown["limit"], 64 << 20, "{shown}");
    assert!(shown["used"].as_u64() <= Some(64 << 20), "{shown}");
    command(&["cache", "set-limit", "20MiB"]);
    let shown = command(&["cache", "status", "--json"]).json().remove(0);
    assert!(shown["limit"] == 20 << 20 && shown["used"].as_u64() <= Some(20 << 20), "{shown}");
    for (size, part) in [
        ("0", "keeps nothing"),
        ("1MiB", "at least 16MiB"),
        ("much", "is not a size"),
        ("120%", "at most 100"),
    ] {
        let printed = command(&["cache", "set-limit", size]);
        assert!(printed.code == 2 && printed.err.contains(part), "{size}: {}", printed.err);
    }
}

#[test]
fn several_directories_share_the_objects() {
    let lab = lab();
    let dir = tempfile::tempdir().unwrap();
    let dirs = ["one", "two"].map(|n| dir.path().join(n));
    let options = ["--cache-dir", dirs[0].to_str().unwrap(), "--cache-dir", dirs[1].to_str().unwrap()];
    let target = dir.path().join("t");
    ok(&lab, options.into_iter().chain(["cp", "-r", "s3://b/set/", target.to_str().unwrap()]));
    let shown = ok(&lab, options.into_iter().chain(["cache", "status", "--json"])).json();
    assert_eq!(shown.len(), 2);
    let objects: Vec<_> = shown.iter().map(|s| s["objects"].as_u64().unwrap()).collect();
    assert!(objects.iter().sum::<u64>() == 20 && objects.iter().all(|n| *n > 0), "{objects:?}");
    assert_eq!(
        gets(&lab, || drop(ok(&lab, options.into_iter().chain(["cat", "s3://b/set/07", "s3://b/set/08"])))),
        0
    );
}

#[test]
fn a_directory_that_cannot_be_used_is_an_error_if_somebody_named_it() {
    let lab = lab();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "in the way").unwrap();
    let named = ["--cache-dir", file.to_str().unwrap(), "cat", "s3://b/set/00"];
    let printed = fails(&lab, 2, "file", named);
    assert!(printed.err.contains("hint: ") && printed.err.contains("--cache-dir"), "{}", printed.err);
    // Nobody named it: one warning, and the work is done.
    fs::create_dir(dir.path().join("home")).unwrap();
    fs::write(dir.path().join("home/.cache"), "in the way").unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let binary = dir.path().join("nearfs");
    fs::copy(env!("CARGO_BIN_EXE_nearfs"), &binary).unwrap();
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&binary);
    command.env_clear().envs(nearfs(&lab).get_envs().filter_map(|(k, v)| Some((k, v?))));
    command.env_remove("NEARFS_CACHE_DIR").env("HOME", dir.path().join("home"));
    let printed = run(command.args(["cat", "s3://b/set/00", "s3://b/set/01"]));
    assert_eq!(printed.code, 0, "{}", printed.err);
    stamp::verify(&printed.out[..30_000], 0, 0).unwrap();
    assert_eq!(printed.err.matches("WARN").count(), 1, "{}", printed.err);
    assert!(printed.err.contains("nothing is kept on disk"), "{}", printed.err);
}

#[test]
fn somebody_elses_directory_is_left_alone() {
    let lab = lab();
    ok(&lab, ["cat", "s3://b/set/00"]);
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::chown(dir.path(), Some(65534), Some(65534)).unwrap();
    let binary = dir.path().join("nearfs");
    fs::copy(env!("CARGO_BIN_EXE_nearfs"), &binary).unwrap();
    let shared = tempfile::tempdir().unwrap();
    fs::set_permissions(shared.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let place = shared.path().join("cache");
    let as_user = |groups: &str, args: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", groups]).arg(&binary);
        command.env_clear().envs(nearfs(&lab).get_envs().filter_map(|(k, v)| Some((k, v?))));
        command.env("NEARFS_CACHE_DIR", &place).env("HOME", dir.path());
        run(command.args(args))
    };
    // Shared between root and the members of a group.
    let root = run(nearfs(&lab).env("NEARFS_CACHE_DIR", &place).args([
        "--cache-group",
        "7",
        "cat",
        "s3://b/set/02",
    ]));
    assert_eq!(root.code, 0, "{}", root.err);
    let member = gets(&lab, || {
        let printed = as_user("--groups=7", &["--cache-group", "7", "cat", "s3://b/set/02", "s3://b/set/03"]);
        assert_eq!((printed.code, printed.err.as_str()), (0, ""));
        stamp::verify(&printed.out[..30_002], 0, 2).unwrap();
    });
    assert_eq!(member, 1, "one of two was there");
    // A stranger has a cache of its own, and is told once.
    for args in
        [&["cat", "s3://b/set/02", "s3://b/set/04"][..], &["--cache-group", "7", "cat", "s3://b/set/02"]]
    {
        let printed = as_user("--clear-groups", args);
        assert_eq!(printed.code, 0, "{}", printed.err);
        stamp::verify(&printed.out[..30_002], 0, 2).unwrap();
        assert_eq!(printed.err.matches("WARN").count(), 1, "{}", printed.err);
    }
    let own = dir.path().join(".cache/nearfs");
    assert!(own.join("CACHEDIR.TAG").exists());
    assert_eq!(fs::metadata(&own).unwrap().permissions().mode() & 0o777, 0o700);
}

#[test]
fn without_a_cache_its_commands_say_so() {
    let lab = lab();
    for verb in ["status", "verify", "clear"] {
        let printed = run(nearfs(&lab).args(["--cache-size", "0", "cache", verb]));
        assert_eq!(printed.code, 2);
        assert!(
            printed.err.contains("`cache_size` is 0 (option --cache-size)") && printed.err.contains("hint: "),
            "{}",
            printed.err
        );
    }
    for args in [&["evict"][..], &["pin"], &["set-limit"], &["unknown"], &[]] {
        let printed = run(alone().arg("cache").args(args));
        assert_eq!(printed.code, 2, "{args:?}");
    }
    let help = run(alone().args(["cache", "evict", "--help"])).text();
    assert!(help.contains("The store is asked for the versions"), "{help}");
    assert_eq!(lab.counters().total(), 0, "nothing was asked of the store");
}

/// Every regular file below `dir`.
fn files(dir: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { dirs.push(path) } else { found.push(path) }
        }
    }
    found
}
