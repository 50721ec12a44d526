//! Several processes really: liveness, takeover, forks, PID namespaces.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::*;
use crate::config::{DiskConfig, DiskSize};
use crate::disk::children::{self, Child};

fn config() -> DiskConfig {
    DiskConfig { size: Some(DiskSize::Bytes(64 << 20)), free: 0.0, ..Default::default() }
}

fn open(path: &Path) -> Arc<Directory> {
    Directory::open(path, &config()).unwrap()
}

fn owner(text: &str) -> Owner {
    Owner(text.parse().unwrap())
}

/// A child that opens the directory, reserves some bytes, and waits.
fn holder(args: &[String]) {
    let directory = open(Path::new(&args[0]));
    let reserved = directory.space().reserve(5 << 20, &|_| 0).unwrap();
    let lent = directory.space().lend(7 << 20).unwrap();
    children::say(directory.me().0);
    children::wait();
    drop((reserved, lent));
}

#[test]
fn a_killed_process_is_dead_within_two_seconds_and_gives_back_what_it_reserved_once() {
    if let Some((_, args)) = children::role() {
        return holder(&args);
    }
    let dir = tempfile::tempdir().unwrap();
    let directory = open(dir.path());
    let before = directory.used();
    let name = "a_killed_process_is_dead_within_two_seconds_and_gives_back_what_it_reserved_once";
    let mut child = Child::start(module_path!(), name, "holder", &[dir.path()]);
    let other = owner(&child.hear());
    assert_ne!(other, directory.me());
    assert!(directory.is_alive(other) && directory.is_alive(directory.me()));
    assert!(!directory.is_alive(Owner(0)) && !directory.is_alive(Owner::NO_SLOT));
    assert!(!directory.is_alive(Owner(other.0 + 1)), "another generation of the slot is another process");
    assert_eq!((directory.used(), directory.lent()), (before + (5 << 20), 7 << 20));
    assert_eq!(directory.space().reap(), 0, "the living keep what they have");
    let ids: Vec<_> = directory.processes().into_iter().map(|(_, id)| id).collect();
    assert_eq!(ids, [std::process::id(), child.id()]);

    child.kill();
    let deadline = Instant::now() + Duration::from_secs(2);
    while directory.is_alive(other) {
        assert!(Instant::now() < deadline, "still taken for alive");
        std::thread::sleep(Duration::from_millis(5));
    }
    let reaped: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| directory.space().reap())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(reaped, 5 << 20, "given back exactly once");
    assert_eq!((directory.used(), directory.lent()), (before, 0));
    assert_eq!(directory.processes().len(), 1);
}

#[test]
fn a_slot_that_is_taken_again_gives_back_what_its_last_holder_had() {
    if let Some((_, args)) = children::role() {
        return holder(&args);
    }
    let dir = tempfile::tempdir().unwrap();
    let directory = open(dir.path());
    let before = directory.used();
    let name = "a_slot_that_is_taken_again_gives_back_what_its_last_holder_had";
    let mut first = Child::start(module_path!(), name, "holder", &[dir.path()]);
    let dead = owner(&first.hear());
    first.kill();
    let mut second = Child::start(module_path!(), name, "holder", &[dir.path()]);
    let living = owner(&second.hear());
    assert_eq!(dead.slot(), living.slot());
    assert!(directory.is_alive(living) && !directory.is_alive(dead));
    assert_eq!((directory.used(), directory.lent()), (before + (5 << 20), 7 << 20), "only the living one's");
    assert_eq!(directory.space().reap(), 0);
    second.go();
    second.end();
    assert_eq!((directory.used(), directory.lent()), (before, 0));
}

