//! `mount` in the background, as mount(8) calls it, as another user; `unmount`, `mounts`, `stats`.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use nearfs_lab::{Fault, Lab, Op, Rule};
use tempfile::TempDir;

use crate::harness::{Printed, eventually, fails, is_mounted, nearfs, ok, run, signal};

fn lab() -> Lab {
    let lab = Lab::builder().bucket("b").start().unwrap();
    lab.put("b", "p/file", &b"hello"[..]);
    lab
}

/// A directory to mount on; whatever is mounted there goes when the test ends, however it ends.
struct Point {
    dir: TempDir,
    state: TempDir,
}

impl Point {
    fn new() -> Self {
        Point { dir: TempDir::new().unwrap(), state: TempDir::new().unwrap() }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn text(&self) -> &str {
        self.path().to_str().unwrap()
    }

    fn join(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// The command, with a log file of this test's own.
    fn command(&self, lab: &Lab) -> Command {
        let mut command = nearfs(lab);
        command.env("NEARFS_LOG_FILE", self.state.path().join("log"));
        command
    }

    fn mount<'a>(&self, lab: &Lab, args: impl IntoIterator<Item = &'a str>) -> Printed {
        run(self.command(lab).args(args))
    }

    fn log(&self) -> String {
        fs::read_to_string(self.state.path().join("log")).unwrap_or_default()
    }

    /// The daemon's process.
    fn pid(&self) -> u32 {
        let stats: serde_json::Value =
            serde_json::from_slice(&fs::read(self.join(".nearfs/stats")).unwrap()).unwrap();
        stats["pid"].as_u64().unwrap() as u32
    }
}

impl Drop for Point {
    fn drop(&mut self) {
        while is_mounted(self.path()) {
            let gone = Command::new("umount").arg("-l").arg(self.path()).stderr(Stdio::null()).status();
            if !gone.is_ok_and(|s| s.success()) {
                break;
            }
        }
        if std::thread::panicking() {
            eprintln!("--- log of the mount\n{}", self.log());
        }
    }
}

#[test]
fn a_mount_comes_back_when_the_directory_answers_and_goes_with_unmount() {
    let lab = lab();
    let point = Point::new();
    let printed = point.mount(&lab, ["mount", "s3://b/p", point.text()]);
    assert_eq!(printed.code, 0, "{}", printed.err);
    let line = format!("s3://b/p is mounted on {} (read-only, readable by root only)", point.text());
    assert_eq!(printed.err.lines().next(), Some(line.as_str()));
    assert!(printed.err.contains("log lines go to") && printed.out.is_empty());
    assert_eq!(fs::read(point.join("file")).unwrap(), b"hello");

    // The daemon holds neither our directory nor our terminal.
    let pid = point.pid();
    assert_eq!(fs::read_link(format!("/proc/{pid}/cwd")).unwrap(), Path::new("/"));
    assert_eq!(fs::read_link(format!("/proc/{pid}/fd/0")).unwrap(), Path::new("/dev/null"));
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let session: u32 = stat.rsplit(')').next().unwrap().split_whitespace().nth(3).unwrap().parse().unwrap();
    assert_eq!(session, pid, "it leads a session of its own");

    let mounts = ok(&lab, ["--json", "mounts"]).json();
    let ours = mounts.iter().find(|m| m["dir"] == point.text()).unwrap();
    assert_eq!(
        (&ours["source"], &ours["state"], &ours["read_only"]),
        (&"s3://b/p".into(), &"alive".into(), &true.into())
    );
    let stats = ok(&lab, ["stats", "--json", point.text()]).json();
    assert_eq!(stats[0]["pid"], pid);
    assert!(ok(&lab, ["stats", point.text()]).text().contains("pid"));
    let config = fs::read_to_string(point.join(".nearfs/config")).unwrap();
    assert!(config.contains("metadata_ttl") && config.contains("environment AWS_ENDPOINT_URL"), "{config}");
    assert!(!config.contains("test-secret"));

    let printed = ok(&lab, ["unmount", point.text()]);
    assert!(printed.err.contains("unmounted") && !is_mounted(point.path()));
    eventually("the daemon ends", || (!Path::new(&format!("/proc/{pid}")).exists()).then_some(()));
    fails(&lab, 2, "nothing is mounted", ["umount", point.text()]);
    fails(&lab, 2, "no nearfs mount is here", ["stats", point.text()]);
}

#[test]
fn a_live_mount_is_refused_and_a_dead_one_taken_over() {
    let lab = lab();
    let point = Point::new();
    assert_eq!(point.mount(&lab, ["mount", "-q", "s3://b/p", point.text()]).err, "");
    let refused = point.mount(&lab, ["mount", "s3://b", point.text()]);
    assert_eq!(refused.code, 2);
    assert!(
        refused.err.contains("mounted here already") && refused.err.contains("hint: "),
        "{}",
        refused.err
    );
    let pid = point.pid();
    signal(pid, libc::SIGKILL);
    eventually("the mount is dead", || {
        let mounts = ok(&lab, ["--json", "mounts"]).json();
        mounts.iter().any(|m| m["dir"] == point.text() && m["state"] == "dead").then_some(())
    });
    let printed = point.mount(&lab, ["mount", "s3://b", point.text()]);
    assert_eq!(printed.code, 0, "{}", printed.err);
    assert_eq!(fs::read(point.join("p/file")).unwrap(), b"hello");
    ok(&lab, ["umount", point.text()]);
}

#[test]
fn failures_come_with_their_reason_and_leave_nothing() {
    let lab = lab();
    let point = Point::new();
    for (part, url) in
        [("s3://nobucket", "s3://nobucket"), ("s3:///x", "s3:///x"), ("unknown scheme", "s4://b")]
    {
        let printed = point.mount(&lab, ["mount", url, point.text()]);
        assert_eq!(printed.code, 2, "{}", printed.err);
        assert!(printed.err.contains(part), "{}", printed.err);
        assert!(!is_mounted(point.path()));
    }
    let printed = point.mount(&lab, ["mount", "s3://b", "/nonexistent/dir"]);
    assert!(printed.code == 2 && printed.err.contains("/nonexistent/dir"), "{}", printed.err);
    let file = point.join("file");
    fs::write(&file, "x").unwrap();
    let printed = point.mount(&lab, ["mount", "s3://b", file.to_str().unwrap()]);
    assert!(printed.code == 2 && printed.err.contains("not a directory"), "{}", printed.err);
    // Nobody answers there.
    let mut command = point.command(&lab);
    command.env("AWS_ENDPOINT_URL", "http://127.0.0.1:9").args([
        "mount",
        "--deadline",
        "2s",
        "s3://b",
        point.text(),
    ]);
    let printed = run(&mut command);
    assert_eq!(printed.code, 2, "{}", printed.err);
    assert!(printed.err.contains("s3://b: ") && !is_mounted(point.path()), "{}", printed.err);
}

#[test]
fn a_mount_that_nobody_waits_for_any_more_is_given_up() {
    let lab = lab();
    let point = Point::new();
    lab.set_model(nearfs_lab::Model { list_ms: Some(2000.0), ..Default::default() });
    let mut command = point.command(&lab);
    let mut child = command.args(["mount", "s3://b/p", point.text()]).stderr(Stdio::null()).spawn().unwrap();
    eventually("the store is asked", || (lab.counters().of(nearfs_lab::Op::ListObjectsV2) > 0).then_some(()));
    signal(child.id(), libc::SIGINT);
    assert_eq!(child.wait().unwrap().code(), None, "Ctrl-C ends who waits");
    eventually("the background process gives up", || point.log().contains("has gone").then_some(()));
    eventually("nothing stays mounted", || (!is_mounted(point.path())).then_some(()));
}

#[test]
fn options_in_the_form_of_mount_8() {
    let lab = lab();
    let point = Point::new();
    let list = "rw,allow_other,uid=1234,gid=4321,umask=0022,metadata-ttl=5s,noexec,_netdev,nofail,x-systemd.automount";
    let printed = point.mount(&lab, ["s3://b/p", point.text(), "-o", list]);
    assert_eq!(printed.code, 0, "{}", printed.err);
    assert!(printed.err.contains("(read-only, readable by everyone)"), "{}", printed.err);
    let file = fs::metadata(point.join("file")).unwrap();
    assert_eq!((file.uid(), file.gid(), file.permissions().mode() & 0o777), (1234, 4321, 0o555));
    assert!(fs::read_to_string(point.join(".nearfs/config")).unwrap().contains("\"5s\""));
    let table = fs::read_to_string("/proc/mounts").unwrap();
    let line = table.lines().find(|l| l.split(' ').nth(1) == Some(point.text())).unwrap();
    assert!(line.contains("noexec") && line.contains("allow_other") && line.contains(" ro,"), "{line}");
    ok(&lab, ["umount", point.text()]);
}

#[test]
fn a_mount_helper_fails_with_32() {
    let lab = lab();
    let point = Point::new();
    let bin = TempDir::new().unwrap();
    for name in ["mount.nearfs", "mount.fuse.nearfs"] {
        let helper = bin.path().join(name);
        symlink(env!("CARGO_BIN_EXE_nearfs"), &helper).unwrap();
        let call = |args: &[&str]| {
            let mut command = Command::new(&helper);
            command.env_clear().envs(point.command(&lab).get_envs().filter_map(|(k, v)| Some((k, v?))));
            run(command.args(args))
        };
        let printed = call(&["s3://b/p", point.text(), "-s", "-o", "rw,nosuid,nodev", "-t", "fuse.nearfs"]);
        assert_eq!(printed.code, 0, "{}", printed.err);
        assert_eq!(fs::read(point.join("file")).unwrap(), b"hello");
        assert_eq!(call(&["s3://b/p", point.text(), "-o", "rw"]).code, 32, "it is mounted already");
        ok(&lab, ["umount", point.text()]);
        assert_eq!(call(&["s3://nobucket", point.text(), "-o", "rw"]).code, 32);
        assert_eq!(call(&["s3://b/p", point.text(), "-o", "metadata_tll=5s"]).code, 32);
        let fake = call(&["s3://b/p", point.text(), "-f", "-o", "rw"]);
        assert!(fake.code == 0 && !is_mounted(point.path()), "{}", fake.err);
    }
}

#[test]
fn a_signal_stops_in_order() {
    let lab = lab();
    for number in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        let point = Point::new();
        let mut child = point
            .command(&lab)
            .args(["mount", "--foreground", "s3://b/p", point.text()])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        eventually("the mount answers", || fs::read(point.join("file")).ok());
        signal(child.id(), number);
        let status = eventually("the end", || child.try_wait().unwrap());
        assert_eq!(status.code(), Some(0));
        assert!(!is_mounted(point.path()));
    }
}

