//! A cache that is removed while it is used.

use std::fs;
use std::path::Path;

use nearfs_backends::io::EngineConfig;

use super::super::catalogue::fixture::{content, key};
use super::super::cleaning;
use super::*;

const MIB: u64 = 1 << 20;
const SMALL: usize = 100_000;
const LARGE: usize = 3 << 20;

fn volume(path: &Path) -> Arc<Volume> {
    let config = DiskConfig { size: Some(DiskSize::Bytes(64 * MIB)), free: 0.0, ..DiskConfig::default() };
    let dir = Directory::open(path, &config).unwrap();
    Arc::new(Volume::new(dir, &config, Engine::new(EngineConfig::default()).unwrap()))
}

fn put(volume: &Volume, n: u64) -> bool {
    match volume.claim_small(&key(n), SMALL as u64) {
        Turn::Mine(filling) => filling.store(&[content(n, SMALL)]).is_ok_and(|stored| stored),
        turn => panic!("{turn:?}"),
    }
}

fn get(volume: &Volume, n: u64) -> bool {
    let mut buffer = Buffer::with_capacity(SMALL);
    let hit = volume.read_small(&key(n), SMALL as u64, &mut buffer);
    assert!(!hit || buffer[..] == content(n, SMALL));
    hit
}

fn put_large(volume: &Volume, n: u64) -> Arc<Large> {
    let large = volume.open_large(&key(n), LARGE as u64, true).unwrap();
    large.claim(0..LARGE as u64);
    assert!(large.fill(0, &[content(n, LARGE)]).unwrap());
    large
}

fn is_whole(large: &Large, n: u64) -> bool {
    let mut data = vec![0; LARGE];
    large.read(0, &mut data).unwrap() && data == content(n, LARGE)
}

#[test]
fn after_a_removal_all_begins_anew_and_readers_keep_what_they_have() {
    let dir = tempfile::tempdir().unwrap();
    let volume = volume(dir.path());
    volume.dir().set_limit(48 * MIB);
    assert!(put(&volume, 1));
    let old = put_large(&volume, 2);
    let begun = match volume.claim_small(&key(3), 5) {
        Turn::Mine(filling) => filling,
        turn => panic!("{turn:?}"),
    };
    fs::remove_dir_all(dir.path()).unwrap();
    assert!(volume.cat().is_gone() && !get(&volume, 1));
    volume.restart().unwrap();

    assert!(!volume.cat().is_gone() && !volume.has(&key(1)) && !volume.has(&key(2)));
    assert_eq!((volume.dir().limit(), volume.dir().used()), (48 * MIB, 0));
    assert!(is_whole(&old, 2), "what was open stays readable");
    assert!(volume.find_large(&key(2)).is_none());
    // What was begun in the old one ends there.
    assert!(!begun.store(&[b"12345"[..].into()]).is_ok_and(|stored| stored));
    assert!(!volume.has(&key(3)));
    let new = put_large(&volume, 2);
    assert!(is_whole(&new, 2) && !Arc::ptr_eq(&old, &new));
    assert!([1, 3].into_iter().all(|n| put(&volume, n) && get(&volume, n)));
    drop(old);
    assert!(is_whole(&volume.open_large(&key(2), LARGE as u64, false).unwrap(), 2));
    assert_eq!(volume.cat().wrong(), 1, "counted on");
}

#[test]
fn the_cleaner_begins_anew_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let volume = volume(dir.path());
    cleaning::start(&volume);
    assert!(put(&volume, 1));
    fs::remove_dir_all(dir.path().join("nearfs-v1")).unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while volume.cat().is_gone() {
        assert!(Instant::now() < until, "nobody begins anew");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(put(&volume, 1) && get(&volume, 1));
}