#[test]
fn a_process_in_another_pid_namespace_is_seen_and_sees() {
    if let Some((_, args)) = children::role() {
        assert_eq!(std::process::id(), 1, "first of its namespace");
        let directory = open(Path::new(&args[0]));
        let parent = owner(&args[1]);
        children::say(directory.me().0);
        children::say(directory.is_alive(parent));
        children::wait();
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let directory = open(dir.path());
    let me = directory.me().0.to_string();
    let mut child = Child::start_under(
        &["unshare", "--pid", "--fork", "--kill-child"],
        module_path!(),
        "a_process_in_another_pid_namespace_is_seen_and_sees",
        "inside",
        &[dir.path(), Path::new(&me)],
    );
    let inside = owner(&child.hear());
    assert_eq!(child.hear(), "true", "it sees this process");
    assert!(directory.is_alive(inside));
    // unshare dies, and takes its child with it.
    child.kill();
    let deadline = Instant::now() + Duration::from_secs(2);
    while directory.is_alive(inside) {
        assert!(Instant::now() < deadline, "still taken for alive");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs `child` in a fork of this process; the bytes that it writes.
fn fork(child: &mut dyn FnMut() -> Vec<u8>) -> (libc::pid_t, File) {
    let (read, write) = rustix::pipe::pipe().unwrap();
    // SAFETY: the child runs `child`, writes and ends without returning; what it calls needs no lock of this process
    // that another thread could hold, but for the allocator's, which the C library sees to.
    match unsafe { libc::fork() } {
        0 => {
            drop(read);
            let bytes = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
            let sent = bytes.is_ok_and(|bytes| rustix::io::write(&write, &bytes).is_ok());
            if sent {
                // Lives until the parent has closed its end, or killed it.
                let closed = rustix::event::PollFd::new(&write, rustix::event::PollFlags::ERR);
                let _ = rustix::event::poll(&mut [closed], None);
            }
            // SAFETY: ends the child at once, without running what its parent registered to run at exit.
            unsafe { libc::_exit(i32::from(!sent)) }
        }
        pid => {
            assert!(pid > 0, "{}", io::Error::last_os_error());
            drop(write);
            (pid, File::from(read))
        }
    }
}

fn read_u32s(from: &mut File, n: usize) -> Vec<u32> {
    let mut bytes = vec![0; n * 4];
    io::Read::read_exact(from, &mut bytes).unwrap();
    bytes.chunks_exact(4).map(|four| u32::from_ne_bytes(four.try_into().unwrap())).collect()
}

fn reap_child(pid: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: waits for a child of this process; the status is ours.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    status
}

/// Runs alone in its process, so that no other test's thread holds anything when it forks.
fn forks(args: &[String]) {
    let path = Path::new(&args[0]);
    let directory = open(path);
    let parent = directory.me();
    let mut reserved = directory.space().reserve(3 << 20, &|_| 0);
    let used = directory.used();
    let (pid, mut out) = fork(&mut || {
        let inherited = directory.me();
        let reopened = open(path);
        // What the parent reserved is the parent's.
        assert_eq!(reserved.take().unwrap().bytes(), 3 << 20);
        [
            inherited.0,
            reopened.me().0,
            u32::from(directory.is_alive(parent)),
            u32::from(reopened.is_alive(inherited)),
            u32::from(Arc::ptr_eq(&directory, &reopened)),
        ]
        .into_iter()
        .flat_map(u32::to_ne_bytes)
        .collect()
    });
    let said = read_u32s(&mut out, 5);
    let child = Owner(said[0]);
    assert_ne!(child, parent, "the child has a slot of its own");
    assert_eq!(said[1], child.0, "one slot for all that a process has open");
    assert_eq!(&said[2..], [1, 1, 0], "sees its parent, itself, and has a directory of its own");
    assert!(directory.is_alive(child) && directory.is_alive(parent));
    assert_eq!(directory.me(), parent);
    assert_eq!(directory.used(), used, "dropping a copy gives nothing back");
    drop(out);
    assert!(reserved.is_some());
    assert_eq!(reap_child(pid), 0);
    assert!(!directory.is_alive(child), "gone with its process, at once");
    // What the C library calls in a child where the kernel cannot empty memory on fork.
    forget();
    assert_ne!(directory.me(), parent);
    assert!(!directory.is_alive(parent) && directory.is_alive(directory.me()));
    children::say("ok");
}

#[test]
fn a_forked_child_is_another_process() {
    if let Some((_, args)) = children::role() {
        return forks(&args);
    }
    let dir = tempfile::tempdir().unwrap();
    let mut child = Child::start(module_path!(), "a_forked_child_is_another_process", "forks", &[dir.path()]);
    assert_eq!(child.hear(), "ok");
    child.end();
}

/// A parent that dies while its forked child lives on, as a trainer whose loaders stay behind.
fn orphan(args: &[String]) {
    let directory = open(Path::new(&args[0]));
    let (pid, mut out) = fork(&mut || directory.me().0.to_ne_bytes().to_vec());
    children::say(directory.me().0);
    children::say(read_u32s(&mut out, 1)[0]);
    children::say(pid);
    children::wait();
    drop(out);
}

#[test]
fn a_parent_is_dead_although_its_forked_child_lives() {
    if let Some((_, args)) = children::role() {
        return orphan(&args);
    }
    let dir = tempfile::tempdir().unwrap();
    let directory = open(dir.path());
    let name = "a_parent_is_dead_although_its_forked_child_lives";
    let mut child = Child::start(module_path!(), name, "orphan", &[dir.path()]);
    let (parent, grandchild) = (owner(&child.hear()), owner(&child.hear()));
    let pid: i32 = child.hear().parse().unwrap();
    assert!(directory.is_alive(parent) && directory.is_alive(grandchild));
    // The pipe that the grandchild waits on closes with its parent, so it is stopped first: it cannot end.
    let signal = |signal| {
        // SAFETY: a signal to a process that this test started.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    };
    signal(libc::SIGSTOP);
    child.kill();
    assert!(!directory.is_alive(parent));
    assert!(directory.is_alive(grandchild));
    signal(libc::SIGKILL);
    let deadline = Instant::now() + Duration::from_secs(2);
    while directory.is_alive(grandchild) {
        assert!(Instant::now() < deadline, "still taken for alive");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_full_process_table_is_a_clear_error() {
    if let Some((_, args)) = children::role() {
        let file = File::options().read(true).write(true).open(&args[0]).unwrap();
        let mut all = range(libc::F_WRLCK, 0, i64::from(SLOTS));
        fcntl(std::os::fd::AsFd::as_fd(&file), libc::F_SETLK, &mut all).unwrap();
        children::say("locked");
        children::wait();
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    // Another process makes the directory and is gone again, for this one may not have a slot yet.
    let name = "a_full_process_table_is_a_clear_error";
    let place = super::super::place::prepare(dir.path(), super::super::rights::Rights::private()).unwrap();
    let dir_fd = std::os::fd::AsFd::as_fd(&place.dir);
    let made = Control::create(dir_fd, place.rights, 1 << 16, 64 << 20).unwrap();
    let super::super::control::Found::Control(control) = made else {
        panic!("a new directory has no control file")
    };
    let mut child = Child::start(module_path!(), name, "all", &[&place.path.join("control")]);
    assert_eq!(child.hear(), "locked");
    let e = control.me().unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NoSpace);
    assert!(e.message().contains("4096"), "{e}");
    assert_eq!(control.seated(), None);
    child.go();
    child.end();
    assert_eq!(control.me().unwrap().slot(), 0, "there is a slot again");
}

#[test]
fn threads_of_one_process_take_one_slot() {
    let dir = tempfile::tempdir().unwrap();
    let opened: Vec<Arc<Directory>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| open(dir.path()))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(opened.iter().all(|directory| Arc::ptr_eq(directory, &opened[0])));
    let owners: Vec<Owner> = std::thread::scope(|scope| {
        let threads: Vec<_> = opened.iter().map(|d| scope.spawn(|| d.me())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(owners.iter().all(|owner| *owner == opened[0].me()));
    assert_eq!(opened[0].processes().len(), 1);
}
