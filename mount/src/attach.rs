//! Making a mount: directly as root, through the setuid helper `fusermount3` as anybody else.

use std::ffi::CString;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use nearfs_backends::{Error, ErrorKind, Result};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, recvmsg,
    socketpair,
};

use crate::mount_table::FS_TYPE;
use crate::options::MountOptions;

const DEVICE: &str = "/dev/fuse";
/// The helper tells where its socket is by this variable.
const HELPER_SOCKET: &str = "_FUSE_COMMFD";
const HELPERS: [&str; 2] = ["fusermount3", "fusermount"];

/// Mounts at `dir` and gives the device that requests arrive on.
///
/// # Errors
/// `PermissionDenied` if neither way is allowed, `Unsupported` without a FUSE device or helper, others as the system
/// says; each with a hint where there is something to do.
pub(crate) fn mount(dir: &Path, source: &str, options: &MountOptions) -> Result<OwnedFd> {
    if options.allow_other && !rustix::process::geteuid().is_root() && !others_allowed() {
        return Err(Error::new(ErrorKind::PermissionDenied, "other users may not be let in by this user")
            .with_context("hint", "add the line `user_allow_other` to /etc/fuse.conf, or mount as root"));
    }
    match mount_directly(dir, source, options) {
        Err(Errno::PERM | Errno::ACCESS) => mount_through_helper(dir, source, options),
        Err(Errno::NOENT | Errno::NODEV | Errno::NXIO) if !Path::new(DEVICE).exists() => {
            Err(Error::unsupported(format!("this system has no {DEVICE}")).with_context(
                "hint",
                "load the kernel module (`modprobe fuse`); in a container pass the device in",
            ))
        }
        Err(e) => Err(failed(dir, e)),
        Ok(device) => Ok(device),
    }
}

fn failed(dir: &Path, e: Errno) -> Error {
    Error::from(std::io::Error::from(e)).during("mount").with_context("directory", dir.display())
}

fn mount_directly(dir: &Path, source: &str, options: &MountOptions) -> std::result::Result<OwnedFd, Errno> {
    let device = open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let mut data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions",
        device.as_raw_fd(),
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let data = CString::new(data).map_err(|_| Errno::INVAL)?;
    let mut flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::RDONLY;
    flags.set(MountFlags::NOEXEC, options.no_exec);
    rustix::mount::mount(source, dir, FS_TYPE, flags, data.as_c_str())?;
    Ok(device)
}

fn mount_through_helper(dir: &Path, source: &str, options: &MountOptions) -> Result<OwnedFd> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(|e| failed(dir, e))?;
    let mut list = format!("ro,nosuid,nodev,default_permissions,subtype=nearfs,fsname={}", escaped(source));
    for (name, wanted) in [("allow_other", options.allow_other), ("noexec", options.no_exec)] {
        if wanted {
            list.push(',');
            list.push_str(name);
        }
    }
    let socket = theirs.as_raw_fd();
    let output = run_helper(|command| {
        command.arg("-o").arg(&list).arg("--").arg(dir).env(HELPER_SOCKET, socket.to_string());
        // SAFETY: the closure runs between fork and exec and makes one system call, on a descriptor that is open.
        unsafe {
            command.pre_exec(move || match libc::fcntl(socket, libc::F_SETFD, 0) {
                -1 => Err(std::io::Error::last_os_error()),
                _ => Ok(()),
            });
        }
    })?;
    drop(theirs);
    match receive_device(&ours) {
        Some(device) => Ok(device),
        None => {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = said.trim().trim_start_matches("fusermount3: ");
            let kind = match said.contains("ermission")
                || said.contains("allowed")
                || said.contains("not permitted")
            {
                true => ErrorKind::PermissionDenied,
                false => ErrorKind::Other,
            };
            let error = Error::new(kind, format!("the mount helper refused: {said}"))
                .during("mount")
                .with_context("directory", dir.display());
            Err(match said.contains(DEVICE) {
                true => error.with_context("hint", "let users open the device (`chmod 666 /dev/fuse`)"),
                false => error,
            })
        }
    }
}