#[test]
fn a_signal_during_the_start_leaves_nothing_mounted() {
    let lab = lab();
    // The first listing takes long enough for the signal to come before the mount is there.
    for (ms, codes) in [(300, &[0, 130][..]), (30_000, &[130])] {
        let point = Point::new();
        lab.fault(Rule::on(Op::ListObjectsV2, Fault::Delay { ms }));
        let mut child = point
            .command(&lab)
            .args(["mount", "--foreground", "s3://b/p", point.text()])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        eventually("the store is asked", || (lab.counters().total() > 0).then_some(()));
        signal(child.id(), libc::SIGTERM);
        let status = eventually("the end", || child.try_wait().unwrap());
        assert!(status.code().is_some_and(|code| codes.contains(&code)), "{status} after {ms} ms");
        assert!(!is_mounted(point.path()));
        lab.clear_faults();
        lab.reset_counters();
    }
}

#[test]
fn whoever_unmounts_from_outside_ends_the_daemon_well() {
    let lab = lab();
    let point = Point::new();
    let mut child = point
        .command(&lab)
        .args(["mount", "--foreground", "s3://b/p", point.text()])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    eventually("the mount answers", || fs::read(point.join("file")).ok());
    assert!(Command::new("umount").arg(point.path()).status().unwrap().success());
    let status = eventually("the end", || child.try_wait().unwrap());
    assert_eq!(status.code(), Some(0));
}

