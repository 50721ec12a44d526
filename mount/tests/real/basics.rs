//! What every program does: list, look, read, map.

use std::io::{Read, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};

use nearfs_mount::{MountOptions, OpenMode};

use crate::child::{c, map, touch};
use crate::support::*;

#[test]
fn a_tree_is_listed_looked_at_and_read() {
    let rig = Rig::new(Setup::default());
    let big = content(1, 3_000_001);
    rig.put("a/b/c.bin", big.clone());
    rig.put("top", "hello");
    assert_eq!(rig.names(""), ["a", "top"]);
    assert_eq!(std::fs::read(rig.at("top")).unwrap(), b"hello");
    assert_eq!(std::fs::read(rig.at("a/b/c.bin")).unwrap(), big);
    let stat = std::fs::metadata(rig.at("a/b/c.bin")).unwrap();
    assert_eq!((stat.len(), stat.mode() & 0o7777, stat.nlink()), (3_000_001, 0o444, 1));
    assert_eq!(stat.blocks(), 3_000_001u64.div_ceil(512));
    assert_eq!(std::fs::metadata(rig.at("a")).unwrap().mode() & 0o7777, 0o555);
    assert_eq!(errno(std::fs::read(rig.at("missing"))), libc::ENOENT);
    assert_eq!(errno(std::fs::read(rig.at("top/below"))), libc::ENOTDIR);
    assert_eq!(errno(std::fs::read(rig.at("a"))), libc::EISDIR);
    assert_eq!(errno(std::fs::metadata(rig.at(&"x".repeat(256)))), libc::ENAMETOOLONG);
}

#[test]
fn the_first_call_may_be_a_cold_full_path() {
    let rig = Rig::new(Setup::default());
    rig.put("a/b/c/d.bin", "deep");
    assert_eq!(std::fs::read(rig.at("a/b/c/d.bin")).unwrap(), b"deep");
}

#[test]
fn reads_at_every_place_give_the_bytes_of_that_place() {
    let rig = Rig::new(Setup::default());
    let data = content(2, 2_500_123);
    rig.put("f", data.clone());
    let file = std::fs::File::open(rig.at("f")).unwrap();
    for (offset, len) in [(0, 1), (4095, 2), (1 << 20, 1 << 20), (2_499_000, 5000), (2_500_122, 1)] {
        let mut buf = vec![0; len];
        let n = file.read_at(&mut buf, offset as u64).unwrap();
        let end = data.len().min(offset + len);
        assert_eq!(n, end - offset);
        assert_eq!(buf[..n], data[offset..end], "{offset}");
    }
    assert_eq!(file.read_at(&mut [0; 10], 2_500_123).unwrap(), 0);
    assert_eq!(file.read_at(&mut [0; 10], u64::MAX / 4).unwrap(), 0);
    let mut file = file;
    assert_eq!(file.seek(SeekFrom::End(-3)).unwrap(), 2_500_120);
    let mut tail = Vec::new();
    file.read_to_end(&mut tail).unwrap();
    assert_eq!(tail, data[2_500_120..]);
}

#[test]
fn an_empty_file_is_empty() {
    let rig = Rig::new(Setup::default());
    rig.put("empty", "");
    assert_eq!(std::fs::metadata(rig.at("empty")).unwrap().len(), 0);
    assert_eq!(std::fs::read(rig.at("empty")).unwrap(), b"");
}

#[test]
fn direct_reads_skip_the_page_cache_and_arrive_in_large_pieces() {
    let rig = Rig::new(Setup::default());
    let data = content(3, (4 << 20) + 1000);
    rig.put("f", data.clone());
    let file = std::fs::File::options().read(true).custom_flags(libc::O_DIRECT).open(rig.at("f")).unwrap();
    let mut buf = vec![0u8; (4 << 20) + 8192];
    let shift = buf.as_ptr().align_offset(4096);
    for _ in 0..2 {
        let before = rig.operations("read", "count");
        let n = file.read_at(&mut buf[shift..shift + (4 << 20)], 0).unwrap();
        assert_eq!((n, &buf[shift..shift + n]), (4 << 20, &data[..4 << 20]));
        // Every read asks the mount, and not in crumbs.
        let requests = rig.operations("read", "count") - before;
        assert!((4..=5).contains(&requests), "{requests} requests for 4 MiB");
    }
    let n = file.read_at(&mut buf[shift..shift + 4096], 4 << 20).unwrap();
    assert_eq!(buf[shift..shift + n], data[4 << 20..]);
}

#[test]
fn a_mapped_file_reads_right_in_any_order() {
    let rig = Rig::new(Setup::default());
    let data = content(4, 3 << 20);
    rig.put("f", data.clone());
    let at = map(&c(&rig.at("f")), data.len()).unwrap();
    for i in 0..300 {
        let offset = (i * 104_729 * 7) % data.len();
        assert_eq!(touch(at, offset), data[offset], "{offset}");
    }
    // SAFETY: the mapping made above, which nothing uses any more.
    unsafe { libc::munmap(at as *mut _, data.len()) };
}

#[test]
fn kernel_readahead_is_raised_to_the_largest_request() {
    let rig = Rig::new(Setup::default());
    let stats = rig.session().stats();
    let kernel = &stats["mount"]["kernel"];
    assert_eq!(kernel["read_ahead"]["kib"], 1024, "{kernel}");
    assert_eq!(kernel["max_background"], 4096);
    let features: Vec<_> =
        kernel["features"].as_array().unwrap().iter().map(|f| f.as_str().unwrap()).collect();
    for needed in ["async_read", "parallel_dirops", "readdirplus", "readdirplus_auto", "no_open"] {
        assert!(features.contains(&needed), "{needed} in {features:?}");
    }
    rig.put("f", content(5, 32 << 20));
    std::io::copy(&mut std::fs::File::open(rig.at("f")).unwrap(), &mut std::io::sink()).unwrap();
    let requests = rig.operations("read", "count");
    assert!(requests < 128, "{requests} requests for 32 MiB: with 128 KiB it would be 256");
}

