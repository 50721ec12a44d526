//! Mounts of local directories.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use nearfs_backends::config::LocalConfig;
use nearfs_backends::{LocalFileSystem, Spawner};
use nearfs_cache::{CacheConfig, CachedFileSystem};
use nearfs_mount::{Mount, MountOptions, MountSession};

use crate::support::*;

fn mount(
    source: &Path,
    dir: &Path,
    options: MountOptions,
    runtime: &tokio::runtime::Runtime,
) -> MountSession {
    let spawner = Spawner::new(runtime.handle().clone());
    let local = runtime.block_on(LocalFileSystem::open(LocalConfig::new(source))).unwrap();
    let config = CacheConfig { metadata_ttl: seconds(0.5), ..Default::default() };
    let fs = CachedFileSystem::new(std::sync::Arc::new(local), config, spawner.clone());
    Mount::start(fs, dir, options, spawner).unwrap()
}

#[test]
fn modes_and_times_are_those_of_the_source_and_programs_run() {
    let (runtime, source, dir) = (runtime(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::create_dir(source.path().join("bin")).unwrap();
    std::fs::write(source.path().join("bin/run"), "#!/bin/sh\nexit 7\n").unwrap();
    std::fs::set_permissions(source.path().join("bin/run"), PermissionsExt::from_mode(0o750)).unwrap();
    std::fs::copy("/bin/true", source.path().join("true")).unwrap();
    symlink("bin/run", source.path().join("link")).unwrap();
    let _session = mount(source.path(), dir.path(), MountOptions::default(), &runtime);
    let (there, here) = (source.path().join("bin/run"), dir.path().join("bin/run"));
    let (there, here_stat) = (std::fs::metadata(there).unwrap(), std::fs::metadata(&here).unwrap());
    assert_eq!(here_stat.mode() & 0o7777, 0o750);
    assert_eq!(here_stat.modified().unwrap(), there.modified().unwrap());
    assert_eq!(Command::new(&here).status().unwrap().code(), Some(7));
    assert!(Command::new(dir.path().join("true")).status().unwrap().success(), "mapped and executed");
    assert_eq!(std::fs::read(dir.path().join("link")).unwrap(), std::fs::read(here).unwrap());
}

#[test]
fn a_change_of_the_source_is_seen_within_the_lifetime() {
    let (runtime, source, dir) = (runtime(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::write(source.path().join("f"), "one").unwrap();
    let _session = mount(source.path(), dir.path(), MountOptions::default(), &runtime);
    let file = dir.path().join("f");
    assert_eq!(std::fs::read(&file).unwrap(), b"one");
    std::fs::write(source.path().join("f.new"), "number two").unwrap();
    std::fs::rename(source.path().join("f.new"), source.path().join("f")).unwrap();
    eventually(SOON, "the new version", || std::fs::read(&file).is_ok_and(|b| b == b"number two"));
    std::fs::set_permissions(source.path().join("f"), PermissionsExt::from_mode(0o600)).unwrap();
    eventually(SOON, "the new mode", || std::fs::metadata(&file).unwrap().mode() & 0o777 == 0o600);
    std::fs::remove_file(source.path().join("f")).unwrap();
    eventually(SOON, "it is gone", || !file.exists() && names(dir.path()).is_empty());
}

#[test]
fn a_directory_can_be_mounted_over_itself() {
    let (runtime, source) = (runtime(), tempfile::tempdir().unwrap());
    std::fs::write(source.path().join("f"), "below").unwrap();
    let session = mount(source.path(), source.path(), MountOptions::default(), &runtime);
    assert_eq!(std::fs::read(source.path().join("f")).unwrap(), b"below");
    assert_eq!(names(source.path()), ["f"]);
    assert_eq!(errno(std::fs::write(source.path().join("g"), "x")), libc::EROFS);
    drop(session);
    std::fs::write(source.path().join("g"), "x").unwrap();
}

#[test]
fn others_are_let_in_only_if_asked_for() {
    const NOBODY: u32 = 65534;
    for allow_other in [false, true] {
        let (runtime, source, dir) = (runtime(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        std::fs::write(source.path().join("f"), "text").unwrap();
        std::fs::set_permissions(source.path().join("f"), PermissionsExt::from_mode(0o644)).unwrap();
        let _session =
            mount(source.path(), dir.path(), MountOptions { allow_other, ..Default::default() }, &runtime);
        let mut cat = Command::new("cat");
        let out = cat.arg(dir.path().join("f")).uid(NOBODY).gid(NOBODY).output().unwrap();
        assert_eq!(out.stdout == b"text" && out.status.success(), allow_other, "{out:?}");
    }
}