#[test]
fn a_mount_in_use_is_told_and_can_be_ended() {
    let lab = lab();
    let point = Point::new();
    assert_eq!(point.mount(&lab, ["mount", "s3://b/p", point.text()]).code, 0);
    let held = fs::File::open(point.join("file")).unwrap();
    let printed = fails(&lab, 2, "in use", ["unmount", point.text()]);
    assert!(printed.err.contains("hint: "), "{}", printed.err);
    fails(&lab, 2, "--drain", ["unmount", "--drain", "soon", point.text()]);
    let waiting = std::thread::spawn({
        let text = point.text().to_owned();
        move || run(crate::harness::alone().args(["unmount", "--drain", "30s", &text]))
    });
    std::thread::sleep(Duration::from_millis(300));
    drop(held);
    let printed = waiting.join().unwrap();
    assert_eq!(printed.code, 0, "{}", printed.err);

    assert_eq!(point.mount(&lab, ["mount", "s3://b/p", point.text()]).code, 0);
    let held = fs::File::open(point.join("file")).unwrap();
    ok(&lab, ["unmount", "-f", point.text()]);
    assert!(!is_mounted(point.path()));
    drop(held);
    assert_eq!(point.mount(&lab, ["mount", "s3://b/p", point.text()]).code, 0);
    let held = fs::File::open(point.join("file")).unwrap();
    ok(&lab, ["umount", "-l", point.text()]);
    assert!(!is_mounted(point.path()));
    drop(held);
}

