//! A mount starts, stops, dies and comes back.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nearfs_lab::{Fault, Op, Rule, stamp};
use tempfile::TempDir;

use crate::harness::{
    BUCKET, Detach, Mount, is_mounted, lab, nearfs, output, read_stamped, run, signal, wait, within,
};

fn sleeper_inside(mount: &Mount) -> Child {
    Command::new("sleep").arg("60").current_dir(mount.path()).stdin(Stdio::null()).spawn().unwrap()
}

#[test]
fn m1_a_dead_daemon_is_replaced_by_the_next_start() {
    let lab = lab();
    lab.put_synthetic(BUCKET, "a.bin", 8 << 20, stamp::key_id("a.bin"));
    for busy in [false, true] {
        let mut mount = Mount::bucket(&lab);
        let dir = mount.path().to_owned();
        let files: Vec<_> = (0..4).map(|_| File::open(mount.join("a.bin")).unwrap()).collect();
        let mut inside = sleeper_inside(&mount);
        let pid = mount.pid();
        signal(pid, libc::SIGKILL);
        assert!(wait(mount.daemon(), Duration::from_secs(5)).is_some());
        for file in files.iter() {
            let file = file.try_clone().unwrap();
            let error =
                within(Duration::from_secs(5), move || file.read_at(&mut [0; 100], 5 << 20)).unwrap_err();
            assert!(
                matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::EIO | libc::ECONNABORTED)),
                "{error}"
            );
        }
        let holders = if busy { Some(files) } else { None };
        // No manual step: the same command on the same directory.
        let out = output(nearfs(&lab).args(["mount", "s3://data"]).arg(&dir));
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        read_stamped(&File::open(dir.join("a.bin")).unwrap(), "a.bin", 0..8 << 20).unwrap();
        let mounted = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert_eq!(mounted.lines().filter(|l| l.split(' ').nth(4) == dir.to_str()).count(), 1, "not stacked");

        // A live mount is refused, naming what holds the directory.
        let out = output(nearfs(&lab).args(["mount", "s3://data"]).arg(&dir));
        let text = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{text}");
        assert!(text.contains("mounted here already") && text.contains("s3://data"), "{text}");

        signal(inside.id(), libc::SIGKILL);
        inside.wait().unwrap();
        drop(holders);
        run(nearfs(&lab).arg("unmount").arg(&dir));
        assert!(!is_mounted(&dir));
    }
}

#[test]
fn m2_stopping_under_load() {
    for how in ["SIGTERM", "unmount", "umount -f", "SIGINT twice"] {
        let lab = lab();
        for i in 0..16 {
            let key = format!("o{i}");
            lab.put_synthetic(BUCKET, &key, 256 << 20, stamp::key_id(&key));
        }
        let mut mount = Mount::bucket(&lab);
        let dir = mount.path().to_owned();
        lab.fault(Rule::on(Op::GetObject, Fault::Stall { after: 1000 }).key("o0"));
        let mut readers: Vec<Child> = (0..16)
            .map(|i| {
                Command::new("dd")
                    .arg(format!("if={}", mount.join(format!("o{i}")).display()))
                    .args(["of=/dev/null", "bs=1M"])
                    .stderr(Stdio::null())
                    .spawn()
                    .unwrap()
            })
            .collect();
        let mut inside = sleeper_inside(&mount);
        sleep(Duration::from_millis(300));
        let start = Instant::now();
        let pid = mount.pid();
        match how {
            "SIGTERM" => signal(pid, libc::SIGTERM),
            "SIGINT twice" => {
                signal(pid, libc::SIGINT);
                sleep(Duration::from_millis(200));
                signal(pid, libc::SIGINT);
            }
            "umount -f" => drop(run(nearfs(&lab).args(["umount", "-f"]).arg(&dir))),
            // In use: refused with the reason, and lazily when asked so.
            _ => {
                let out = output(nearfs(&lab).args(["unmount", "--drain", "1s"]).arg(&dir));
                if !out.status.success() {
                    let text = String::from_utf8_lossy(&out.stderr);
                    assert!(text.contains("hint"), "{text}");
                    run(nearfs(&lab).args(["unmount", "-l"]).arg(&dir));
                }
                assert!(!is_mounted(&dir));
                for child in &mut readers {
                    signal(child.id(), libc::SIGKILL);
                }
                signal(inside.id(), libc::SIGKILL);
            }
        }
        let status = wait(mount.daemon(), Duration::from_secs(20))
            .unwrap_or_else(|| panic!("{how}: still running after {:?}", start.elapsed()));
        assert!(start.elapsed() < Duration::from_secs(12), "{how} took {:?}", start.elapsed());
        assert!(status.success(), "{how} ended with {status}:\n{}", mount.log());
        assert!(!is_mounted(&dir), "{how} leaves the mount table clean");
        for child in &mut readers {
            assert!(wait(child, Duration::from_secs(10)).is_some(), "{how}: a reader hangs");
        }
        signal(inside.id(), libc::SIGKILL);
        inside.wait().unwrap();
    }
}

