//! Does a directory answer? Asked in a way that cannot hang the one who asks.

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use nearfs_backends::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, WaitOptions, waitpid};

/// What became of asking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Liveness {
    /// It answered.
    Alive,
    /// The process behind it is gone (`ENOTCONN`).
    Dead,
    /// It answered with another error (an errno).
    Failed(i32),
    /// It did not answer within the time given.
    Silent,
}

/// Asks the filesystem mounted at `dir` for its attributes and waits for at most `timeout`.
///
/// A process of its own asks: a thread that waits for a filesystem that hangs could not be ended, and would keep its
/// process from ending.
///
/// # Errors
/// `InvalidInput` if `dir` holds NUL; those of making a process or a pipe.
pub fn probe(dir: &Path, timeout: Duration) -> Result<Liveness> {
    let path = CString::new(dir.as_os_str().as_bytes())
        .map_err(|_| Error::new(ErrorKind::InvalidInput, "the path contains NUL"))?;
    let (read, write) = pipe_with(PipeFlags::CLOEXEC).map_err(std::io::Error::from)?;
    // SAFETY: between fork and _exit the children make only system calls that are safe after a fork of a process
    // with several threads (fork, close_range, statx, write, _exit), and touch no lock and no allocator: `path` and
    // the number of the pipe were made before.
    let child = unsafe { libc::fork() };
    match child {
        -1 => Err(std::io::Error::last_os_error().into()),
        0 => ask(&path, write.as_raw_fd()),
        pid => {
            drop(write);
            // The child ends at once; its child, which asks, belongs to init.
            if let Some(pid) = Pid::from_raw(pid) {
                let _ = waitpid(Some(pid), WaitOptions::empty());
            }
            await_answer(&read, timeout)
        }
    }
}

/// In the forked child: forks again and asks in the grandchild.
fn ask(path: &CString, pipe: i32) -> ! {
    // SAFETY: see `probe`. The pipe is the only descriptor kept: a grandchild that hangs must not hold the device of
    // a mount open, which would keep a dead mount from being seen as dead.
    unsafe {
        if libc::fork() != 0 {
            libc::_exit(0);
        }
        let pipe = libc::dup2(pipe, 0);
        libc::close_range(1, libc::c_uint::MAX, 0);
        let mut stat = std::mem::MaybeUninit::<libc::statx>::uninit();
        let flags = libc::AT_STATX_FORCE_SYNC | libc::AT_NO_AUTOMOUNT;
        let failed =
            libc::statx(libc::AT_FDCWD, path.as_ptr(), flags, libc::STATX_BASIC_STATS, stat.as_mut_ptr());
        let errno = if failed == 0 { 0 } else { *libc::__errno_location() };
        let bytes = errno.to_ne_bytes();
        libc::write(pipe, bytes.as_ptr().cast(), bytes.len());
        libc::_exit(0)
    }
}

fn await_answer(pipe: &OwnedFd, timeout: Duration) -> Result<Liveness> {
    let end = Instant::now() + timeout;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let fd = pipe.as_fd();
        match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&left)) {
            Ok(0) => return Ok(Liveness::Silent),
            Ok(_) => break,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(std::io::Error::from(e).into()),
        }
    }
    let mut bytes = [0; 4];
    let n = rustix::io::read(pipe, &mut bytes).map_err(std::io::Error::from)?;
    if n != bytes.len() {
        return Err(Error::new(ErrorKind::Other, "the process that asked ended without an answer"));
    }
    Ok(match i32::from_ne_bytes(bytes) {
        0 => Liveness::Alive,
        libc::ENOTCONN | libc::ECONNABORTED => Liveness::Dead,
        errno => Liveness::Failed(errno),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_answers_and_a_missing_one_fails() {
        let limit = Duration::from_secs(20);
        assert_eq!(probe(Path::new("/"), limit).unwrap(), Liveness::Alive);
        assert_eq!(probe(Path::new("/no/such/dir"), limit).unwrap(), Liveness::Failed(libc::ENOENT));
    }
}
