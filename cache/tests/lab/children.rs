//! Other processes that read through a cache of their own: this test program, started again.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child as Process, ChildStdout, Command, Stdio};
use std::time::Duration;

use super::{disk_at, over, path, read_all};

const ROLE: &str = "NEARFS_TEST_READS";

/// What a child is to do.
pub(crate) struct Reading<'a> {
    pub(crate) endpoint: &'a str,
    pub(crate) dir: &'a Path,
    pub(crate) keys: &'a [String],
    pub(crate) step: u64,
}

/// A child process that reads; killed when dropped.
pub(crate) struct Child {
    process: Process,
    out: BufReader<ChildStdout>,
}

impl Child {
    /// Starts one that reads as `reading` says. `test` is the test that calls this; it begins with [`played`].
    pub(crate) fn start(test: &str, reading: &Reading<'_>) -> Self {
        let Reading { endpoint, dir, keys, step } = reading;
        let args = [*endpoint, dir.to_str().unwrap(), &step.to_string(), &keys.join("\n")].join("\t");
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture", "--test-threads=1"])
            .env(ROLE, args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(process.stdout.take().unwrap());
        Child { process, out }
    }

    /// Waits until it has its cache and begins to read.
    pub(crate) fn ready(&mut self) {
        assert!(self.out.by_ref().lines().map_while(Result::ok).any(|line| line.ends_with("child: ready")));
    }

    /// Waits for its end.
    pub(crate) fn finish(mut self) {
        let lines: Vec<_> = self.out.by_ref().lines().map_while(Result::ok).collect();
        let status = self.process.wait().unwrap();
        assert!(status.success() && lines.iter().any(|l| l.ends_with("child: done")), "{status}: {lines:?}");
    }

    /// Ends it as a crash would.
    pub(crate) fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// In a child: reads, and says so. True if this process is one.
pub(crate) async fn played() -> bool {
    let Ok(args) = std::env::var(ROLE) else { return false };
    let args: Vec<_> = args.split('\t').collect();
    let [endpoint, dir, step, keys] = args[..] else { panic!("four arguments, found {args:?}") };
    let disk = disk_at(Path::new(dir), 1 << 30);
    let cache = over(endpoint, Some(disk.clone()), |_| ()).await;
    println!("\nchild: ready");
    for key in keys.split('\n') {
        let metadata = cache.lookup(&path(key)).await.unwrap().metadata.unwrap();
        let file = cache.file(&path(key), &metadata);
        read_all(&file, step.parse().unwrap()).await.unwrap();
    }
    tokio::time::timeout(Duration::from_secs(60), disk.flush()).await.expect("writing hangs");
    println!("\nchild: done");
    true
}