#[test]
fn m2_three_mounts_stop_side_by_side() {
    let lab = lab();
    lab.put_synthetic(BUCKET, "a.bin", 1 << 20, stamp::key_id("a.bin"));
    let mounts: Vec<_> = (0..3).map(|_| Mount::bucket(&lab)).collect();
    let start = Instant::now();
    for mount in &mounts {
        signal(mount.pid(), libc::SIGTERM);
    }
    for mut mount in mounts {
        assert!(wait(mount.daemon(), Duration::from_secs(10)).unwrap().success());
        assert!(!is_mounted(mount.path()));
    }
    assert!(start.elapsed() < Duration::from_secs(10));
}

#[test]
fn the_mount_table_and_the_ready_line_say_what_is_mounted() {
    let lab = lab();
    lab.put(BUCKET, "p/q/file", &b"hello"[..]);
    let dir = TempDir::new().unwrap();
    let _mount = Detach(dir.path().to_owned());
    let out = output(nearfs(&lab).args(["mount", "s3://data/p"]).arg(dir.path()));
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{text}");
    assert!(text.contains("s3://data/p") && text.contains("read-only"), "{text}");
    assert_eq!(fs::read(dir.path().join("q/file")).unwrap(), b"hello");
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    let line = mounts.lines().find(|l| l.split(' ').nth(1) == dir.path().to_str()).unwrap();
    let fields: Vec<_> = line.split(' ').collect();
    assert_eq!((fields[0], fields[2]), ("s3://data/p", "fuse.nearfs"), "{line}");
    assert!(fields[3].split(',').any(|o| o == "ro"), "{line}");
    assert!(!mounts.contains("test-secret"));
    let listed = run(nearfs(&lab).arg("mounts"));
    assert!(listed.contains("s3://data/p") && listed.contains(dir.path().to_str().unwrap()), "{listed}");

    assert_eq!(fs::write(dir.path().join("new"), "x").unwrap_err().raw_os_error(), Some(libc::EROFS));
    assert_eq!(fs::remove_file(dir.path().join("q/file")).unwrap_err().raw_os_error(), Some(libc::EROFS));
    let etag = lab.etag(BUCKET, "p/q/file").unwrap();
    let shown = run(Command::new("python3")
        .args(["-c", "import os,sys; print(os.getxattr(sys.argv[1], 'user.nearfs.etag').decode(), os.listxattr(sys.argv[1]))"])
        .arg(dir.path().join("q/file")));
    assert!(shown.contains(etag.trim_matches('"')) && shown.contains("user.nearfs.url"), "{shown}");
    run(nearfs(&lab).arg("umount").arg(dir.path()));
    assert!(!is_mounted(dir.path()));
}

#[test]
fn several_stores_below_one_directory() {
    let lab = lab();
    lab.put("left", "a", &b"left"[..]);
    lab.put("right", "x/a", &b"right"[..]);
    let mount = {
        let dir = TempDir::new().unwrap();
        Mount::start_at(&lab, "--map=l=s3://left", &["--map", "r=s3://right/x"], dir)
    };
    let mut names: Vec<_> = fs::read_dir(mount.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["l", "r"]);
    assert_eq!(fs::read(mount.join("l/a")).unwrap(), b"left");
    assert_eq!(fs::read(mount.join("r/a")).unwrap(), b"right");
    assert!(fs::metadata(mount.join("other")).is_err());
    assert!(mount.stats().is_object());
    mount.stop();
}

#[test]
fn an_fstab_line_mounts_with_mount_a() {
    let lab = lab();
    lab.put(BUCKET, "file", &b"hello"[..]);
    let dir = TempDir::new().unwrap();
    let work = TempDir::new().unwrap();
    let helper = "/sbin/mount.fuse.nearfs";
    assert!(!fs::exists(helper).unwrap(), "{helper} is there already: this test installs and removes it");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_nearfs"), helper).unwrap();
    struct RemoveHelper;
    impl Drop for RemoveHelper {
        fn drop(&mut self) {
            let _ = fs::remove_file("/sbin/mount.fuse.nearfs");
        }
    }
    let _helper = RemoveHelper;
    let _mount = Detach(dir.path().to_owned());
    let fstab = work.path().join("fstab");
    let line = |options: &str| {
        fs::write(&fstab, format!("s3://data {} fuse.nearfs {options} 0 0\n", dir.path().display())).unwrap();
    };
    let mount_a = || {
        let mut command = Command::new("mount");
        crate::harness::isolate(&mut command, &lab);
        output(command.arg("-a").arg("-T").arg(&fstab))
    };
    line("ro,allow_other,metadata_ttl=5s,x-systemd.automount,_netdev,nofail");
    let out = mount_a();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert_eq!(fs::read(dir.path().join("file")).unwrap(), b"hello");
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    let entry = mounts.lines().find(|l| l.split(' ').nth(1) == dir.path().to_str()).unwrap();
    assert!(
        entry.starts_with("s3://data ") && entry.contains(" fuse.nearfs ") && entry.contains("allow_other"),
        "{entry}"
    );
    let seen = run(Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "cat"])
        .arg(dir.path().join("file")));
    assert_eq!(seen, "hello");
    run(Command::new("umount").arg(dir.path()));
    assert!(!is_mounted(dir.path()));

    line("ro,metadata_tll=5s");
    let out = mount_a();
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(
        !out.status.success() && text.contains("metadata_tll") && text.contains("metadata-ttl"),
        "{text}"
    );
    assert!(!is_mounted(dir.path()));
}
