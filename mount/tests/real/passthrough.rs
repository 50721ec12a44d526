//! Files that the kernel reads straight from the cache.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::time::Duration;

use nearfs_mount::OpenMode;

use crate::child::{c, map, touch};
use crate::support::*;
use crate::versions::drop_kernel_names;

/// A length that ends within a page.
const ODD: usize = (3 << 20) + 777;

pub(crate) fn stats(rig: &Rig, name: &str) -> u64 {
    rig.session().stats()["mount"]["passthrough"][name].as_u64().unwrap()
}

/// Opens a file until the kernel reads it by itself. (A handle that was closed a moment ago may still count.)
pub(crate) fn open_passed(rig: &Rig, name: &str) -> File {
    let mut file = None;
    eventually(SOON, "it is passed through", || {
        let before = stats(rig, "opens");
        file = Some(File::open(rig.at(name)).unwrap());
        let passed = stats(rig, "opens") > before;
        if !passed {
            file = None;
        }
        passed
    });
    file.unwrap()
}

/// A mount with a file `name` that is wholly on disk.
fn filled(name: &str, data: &[u8]) -> Rig {
    let rig = Rig::new(Setup::opening(OpenMode::Passthrough));
    fill(&rig, name, data);
    rig
}

fn fill(rig: &Rig, name: &str, data: &[u8]) {
    rig.put(name, data.to_vec());
    assert!(std::fs::read(rig.at(name)).unwrap() == data);
    rig.flush();
}

/// All bytes of `file` by reads past the kernel's pages, so from the disk itself.
fn read_directly(path: &std::path::Path, len: usize) -> Vec<u8> {
    let file = File::options().read(true).custom_flags(libc::O_DIRECT).open(path).unwrap();
    read_pages(&file, len)
}

/// As programs read that want no pages of the kernel: into whole pages of their own.
fn read_pages(file: &File, len: usize) -> Vec<u8> {
    let room = len.next_multiple_of(4096);
    let mut buf = vec![0u8; room + 4096];
    let shift = buf.as_ptr().align_offset(4096);
    let mut at = 0;
    while at < len {
        let n = file.read_at(&mut buf[shift + at..shift + room], at as u64).unwrap();
        assert!(n > 0, "the end is at {at}, not at {len}");
        at += n;
    }
    buf[shift..shift + at].to_vec()
}

#[test]
fn a_file_is_passed_through_from_the_first_open_after_it_is_complete() {
    let rig = Rig::new(Setup::opening(OpenMode::Passthrough));
    assert_eq!(rig.session().open_mode(), OpenMode::Passthrough);
    let data = content(1, ODD);
    rig.put("f", data.clone());
    let shown = rig.session().stats()["mount"]["passthrough"].clone();
    assert_eq!((&shown["available"], &shown["reason"]), (&true.into(), &serde_json::Value::Null));
    assert!(std::fs::read(rig.at("f")).unwrap() == data, "the first one fetches");
    assert_eq!((stats(&rig, "opens"), rig.operations("open", "count")), (0, 1));
    assert!(rig.operations("read", "count") > 0);
    rig.flush();

    let mut file = open_passed(&rig, "f");
    assert_eq!(stats(&rig, "open_files"), 1);
    let reads = rig.operations("read", "count");
    let mut all = Vec::new();
    file.read_to_end(&mut all).unwrap();
    assert!(all == data);
    assert!(read_directly(&rig.at("f"), ODD) == data);
    assert_eq!(rig.operations("read", "count"), reads, "the daemon is not asked for a single byte");
    assert_eq!(file.metadata().unwrap().len(), ODD as u64);
    assert_eq!(errno(File::options().write(true).open(rig.at("f"))), libc::EROFS);
    drop(file);
    eventually(SOON, "it is closed", || stats(&rig, "open_files") == 0);
}

