//! A lab bucket mounted by the real binary, with its log, and limits on how long anything may take.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use nearfs_lab::{Lab, stamp};
use tempfile::TempDir;

/// The bucket every test uses.
pub(crate) const BUCKET: &str = "data";

/// A lab with the bucket [`BUCKET`].
pub(crate) fn lab() -> Lab {
    Lab::builder().bucket(BUCKET).start().expect("the lab listens on loopback")
}

/// The binary with an environment in which only the lab exists.
pub(crate) fn nearfs(lab: &Lab) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nearfs"));
    isolate(&mut command, lab);
    command
}

thread_local! {
    /// Caches of this test, gone with its thread.
    static CACHES: TempDir = TempDir::new().expect("a temporary directory");
}

/// Removes what this machine's user may have configured, points S3 at the lab, and the cache to a directory of this test.
pub(crate) fn isolate(command: &mut Command, lab: &Lab) {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if [
            "AWS_",
            "NEARFS_",
            "XDG_",
            "http_proxy",
            "https_proxy",
            "HTTP_PROXY",
            "HTTPS_PROXY",
            "ALL_PROXY",
            "all_proxy",
        ]
        .iter()
        .any(|p| text.starts_with(p))
        {
            command.env_remove(&name);
        }
    }
    command
        .env("HOME", "/nonexistent")
        .env("NEARFS_CACHE_DIR", CACHES.with(|dir| dir.path().join("cache")))
        .env("NEARFS_CACHE_SIZE", "4GiB")
        .env("AWS_ACCESS_KEY_ID", "test")
        .env("AWS_SECRET_ACCESS_KEY", "test-secret")
        .env("AWS_REGION", "us-east-1")
        .env("AWS_EC2_METADATA_DISABLED", "true")
        .env("AWS_ENDPOINT_URL", lab.endpoint());
}

/// A running mount; dropping it unmounts, and shows the daemon's log if the test is failing.
pub(crate) struct Mount {
    dir: TempDir,
    /// Its log, and its own cache unless the test names one.
    state: TempDir,
    daemon: Option<Child>,
}

impl Mount {
    /// Mounts `url` with `args` and waits until the directory answers.
    pub(crate) fn start(lab: &Lab, url: &str, args: &[&str]) -> Mount {
        Self::start_at(lab, url, args, TempDir::new().unwrap())
    }

    /// The whole bucket with default settings.
    pub(crate) fn bucket(lab: &Lab) -> Mount {
        Self::start(lab, &format!("s3://{BUCKET}"), &[])
    }

    /// As [`Mount::start`], on a directory of the caller's.
    pub(crate) fn start_at(lab: &Lab, url: &str, args: &[&str], dir: TempDir) -> Mount {
        let state = TempDir::new().unwrap();
        let mut command = nearfs(lab);
        command.env("NEARFS_CACHE_DIR", state.path().join("cache"));
        command.args(["mount", "--foreground", url]).arg(dir.path()).args(args);
        let out = File::create(state.path().join("log")).unwrap();
        command.stdin(Stdio::null()).stdout(out.try_clone().unwrap()).stderr(out);
        let daemon = command.spawn().expect("the binary starts");
        let mut mount = Mount { dir, state, daemon: Some(daemon) };
        let deadline = Instant::now() + Duration::from_secs(20);
        while !is_mounted(mount.path()) {
            if let Some(status) = mount.daemon.as_mut().unwrap().try_wait().unwrap() {
                panic!("the mount ended with {status}:\n{}", mount.log());
            }
            assert!(Instant::now() < deadline, "not mounted after 20 s:\n{}", mount.log());
            std::thread::sleep(Duration::from_millis(10));
        }
        within(Duration::from_secs(10), {
            let path = mount.path().to_owned();
            move || std::fs::metadata(path).map(drop)
        })
        .expect("the mounted directory answers");
        mount
    }

