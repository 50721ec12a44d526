//! From mounting to unmounting, also under load and by force.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nearfs_backends::layer::Operation;
use nearfs_backends::{ErrorKind, Spawner};
use nearfs_mount::{Liveness, Mount, MountOptions, UnmountOptions, Unmounted, list_mounts, probe, unmount};

use crate::child::{self, Child, c};
use crate::support::*;

fn is_mounted(dir: &Path) -> bool {
    list_mounts().unwrap().iter().any(|m| m.dir == dir)
}

#[test]
fn an_idle_mount_is_unmounted_cleanly() {
    let mut rig = Rig::new(Setup::default());
    rig.put("f", "x");
    assert_eq!(std::fs::read(rig.at("f")).unwrap(), b"x");
    let session = rig.take_session();
    let dir = session.dir().to_owned();
    assert!(is_mounted(&dir) && !session.has_ended());
    assert_eq!(session.unmount(UnmountOptions::default()).unwrap(), Unmounted::Clean);
    assert!(!is_mounted(&dir) && session.has_ended());
    assert!(session.join(None).unwrap());
    assert_eq!(session.unmount(UnmountOptions::default()).unwrap(), Unmounted::Clean, "twice does no harm");
}

#[test]
fn a_dropped_session_leaves_nothing_mounted() {
    let mut rig = Rig::new(Setup::default());
    rig.put("f", "x");
    let _held = std::fs::File::open(rig.at("f")).unwrap();
    let session = rig.take_session();
    let dir = session.dir().to_owned();
    drop(session);
    assert!(!is_mounted(&dir));
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
}

#[test]
fn m2_stopping_under_load_ends_in_time_and_leaves_a_clean_table() {
    let mut rig = Rig::new(Setup::default());
    rig.put("busy", content(1, 20 << 20));
    rig.put("stalled", content(2, 20 << 20));
    rig.stall(Operation::Read, "stalled");
    let stop = Arc::new(AtomicBool::new(false));
    let calls = Arc::new(AtomicU64::new(0));
    let readers: Vec<_> = (0..17u64)
        .map(|i| {
            let (stop, calls) = (Arc::clone(&stop), Arc::clone(&calls));
            let name = rig.at(if i == 0 { "stalled" } else { "busy" });
            std::thread::spawn(move || {
                let file = std::fs::File::open(name)?;
                let mut buf = vec![0; 100_000];
                let mut at = i * 12_345;
                while !stop.load(Ordering::Relaxed) {
                    at = (at + 7_654_321) % (19 << 20);
                    file.read_exact_at(&mut buf, at)?;
                    calls.fetch_add(1, Ordering::Relaxed);
                }
                Ok::<_, std::io::Error>(())
            })
        })
        .collect();
    let inside = c(rig.dir());
    let _inside = Child::run(|| {
        // SAFETY: system calls on a C string.
        unsafe {
            libc::chdir(inside.as_ptr());
            libc::sleep(60)
        };
        0
    });
    eventually(SOON, "they read", || calls.load(Ordering::Relaxed) > 100 && rig.number("in_flight") > 0);
    let session = rig.take_session();
    let dir = session.dir().to_owned();
    let start = Instant::now();
    assert_eq!(session.unmount(UnmountOptions::default()).unwrap(), Unmounted::Forced);
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    assert!(!is_mounted(&dir) && session.has_ended());
    stop.store(true, Ordering::Relaxed);
    let results: Vec<_> = readers.into_iter().map(|r| r.join().unwrap()).collect();
    assert!(results[0].is_err(), "the stalled read got an error");
}

#[test]
fn a_busy_mount_is_drained_if_its_users_are_done_in_time() {
    let mut rig = Rig::new(Setup::default());
    rig.put("f", "x");
    let held = std::fs::File::open(rig.at("f")).unwrap();
    let session = rig.take_session();
    let done = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(500));
        drop(held);
    });
    let options = UnmountOptions { drain: Duration::from_secs(20), ..Default::default() };
    assert_eq!(session.unmount(options).unwrap(), Unmounted::Clean);
    done.join().unwrap();
}

#[test]
fn a_second_order_to_stop_with_force_cuts_a_patient_one_short() {
    let mut rig = Rig::new(Setup::default());
    rig.put("f", "x");
    let _held = std::fs::File::open(rig.at("f")).unwrap();
    let session = Arc::new(rig.take_session());
    let patient = std::thread::spawn({
        let session = Arc::clone(&session);
        move || session.unmount(UnmountOptions { drain: Duration::from_secs(600), ..Default::default() })
    });
    std::thread::sleep(Duration::from_millis(300));
    let force = UnmountOptions { force: true, ..Default::default() };
    assert_eq!(session.unmount(force).unwrap(), Unmounted::Forced);
    assert_eq!(patient.join().unwrap().unwrap(), Unmounted::Forced);
    assert!(session.has_ended() && !is_mounted(session.dir()));
}