#[test]
fn small_files_are_opened_as_before() {
    let rig = Rig::new(Setup::opening(OpenMode::Passthrough));
    rig.put("edge", content(2, 1 << 20));
    fill(&rig, "small", &content(1, (1 << 20) - 1));
    for _ in 0..3 {
        assert!(std::fs::read(rig.at("small")).unwrap() == content(1, (1 << 20) - 1));
    }
    assert_eq!(stats(&rig, "opens"), 0);
    // One of exactly 1 MiB is large enough.
    assert!(std::fs::read(rig.at("edge")).unwrap() == content(2, 1 << 20));
    rig.flush();
    open_passed(&rig, "edge");
}

#[test]
fn handles_of_one_file_share_what_the_kernel_reads() {
    let data = content(3, ODD);
    let rig = filled("f", &data);
    let first = open_passed(&rig, "f");
    let handles: Vec<_> = (0..20).map(|_| File::open(rig.at("f")).unwrap()).collect();
    assert_eq!(stats(&rig, "open_files"), 1);
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let (path, data) = (rig.at("f"), data.clone());
            std::thread::spawn(move || (0..50).for_each(|_| assert!(std::fs::read(&path).unwrap() == data)))
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    drop(first);
    for file in &handles {
        assert!(read_pages(file, ODD) == data);
    }
    drop(handles);
    eventually(SOON, "all are closed", || stats(&rig, "open_files") == 0);
    // Opened by many at the same time, none of them being the first for sure.
    for _ in 0..20 {
        let openers: Vec<_> = (0..8)
            .map(|_| {
                let (path, data) = (rig.at("f"), data.clone());
                std::thread::spawn(move || assert!(std::fs::read(&path).unwrap() == data))
            })
            .collect();
        openers.into_iter().for_each(|t| t.join().unwrap());
    }
}

#[test]
fn a_handle_opened_before_the_file_was_complete_decides_for_the_others() {
    let rig = Rig::new(Setup::opening(OpenMode::Passthrough));
    let data = content(4, ODD);
    rig.put("f", data.clone());
    let early = File::open(rig.at("f")).unwrap();
    early.read_at(&mut [0; 100], 0).unwrap();
    assert!(std::fs::read(rig.at("f")).unwrap() == data);
    rig.flush();
    for _ in 0..5 {
        assert!(std::fs::read(rig.at("f")).unwrap() == data);
        assert!(read_directly(&rig.at("f"), ODD) == data);
    }
    assert_eq!(stats(&rig, "opens"), 0, "as long as it is open");
    assert!(read_pages(&early, ODD) == data);
    drop(early);
    assert!(read_pages(&open_passed(&rig, "f"), ODD) == data);
}

#[test]
fn what_is_open_outlives_a_clear_of_the_cache() {
    let data = content(5, ODD);
    let rig = filled("f", &data);
    let file = open_passed(&rig, "f");
    let direct = File::options().read(true).custom_flags(libc::O_DIRECT).open(rig.at("f")).unwrap();
    let cleared = rig.disk().clear();
    assert_eq!((cleared.kept, cleared.objects), (1, 0), "{cleared:?}");
    assert!(read_pages(&direct, ODD) == data, "from the disk");
    assert!(read_pages(&file, ODD) == data);
    drop((file, direct));
    eventually(SOON, "it is closed", || stats(&rig, "open_files") == 0);
    assert_eq!(rig.disk().clear().objects, 1, "then it goes");
    assert!(std::fs::read(rig.at("f")).unwrap() == data, "and is fetched again");
}

#[test]
fn what_is_open_is_not_evicted() {
    let data = content(6, 8 << 20);
    let mut setup = Setup::opening(OpenMode::Passthrough);
    setup.disk = 64 << 20;
    let rig = Rig::new(setup);
    (0..16).for_each(|i| drop(rig.put(&format!("other{i}"), content(i, 8 << 20))));
    fill(&rig, "f", &data);
    let file = open_passed(&rig, "f");
    for i in 0..16 {
        assert!(std::fs::read(rig.at(&format!("other{i}"))).unwrap() == content(i, 8 << 20));
        rig.flush();
    }
    assert!(rig.disk().stats().evicted > 0, "128 MiB do not fit into 64");
    let reads = rig.operations("read", "count");
    assert!(read_directly(&rig.at("f"), data.len()) == data);
    assert!(read_pages(&file, data.len()) == data);
    assert_eq!(rig.operations("read", "count"), reads);
}

