//! The cache on disk under real mounts: what survives, what is shared, who is refused, what is never exceeded.

use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use nearfs_lab::{AccessKey, Auth, Lab, Model, Op, Rights, stamp};
use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{BUCKET, Mount, lab, nearfs, output, read_stamped, run, wait, within};

const BIG: u64 = 40_000_003;
const SMALL: u64 = 100_000;

/// A large object and small files in a directory.
fn seed(lab: &Lab) {
    lab.put_synthetic(BUCKET, "big", BIG, stamp::key_id("big"));
    for i in 0..200 {
        let key = format!("small/{i:03}");
        lab.put_synthetic(BUCKET, &key, SMALL + i, stamp::key_id(&key));
    }
}

/// Reads everything that [`seed`] made.
fn epoch(mount: &Mount) {
    read_stamped(&File::open(mount.join("big")).unwrap(), "big", 0..BIG).unwrap();
    for i in 0..200 {
        let key = format!("small/{i:03}");
        read_stamped(&File::open(mount.join(&key)).unwrap(), &key, 0..SMALL + i).unwrap();
    }
}

fn with_cache(lab: &Lab, cache: &Path, more: &[&str]) -> Mount {
    let args = [&["--cache-dir", cache.to_str().unwrap()], more].concat();
    Mount::start(lab, &format!("s3://{BUCKET}"), &args)
}

/// The first directory of the cache, as `nearfs cache status` tells.
fn status(lab: &Lab, cache: &Path) -> Value {
    let text = run(nearfs(lab).args(["--json", "cache", "status", "--cache-dir"]).arg(cache));
    serde_json::from_str(text.lines().next().unwrap()).unwrap()
}

/// Waits until nothing is on its way to the disk.
fn settled(mount: &Mount) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let stats = mount.stats();
        let cache = &stats["filesystems"][""]["cache"];
        if cache["disk_queued"] == 0 && cache["in_flight"] == 0 && cache["disk_written"].as_u64() >= Some(BIG)
        {
            return;
        }
        assert!(Instant::now() < deadline, "the bytes do not reach the disk: {cache}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_second_epoch_fetches_nothing_after_unmount_and_after_kill() {
    let lab = lab();
    seed(&lab);
    let cache = TempDir::new().unwrap();
    let mount = with_cache(&lab, cache.path(), &[]);
    epoch(&mount);
    mount.stop();
    lab.reset_counters();
    let mut mount = with_cache(&lab, cache.path(), &[]);
    epoch(&mount);
    assert_eq!(lab.counters().body_bytes, 0, "after an unmount");

    // What only this mount fetched, and then it is killed.
    let more: Vec<String> = (0..50).map(|i| format!("more/{i:02}")).collect();
    for key in &more {
        lab.put_synthetic(BUCKET, key, SMALL, stamp::key_id(key));
    }
    lab.put_synthetic(BUCKET, "more/big", BIG, stamp::key_id("more/big"));
    let all = |mount: &Mount| {
        read_stamped(&File::open(mount.join("more/big")).unwrap(), "more/big", 0..BIG).unwrap();
        for key in &more {
            read_stamped(&File::open(mount.join(key)).unwrap(), key, 0..SMALL).unwrap();
        }
    };
    all(&mount);
    settled(&mount);
    mount.daemon().kill().unwrap();
    mount.daemon().wait().unwrap();
    let dead = mount.path().to_owned();
    lab.reset_counters();
    let mount = with_cache(&lab, cache.path(), &[]);
    epoch(&mount);
    all(&mount);
    assert_eq!(lab.counters().body_bytes, 0, "after kill -9 of the mount on {}", dead.display());
    assert_eq!(mount.stats()["filesystems"][""]["cache"]["disk_corrupt"], 0);
}

