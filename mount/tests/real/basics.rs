//! What every program does: list, look, read, map.

use std::os::unix::fs::{FileExt, MetadataExt};

use crate::support::*;

#[test]
fn a_tree_is_listed_looked_at_and_read() {
    let rig = Rig::new(Setup::default());
    let big = content(1, 3_000_001);
    rig.put("a/b/c.bin", big.clone());
    rig.put("top", "hello");
    let mut names: Vec<_> = std::fs::read_dir(rig.dir())
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["a", "top"]);
    assert_eq!(std::fs::read(rig.at("top")).unwrap(), b"hello");
    assert_eq!(std::fs::read(rig.at("a/b/c.bin")).unwrap(), big);
    let stat = std::fs::metadata(rig.at("a/b/c.bin")).unwrap();
    assert_eq!((stat.len(), stat.mode() & 0o7777, stat.nlink()), (3_000_001, 0o444, 1));
    let mut buf = [0; 100];
    std::fs::File::open(rig.at("a/b/c.bin")).unwrap().read_exact_at(&mut buf, 1_234_567).unwrap();
    assert_eq!(buf[..], big[1_234_567..1_234_667]);
    assert_eq!(std::fs::read(rig.at("missing")).unwrap_err().raw_os_error(), Some(libc::ENOENT));
    println!("{:#}", rig.session().stats());
}
