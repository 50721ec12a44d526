//! SIGKILL ends any caller, whatever it waits for.

use std::time::Duration;

use nearfs_backends::layer::Operation;

use crate::child::{self, Child, c, map, touch};
use crate::support::*;

/// What the mount promises is one second; the machine may be busy.
const KILLED: Duration = Duration::from_secs(3);

/// Runs `work` in a process, waits until it hangs in a call, kills it and expects it to end.
fn killed_in(rig: &Rig, what: &str, work: impl FnOnce() -> i32) {
    let mut child = Child::run(work);
    eventually(SOON, what, || rig.number("in_flight") > 0);
    assert_eq!(child.wait(Duration::from_millis(300)), None, "{what}: it hangs");
    child.kill(libc::SIGKILL);
    assert_eq!(child.wait(KILLED), Some(-libc::SIGKILL), "{what}: it ends");
}

fn stalled() -> Rig {
    let rig = Rig::new(Setup::default());
    rig.put("known", content(1, 64 << 20));
    rig.put("d/x", "x");
    std::fs::metadata(rig.at("known")).unwrap();
    std::fs::metadata(rig.at("d")).unwrap();
    for operation in [Operation::Stat, Operation::List, Operation::Read, Operation::Open] {
        rig.stall(operation, "");
    }
    rig
}

#[test]
fn a_killed_caller_is_freed_from_every_call() {
    let rig = stalled();
    let (known, unknown, dir) = (c(&rig.at("known")), c(&rig.at("unknown")), c(&rig.at("d")));
    killed_in(&rig, "read", || child::open_and_read(&known, libc::O_RDONLY));
    killed_in(&rig, "direct read", || child::open_and_read(&known, libc::O_RDONLY | libc::O_DIRECT));
    killed_in(&rig, "mmap", || map(&known, 64 << 20).map_or(1, |at| i32::from(touch(at, 40 << 20))));
    killed_in(&rig, "stat", || child::stat(&unknown));
    killed_in(&rig, "open", || child::open(&unknown, libc::O_RDONLY));
    killed_in(&rig, "readdir", || child::list(&dir));
    assert!(rig.number("interrupted") >= 4);
    // What they asked for is asked for no more.
    eventually(SOON, "nothing is left", || rig.number("in_flight") == 0);
}

#[test]
fn many_callers_of_one_stalled_name_killed_together_all_end() {
    let rig = stalled();
    let unknown = c(&rig.at("unknown"));
    let mut children: Vec<_> = (0..24).map(|_| Child::run(|| child::stat(&unknown))).collect();
    eventually(SOON, "one asks, the others wait behind it", || rig.number("in_flight") > 0);
    std::thread::sleep(Duration::from_millis(300));
    children.iter().for_each(|c| c.kill(libc::SIGKILL));
    for child in &mut children {
        assert_eq!(child.wait(KILLED), Some(-libc::SIGKILL));
    }
}

#[test]
fn a_page_that_a_killed_reader_shared_with_a_living_one_is_fetched_again() {
    let rig = stalled();
    let known = c(&rig.at("known"));
    let mut first = Child::run(|| child::open_and_read(&known, libc::O_RDONLY));
    eventually(SOON, "the first waits", || rig.number("in_flight") > 0);
    let mut second = Child::run(|| child::open_and_read(&known, libc::O_RDONLY));
    std::thread::sleep(Duration::from_millis(300));
    first.kill(libc::SIGKILL);
    assert_eq!(first.wait(KILLED), Some(-libc::SIGKILL));
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(second.wait(Duration::ZERO), None, "the living one is not disturbed");
    rig.faults.heal();
    assert_eq!(second.wait(SOON), Some(0), "and gets its bytes");
}