#[test]
fn two_mounts_and_three_commands_fetch_one_object_once() {
    let lab = lab();
    let size = 96 << 20;
    lab.put_synthetic(BUCKET, "cold", size, stamp::key_id("cold"));
    let cache = TempDir::new().unwrap();
    let mounts = [with_cache(&lab, cache.path(), &[]), with_cache(&lab, cache.path(), &[])];
    // Slow enough that all of them are at it at once.
    lab.set_model(Model { total_mbps: 60.0, ..Model::default() });
    lab.reset_counters();
    let cats: Vec<_> = (0..3)
        .map(|_| {
            let mut cat = nearfs(&lab);
            cat.arg("--cache-dir").arg(cache.path()).args(["cat", "s3://data/cold"]);
            cat.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    std::thread::scope(|scope| {
        for mount in &mounts {
            scope.spawn(|| {
                let file = File::open(mount.join("cold")).unwrap();
                for at in (0..size).step_by(1 << 20) {
                    read_stamped(&file, "cold", at..at + (1 << 20)).unwrap();
                }
            });
        }
        for cat in cats {
            scope.spawn(|| {
                let out = cat.wait_with_output().unwrap();
                assert!(out.status.success());
                stamp::verify(&out.stdout, 0, stamp::key_id("cold")).unwrap();
                assert_eq!(out.stdout.len() as u64, size);
            });
        }
    });
    let sent = lab.counters().body_bytes;
    assert!(
        sent as f64 <= 1.05 * size as f64,
        "the store sent {:.3} times the object",
        sent as f64 / size as f64
    );
}

#[test]
fn a_revoked_key_reads_nothing_more_and_another_identity_nothing_at_all() {
    let key = AccessKey::new("test", "test-secret");
    let lab = Lab::builder().bucket(BUCKET).auth(Auth::Required).access_key(key.clone()).start().unwrap();
    seed(&lab);
    let cache = TempDir::new().unwrap();
    let mount = with_cache(&lab, cache.path(), &["--metadata-ttl", "1s", "--negative-ttl", "0"]);
    epoch(&mount);
    settled(&mount);
    // Somebody else, with no right to this bucket.
    lab.set_access_key(AccessKey::new("other", "other-secret").rights(Rights {
        deny: vec![Op::ListObjects, Op::ListObjectsV2, Op::HeadObject, Op::GetObject],
        ..Rights::default()
    }));
    for key in ["big", "small/000"] {
        let mut cat = nearfs(&lab);
        cat.env("AWS_ACCESS_KEY_ID", "other").env("AWS_SECRET_ACCESS_KEY", "other-secret");
        let out = output(cat.arg("--cache-dir").arg(cache.path()).args(["cat", &format!("s3://data/{key}")]));
        assert_eq!((out.status.code(), out.stdout.len()), (Some(2), 0), "{key}");
    }
    // The key of the mount loses its rights.
    lab.set_access_key(key.rights(Rights {
        deny: vec![Op::ListObjects, Op::ListObjectsV2, Op::HeadObject, Op::GetObject],
        ..Rights::default()
    }));
    let deadline = Instant::now() + Duration::from_secs(20);
    for key in ["big", "small/000", "small/199"] {
        loop {
            match fs::read(mount.join(key)) {
                Err(e) if e.raw_os_error() == Some(libc::EACCES) => break,
                other => assert!(
                    Instant::now() < deadline,
                    "{key} is still served: {:?}",
                    other.map(|bytes| bytes.len())
                ),
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

#[test]
fn an_object_larger_than_the_cache_streams_through_it() {
    let lab = lab();
    let (size, limit) = (200_u64 << 20, 64_u64 << 20);
    lab.put_synthetic(BUCKET, "huge", size, stamp::key_id("huge"));
    let cache = TempDir::new().unwrap();
    let mount = with_cache(&lab, cache.path(), &["--cache-size", "64MiB", "--memory", "64MiB"]);
    let (done, most) = (AtomicBool::new(false), std::sync::atomic::AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Relaxed) {
                most.fetch_max(disk_bytes(cache.path()), Relaxed);
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let file = File::open(mount.join("huge")).unwrap();
        for at in (0..size).step_by(1 << 20) {
            read_stamped(&file, "huge", at..at + (1 << 20)).unwrap();
        }
        done.store(true, Relaxed);
    });
    let most = most.into_inner();
    assert!(most > limit / 4, "something is kept: {most}");
    assert!(most <= limit + (64 << 20), "at most {} MiB on disk, found {}", limit >> 20, most >> 20);
    assert!(status(&lab, cache.path())["used"].as_u64() <= Some(limit));
}

/// Bytes that files below `dir` take on disk; those that go meanwhile count nothing.
fn disk_bytes(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let mut sum = 0;
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(m) if m.is_dir() => dirs.push(entry.path()),
                Ok(m) => sum += m.blocks() * 512,
                Err(_) => {}
            }
        }
    }
    sum
}

#[test]
fn j2_a_cache_that_is_cleared_removed_or_damaged_never_fails_a_reader() {
    let lab = lab();
    seed(&lab);
    let parent = TempDir::new().unwrap();
    let cache = parent.path().join("cache");
    let mount = with_cache(&lab, &cache, &["--memory", "16MiB"]);
    epoch(&mount);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (mount, done) = (&mount, &done);
            scope.spawn(move || {
                let file = File::open(mount.join("big")).unwrap();
                let mut at = thread * 1_000_003;
                while !done.load(Relaxed) {
                    at = (at + 7_000_003) % (BIG - 200_000);
                    read_stamped(&file, "big", at..at + 200_000).unwrap();
                    let i = at % 200;
                    let key = format!("small/{i:03}");
                    read_stamped(&File::open(mount.join(&key)).unwrap(), &key, 0..SMALL + i).unwrap();
                }
            });
        }
        let act = || {
            for round in 0..3 {
                let out = output(nearfs(&lab).arg("--cache-dir").arg(&cache).args(["-q", "cache", "clear"]));
                assert!(out.status.code().is_some_and(|c| c < 2), "{}", String::from_utf8_lossy(&out.stderr));
                std::thread::sleep(Duration::from_millis(300));
                for entry in fs::read_dir(cache.join("nearfs-v1/objects")).into_iter().flatten().flatten() {
                    for file in fs::read_dir(entry.path()).into_iter().flatten().flatten() {
                        match round {
                            0 => drop(fs::remove_file(file.path())),
                            1 => drop(
                                File::options().write(true).open(file.path()).and_then(|f| f.set_len(1000)),
                            ),
                            _ => drop(fs::write(file.path(), "something else entirely")),
                        }
                    }
                }
                std::thread::sleep(Duration::from_millis(300));
            }
            fs::remove_dir_all(cache.join("nearfs-v1")).unwrap();
            std::thread::sleep(Duration::from_millis(500));
        };
        // Whatever it meets, the readers are told to stop.
        let acted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act));
        done.store(true, Relaxed);
        acted.unwrap();
    });
    epoch(&mount);
    mount.stop();
}

