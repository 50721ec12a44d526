//! The binary in an environment of its own, and what it printed.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nearfs_lab::Lab;
use serde_json::Value;
use tempfile::TempDir;

/// Longest time that any one command may take.
const LIMIT: Duration = Duration::from_secs(60);

thread_local! {
    /// Caches of this test, gone with its thread.
    static CACHES: TempDir = TempDir::new().expect("a temporary directory");
}

/// The cache directory of all commands of this test.
pub(crate) fn cache_dir() -> PathBuf {
    CACHES.with(|dir| dir.path().join("cache"))
}

/// The command, in an environment where only the lab exists: nothing of this machine's user is seen.
pub(crate) fn nearfs(lab: &Lab) -> Command {
    let mut command = alone();
    command
        .env("AWS_ACCESS_KEY_ID", "test")
        .env("AWS_SECRET_ACCESS_KEY", "test-secret")
        .env("AWS_REGION", "us-east-1")
        .env("AWS_ENDPOINT_URL", lab.endpoint());
    command
}

/// The command without any store; its cache is this test's.
pub(crate) fn alone() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nearfs"));
    command
        .env_clear()
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .env("HOME", "/nonexistent")
        .env("NEARFS_CACHE_DIR", cache_dir())
        .env("NEARFS_CACHE_SIZE", "1GiB")
        .env("AWS_EC2_METADATA_DISABLED", "true");
    command
}

/// What a finished command printed.
#[derive(Debug)]
pub(crate) struct Printed {
    pub(crate) code: i32,
    pub(crate) out: Vec<u8>,
    pub(crate) err: String,
}

impl Printed {
    /// Standard output as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.out.clone()).unwrap()
    }

    /// The lines of standard output.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.text().lines().map(str::to_owned).collect()
    }

    /// Standard output as one JSON value a line.
    pub(crate) fn json(&self) -> Vec<Value> {
        self.lines().iter().map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{l}: {e}"))).collect()
    }
}

/// Runs `command` to its end.
pub(crate) fn run(command: &mut Command) -> Printed {
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    finish(child)
}

/// The end of `child`, whose output is piped.
pub(crate) fn finish(child: Child) -> Printed {
    let pid = child.id();
    let (tx, rx) = std::sync::mpsc::channel();
    std::thread::spawn(move || tx.send(child.wait_with_output()));
    let Output { status, stdout, stderr } = match rx.recv_timeout(LIMIT) {
        Ok(output) => output.unwrap(),
        Err(_) => {
            signal(pid, libc::SIGKILL);
            panic!("still running after {LIMIT:?}")
        }
    };
    let code = status.code().unwrap_or_else(|| panic!("ended by {status}"));
    Printed { code, out: stdout, err: String::from_utf8_lossy(&stderr).into_owned() }
}

/// Runs `nearfs ARGS` against the lab and expects success.
pub(crate) fn ok<S: AsRef<OsStr>>(lab: &Lab, args: impl IntoIterator<Item = S>) -> Printed {
    let printed = run(nearfs(lab).args(args));
    assert_eq!(printed.code, 0, "{}", printed.err);
    printed
}

/// Runs `nearfs ARGS` against the lab and expects `code` and an error text with `part`.
pub(crate) fn fails<S: AsRef<OsStr>>(
    lab: &Lab,
    code: i32,
    part: &str,
    args: impl IntoIterator<Item = S>,
) -> Printed {
    let printed = run(nearfs(lab).args(args));
    assert_eq!(printed.code, code, "{}", printed.err);
    assert!(printed.err.contains(part), "expected `{part}` in:\n{}", printed.err);
    printed
}

/// Sends `signal` to a process this test started.
pub(crate) fn signal(pid: u32, signal: i32) {
    // SAFETY: `kill` takes two numbers and touches no memory of ours.
    unsafe { libc::kill(pid as libc::pid_t, signal) };
}

/// Waits until `done` gives something.
pub(crate) fn eventually<T>(what: &str, mut done: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + LIMIT;
    loop {
        if let Some(value) = done() {
            return value;
        }
        assert!(Instant::now() < end, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// True if the mount table names `dir`. Never touches the directory itself.
pub(crate) fn is_mounted(dir: &Path) -> bool {
    let dir = dir.to_str().unwrap();
    std::fs::read_to_string("/proc/self/mountinfo").unwrap().lines().any(|l| l.split(' ').nth(4) == Some(dir))
}