    /// The mounted directory.
    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// `name` below the mounted directory.
    pub(crate) fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path().join(name)
    }

    /// Process id of the daemon.
    pub(crate) fn pid(&self) -> u32 {
        self.daemon.as_ref().expect("the daemon runs").id()
    }

    /// The daemon itself, for tests that end it their own way.
    pub(crate) fn daemon(&mut self) -> &mut Child {
        self.daemon.as_mut().expect("the daemon runs")
    }

    /// What the daemon has logged.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.state.path().join("log")).unwrap_or_default()
    }

    /// The figures of `.nearfs/stats`.
    pub(crate) fn stats(&self) -> serde_json::Value {
        let text = std::fs::read_to_string(self.join(".nearfs/stats")).expect(".nearfs/stats is readable");
        serde_json::from_str(&text).expect(".nearfs/stats is JSON")
    }

    /// Memory of the daemon's own now, in bytes: without files that it has mapped, which the kernel takes back when
    /// it wants to.
    pub(crate) fn memory(&self) -> u64 {
        status_kib(self.pid(), "RssAnon:") * 1024
    }

    /// Ordered stop: SIGTERM, exit status 0 within 10 s, mount table clean.
    pub(crate) fn stop(mut self) {
        let mut daemon = self.daemon.take().expect("the daemon runs");
        signal(daemon.id(), libc::SIGTERM);
        let status = wait(&mut daemon, Duration::from_secs(10)).unwrap_or_else(|| {
            let _ = daemon.kill();
            panic!("the daemon did not stop within 10 s:\n{}", self.log())
        });
        assert!(status.success(), "an ordered stop ends with {status}:\n{}", self.log());
        assert!(!is_mounted(self.path()), "the mount table is clean after an ordered stop");
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            signal(daemon.id(), libc::SIGTERM);
            if wait(&mut daemon, Duration::from_secs(10)).is_none() {
                let _ = daemon.kill();
                let _ = daemon.wait();
            }
        }
        while is_mounted(self.path()) {
            if !Command::new("umount").arg("-l").arg(self.path()).status().is_ok_and(|s| s.success()) {
                break;
            }
        }
        if std::thread::panicking() {
            eprintln!("--- log of the mount\n{}", self.log());
        }
    }
}

/// Detaches whatever is mounted on a directory when the test ends, however it ends.
pub(crate) struct Detach(pub(crate) PathBuf);

impl Drop for Detach {
    fn drop(&mut self) {
        if is_mounted(&self.0) {
            let _ = Command::new("umount").arg("-l").arg(&self.0).status();
        }
    }
}

/// Sends `signal` to a process this test started.
pub(crate) fn signal(pid: u32, signal: i32) {
    // SAFETY: `kill` takes two numbers and touches no memory of ours.
    unsafe { libc::kill(pid as libc::pid_t, signal) };
}

/// Waits for `child`; `None` if it still runs after `limit`.
pub(crate) fn wait(child: &mut Child, limit: Duration) -> Option<std::process::ExitStatus> {
    let deadline = Instant::now() + limit;
    loop {
        match child.try_wait().expect("a child can be waited for") {
            Some(status) => return Some(status),
            None if Instant::now() >= deadline => return None,
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// True if the mount table names `dir`. Never touches the directory itself.
pub(crate) fn is_mounted(dir: &Path) -> bool {
    let dir = dir.to_str().expect("temporary directories have plain names");
    std::fs::read_to_string("/proc/self/mountinfo").unwrap().lines().any(|l| l.split(' ').nth(4) == Some(dir))
}

/// Runs `f` on a thread of its own and panics if it is not done within `limit`: a hang fails, it does not block.
pub(crate) fn within<T: Send + 'static>(limit: Duration, f: impl FnOnce() -> T + Send + 'static) -> T {
    let (tx, rx) = mpsc::channel();
    std::thread::spawn(move || tx.send(f()));
    match rx.recv_timeout(limit) {
        Ok(value) => value,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("not done within {limit:?}"),
        Err(mpsc::RecvTimeoutError::Disconnected) => panic!("the thread panicked"),
    }
}

/// Runs a program to its end (at most 120 s) and gives what it printed; panics unless it ends with status 0.
pub(crate) fn run(command: &mut Command) -> String {
    let out = output(command);
    assert!(
        out.status.success(),
        "{command:?} ended with {}\n{}{}",
        out.status,
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    );
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// Runs a program to its end (at most 120 s).
pub(crate) fn output(command: &mut Command) -> Output {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("{command:?} does not start: {e}"));
    let drain = |pipe: Option<Box<dyn Read + Send>>| {
        std::thread::spawn(move || {
            let mut buf = Vec::new();
            pipe.expect("the pipe was asked for").read_to_end(&mut buf).map(|_| buf)
        })
    };
    let stdout = drain(child.stdout.take().map(|p| Box::new(p) as _));
    let stderr = drain(child.stderr.take().map(|p| Box::new(p) as _));
    let Some(status) = wait(&mut child, Duration::from_secs(120)) else {
        let _ = child.kill();
        panic!("{command:?} still runs after 120 s");
    };
    Output { status, stdout: stdout.join().unwrap().unwrap(), stderr: stderr.join().unwrap().unwrap() }
}

/// Reads `range` of an open file and checks every byte against the stamps of `key`; gives the version found.
pub(crate) fn read_stamped(file: &File, key: &str, range: std::ops::Range<u64>) -> std::io::Result<u32> {
    let mut buf = vec![0; (range.end - range.start) as usize];
    file.read_exact_at(&mut buf, range.start)?;
    Ok(stamp::verify(&buf, range.start, stamp::key_id(key)).unwrap_or_else(|e| panic!("{key}: {e}")))
}

fn status_kib(pid: u32, field: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process lives");
    let line = text.lines().find(|l| l.starts_with(field)).expect("the kernel reports memory");
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