#[test]
fn j1_a_full_disk_never_reaches_a_reader() {
    let lab = lab();
    seed(&lab);
    let place = TempDir::new().unwrap();
    // A filesystem of its own, as large as what describes the cache and a little more.
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=24m", "tmpfs"])
        .arg(place.path())
        .status()
        .unwrap();
    assert!(mounted.success());
    let _detach = crate::harness::Detach(place.path().to_owned());
    let late: Vec<String> = (0..40).map(|i| format!("late/{i:02}")).collect();
    for key in &late {
        lab.put_synthetic(BUCKET, key, 900_000, stamp::key_id(key));
    }
    let mount =
        with_cache(&lab, &place.path().join("cache"), &["--cache-size", "1GiB", "--cache-free", "0%"]);
    epoch(&mount);
    // The rest is taken by others.
    let _ = fs::write(place.path().join("others"), vec![1_u8; 30 << 20]);
    epoch(&mount);
    for key in &late {
        read_stamped(&File::open(mount.join(key)).unwrap(), key, 0..900_000).unwrap();
    }
    let log = mount.log();
    assert!(log.matches("WARN").count() <= 3, "a full disk is told now and then, not each time:\n{log}");
    mount.stop();
}

#[test]
fn a_process_that_is_stopped_while_it_fetches_holds_up_nobody_for_long() {
    let lab = lab();
    let size = 32 << 20;
    lab.put_synthetic(BUCKET, "cold", size, stamp::key_id("cold"));
    let cache = TempDir::new().unwrap();
    let mut stopped = with_cache(&lab, cache.path(), &[]);
    let other = with_cache(&lab, cache.path(), &[]);
    lab.set_model(Model { total_mbps: 8.0, ..Model::default() });
    let path = stopped.join("cold");
    let reader = std::thread::spawn(move || fs::read(path));
    std::thread::sleep(Duration::from_millis(700));
    crate::harness::signal(stopped.pid(), libc::SIGSTOP);
    lab.set_model(Model::default());
    let path = other.join("cold");
    let bytes = within(Duration::from_secs(50), move || fs::read(path)).unwrap();
    stamp::verify(&bytes, 0, stamp::key_id("cold")).unwrap();
    crate::harness::signal(stopped.pid(), libc::SIGCONT);
    stamp::verify(&reader.join().unwrap().unwrap(), 0, stamp::key_id("cold")).unwrap();
    crate::harness::signal(stopped.pid(), libc::SIGTERM);
    assert!(wait(stopped.daemon(), Duration::from_secs(20)).is_some());
}
