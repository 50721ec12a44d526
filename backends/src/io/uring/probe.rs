//! Whether io_uring may be used here, found out by using it.

use std::io;

use io_uring::{IoUring, Probe, opcode};

/// Opens a ring for the calling thread and tries it.
///
/// # Errors
/// Why it cannot be used, in words for people.
pub(super) fn open_ring(entries: u32) -> Result<IoUring, String> {
    let mut ring = build(entries).map_err(|e| explain(&e))?;
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe).map_err(|e| {
        format!("the kernel's io_uring cannot say what it supports ({e}); 5.6 or newer is needed")
    })?;
    let needed = [
        ("read", opcode::Read::CODE),
        ("poll", opcode::PollAdd::CODE),
        ("cancel", opcode::AsyncCancel::CODE),
        ("nop", opcode::Nop::CODE),
    ];
    if let Some((name, _)) = needed.iter().find(|(_, code)| !probe.is_supported(*code)) {
        return Err(format!("this kernel's io_uring lacks the operation `{name}`"));
    }
    if !ring.params().is_feature_nodrop() {
        return Err("this kernel's io_uring can lose completions (5.5 or newer is needed)".into());
    }
    // A seccomp filter can allow the set-up and refuse the call that submits.
    // SAFETY: a no-op refers to no memory.
    let pushed = unsafe { ring.submission().push(&opcode::Nop::new().build().user_data(1)) };
    pushed.map_err(|_| "a new ring has no room".to_string())?;
    ring.submit_and_wait(1).map_err(|e| format!("submitting to io_uring fails: {}", explain(&e)))?;
    let done = ring.completion().next().is_some_and(|c| c.user_data() == 1 && c.result() >= 0);
    if done { Ok(ring) } else { Err("io_uring did not complete a no-op".into()) }
}

fn build(entries: u32) -> io::Result<IoUring> {
    // Completions are worked on when the thread asks for them and not by interrupting it (6.1 or newer).
    let modern = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(entries);
    match modern {
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => IoUring::builder().build(entries),
        other => other,
    }
}

fn explain(error: &io::Error) -> String {
    let switch = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    match (error.raw_os_error(), switch.trim()) {
        (Some(libc::ENOSYS), _) => "this kernel has no io_uring, or a sandbox hides it".into(),
        (Some(libc::EPERM), "2") => "io_uring is switched off by kernel.io_uring_disabled=2".into(),
        (Some(libc::EPERM), "1") => {
            "io_uring is kept to the group of kernel.io_uring_group by kernel.io_uring_disabled=1".into()
        }
        (Some(libc::EPERM | libc::EACCES), _) => {
            "io_uring is not permitted (a seccomp filter, as container runtimes set by default)".into()
        }
        (Some(libc::ENOMEM), _) => "no memory for io_uring (see `ulimit -l`)".into(),
        _ => format!("io_uring cannot be set up: {error}"),
    }
}

/// The kernel's release.
pub(super) fn kernel() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_explained() {
        let of = |errno| explain(&io::Error::from_raw_os_error(errno));
        assert!(of(libc::ENOSYS).contains("no io_uring"));
        assert!(of(libc::EPERM).contains("io_uring is"), "{}", of(libc::EPERM));
        assert!(of(libc::ENOMEM).contains("ulimit"));
        assert!(of(libc::EMFILE).contains("open files"), "{}", of(libc::EMFILE));
    }
}
