//! The disk tier between processes, over an S3 store: bytes come once, and trouble with the disk never reaches a
//! reader.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nearfs_backends::ErrorKind;
use nearfs_cache::{CachedFileSystem, DiskTier, Lifetime};
use nearfs_lab::{Model, Op, Rights};

use super::children::{Child, Reading, played};
use super::{MIB, World, check, disk_at, over, path, read_all};

async fn caching(world: &World, disk: &Arc<DiskTier>) -> Arc<CachedFileSystem> {
    over(&world.lab.endpoint(), Some(disk.clone()), |_| ()).await
}

async fn read(cache: &Arc<CachedFileSystem>, key: &str, step: u64) {
    let metadata = cache.lookup(&path(key)).await.unwrap().metadata.unwrap();
    read_all(&cache.file(&path(key), &metadata), step).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_epoch_by_a_new_cache_asks_for_no_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let world = World::new(|_| ()).await;
    let mut keys = world.lab.tree("b", "small", 4, 100, 100 << 10);
    for (key, size) in [("m", 3 * MIB), ("l", 64 * MIB + 5)] {
        world.put(key, size);
        keys.push(key.into());
    }
    for epoch in 0..3 {
        let disk = disk_at(dir.path(), 1 << 30);
        let cache = caching(&world, &disk).await;
        for key in &keys {
            read(&cache, key, MIB).await;
        }
        disk.flush().await;
        let gets = world.lab.counters().of(Op::GetObject);
        assert_eq!(gets > 0, epoch == 0, "{gets} GETs in epoch {epoch}");
        assert_eq!(cache.stats().disk_dropped, 0);
        world.lab.reset_counters();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn j3_processes_that_read_one_cold_object_at_once_fetch_it_once() {
    if played().await {
        return;
    }
    let test = "disk::j3_processes_that_read_one_cold_object_at_once_fetch_it_once";
    let dir = tempfile::tempdir().unwrap();
    let world = World::new(|_| ()).await;
    let size = 200 * MIB;
    world.put("big", size);
    world.lab.tree("b", "s", 1, 60, 200_000);
    world.lab.set_model(Model::network(10.0, 60.0));
    let mut keys = vec!["big".to_string()];
    keys.extend((0..60).map(|i| format!("s/d0000/f{i:05}.bin")));
    let endpoint = world.lab.endpoint();
    let mut children: Vec<_> = (0..4)
        .map(|i| {
            let step = MIB + i * 100_000;
            Child::start(test, &Reading { endpoint: &endpoint, dir: dir.path(), keys: &keys, step })
        })
        .collect();
    let disk = disk_at(dir.path(), 1 << 30);
    let cache = caching(&world, &disk).await;
    children.iter_mut().for_each(Child::ready);
    for key in &keys {
        read(&cache, key, MIB).await;
    }
    children.into_iter().for_each(Child::finish);
    let sent = world.lab.counters().body_bytes;
    let total = size + 60 * 200_000;
    assert!(sent <= total + total / 20, "{sent} bytes sent of {total}");
}

#[tokio::test(flavor = "multi_thread")]
async fn j3_a_waiter_takes_over_when_the_process_that_fetches_is_killed() {
    if played().await {
        return;
    }
    let test = "disk::j3_a_waiter_takes_over_when_the_process_that_fetches_is_killed";
    let world = World::new(|_| ()).await;
    for (key, size) in [("large", 40 * MIB), ("small", 900_000)] {
        let dir = tempfile::tempdir().unwrap();
        world.put(key, size);
        // So slow that the child is in the middle of it.
        world.lab.set_model(Model { connection_mbps: 0.2, ..Model::default() });
        let keys = [key.to_string()];
        let endpoint = world.lab.endpoint();
        let reading = Reading { endpoint: &endpoint, dir: dir.path(), keys: &keys, step: MIB };
        let mut child = Child::start(test, &reading);
        child.ready();
        let before = world.lab.counters().of(Op::GetObject);
        let until = Instant::now() + Duration::from_secs(20);
        while world.lab.counters().of(Op::GetObject) == before {
            assert!(Instant::now() < until, "the child does not read");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let disk = disk_at(dir.path(), 1 << 30);
        let cache = caching(&world, &disk).await;
        let metadata = cache.lookup(&path(key)).await.unwrap().metadata.unwrap();
        let file = cache.file(&path(key), &metadata);
        let reader = tokio::spawn(async move { read_all(&file, MIB).await.unwrap() });
        let until = Instant::now() + Duration::from_secs(20);
        while cache.stats().disk_waits == 0 {
            assert!(Instant::now() < until, "nobody waits for the child");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        child.kill();
        world.lab.set_model(Model::default());
        // 2 s to notice, and as much for a busy machine.
        let read = tokio::time::timeout(Duration::from_secs(8), reader).await;
        read.expect("the dead process is waited for").unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn j2_a_kill_in_the_middle_of_a_fill_leaves_nothing_wrong() {
    if played().await {
        return;
    }
    let test = "disk::j2_a_kill_in_the_middle_of_a_fill_leaves_nothing_wrong";
    let dir = tempfile::tempdir().unwrap();
    let world = World::new(|_| ()).await;
    let mut keys: Vec<_> = (0..6).map(|i| format!("l{i}")).collect();
    for key in &keys {
        world.put(key, 12 * MIB);
    }
    keys.extend(world.lab.tree("b", "s", 1, 40, 150_000));
    world.lab.set_model(Model::network(2.0, 40.0));
    let endpoint = world.lab.endpoint();
    for round in 0..8u64 {
        // In another order for each, so that they meet.
        let readers: Vec<_> = (0..3usize)
            .map(|i| {
                keys.rotate_left(11 + i);
                let reading = Reading { endpoint: &endpoint, dir: dir.path(), keys: &keys, step: 300_000 };
                Child::start(test, &reading)
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(250 + 60 * round)).await;
        readers.into_iter().for_each(Child::kill);
    }
    world.lab.set_model(Model::default());
    let disk = disk_at(dir.path(), 1 << 30);
    let cache = caching(&world, &disk).await;
    for key in &keys {
        read(&cache, key, MIB).await;
    }
    disk.flush().await;
    assert_eq!(cache.stats().disk_corrupt, 0, "what was stored was wrong");
    world.lab.reset_counters();
    let again = caching(&world, &disk).await;
    for key in &keys {
        read(&again, key, MIB).await;
    }
    assert_eq!(world.lab.counters().of(Op::GetObject), 0);
}

/// No right to anything that shows an object.
fn denied() -> Rights {
    let deny = vec![Op::GetObject, Op::HeadObject, Op::ListObjects, Op::ListObjectsV2];
    Rights { deny, ..Rights::default() }
}

/// A small filesystem of its own.
struct Tmpfs(tempfile::TempDir);

impl Tmpfs {
    fn new(bytes: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let options = std::ffi::CString::new(format!("size={bytes},mode=0700")).unwrap();
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("tmpfs", dir.path(), "tmpfs", flags, Some(options.as_c_str()))
            .expect("this test needs root");
        Tmpfs(dir)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.0.path(), rustix::mount::UnmountFlags::DETACH);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn j1_a_full_disk_never_reaches_a_reader() {
    let world = World::new(|_| ()).await;
    for i in 0..8 {
        world.put(&format!("f{i}"), 12 * MIB);
    }
    let small = world.lab.tree("b", "s", 1, 100, 100 << 10);
    let tmpfs = Tmpfs::new(48 * MIB);
    // The limit is beyond what the disk can hold, and somebody else fills it.
    let disk = disk_at(tmpfs.path(), 1 << 30);
    let ballast = tmpfs.path().join("ballast");
    let cache = caching(&world, &disk).await;
    for (round, fill) in [0, 24, 47, 60, 10].into_iter().enumerate() {
        // Beyond what is free this stops half-way, with nothing left.
        let _ = std::fs::write(&ballast, vec![1; fill << 20]);
        for i in 0..8 {
            read(&cache, &format!("f{i}"), MIB).await;
        }
        for key in small.iter().skip(round * 20) {
            read(&cache, key, MIB).await;
        }
        disk.flush().await;
    }
    assert!(cache.stats().disk_written > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_revoked_reads_nothing_that_is_cached() {
    let dir = tempfile::tempdir().unwrap();
    let world = World::new(|_| ()).await;
    let size = 12 * MIB;
    world.put("d/large", size);
    world.put("d/small", 200_000);
    let lifetime = Duration::from_secs(1);
    let disk = disk_at(dir.path(), 1 << 30);
    let endpoint = world.lab.endpoint();
    let brief = |c: &mut nearfs_cache::CacheConfig| c.metadata_ttl = Lifetime::For(lifetime);
    let cache = over(&endpoint, Some(disk.clone()), brief).await;
    let mut files = Vec::new();
    for key in ["d/large", "d/small"] {
        read(&cache, key, MIB).await;
        let metadata = cache.lookup(&path(key)).await.unwrap().metadata.unwrap();
        files.push(cache.file(&path(key), &metadata));
    }
    disk.flush().await;
    world.lab.set_anonymous_rights(denied());
    for file in &files {
        let until = Instant::now() + lifetime + Duration::from_secs(10);
        loop {
            match file.read(0..100_000).await {
                Ok(bytes) => drop(check(file, &bytes, 0, 1)),
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::PermissionDenied, "{e:#}");
                    break;
                }
            }
            assert!(Instant::now() < until, "it is served without rights");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let lookup = cache.lookup(file.path()).await;
        assert_eq!(lookup.unwrap_err().kind(), ErrorKind::PermissionDenied);
    }
    // Somebody else without rights gets nothing of what this process cached either.
    let other = over(&endpoint, Some(disk.clone()), |_| ()).await;
    let lookup = other.lookup(&path("d/small")).await;
    assert_eq!(lookup.unwrap_err().kind(), ErrorKind::PermissionDenied);
    let blind = other.file(files[0].path(), files[0].metadata());
    // Even with metadata from elsewhere: nothing was shown to it.
    let read = blind.read(0..100_000).await;
    assert_eq!(read.map(drop).unwrap_err().kind(), ErrorKind::PermissionDenied);
    world.lab.set_anonymous_rights(Rights::default());
    for file in &files {
        check(file, &file.read(0..100_000).await.unwrap(), 0, 1);
    }
}
