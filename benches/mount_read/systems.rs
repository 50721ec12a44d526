//! The mounts that are compared: how each starts, and what its processes cost.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nearfs_lab::Lab;
use tempfile::TempDir;

/// A program that mounts a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum System {
    /// As it comes, with its cache on disk.
    Nearfs,
    /// Without a cache on disk.
    NearfsMemory,
    Rclone,
    S3fs,
}

impl System {
    pub(crate) fn name(self) -> &'static str {
        match self {
            System::Nearfs => "nearfs",
            System::NearfsMemory => "nearfs-memory",
            System::Rclone => "rclone",
            System::S3fs => "s3fs",
        }
    }

    fn command(self, lab: &Lab, bucket: &str, dir: &Path, work: &Path, args: &[&str]) -> Command {
        let mut command;
        match self {
            System::Nearfs | System::NearfsMemory => {
                command = Command::new(env!("CARGO_BIN_EXE_nearfs"));
                command.args(["mount", "--foreground", &format!("s3://{bucket}")]);
                if !args.contains(&"--metadata-ttl") {
                    command.args(["--metadata-ttl", "300s"]);
                }
                let size = if self == System::Nearfs { "8GiB" } else { "0" };
                command.arg("--cache-dir").arg(work.join("cache")).args(["--cache-size", size]);
                command.arg(dir).args(args);
            }
            System::Rclone => {
                let venv =
                    std::env::var("NEARFS_TEST_VENV").expect("NEARFS_TEST_VENV names the tests' Python");
                command = Command::new(format!("{venv}/bin/rclone"));
                command.args(["mount", &format!("lab:{bucket}")]).arg(dir).args([
                    "--read-only",
                    "--no-modtime",
                    "--no-checksum",
                    "--attr-timeout",
                    "300s",
                    "--dir-cache-time",
                    "300s",
                    "--poll-interval",
                    "0",
                    "--vfs-cache-mode",
                    "off",
                    "--config",
                    "/dev/null",
                ]);
                for (key, value) in [
                    ("TYPE", "s3"),
                    ("PROVIDER", "Other"),
                    ("ENDPOINT", &lab.endpoint()),
                    ("ACCESS_KEY_ID", "a"),
                    ("SECRET_ACCESS_KEY", "bbbbbbbb"),
                    ("FORCE_PATH_STYLE", "true"),
                ] {
                    command.env(format!("RCLONE_CONFIG_LAB_{key}"), value);
                }
            }
            System::S3fs => {
                use std::os::unix::fs::PermissionsExt;
                let password = work.join("passwd");
                fs::write(&password, "a:bbbbbbbb\n").expect("the work directory is writable");
                fs::set_permissions(&password, fs::Permissions::from_mode(0o600)).expect("ours to change");
                command = Command::new("s3fs");
                command.arg(bucket).arg(dir).args(["-f", "-o"]).arg(format!(
                    "url={},use_path_request_style,passwd_file={},ro,kernel_cache,max_stat_cache_size=200000,\
                     stat_cache_expire=300,multireq_max=32,parallel_count=8,multipart_size=8,tmpdir={},dbglevel=err",
                    lab.endpoint(),
                    password.display(),
                    work.display()
                ));
            }
        }
        command
            .env("AWS_ACCESS_KEY_ID", "a")
            .env("AWS_SECRET_ACCESS_KEY", "bbbbbbbb")
            .env("AWS_REGION", "us-east-1")
            .env("AWS_EC2_METADATA_DISABLED", "true")
            .env("AWS_ENDPOINT_URL", lab.endpoint());
        command
    }

    /// A fresh mount with empty caches.
    pub(crate) fn mount(self, lab: &Lab, bucket: &str, args: &[&str]) -> Mounted {
        let (dir, work) = (TempDir::new().expect("a temporary directory"), TempDir::new().expect("another"));
        let log = work.path().join("log");
        let out = File::create(&log).expect("the work directory is writable");
        let mut command = self.command(lab, bucket, dir.path(), work.path(), args);
        command.stdin(Stdio::null()).stdout(out.try_clone().expect("a descriptor")).stderr(out);
        let child = command.spawn().unwrap_or_else(|e| panic!("{} does not start: {e}", self.name()));
        let mut mounted = Mounted { dir, work, child };
        let deadline = Instant::now() + Duration::from_secs(20);
        while !mounted.is_mounted() {
            let ended = mounted.child.try_wait().expect("a child can be waited for");
            assert!(
                ended.is_none() && Instant::now() < deadline,
                "{} did not mount: {}",
                self.name(),
                fs::read_to_string(&log).unwrap_or_default()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        fs::metadata(mounted.dir.path()).expect("the mount answers");
        std::thread::sleep(Duration::from_millis(200));
        drop_caches();
        mounted
    }
}

/// Writes back, then drops pages, names and inodes: the state after a restart.
pub(crate) fn drop_caches() {
    rustix::fs::sync();
    fs::write("/proc/sys/vm/drop_caches", "3").expect("dropping caches needs root");
}

/// A running mount; dropping it unmounts.
pub(crate) struct Mounted {
    dir: TempDir,
    #[expect(dead_code, reason = "removed with the mount")]
    work: TempDir,
    child: Child,
}

impl Mounted {
    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn is_mounted(&self) -> bool {
        let dir = self.dir.path().to_str().expect("plain name");
        let table = fs::read_to_string("/proc/self/mountinfo").expect("the kernel lists mounts");
        table.lines().any(|l| l.split(' ').nth(4) == Some(dir))
    }

    /// CPU seconds of the mount's processes so far, user and system.
    pub(crate) fn cpu_seconds(&self) -> f64 {
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        self.processes().iter().map(|(_, cpu)| *cpu as f64 / ticks).sum()
    }

    /// Peak resident memory of the mount's processes, MB.
    pub(crate) fn peak_mb(&self) -> f64 {
        let peak = |pid: &u32| -> f64 {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let line = status.lines().find(|l| l.starts_with("VmHWM:")).unwrap_or("VmHWM: 0");
            line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).unwrap_or(0.0)
        };
        self.processes().iter().map(|(pid, _)| peak(pid)).sum::<f64>() * 1024.0 / 1e6
    }

    /// The child and what it started, with CPU ticks.
    fn processes(&self) -> Vec<(u32, u64)> {
        let mut all = Vec::new();
        for entry in fs::read_dir("/proc").expect("the kernel lists processes").flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<u32>().ok()) else { continue };
            let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
            let Some((_, rest)) = stat.rsplit_once(')') else { continue };
            let fields: Vec<u64> = rest.split_whitespace().skip(1).map(|f| f.parse().unwrap_or(0)).collect();
            all.push((pid, fields[0] as u32, fields[10] + fields[11]));
        }
        let mut ours = BTreeSet::from([self.child.id()]);
        loop {
            let more: Vec<u32> = all
                .iter()
                .filter(|(p, parent, _)| ours.contains(parent) && !ours.contains(p))
                .map(|p| p.0)
                .collect();
            if more.is_empty() {
                break;
            }
            ours.extend(more);
        }
        all.into_iter().filter(|(p, ..)| ours.contains(p)).map(|(p, _, cpu)| (p, cpu)).collect()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        for _ in 0..20 {
            if !self.is_mounted()
                || Command::new("umount")
                    .arg(self.dir.path())
                    .stderr(Stdio::null())
                    .status()
                    .is_ok_and(|s| s.success())
            {
                break;
            }
            std::thread::sleep(Duration::from_millis(250));
        }
        if self.is_mounted() {
            let _ = Command::new("umount").arg("-l").arg(self.dir.path()).status();
        }
        let until = Instant::now() + Duration::from_secs(10);
        while self.child.try_wait().is_ok_and(|s| s.is_none()) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