#[test]
fn a_mapping_that_outlives_its_handle_keeps_its_bytes() {
    // The kernel is asked to forget what is closed in one way, and where it is older in another.
    for protocol in [None, Some((7, 44))] {
        mapping_outlives_handle(protocol);
    }
}

fn mapping_outlives_handle(protocol: Option<(u32, u32)>) {
    let data = content(7, ODD);
    let mut setup = Setup::opening(OpenMode::Passthrough);
    setup.options.protocol = protocol;
    let rig = Rig::new(setup);
    fill(&rig, "f", &data);
    let handle = open_passed(&rig, "f");
    let at = map(&c(&rig.at("f")), ODD).unwrap();
    drop(handle);
    eventually(SOON, "no handle is left", || {
        rig.operations("open", "count") == rig.operations("release", "count")
    });
    // Longer than a closed file is kept for whoever may open it again.
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(stats(&rig, "open_files"), 1, "the kernel reads it on for the mapping");
    let cleared = rig.disk().clear();
    assert_eq!(cleared.kept, 1, "{cleared:?}");
    let reads = rig.operations("read", "count");
    // SAFETY: the mapping made above; pages that are dropped are read again from the file.
    unsafe { libc::madvise(at as *mut _, ODD, libc::MADV_DONTNEED) };
    for offset in (0..ODD).step_by(1000) {
        assert_eq!(touch(at, offset), data[offset], "{offset}");
    }
    assert_eq!(rig.operations("read", "count"), reads);
    // SAFETY: the mapping made above, which nothing uses any more.
    unsafe { libc::munmap(at as *mut _, ODD) };
    eventually(3 * SOON, "it goes with the mapping", || stats(&rig, "open_files") == 0);
}

#[test]
fn a_new_version_is_another_inode_and_the_old_handle_keeps_its_bytes() {
    let mut setup = Setup::opening(OpenMode::Passthrough);
    setup.ttl = seconds(0.3);
    let rig = Rig::new(setup);
    let (old, new) = (content(8, ODD), content(9, ODD - 5000));
    fill(&rig, "f", &old);
    let before = open_passed(&rig, "f");
    rig.put("f", new.clone());
    eventually(SOON, "the new version is seen", || rig.read("f").as_ref() == Some(&new));
    rig.flush();
    let after = open_passed(&rig, "f");
    assert_ne!(before.metadata().unwrap().ino(), after.metadata().unwrap().ino());
    assert_eq!(stats(&rig, "open_files"), 2);
    assert!(read_pages(&before, old.len()) == old);
    assert!(read_pages(&after, new.len()) == new);
    assert_eq!(before.metadata().unwrap().len(), old.len() as u64);
    rig.delete("f");
    eventually(SOON, "it is gone", || !rig.at("f").exists());
    assert!(read_pages(&before, old.len()) == old);
    assert!(read_pages(&after, new.len()) == new);
}

#[test]
fn names_that_the_kernel_forgets_do_not_matter() {
    let data = content(10, ODD);
    let rig = filled("d/f", &data);
    let file = open_passed(&rig, "d/f");
    drop_kernel_names();
    assert!(read_pages(&file, ODD) == data);
    assert!(read_pages(&open_passed(&rig, "d/f"), ODD) == data);
    drop(file);
    eventually(SOON, "it is forgotten", || {
        drop_kernel_names();
        rig.number("inodes") <= 3
    });
    assert!(read_pages(&open_passed(&rig, "d/f"), ODD) == data);
}

#[test]
fn a_handle_goes_on_after_the_daemon_has_let_the_mount_go() {
    let data = content(11, ODD);
    let mut rig = filled("f", &data);
    let file = open_passed(&rig, "f");
    let session = rig.take_session();
    let lazily = nearfs_mount::UnmountOptions { lazy: true, ..Default::default() };
    session.unmount(lazily).unwrap();
    assert!(read_pages(&file, ODD) == data);
    drop(file);
    assert!(session.join(Some(SOON)).unwrap());
}