/// Runs `fusermount3`, or `fusermount` where that is all there is.
fn run_helper(prepare: impl Fn(&mut Command)) -> Result<std::process::Output> {
    for helper in HELPERS {
        let mut command = Command::new(helper);
        command.stdin(Stdio::null());
        prepare(&mut command);
        match command.output() {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(Error::from(e).during("run the mount helper")),
            Ok(output) => return Ok(output),
        }
    }
    Err(Error::unsupported("neither may this user mount nor is there a helper that may")
        .with_context("hint", "install the package fuse3 (`apt-get install fuse3`), or mount as root"))
}

/// A comma or backslash in an option's value is marked by a backslash.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace(',', "\\,")
}

/// The device that the helper sent; `None` if it ended without.
fn receive_device(socket: &OwnedFd) -> Option<OwnedFd> {
    let mut byte = [0u8; 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, flags).ok()?;
    ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    })
}

/// True if `/etc/fuse.conf` lets users let others in.
fn others_allowed() -> bool {
    std::fs::read_to_string("/etc/fuse.conf").is_ok_and(|text| allows_others(&text))
}

fn allows_others(config: &str) -> bool {
    config.lines().any(|line| line.trim() == "user_allow_other")
}

/// How a mount is taken away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Detach {
    /// Only if nobody uses it.
    Idle,
    /// From the directory at once, from those who use it when they are done.
    Lazy,
    /// Ends the connection: whoever waits for an answer gets an error. The mount itself may stay.
    Abort,
}

/// Takes the mount at `dir` away. `dir` is not looked into, so this does not hang if the mount does.
///
/// # Errors
/// The errno: `EBUSY` if it is in use, `EINVAL` if nothing is mounted, `EPERM` if it may not be done.
pub(crate) fn detach(dir: &Path, how: Detach) -> std::result::Result<(), Errno> {
    let flags = match how {
        Detach::Idle => UnmountFlags::empty(),
        Detach::Lazy => UnmountFlags::DETACH,
        Detach::Abort => UnmountFlags::FORCE,
    };
    match rustix::mount::unmount(dir, flags | UnmountFlags::NOFOLLOW) {
        Err(Errno::PERM) if how != Detach::Abort => detach_through_helper(dir, how),
        result => result,
    }
}

fn detach_through_helper(dir: &Path, how: Detach) -> std::result::Result<(), Errno> {
    let output = run_helper(|command| {
        command.arg("-u");
        if how == Detach::Lazy {
            command.arg("-z");
        }
        command.arg("--").arg(dir);
    });
    let output = output.map_err(|_| Errno::PERM)?;
    let said = String::from_utf8_lossy(&output.stderr);
    match output.status.success() {
        true => Ok(()),
        false if said.contains("busy") => Err(Errno::BUSY),
        false if said.contains("not found") || said.contains("not mounted") => Err(Errno::INVAL),
        false => {
            tracing::debug!(helper = %said.trim(), "the helper did not unmount");
            Err(Errno::PERM)
        }
    }
}

/// Ends the connection with this number: every waiting request fails, every later one too. Needs root or the user
/// that mounted it, and the control filesystem in its place.
///
/// # Errors
/// Those of the file; `NotFound` if there is no such connection or no control filesystem.
pub(crate) fn abort_connection(connection: u64) -> std::io::Result<()> {
    std::fs::write(format!("/sys/fs/fuse/connections/{connection}/abort"), "1")
}

/// True if the device can be opened by this user, which a descriptor for each thread needs.
pub(crate) fn device_opens() -> bool {
    open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_for_the_helper_are_escaped() {
        assert_eq!(escaped("s3://b/a,b\\c"), "s3://b/a\\,b\\\\c");
    }

    #[test]
    fn the_configuration_of_others_is_read_line_by_line() {
        assert!(allows_others("# comment\n user_allow_other \nmount_max = 10"));
        assert!(!allows_others("#user_allow_other\n"));
    }
}
