//! One handle is one version: what was opened stays what it was, what is opened next is new.

use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::Duration;

use nearfs_backends::ErrorKind;
use nearfs_backends::layer::{Fault, FaultAction, Operation};

use crate::child::{Child, c, map, touch};
use crate::support::*;

#[test]
fn b1_old_size_never_meets_new_content() {
    let rig = Rig::new(Setup::ttl(1.0));
    for (seed, len) in [(1, 10_000), (2, 25_000), (3, 4_000), (4, 0), (5, 100_000)] {
        let data = content(seed, len);
        rig.put("s.bin", data.clone());
        eventually(SOON, "the new version is seen", || {
            let Some(read) = rig.read("s.bin") else { return false };
            let seed = (0..=5).find(|s| read == content(*s, read.len()));
            assert!(seed.is_some(), "{} bytes of no version", read.len());
            read == data
        });
    }
}

#[test]
fn b2_object_replaced_while_open_keeps_its_version_and_its_inode() {
    let rig = Rig::new(Setup::ttl(0.5));
    let (old, new) = (content(1, 6 << 20), content(2, 5 << 20));
    rig.put("m.bin", old.clone());
    let file = std::fs::File::open(rig.at("m.bin")).unwrap();
    let mut head = vec![0; 1 << 20];
    file.read_exact_at(&mut head, 0).unwrap();
    let ino = file.metadata().unwrap().ino();
    rig.put("m.bin", new.clone());
    eventually(SOON, "a new open sees the new version", || rig.read("m.bin").as_ref() == Some(&new));
    let now = std::fs::metadata(rig.at("m.bin")).unwrap();
    assert_ne!(now.ino(), ino, "another version is another inode");
    let stat = file.metadata().unwrap();
    assert_eq!((stat.ino(), stat.len()), (ino, 6 << 20));
    let mut whole = vec![0; 6 << 20];
    match file.read_exact_at(&mut whole, 0) {
        Ok(()) => assert!(whole == old, "the old handle gives the old bytes"),
        Err(e) => assert_eq!(e.raw_os_error(), Some(libc::ESTALE)),
    }
}

#[test]
fn an_inode_number_stays_while_the_version_does() {
    let rig = Rig::new(Setup::ttl(0.2));
    rig.put("f", "one");
    let first = std::fs::metadata(rig.at("f")).unwrap().ino();
    std::thread::sleep(Duration::from_millis(500));
    drop_kernel_names();
    eventually(SOON, "the kernel forgets", || {
        drop_kernel_names();
        rig.number("inodes") <= 3
    });
    assert_eq!(std::fs::metadata(rig.at("f")).unwrap().ino(), first);
    let listed = std::fs::read_dir(rig.dir()).unwrap().next().unwrap().unwrap();
    assert_eq!(std::os::unix::fs::DirEntryExt::ino(&listed), first);
    rig.put("f", "two");
    eventually(SOON, "a new number", || std::fs::metadata(rig.at("f")).unwrap().ino() != first);
}

#[test]
fn bytes_that_are_gone_are_estale_for_reads_and_sigbus_for_mappings() {
    let rig = Rig::new(Setup::ttl(0.2));
    let len = 64 << 20;
    rig.put("big", content(1, len));
    let file = std::fs::File::open(rig.at("big")).unwrap();
    let (name, far) = (c(&rig.at("big")), len - 4096);
    let (mut ready, mut go) = (std::io::pipe().unwrap(), std::io::pipe().unwrap());
    let (ready_fd, go_fd) = (ready.1.as_raw_fd(), go.0.as_raw_fd());
    let expected = content(1, 1)[0];
    let mut child = Child::run(|| {
        let Some(at) = map(&name, len) else { return 1 };
        if touch(at, 0) != expected {
            return 2;
        }
        let mut byte = [0u8];
        // SAFETY: one byte each, to and from pipes that the parent holds.
        unsafe {
            libc::write(ready_fd, byte.as_ptr().cast(), 1);
            libc::read(go_fd, byte.as_mut_ptr().cast(), 1);
        }
        // A page that is there stays; one that must be fetched is gone.
        if touch(at, 0) != expected {
            return 3;
        }
        touch(at, far);
        0
    });
    std::io::Read::read_exact(&mut ready.0, &mut [0]).unwrap();
    rig.put("big", "short");
    rig.faults.inject(Fault::on(Operation::Read, FaultAction::Fail(ErrorKind::Stale)).at(&path("big")));
    rig.faults.inject(Fault::on(Operation::Open, FaultAction::Fail(ErrorKind::Stale)).at(&path("big")));
    go.1.write_all(&[1]).unwrap();
    assert_eq!(child.wait(SOON), Some(-libc::SIGBUS));
    assert_eq!(errno(file.read_at(&mut [0; 10], far as u64)), libc::ESTALE);
}

#[test]
fn a_replaced_file_costs_its_old_inode_only_until_it_is_closed() {
    let rig = Rig::new(Setup::ttl(0.1));
    rig.put("f", "0");
    let mut held = Vec::new();
    for i in 1..=5 {
        held.push(std::fs::File::open(rig.at("f")).unwrap());
        rig.put("f", format!("{i}"));
        eventually(SOON, "the new version", || rig.read("f") == Some(format!("{i}").into_bytes()));
    }
    assert!(rig.number("inodes") >= 7, "root, .nearfs, five old versions");
    held.clear();
    eventually(SOON, "old inodes are forgotten", || {
        drop_kernel_names();
        rig.number("inodes") <= 3
    });
}

/// Makes the kernel forget names and inodes that nobody uses.
pub(crate) fn drop_kernel_names() {
    std::fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
}
