//! Going into the background: the program starts itself again and waits until the child says how it went.
//!
//! A new process instead of a fork: the child begins with no threads, locks or descriptors of ours but the pipe it
//! reports on, whose number it finds in the environment.

use std::fs::File;
use std::io::{PipeReader, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use nearfs::config::Environment;
use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
use serde::{Deserialize, Serialize};

use super::diagnostics::{Failure, Outcome};

/// What the child reports, once.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Report {
    /// The directory answers; the line to print, and notes about it.
    Ready { line: String, notes: Vec<String> },
    /// It went wrong.
    Failed { message: String, hint: Option<String> },
}

/// The child's end of the pipe.
#[derive(Debug)]
pub(super) struct Parent(File);

impl Parent {
    /// The waiting parent, if this process is such a child. Must be called once, before other descriptors are opened.
    pub(super) fn of(environment: &Environment) -> Outcome<Option<Self>> {
        let Some(fd) = environment.ready_fd() else { return Ok(None) };
        if fd <= 2 || fcntl_open(fd).is_err() {
            return Err(Failure::plain(
                "NEARFS_READY_FD is not an open descriptor; it is not meant to be set by hand",
            ));
        }
        // SAFETY: the descriptor is open, checked above, and it was made for this process by the one that started it;
        // nothing else here knows its number.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // Helpers that this process starts must not keep the parent waiting.
        fcntl_setfd(&fd, FdFlags::CLOEXEC)
            .map_err(|e| Failure::plain(format!("cannot keep the pipe: {e}")))?;
        Ok(Some(Parent(fd.into())))
    }

    /// Leaves the parent's session and terminal.
    pub(super) fn detach(&self) -> Outcome<()> {
        rustix::process::setsid()
            .map(drop)
            .map_err(|e| Failure::plain(format!("cannot start a session of its own: {e}")))
    }

    /// Tells the parent how it went. `false` if nobody waits any more.
    pub(super) fn tell(mut self, report: &Report) -> bool {
        let text = serde_json::to_vec(report).unwrap_or_default();
        self.0.write_all(&text).is_ok()
    }
}

fn fcntl_open(fd: i32) -> Result<(), rustix::io::Errno> {
    // SAFETY: borrowed for this one call, which fails cleanly on a number that is not open.
    let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
    fcntl_getfd(fd).map(drop)
}

/// Sends standard output and error to `log`, standard input to nowhere.
pub(super) fn redirect(log: &File) -> Outcome<()> {
    let failed = |e: std::io::Error| Failure::plain(format!("cannot redirect standard error: {e}"));
    let null = File::options().read(true).open("/dev/null").map_err(failed)?;
    rustix::stdio::dup2_stdin(&null).map_err(|e| failed(e.into()))?;
    rustix::stdio::dup2_stdout(log).map_err(|e| failed(e.into()))?;
    rustix::stdio::dup2_stderr(log).map_err(|e| failed(e.into()))
}

/// Starts this program again with the same words and waits for its report. The child lives on.
pub(super) fn start() -> Outcome<Report> {
    let failed = |e: std::io::Error| Failure::plain(format!("cannot start the background process: {e}"));
    let (reader, writer) = std::io::pipe().map_err(failed)?;
    fcntl_setfd(&writer, FdFlags::empty()).map_err(|e| failed(e.into()))?;
    let mut words = std::env::args_os();
    let name = words.next().unwrap_or_else(|| "nearfs".into());
    let child = Command::new(program())
        .arg0(name)
        .args(words)
        .env("NEARFS_READY_FD", writer.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .map_err(failed)?;
    drop(writer);
    wait(child, reader)
}

/// `/proc` may be missing in a small container.
fn program() -> std::path::PathBuf {
    let own = Path::new("/proc/self/exe");
    if own.exists() { own.to_owned() } else { std::env::current_exe().unwrap_or_else(|_| "nearfs".into()) }
}

fn wait(mut child: Child, mut reader: PipeReader) -> Outcome<Report> {
    let mut text = Vec::new();
    reader
        .read_to_end(&mut text)
        .map_err(|e| Failure::plain(format!("cannot hear the background process: {e}")))?;
    if let Ok(report) = serde_json::from_slice(&text) {
        return Ok(report);
    }
    let end = match child.wait() {
        Ok(status) => match (status.code(), status.signal()) {
            (Some(code), _) => format!("exit code {code}"),
            (None, Some(signal)) => format!("signal {signal}"),
            (None, None) => "no status".to_owned(),
        },
        Err(e) => e.to_string(),
    };
    Err(Failure::plain(format!("the background process ended before the directory was ready ({end})")))
}
