//! Several filesystems below one root.

use std::collections::BTreeMap;
use std::sync::Arc;

use nearfs_backends::{ErrorKind, FileSystemExt, MemoryFileSystem, Spawner};
use nearfs_cache::{CacheConfig, CachedFileSystem};
use nearfs_mount::{Mount, MountOptions, MountSession, Tree};

use crate::support::*;

fn start(
    names: &[&str],
    dir: &std::path::Path,
    runtime: &tokio::runtime::Runtime,
) -> nearfs_backends::Result<MountSession> {
    let spawner = Spawner::new(runtime.handle().clone());
    let mut map = BTreeMap::new();
    for name in names {
        let memory = MemoryFileSystem::new();
        runtime.block_on(memory.write(&path("d/f"), (*name).to_owned().into())).unwrap();
        runtime.block_on(memory.write(&path(".nearfs/x"), "x".into())).unwrap();
        let fs = CachedFileSystem::new(Arc::new(memory), CacheConfig::default(), spawner.clone());
        map.insert((*name).to_owned(), fs);
    }
    Mount::start(Tree::Map(map), dir, MountOptions::default(), spawner)
}

#[test]
fn each_name_shows_its_own_filesystem() {
    let (runtime, dir) = (runtime(), tempfile::tempdir().unwrap());
    let session = start(&["val", "train", "a b"], dir.path(), &runtime).unwrap();
    for _ in 0..2 {
        assert_eq!(names(dir.path()), ["a b", "train", "val"]);
        for name in ["a b", "train", "val"] {
            assert_eq!(names(&dir.path().join(name)), [".nearfs", "d"]);
            assert_eq!(std::fs::read(dir.path().join(name).join("d/f")).unwrap(), name.as_bytes());
        }
    }
    let inode = |name: &str| {
        std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(dir.path().join(name).join("d/f")).unwrap())
    };
    assert_ne!(inode("train"), inode("val"), "one path in two filesystems is two inodes");
    assert_eq!(errno(std::fs::metadata(dir.path().join("other"))), libc::ENOENT);
    let stats: serde_json::Value =
        serde_json::from_slice(&std::fs::read(dir.path().join(".nearfs/stats")).unwrap()).unwrap();
    assert_eq!(stats["filesystems"].as_object().unwrap().len(), 3);
    assert_eq!(session.source(), "nearfs");
}

#[test]
fn names_must_be_one_component_and_not_taken() {
    let (runtime, dir) = (runtime(), tempfile::tempdir().unwrap());
    for names in [&[][..], &["a/b"], &[""], &[".."], &[".nearfs"]] {
        let error = start(names, dir.path(), &runtime).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{names:?}");
    }
}
