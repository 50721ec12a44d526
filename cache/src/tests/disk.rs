//! The disk tier under the whole cache: kept over restarts, shared live, and never in the way.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nearfs_backends::io::Buffer;
use nearfs_backends::layer::{Fault, FaultAction, Operation};
use nearfs_backends::{ErrorKind, File, FileSystem, OpenOptions, Spawner};
use nearfs_lab::stamp;

use super::{World, path};
use crate::clock::Clock;
use crate::{CacheConfig, CachedFile, CachedFileSystem, DiskConfig, DiskSize, DiskTier};

const MIB: u64 = 1 << 20;

fn tier(dir: &Path, limit: u64) -> Arc<DiskTier> {
    let config = DiskConfig {
        dirs: vec![dir.to_owned()],
        size: Some(DiskSize::Bytes(limit)),
        free: 0.0,
        ..DiskConfig::default()
    };
    DiskTier::open(&config).unwrap()
}

/// Another cache over the store of `world`, as another process or a later one would have.
fn cache(
    world: &World,
    disk: &Arc<DiskTier>,
    change: impl FnOnce(&mut CacheConfig),
) -> Arc<CachedFileSystem> {
    let mut config = CacheConfig { memory: 64 << 20, cache_local: true, ..CacheConfig::default() };
    change(&mut config);
    let spawner = Spawner::current().unwrap();
    let store = world.faults.clone();
    CachedFileSystem::with_clock(store, &config, Some(disk.clone()), spawner, Clock::system())
}

async fn put(world: &World, name: &str, size: u64, version: u32) {
    world.put(name, stamp::make(size as usize, 7, version)).await;
}

async fn open(cache: &Arc<CachedFileSystem>, name: &str) -> Arc<CachedFile> {
    let metadata = cache.lookup(&path(name)).await.unwrap().metadata.unwrap();
    cache.file(&path(name), &metadata)
}

fn check(bytes: &[u8], offset: u64, len: u64, version: u32) {
    assert_eq!(bytes.len() as u64, len);
    if len > 0 {
        let found = stamp::verify(bytes, offset, 7).unwrap();
        assert!(found == version || (found == 0 && len < 16), "version {found}");
    }
}

/// Reads all in steps and checks every byte.
async fn read_all(cache: &Arc<CachedFileSystem>, name: &str, step: u64, version: u32) {
    let file = open(cache, name).await;
    let size = file.metadata().size;
    let mut at = 0;
    while at < size {
        let bytes = file.read(at..at + step).await.unwrap();
        check(&bytes, at, step.min(size - at), version);
        at += bytes.len() as u64;
    }
}

const SIZES: [u64; 9] = [1, 100, 100_000, MIB - 1, MIB, MIB + 1, 5 * MIB, 8 * MIB + 77, 30 * MIB + 4097];