#[test]
fn a_lazy_unmount_lets_its_users_go_on() {
    let mut rig = Rig::new(Setup::default());
    let data = content(1, 5 << 20);
    rig.put("f", data.clone());
    let held = std::fs::File::open(rig.at("f")).unwrap();
    let session = rig.take_session();
    let options = UnmountOptions { lazy: true, ..Default::default() };
    assert_eq!(session.unmount(options).unwrap(), Unmounted::Lazily);
    assert!(!is_mounted(session.dir()));
    let mut all = vec![0; data.len()];
    held.read_exact_at(&mut all, 0).unwrap();
    assert!(all == data);
    assert!(!session.join(Some(Duration::from_millis(200))).unwrap(), "it is still used");
    drop(held);
    assert!(session.join(Some(SOON)).unwrap());
}

#[test]
fn unmounting_from_outside_ends_the_session() {
    let rig = Rig::new(Setup::default());
    rig.put("f", "x");
    let held = std::fs::File::open(rig.at("f")).unwrap();
    let error = unmount(rig.dir(), UnmountOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    assert!(error.message().contains("in use") && error.context("hint").is_some());
    drop(held);
    assert_eq!(unmount(rig.dir(), UnmountOptions::default()).unwrap(), Unmounted::Clean);
    assert!(rig.session().join(Some(SOON)).unwrap());
}

#[test]
fn force_frees_readers_that_are_stuck() {
    let rig = Rig::new(Setup::default());
    rig.put("f", content(1, 8 << 20));
    let names = [c(&rig.at("f")), c(&rig.at("unknown"))];
    std::fs::metadata(rig.at("f")).unwrap();
    for operation in [Operation::Stat, Operation::List, Operation::Read] {
        rig.stall(operation, "");
    }
    let mut stuck = [
        Child::run(|| child::open_and_read(&names[0], libc::O_RDONLY)),
        Child::run(|| child::open_and_read(&names[0], libc::O_RDONLY | libc::O_DIRECT)),
        Child::run(|| child::stat(&names[1])),
    ];
    eventually(SOON, "they wait", || rig.number("in_flight") >= 3);
    let options = UnmountOptions { force: true, ..Default::default() };
    assert_eq!(unmount(rig.dir(), options).unwrap(), Unmounted::Forced);
    for child in &mut stuck {
        let ended = child.wait(SOON).expect("nobody stays stuck");
        assert!(ended > 0, "with an error: {ended}");
    }
    assert!(rig.session().join(Some(SOON)).unwrap());
    assert!(!is_mounted(rig.session().dir()));
}

#[test]
fn a_live_mount_is_refused_with_its_source_and_holder() {
    let rig = Rig::new(Setup::default());
    assert_eq!(probe(rig.dir(), SOON).unwrap(), Liveness::Alive);
    let spawner = Spawner::new(rig.runtime.handle().clone());
    let error = Mount::start(rig.fs.clone(), rig.dir(), MountOptions::default(), spawner).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    let text = error.to_string();
    assert!(text.contains("memory:///"), "{text}");
    assert!(text.contains(&format!("process {}", std::process::id())), "{text}");
}

#[test]
fn one_directory_can_be_mounted_on_again_and_again() {
    let rig = Rig::new(Setup::default());
    rig.put("f", "x");
    let dir = tempfile::tempdir().unwrap();
    for _ in 0..5 {
        let spawner = Spawner::new(rig.runtime.handle().clone());
        let session = Mount::start(rig.fs.clone(), dir.path(), MountOptions::default(), spawner).unwrap();
        assert_eq!(std::fs::read(dir.path().join("f")).unwrap(), b"x");
        assert_eq!(session.unmount(UnmountOptions::default()).unwrap(), Unmounted::Clean);
    }
}

#[test]
fn a_missing_directory_is_an_error_that_names_it() {
    let rig = Rig::new(Setup::default());
    let spawner = Spawner::new(rig.runtime.handle().clone());
    let error = Mount::start(rig.fs.clone(), "/no/such/dir", MountOptions::default(), spawner).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("/no/such/dir"), "{error}");
}