#[test]
fn the_file_system_never_looks_full() {
    let rig = Rig::new(Setup::default());
    let path = c(rig.dir());
    let mut s = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: writes a statvfs structure, which is initialised if the call succeeds.
    let s = unsafe {
        assert_eq!(libc::statvfs(path.as_ptr(), s.as_mut_ptr()), 0);
        s.assume_init()
    };
    assert_eq!(s.f_blocks * s.f_frsize, 1 << 50);
    assert_eq!((s.f_bavail, s.f_favail > 1 << 30, s.f_namemax), (s.f_blocks, true, 255));
}

#[test]
fn extended_attributes_tell_version_and_url() {
    let rig = Rig::new(Setup::default());
    let version = rig.put("d/f", "x").version.to_string();
    let get = |name: &str, attr: &str| {
        let mut buf = [0u8; 200];
        let n = rustix::fs::getxattr(rig.at(name), attr, &mut buf)?;
        Ok::<_, rustix::io::Errno>(String::from_utf8_lossy(&buf[..n]).into_owned())
    };
    assert_eq!(get("d/f", "user.nearfs.version").unwrap(), version);
    assert!(get("d/f", "user.nearfs.url").unwrap().ends_with("/d/f"));
    assert!(get("d", "user.nearfs.url").unwrap().ends_with("/d"));
    assert_eq!(get("d/f", "user.nearfs.cached").unwrap(), "0");
    assert_eq!(std::fs::read(rig.at("d/f")).unwrap(), b"x");
    assert_eq!(get("d/f", "user.nearfs.cached").unwrap(), "1");
    assert_eq!(get("d", "user.nearfs.version"), Err(rustix::io::Errno::NODATA));
    assert_eq!(get("d/f", "user.other"), Err(rustix::io::Errno::NODATA));
    let mut short = [0u8; 2];
    assert_eq!(
        rustix::fs::getxattr(rig.at("d/f"), "user.nearfs.url", &mut short),
        Err(rustix::io::Errno::RANGE)
    );
    let mut list = [0u8; 500];
    let n = rustix::fs::listxattr(rig.at("d/f"), &mut list).unwrap();
    let list = String::from_utf8_lossy(&list[..n]).into_owned();
    assert!(list.contains("user.nearfs.version\0") && list.contains("user.nearfs.url\0"), "{list:?}");
}

#[test]
fn owner_and_modes_follow_the_options() {
    let options = MountOptions { uid: Some(1234), gid: Some(2345), umask: 0o027, ..Default::default() };
    let rig = Rig::new(Setup { options, ..Default::default() });
    rig.put("d/f", "x");
    let file = std::fs::metadata(rig.at("d/f")).unwrap();
    assert_eq!((file.uid(), file.gid(), file.mode() & 0o7777), (1234, 2345, 0o440));
    let dir = std::fs::metadata(rig.at("d")).unwrap();
    assert_eq!((dir.uid(), dir.mode() & 0o7777), (1234, 0o550));
}

#[test]
fn plain_opens_work_and_keep_pages() {
    let options = MountOptions { open: OpenMode::Plain, ..Default::default() };
    let rig = Rig::new(Setup { options, ..Default::default() });
    assert_eq!(rig.session().open_mode(), OpenMode::Plain);
    let data = content(6, 500_000);
    rig.put("f", data.clone());
    assert_eq!(std::fs::read(rig.at("f")).unwrap(), data);
    let reads = rig.operations("read", "count");
    for _ in 0..3 {
        assert_eq!(std::fs::read(rig.at("f")).unwrap(), data);
    }
    assert_eq!(rig.operations("read", "count"), reads, "pages are kept over opens");
    assert_eq!(rig.operations("open", "count"), 4);
}

#[test]
fn names_are_bytes() {
    let rig = Rig::new(Setup::default());
    let all = ["a b+%2F~[x]*", "nl\n\ttab", "é", "e\u{301}", "🙂", "back\\slash", "run[1].tar"];
    for (i, name) in all.iter().enumerate() {
        rig.put(&format!("d/{name}"), format!("{i}"));
    }
    let mut sorted = all.map(str::to_owned);
    sorted.sort();
    assert_eq!(rig.names("d"), sorted);
    for (i, name) in all.iter().enumerate() {
        assert_eq!(std::fs::read(rig.at("d").join(name)).unwrap(), format!("{i}").as_bytes());
    }
}

#[test]
fn a_descriptor_survives_what_happens_to_the_name() {
    let rig = Rig::new(Setup::ttl(0.2));
    rig.put("f", "old");
    let file = std::fs::File::open(rig.at("f")).unwrap();
    let mut buf = [0; 10];
    assert_eq!(file.read_at(&mut buf, 0).unwrap(), 3);
    rig.delete("f");
    eventually(SOON, "the name is gone", || std::fs::metadata(rig.at("f")).is_err());
    assert_eq!(file.metadata().unwrap().len(), 3);
    assert_eq!(file.read_at(&mut buf, 0).unwrap(), 3);
    assert!(file.as_raw_fd() > 2);
}

#[test]
fn a_local_store_is_read_through() {
    let rig = Rig::new(Setup { remote: false, ..Default::default() });
    let data = content(7, 3_333_333);
    rig.put("d/f", data.clone());
    assert_eq!(rig.names("d"), ["f"]);
    assert!(std::fs::read(rig.at("d/f")).unwrap() == data);
    assert!(std::fs::read(rig.at("d/f")).unwrap() == data);
}