#[tokio::test(flavor = "multi_thread")]
async fn a_second_cache_over_the_directory_fetches_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let world = World::new(|_| ());
    for size in SIZES {
        put(&world, &format!("f{size}"), size, 1).await;
    }
    {
        let disk = tier(dir.path(), 1 << 30);
        let first = cache(&world, &disk, |c| c.memory = 256 << 20);
        for size in SIZES {
            read_all(&first, &format!("f{size}"), 100_000, 1).await;
        }
        disk.flush().await;
        let stats = first.stats();
        let total: u64 = SIZES.iter().sum();
        assert_eq!((stats.disk_written, stats.disk_dropped), (total, 0));
        assert!(stats.disk_used >= total && stats.disk_used < total + 2 * MIB, "{}", stats.disk_used);
    }
    // Steps of several kinds: inline, through memory, and into somebody's buffer.
    for (round, step) in [4095, MIB, 10 * MIB].into_iter().enumerate() {
        let disk = tier(dir.path(), 1 << 30);
        let next = cache(&world, &disk, |_| ());
        for size in SIZES {
            let name = format!("f{size}");
            read_all(&next, &name, step, 1).await;
            let file = open(&next, &name).await;
            let (n, buf) = file.read_into(size / 3, Buffer::with_capacity((size + 10) as usize)).await;
            assert_eq!(n.unwrap() as u64, size - size / 3);
            check(&buf, size / 3, size - size / 3, 1);
            for (from, to) in [(size / 2, size), (0, size.min(10)), (size.saturating_sub(5), size + 9)] {
                let bytes = file.read(from..to).await.unwrap();
                check(&bytes, from, to.min(size) - from, 1);
            }
        }
        let stats = next.stats();
        assert_eq!((stats.fetches, stats.bytes_fetched), (0, 0), "round {round}");
        assert!(stats.disk_read > 0 && stats.disk_hits > 0, "{stats:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn caches_over_one_directory_fetch_everything_once() {
    let dir = tempfile::tempdir().unwrap();
    let world = World::new(|_| ());
    let sizes = [300_000, 3 * MIB, 40 * MIB];
    for size in sizes {
        put(&world, &format!("f{size}"), size, 1).await;
    }
    world.faults.inject(Fault::on(Operation::Read, FaultAction::Delay(Duration::from_millis(20))));
    let disk = tier(dir.path(), 1 << 30);
    let caches: Vec<_> = (0..4).map(|_| cache(&world, &disk, |c| c.memory = 256 << 20)).collect();
    let mut readers = Vec::new();
    for (i, cache) in caches.iter().enumerate() {
        for size in sizes {
            let cache = cache.clone();
            let step = 100_000 + i as u64 * 50_000;
            readers.push(tokio::spawn(async move { read_all(&cache, &format!("f{size}"), step, 1).await }));
        }
    }
    for reader in readers {
        tokio::time::timeout(Duration::from_secs(60), reader).await.expect("a reader hangs").unwrap();
    }
    let fetched: u64 = caches.iter().map(|c| c.stats().bytes_fetched).sum();
    let waits: u64 = caches.iter().map(|c| c.stats().disk_waits).sum();
    let total: u64 = sizes.iter().sum();
    assert!(fetched <= total + total / 20, "{fetched} fetched of {total}");
    assert!(waits > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn c1_nothing_short_or_broken_is_ever_stored() {
    for size in [500_000, 5 * MIB, 20 * MIB] {
        for cut in [1, 64 << 10, 300_000] {
            for action in [
                FaultAction::Short(cut),
                FaultAction::Cut(cut, ErrorKind::Unavailable),
                FaultAction::Cut(cut, ErrorKind::Corrupt),
            ] {
                let dir = tempfile::tempdir().unwrap();
                let world = World::new(|_| ());
                put(&world, "r", size, 1).await;
                let disk = tier(dir.path(), 1 << 30);
                let first = cache(&world, &disk, |c| c.prefetch = false);
                let file = open(&first, "r").await;
                world.faults.inject(Fault::on(Operation::Read, action.clone()));
                for at in (0..size).step_by(2 << 20) {
                    assert!(file.read(at..at + MIB).await.is_err(), "what is short or broken is read");
                }
                disk.flush().await;
                world.faults.heal();
                let written = first.stats().disk_written;
                assert_eq!(written, 0, "{action:?} of {size}: {written} bytes were stored");
                let second = cache(&world, &disk, |_| ());
                read_all(&second, "r", 777_777, 1).await;
                assert_eq!(second.stats().bytes_fetched, size);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn b2_a_version_that_is_gone_is_not_mixed_with_what_is_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let world = World::new(|_| ());
    put(&world, "m", 20 * MIB, 1).await;
    let disk = tier(dir.path(), 1 << 30);
    let first = cache(&world, &disk, |c| c.prefetch = false);
    let file = open(&first, "m").await;
    check(&file.read(0..MIB).await.unwrap(), 0, MIB, 1);
    disk.flush().await;
    put(&world, "m", 18 * MIB, 2).await;
    world.faults.inject(Fault::on(Operation::Read, FaultAction::Fail(ErrorKind::Stale)).times(1));
    assert_eq!(file.read(10 * MIB..11 * MIB).await.unwrap_err().kind(), ErrorKind::Stale);
    assert_eq!(file.read(0..MIB).await.unwrap_err().kind(), ErrorKind::Stale);
    assert!(file.try_read(0..4096).is_none() && file.lend().is_none());
    read_all(&first, "m", MIB, 2).await;
    // What is left of the old version goes: nobody can complete it.
    disk.flush().await;
    let until = Instant::now() + Duration::from_secs(10);
    while disk.stats().used > 18 * MIB + 2 * MIB {
        assert!(Instant::now() < until, "{} bytes are kept", disk.stats().used);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn j1_the_limit_holds_under_a_stream_of_twenty_times_as_much() {
    let dir = tempfile::tempdir().unwrap();
    let world = World::new(|_| ());
    let (limit, size) = (16 * MIB, 10 * MIB);
    for i in 0..32 {
        put(&world, &format!("f{i}"), size, 1).await;
    }
    put(&world, "huge", 60 * MIB, 1).await;
    let disk = tier(dir.path(), limit);
    let cache = cache(&world, &disk, |_| ());
    let (over, stop) = (Arc::new(std::sync::atomic::AtomicU64::new(0)), Arc::new(()));
    let watch = tokio::spawn({
        let (disk, over, stop) = (disk.clone(), over.clone(), Arc::downgrade(&stop));
        async move {
            while stop.strong_count() > 0 {
                over.fetch_max(disk.stats().used, std::sync::atomic::Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    });
    for i in 0..32 {
        read_all(&cache, &format!("f{i}"), MIB, 1).await;
    }
    read_all(&cache, "huge", MIB, 1).await;
    disk.flush().await;
    drop(stop);
    watch.await.unwrap();
    let over = over.load(std::sync::atomic::Ordering::Relaxed);
    assert!(over <= limit, "{over} bytes of {limit}");
    let held = bytes_in(dir.path());
    assert!(held <= limit + MIB * 10, "{held} bytes on disk with a limit of {limit}");
    assert!(cache.stats().disk_evicted > 0 && cache.stats().disk_written > limit);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_damaged_on_disk_is_fetched_again_and_never_shown() {
    use std::os::unix::fs::FileExt;
    let world = World::new(|_| ());
    let sizes = [70_000, MIB, 5 * MIB, 20 * MIB];
    for size in sizes {
        put(&world, &format!("f{size}"), size, 1).await;
    }
    for damage in ["other bytes", "shorter", "gone", "state gone"] {
        let dir = tempfile::tempdir().unwrap();
        let disk = tier(dir.path(), 1 << 30);
        let first = cache(&world, &disk, |c| c.memory = 256 << 20);
        for size in sizes {
            read_all(&first, &format!("f{size}"), MIB, 1).await;
        }
        disk.flush().await;
        assert_eq!(first.stats().disk_dropped, 0);
        drop((first, disk));
        for file in files_in(dir.path()) {
            let is_state = file.extension().is_some_and(|e| e == "s");
            let open = || std::fs::File::options().write(true).open(&file).unwrap();
            match damage {
                "other bytes" if !is_state => open().write_all_at(&[7; 5000], 40_000).unwrap(),
                "shorter" if !is_state => open().set_len(50_000).unwrap(),
                "gone" if !is_state => std::fs::remove_file(&file).unwrap(),
                "state gone" if is_state => std::fs::remove_file(&file).unwrap(),
                _ => {}
            }
        }
        let disk = tier(dir.path(), 1 << 30);
        let second = cache(&world, &disk, |c| c.memory = 256 << 20);
        for size in sizes {
            read_all(&second, &format!("f{size}"), 100_000, 1).await;
        }
        assert!(second.stats().bytes_fetched > 0, "{damage} went unseen");
        disk.flush().await;
        let third = cache(&world, &disk, |_| ());
        for size in sizes {
            read_all(&third, &format!("f{size}"), MIB, 1).await;
        }
        assert_eq!(third.stats().bytes_fetched, 0, "{damage} is not mended");
    }
}

/// The data and state files of the cache in `dir`.
fn files_in(dir: &Path) -> Vec<std::path::PathBuf> {
    let objects = dir.join("nearfs-v1/objects");
    let fans = std::fs::read_dir(objects).unwrap().map(|fan| fan.unwrap().path());
    fans.flat_map(|fan| std::fs::read_dir(fan).unwrap().map(|file| file.unwrap().path())).collect()
}

/// Bytes of disk below `dir`, without the fixed files.
fn bytes_in(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let mut bytes = 0;
    let mut todo = vec![dir.to_owned()];
    while let Some(dir) = todo.pop() {
        for entry in std::fs::read_dir(dir).unwrap().flatten() {
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.is_dir() {
                todo.push(entry.path());
            } else if entry.file_name() != "index" && entry.file_name() != "control" {
                bytes += metadata.blocks() * 512;
            }
        }
    }
    bytes
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_ends_the_serving_of_what_is_held() {
    let dir = tempfile::tempdir().unwrap();
    let world = World::new(|_| ());
    for (name, size) in [("d/small", 100_000), ("d/large", 12 * MIB)] {
        put(&world, name, size, 1).await;
    }
    let disk = tier(dir.path(), 1 << 30);
    let ttl = Duration::from_millis(500);
    let cache = cache(&world, &disk, |c| c.metadata_ttl = crate::Lifetime::For(ttl));
    for name in ["d/small", "d/large"] {
        read_all(&cache, name, MIB, 1).await;
    }
    disk.flush().await;
    let files = [open(&cache, "d/small").await, open(&cache, "d/large").await];
    for operation in [Operation::Stat, Operation::List, Operation::Read] {
        world.faults.inject(Fault::on(operation, FaultAction::Fail(ErrorKind::PermissionDenied)));
    }
    for file in &files {
        let until = Instant::now() + ttl + Duration::from_secs(10);
        let error = loop {
            match file.read(0..100_000).await {
                Ok(bytes) => check(&bytes, 0, 100_000, 1),
                Err(e) => break e,
            }
            assert!(Instant::now() < until, "what is held is served without rights");
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        assert!(file.try_read(0..100_000).is_none() && file.lend().is_none());
    }
    world.faults.heal();
    for file in &files {
        check(&file.read(0..100_000).await.unwrap(), 0, 100_000, 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_file_is_lent_as_it_is_and_is_not_evicted_meanwhile() {
    use std::os::unix::fs::FileExt;
    let dir = tempfile::tempdir().unwrap();
    let world = World::new(|_| ());
    let sizes = [100_000, 6 * MIB];
    for size in sizes {
        put(&world, &format!("f{size}"), size, 1).await;
    }
    put(&world, "other", 40 * MIB, 1).await;
    let disk = tier(dir.path(), 24 * MIB);
    let cache = cache(&world, &disk, |_| ());
    let mut lent = Vec::new();
    for size in sizes {
        let name = format!("f{size}");
        assert!(open(&cache, &name).await.lend().is_none(), "nothing is there yet");
        read_all(&cache, &name, MIB, 1).await;
        disk.flush().await;
        let file = cache.open(&path(&name), OpenOptions::default()).await.unwrap();
        assert!(file.as_fd().is_some(), "{size}: {:?} {:?}", cache.stats(), disk.stats());
        lent.push((size, file));
    }
    assert!(cache.stats().disk_lent >= 6 * MIB);
    for _ in 0..2 {
        read_all(&cache, "other", MIB, 1).await;
        disk.flush().await;
    }
    for (size, file) in &lent {
        let plain = std::fs::File::from(file.as_fd().unwrap().try_clone_to_owned().unwrap());
        assert_eq!(plain.metadata().unwrap().len(), *size);
        let mut bytes = vec![0; *size as usize];
        plain.read_exact_at(&mut bytes, 0).unwrap();
        check(&bytes, 0, *size, 1);
    }
    drop(lent);
    assert_eq!(cache.stats().disk_lent, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_dropped_is_fetched_again_when_nothing_else_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let world = World::new(|_| ());
    for i in 0..8 {
        put(&world, &format!("s{i}"), 900_000, 1).await;
    }
    put(&world, "large", 30 * MIB, 1).await;
    let disk = tier(dir.path(), 1 << 30);
    // So little memory that only 512 KiB may wait for the disk: all of these are dropped.
    let first = cache(&world, &disk, |c| c.memory = 4 << 20);
    for i in 0..8 {
        read_all(&first, &format!("s{i}"), MIB, 1).await;
    }
    let until = Instant::now() + Duration::from_secs(20);
    while first.stats().disk_dropped < 8 * 900_000 {
        assert!(Instant::now() < until, "{:?}", first.stats());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let second = cache(&world, &disk, |c| c.memory = 16 << 20);
    read_all(&second, "large", MIB, 1).await;
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        disk.flush().await;
        let stats = second.stats();
        if stats.disk_written == 30 * MIB {
            break;
        }
        assert!(
            Instant::now() < until,
            "{} of {} dropped bytes came",
            stats.disk_refetched,
            stats.disk_dropped
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let third = cache(&world, &disk, |_| ());
    read_all(&third, "large", MIB, 1).await;
    assert_eq!(third.stats().bytes_fetched, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_stays_within_its_budget_with_a_disk_behind() {
    let dir = tempfile::tempdir().unwrap();
    let world = World::new(|_| ());
    for i in 0..6 {
        put(&world, &format!("f{i}"), 24 * MIB, 1).await;
    }
    let disk = tier(dir.path(), 1 << 30);
    for _ in 0..2 {
        let cache = cache(&world, &disk, |c| c.memory = 16 << 20);
        let readers: Vec<_> = (0..6)
            .map(|i| {
                let cache = cache.clone();
                tokio::spawn(async move { read_all(&cache, &format!("f{i}"), MIB, 1).await })
            })
            .collect();
        for reader in readers {
            tokio::time::timeout(Duration::from_secs(60), reader).await.expect("a reader hangs").unwrap();
            let stats = cache.stats();
            assert!(stats.memory_used <= stats.memory_limit && stats.memory_limit == 16 << 20, "{stats:?}");
        }
        disk.flush().await;
    }
}
