//! Test helper: other processes, which are this test program started again.
//!
//! A test begins with [`role`]: in a child that is `Some`, and the test plays that role instead. It starts children
//! with [`Child::start`], naming itself, and talks with them by lines:
//! ```ignore
//! #[test]
//! fn something_between_processes() {
//!     if let Some((role, args)) = children::role() {
//!         children::say("ready");
//!         children::wait();           // until the test says `go`
//!         return;
//!     }
//!     let mut child = Child::start(module_path!(), "something_between_processes", "reader", &[dir]);
//!     assert_eq!(child.hear(), "ready");
//!     child.go();
//!     child.end();
//! }
//! ```

use std::io::{BufRead, BufReader, Write};
use std::os::fd::IntoRawFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// Nothing that a child does takes longer on any machine that runs tests.
const DEADLINE: Duration = Duration::from_secs(60);
const ROLE: &str = "NEARFS_TEST_ROLE";
const ARGS: &str = "NEARFS_TEST_ARGS";
/// Before each line that a child says, for the test harness prints lines of its own.
const SAYS: &str = "child says: ";

/// The role and the arguments of this process, if it is a child.
pub(crate) fn role() -> Option<(String, Vec<String>)> {
    let role = std::env::var(ROLE).ok()?;
    let args = std::env::var(ARGS).unwrap_or_default();
    Some((role, args.split('\n').map(str::to_owned).collect()))
}

/// In a child: says one line to the test.
pub(crate) fn say(line: impl std::fmt::Display) {
    // Not `println`, which the harness may catch.
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n{SAYS}{line}").and_then(|()| out.flush()).expect("the test listens");
}

/// In a child: waits for [`Child::go`]. Ends the process if the test is gone.
pub(crate) fn wait() {
    let mut line = String::new();
    if std::io::stdin().read_line(&mut line).is_ok_and(|n| n == 0) {
        std::process::exit(0);
    }
}

/// This program, by a descriptor that children inherit: its file may be replaced by a newer build meanwhile.
fn program() -> &'static str {
    static PROGRAM: OnceLock<String> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let flags = rustix::fs::OFlags::RDONLY;
        let file =
            rustix::fs::open("/proc/self/exe", flags, rustix::fs::Mode::empty()).expect("/proc is there");
        format!("/proc/self/fd/{}", file.into_raw_fd())
    })
}

/// A child process; killed when dropped.
pub(crate) struct Child {
    process: std::process::Child,
    heard: Receiver<String>,
}

impl Child {
    /// Starts test `name` of `module` in a process of its own, in the given role.
    pub(crate) fn start(module: &str, name: &str, role: &str, args: &[&Path]) -> Self {
        Self::start_under(&[], module, name, role, args)
    }

    /// The same below the command `under`, such as `unshare -p -f`.
    pub(crate) fn start_under(under: &[&str], module: &str, name: &str, role: &str, args: &[&Path]) -> Self {
        let program = program();
        let test = format!("{}::{name}", module.split_once("::").expect("tests are in modules").1);
        let mut command = match under.split_first() {
            None => Command::new(program),
            Some((first, rest)) => {
                let mut command = Command::new(first);
                command.args(rest).arg(program);
                command
            }
        };
        let args: Vec<_> = args.iter().map(|arg| arg.to_str().expect("test paths are UTF-8")).collect();
        let mut process = command
            .args(["--exact", &test, "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env(ARGS, args.join("\n"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("starting {command:?}: {e}"));
        let out = BufReader::new(process.stdout.take().expect("piped above"));
        let (send, heard) = channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                match line.strip_prefix(SAYS) {
                    Some(said) => drop(send.send(said.to_owned())),
                    None if line.contains("running 0 tests") => drop(send.send("no such test".to_owned())),
                    None => {}
                }
            }
        });
        Child { process, heard }
    }

    /// The next line that the child says.
    ///
    /// # Panics
    /// If it ends without saying one, or says none for a minute.
    pub(crate) fn hear(&mut self) -> String {
        match self.heard.recv_timeout(DEADLINE) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => panic!("the child said nothing for {DEADLINE:?}"),
            Err(RecvTimeoutError::Disconnected) => panic!("the child ended: {:?}", self.process.wait()),
        }
    }

    /// Lets the child go on from [`wait`].
    pub(crate) fn go(&mut self) {
        writeln!(self.process.stdin.as_mut().expect("piped at the start"), "go").expect("the child waits");
    }

    /// Its process id here.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Whether it has not ended.
    #[cfg(not(feature = "shuttle"))]
    pub(crate) fn runs(&mut self) -> bool {
        self.process.try_wait().expect("a child can be waited for").is_none()
    }

    /// SIGKILL, and waits until the process is gone.
    pub(crate) fn kill(&mut self) {
        self.process.kill().expect("the child runs");
        self.process.wait().expect("a child can be waited for");
    }

    /// Waits until it ends by itself.
    ///
    /// # Panics
    /// If its test failed.
    pub(crate) fn end(mut self) {
        drop(self.process.stdin.take());
        let status = self.process.wait().expect("a child can be waited for");
        assert!(status.success(), "the child failed: {status}");
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
