//! A read-only mount is read-only for the kernel, and shows itself as what it is.

use std::os::fd::AsRawFd;
use std::process::Command;

use nearfs_backends::{ErrorKind, Spawner};
use nearfs_mount::{Mount, MountOptions, list_mounts};

use crate::support::*;

#[test]
fn writing_is_refused_by_the_kernel() {
    let rig = Rig::new(Setup::default());
    rig.put("d/f", "x");
    let file = rig.at("d/f");
    assert_eq!(errno(std::fs::File::options().read(true).write(true).open(&file)), libc::EROFS);
    assert_eq!(errno(std::fs::File::options().append(true).open(&file)), libc::EROFS);
    assert_eq!(errno(std::fs::File::create(rig.at("d/new"))), libc::EROFS);
    assert_eq!(errno(std::fs::create_dir(rig.at("new"))), libc::EROFS);
    assert_eq!(errno(std::fs::remove_file(&file)), libc::EROFS);
    assert_eq!(errno(std::fs::rename(&file, rig.at("d/g"))), libc::EROFS);
    let set = rustix::fs::setxattr(&file, "user.x", b"1", rustix::fs::XattrFlags::empty());
    assert_eq!(set, Err(rustix::io::Errno::ROFS));
    assert_eq!(rustix::fs::access(&file, rustix::fs::Access::WRITE_OK), Err(rustix::io::Errno::ROFS));
    assert_eq!(rustix::fs::access(&file, rustix::fs::Access::READ_OK), Ok(()));
}

#[test]
fn a_mount_made_writable_from_outside_still_refuses_to_change() {
    let rig = Rig::new(Setup::default());
    rig.put("d/f", "x");
    let flags = rustix::mount::MountFlags::NOSUID | rustix::mount::MountFlags::NODEV;
    rustix::mount::mount_remount(rig.dir(), flags, "").unwrap();
    assert_eq!(errno(std::fs::File::create(rig.at("d/new"))), libc::EROFS);
    assert_eq!(errno(std::fs::create_dir(rig.at("new"))), libc::EROFS);
    assert_eq!(errno(std::fs::remove_file(rig.at("d/f"))), libc::EROFS);
    assert_eq!(std::fs::read(rig.at("d/f")).unwrap(), b"x");
}

#[test]
fn the_mount_table_shows_type_source_and_flags() {
    let options =
        MountOptions { source: Some("s3://bucket/a b,c".into()), allow_other: true, ..Default::default() };
    let rig = Rig::new(Setup { options, ..Default::default() });
    let dir = rig.dir().canonicalize().unwrap();
    let mount = list_mounts().unwrap().into_iter().find(|m| m.dir == dir).expect("it is listed");
    assert_eq!((mount.source.as_str(), mount.fs_type.as_str()), ("s3://bucket/a b,c", "fuse.nearfs"));
    assert!(mount.read_only && mount.allow_other);
    let table = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let line = table.lines().find(|l| l.contains(dir.to_str().unwrap())).unwrap();
    for option in ["ro", "nosuid", "nodev", "default_permissions", "allow_other"] {
        let options = line.split(' ').nth(3).unwrap();
        assert!(options.split(',').any(|o| o == option), "{option} in {line}");
    }
}

#[test]
fn no_exec_is_a_choice() {
    for no_exec in [false, true] {
        let options = MountOptions { no_exec, file_mode: 0o555, ..Default::default() };
        let rig = Rig::new(Setup { options, ..Default::default() });
        rig.put("script", "#!/bin/sh\nexit 7\n");
        match Command::new(rig.at("script")).status() {
            Ok(status) => assert!(!no_exec && status.code() == Some(7)),
            Err(e) => assert!(no_exec && e.raw_os_error() == Some(libc::EACCES)),
        }
    }
}

#[test]
fn orders_by_ioctl_reach_the_mount_also_through_a_read_only_bind() {
    let rig = Rig::new(Setup::default());
    let order = |path: &std::path::Path| {
        let file = std::fs::File::open(path).unwrap();
        // An order with 4 bytes of data that nobody knows.
        let mut data = [0u8; 4];
        // SAFETY: an ioctl that at most writes these 4 bytes.
        match unsafe { libc::ioctl(file.as_raw_fd(), 0x8004_6e01, data.as_mut_ptr()) } {
            -1 => std::io::Error::last_os_error().raw_os_error().unwrap(),
            _ => 0,
        }
    };
    assert_eq!(order(&rig.at(".nearfs/control")), libc::ENOTTY);
    assert_eq!(rig.operations("ioctl", "count"), 1);
    let bind = tempfile::tempdir().unwrap();
    rustix::mount::mount_bind(rig.dir(), bind.path()).unwrap();
    let flags = rustix::mount::MountFlags::BIND | rustix::mount::MountFlags::RDONLY;
    let remounted = rustix::mount::mount_remount(bind.path(), flags, "");
    let answer = remounted.map(|()| order(&bind.path().join(".nearfs/control")));
    rustix::mount::unmount(bind.path(), rustix::mount::UnmountFlags::empty()).unwrap();
    assert_eq!(answer, Ok(libc::ENOTTY));
    assert_eq!(rig.operations("ioctl", "count"), 2);
}

#[test]
fn what_does_not_exist_yet_is_refused_and_nothing_is_mounted() {
    let rig = Rig::new(Setup::default());
    let dir = tempfile::tempdir().unwrap();
    let spawner = Spawner::new(rig.runtime.handle().clone());
    let options = MountOptions { read_write: true, ..Default::default() };
    let error = Mount::start(rig.fs.clone(), dir.path(), options, spawner).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.message().contains("not available yet"), "{error}");
    let dir = dir.path().canonicalize().unwrap();
    assert!(list_mounts().unwrap().iter().all(|m| m.dir != dir));
}
