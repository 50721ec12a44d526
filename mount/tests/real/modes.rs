//! Every open mode reads the same bytes, from the store and from the cache on disk.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use nearfs_mount::OpenMode;

use crate::child::{c, map, touch};
use crate::passthrough::{open_passed, stats};
use crate::support::*;

const SIZES: [usize; 9] =
    [0, 1, 4095, 65_537, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, (5 << 20) + 777, 9 << 20];

fn name(size: usize) -> String {
    format!("d/{size}")
}

/// Reads `file` in every way that programs read.
fn read_in_every_way(rig: &Rig, size: usize) {
    let (path, data) = (rig.at(&name(size)), content(size as u8, size));
    assert!(std::fs::read(&path).unwrap() == data, "{size}: whole");
    let file = File::open(&path).unwrap();
    assert_eq!(file.metadata().unwrap().len(), size as u64);
    let mut buf = vec![0; 300_000];
    for i in 0..20 {
        let offset = (i * 104_729 * 31) % (size + 5000);
        let n = file.read_at(&mut buf[..1 + i * 14_000], offset as u64).unwrap();
        let expected = &data[offset.min(size)..(offset + 1 + i * 14_000).min(size)];
        assert!(n == expected.len() && buf[..n] == *expected, "{size}: at {offset}");
    }
    assert_eq!(file.read_at(&mut buf, size as u64).unwrap(), 0, "{size}: at the end");
    assert_eq!(file.read_at(&mut buf, u64::MAX / 4).unwrap(), 0, "{size}: far beyond it");
    if size > 0 {
        mapped(&path, &data);
    }
    let direct = File::options().read(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
    let shift = buf.as_ptr().align_offset(4096);
    for at in (0..size).step_by(262_144 * 3) {
        let n = direct.read_at(&mut buf[shift..shift + 262_144], at as u64).unwrap();
        assert!(buf[shift..shift + n] == data[at..(at + 262_144).min(size)], "{size}: direct at {at}");
    }
}

fn mapped(path: &std::path::Path, data: &[u8]) {
    let at = map(&c(path), data.len()).unwrap();
    for i in 0..200 {
        let offset = (i * 104_729 * 7) % data.len();
        assert_eq!(touch(at, offset), data[offset], "{}: mapped at {offset}", data.len());
    }
    // Behind the end of the file its last page is zero.
    if !data.len().is_multiple_of(4096) {
        assert_eq!(touch(at, data.len()), 0);
    }
    // SAFETY: the mapping made by `map`, which nothing uses any more.
    unsafe { libc::munmap(at as *mut _, data.len()) };
}

/// Makes the kernel forget its pages of a file.
fn drop_pages(rig: &Rig, size: usize) {
    let file = File::open(rig.at(&name(size))).unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
}

fn all_sizes(open: OpenMode) -> Rig {
    let rig = Rig::new(Setup::opening(open));
    assert_eq!(rig.session().open_mode(), open);
    for size in SIZES {
        rig.put(&name(size), content(size as u8, size));
    }
    // From the store, then (after the second time) from what is left on disk.
    for round in 0..3 {
        for size in SIZES {
            read_in_every_way(&rig, size);
            drop_pages(&rig, size);
        }
        rig.flush();
        if round == 1 {
            assert!(rig.disk().stats().used > 10 << 20);
        }
    }
    rig
}

#[test]
fn stateless_opens_read_right() {
    let rig = all_sizes(OpenMode::Stateless);
    assert_eq!(rig.operations("open", "count"), 1);
    assert_eq!(stats(&rig, "opens"), 0);
}

#[test]
fn plain_opens_read_right() {
    let rig = all_sizes(OpenMode::Plain);
    assert!(rig.operations("open", "count") > 50);
    assert_eq!(stats(&rig, "opens"), 0);
}

#[test]
fn passed_through_files_read_right() {
    let rig = all_sizes(OpenMode::Passthrough);
    for size in SIZES.into_iter().filter(|size| *size >= 1 << 20) {
        let _held = open_passed(&rig, &name(size));
        let reads = rig.operations("read", "count");
        read_in_every_way(&rig, size);
        assert_eq!(rig.operations("read", "count"), reads, "{size}");
    }
    eventually(SOON, "every open is closed", || {
        rig.operations("open", "count") == rig.operations("release", "count")
            && stats(&rig, "open_files") == 0
    });
}
