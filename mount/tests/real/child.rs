//! A forked process that makes a few system calls on a mount and can be killed.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

pub(crate) struct Child(i32);

/// How it ended: exit code, or the signal as a negative number.
pub(crate) type Ended = i32;

impl Child {
    /// Runs `work` in a forked process, which exits with what it returns.
    ///
    /// `work` must make system calls only: no allocation, no locks (the process had other threads).
    pub(crate) fn run(work: impl FnOnce() -> i32) -> Self {
        // SAFETY: the child makes only system calls, see above, and leaves by `_exit`.
        match unsafe { libc::fork() } {
            -1 => panic!("fork: {}", std::io::Error::last_os_error()),
            0 => {
                let code = work();
                // SAFETY: ends this process without running anything of the parent's.
                unsafe { libc::_exit(code) }
            }
            pid => Child(pid),
        }
    }

    pub(crate) fn kill(&self, signal: i32) {
        // SAFETY: sends a signal to a child of ours that has not been waited for.
        assert_eq!(unsafe { libc::kill(self.0, signal) }, 0);
    }

    /// How it ended; `None` if it has not within `limit`.
    pub(crate) fn wait(&mut self, limit: Duration) -> Option<Ended> {
        let end = Instant::now() + limit;
        loop {
            let mut status = 0;
            // SAFETY: writes to `status` only.
            if unsafe { libc::waitpid(self.0, &mut status, libc::WNOHANG) } == self.0 {
                self.0 = 0;
                let killed = libc::WIFSIGNALED(status);
                return Some(if killed { -libc::WTERMSIG(status) } else { libc::WEXITSTATUS(status) });
            }
            if Instant::now() >= end {
                return None;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.0 > 0 {
            self.kill(libc::SIGKILL);
            self.wait(Duration::from_secs(5));
        }
    }
}

pub(crate) fn c(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

fn last_errno() -> i32 {
    // SAFETY: the location is valid for this thread.
    unsafe { *libc::__errno_location() }
}

/// Opens; gives the descriptor or a negated errno.
pub(crate) fn open(path: &CString, flags: i32) -> i32 {
    // SAFETY: the path is a C string.
    let fd = unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC) };
    if fd < 0 { -last_errno() } else { fd }
}

/// Opens and reads 4 KiB at the start; gives an errno, 0 if all went well.
pub(crate) fn open_and_read(path: &CString, flags: i32) -> i32 {
    #[repr(align(4096))]
    struct Page([u8; 4096]);
    let fd = open(path, flags);
    if fd < 0 {
        return -fd;
    }
    let mut page = Page([0; 4096]);
    // SAFETY: reads into a buffer of that size.
    let n = unsafe { libc::read(fd, page.0.as_mut_ptr().cast(), 4096) };
    if n < 0 { last_errno() } else { 0 }
}

pub(crate) fn stat(path: &CString) -> i32 {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: writes a stat structure.
    match unsafe { libc::stat(path.as_ptr(), stat.as_mut_ptr()) } {
        0 => 0,
        _ => last_errno(),
    }
}

/// Maps a file of `len` bytes read-only. No descriptor of it stays open.
pub(crate) fn map(path: &CString, len: usize) -> Option<*const u8> {
    let fd = open(path, libc::O_RDONLY);
    // SAFETY: a new mapping, chosen by the kernel.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_PRIVATE, fd, 0) };
    if fd >= 0 {
        // SAFETY: the descriptor made above, which nothing else knows.
        unsafe { libc::close(fd) };
    }
    (fd >= 0 && at != libc::MAP_FAILED).then_some(at as *const u8)
}

/// Touches a byte of a mapping.
pub(crate) fn touch(at: *const u8, offset: usize) -> u8 {
    // SAFETY: callers stay inside of what they mapped.
    unsafe { std::ptr::read_volatile(at.add(offset)) }
}

/// Opens a directory and reads entries; gives an errno, 0 if all went well.
pub(crate) fn list(path: &CString) -> i32 {
    let fd = open(path, libc::O_RDONLY | libc::O_DIRECTORY);
    if fd < 0 {
        return -fd;
    }
    let mut buf = [0u8; 4096];
    // SAFETY: writes into a buffer of that size.
    let n = unsafe { libc::syscall(libc::SYS_getdents64, fd, buf.as_mut_ptr(), buf.len()) };
    if n < 0 { last_errno() } else { 0 }
}

/// A timer that sends SIGALRM every 10 ms from now on, to a handler that interrupts system calls.
pub(crate) fn alarm_every_10ms() {
    extern "C" fn ignore(_: i32) {}
    // SAFETY: installs a handler that does nothing, without SA_RESTART, and starts a timer.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = ignore as *const () as usize;
        libc::sigaction(libc::SIGALRM, &action, std::ptr::null_mut());
        let every = libc::timeval { tv_sec: 0, tv_usec: 10_000 };
        let timer = libc::itimerval { it_interval: every, it_value: every };
        libc::setitimer(libc::ITIMER_REAL, &timer, std::ptr::null_mut());
    }
}