#[test]
fn local_directories_and_several_stores() {
    let lab = lab();
    let point = Point::new();
    let source = TempDir::new().unwrap();
    fs::write(source.path().join("local"), "disk").unwrap();
    let map = format!("disk={}", source.path().display());
    let printed = point.mount(&lab, ["mount", "--map", &map, "--map", "store=s3://b/p", point.text()]);
    assert_eq!(printed.code, 0, "{}", printed.err);
    assert!(printed.err.contains("store=s3://b/p"), "{}", printed.err);
    assert_eq!(fs::read(point.join("disk/local")).unwrap(), b"disk");
    assert_eq!(fs::read(point.join("store/file")).unwrap(), b"hello");
    ok(&lab, ["umount", point.text()]);
    // A relative source is meant from where the command was given.
    let mut command = point.command(&lab);
    let printed = run(command.current_dir(source.path()).args(["mount", ".", point.text()]));
    assert_eq!(printed.code, 0, "{}", printed.err);
    assert_eq!(fs::read(point.join("local")).unwrap(), b"disk");
    ok(&lab, ["umount", point.text()]);
}

#[test]
fn without_a_log_file_the_log_has_a_place_of_its_own() {
    let lab = lab();
    let point = Point::new();
    let printed = run(nearfs(&lab).args(["mount", "-v", "s3://b/p", point.text()]));
    assert_eq!(printed.code, 0, "{}", printed.err);
    let path = printed.err.lines().find_map(|l| l.strip_prefix("log lines go to ")).unwrap().to_owned();
    ok(&lab, ["umount", point.text()]);
    let log = fs::read_to_string(&path).unwrap();
    fs::remove_file(&path).unwrap();
    assert!(log.contains("is mounted on"), "{log}");
    assert!(path.starts_with("/var/log/nearfs/"), "{path}");
}

#[test]
fn a_user_mounts_through_the_helper() {
    let lab = lab();
    // As udev makes it everywhere; a bare machine may have it for root alone.
    fs::set_permissions("/dev/fuse", fs::Permissions::from_mode(0o666)).unwrap();
    let home = TempDir::new().unwrap();
    let dir = home.path().join("mnt");
    let bin = home.path().join("nearfs");
    fs::create_dir(&dir).unwrap();
    fs::copy(env!("CARGO_BIN_EXE_nearfs"), &bin).unwrap();
    for path in [home.path(), &dir] {
        std::os::unix::fs::chown(path, Some(65534), Some(65534)).unwrap();
    }
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let as_user = |program: &str, args: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", program]).args(args);
        command.env_clear().envs(nearfs(&lab).get_envs().filter_map(|(k, v)| Some((k, v?))));
        run(command.env("HOME", home.path()))
    };
    let (bin, text) = (bin.to_str().unwrap(), dir.to_str().unwrap());
    let printed = as_user(bin, &["mount", "s3://b/p", text]);
    assert_eq!(printed.code, 0, "{}", printed.err);
    assert!(printed.err.contains("readable by uid 65534 only"), "{}", printed.err);
    let state = home.path().join(".local/state/nearfs");
    assert!(printed.err.contains(state.to_str().unwrap()), "{}", printed.err);
    assert_eq!(as_user("cat", &[&format!("{text}/file")]).text(), "hello");
    assert_eq!(
        fs::metadata(dir.join("file")).unwrap_err().raw_os_error(),
        Some(libc::EACCES),
        "root is not let in"
    );
    let printed = as_user(bin, &["unmount", text]);
    assert_eq!(printed.code, 0, "{}", printed.err);
    assert!(!is_mounted(&dir));
}

#[test]
fn a_cached_file_is_passed_through_where_that_was_asked_for() {
    let (lab, point) = (lab(), Point::new());
    let data: Vec<u8> = (0..3_000_000u32).map(|i| (i >> 3) as u8).collect();
    lab.put("b", "large", data.clone());
    let stats = || -> serde_json::Value {
        let text = fs::read(point.join(".nearfs/stats")).unwrap();
        serde_json::from_slice::<serde_json::Value>(&text).unwrap()["mount"].clone()
    };
    assert_eq!(point.mount(&lab, ["mount", "--open", "passthrough", "s3://b", point.text()]).code, 0);
    assert_eq!(stats()["open_mode"], "passthrough");
    eventually("it is passed through", || {
        assert!(fs::read(point.join("large")).unwrap() == data);
        (stats()["passthrough"]["opens"] != 0).then_some(())
    });
    ok(&lab, ["unmount", point.text()]);
    // On an older kernel it could not be, and the mount says so.
    let args = ["s3://b", point.text(), "-o", "open=passthrough,fuse_protocol=7.34"];
    assert_eq!(point.mount(&lab, args).code, 0);
    assert!(fs::read(point.join("large")).unwrap() == data);
    let stats = stats();
    assert_eq!((&stats["open_mode"], &stats["passthrough"]["available"]), (&"plain".into(), &false.into()));
    let reason = stats["passthrough"]["reason"].as_str().unwrap();
    assert!(reason.contains("Linux 6.9") && point.log().contains(reason), "{reason}");
}
