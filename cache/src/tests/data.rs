//! Reads: right bytes, each fetched once, under the budget, whatever goes wrong.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nearfs_backends::io::Buffer;
use nearfs_backends::layer::{Fault, FaultAction, Operation, TimeoutConfig, TimeoutLayer};
use nearfs_backends::{ErrorKind, File, FileSystem, FileSystemExt, OpenOptions, Spawner};
use nearfs_lab::stamp;

use super::{World, path};
use crate::{CacheConfig, CachedFile, CachedFileSystem};

const MIB: u64 = 1 << 20;

async fn stamped(world: &World, name: &str, size: u64, version: u32) {
    world.put(name, stamp::make(size as usize, 7, version)).await;
}

async fn open(world: &World, name: &str) -> Arc<CachedFile> {
    let metadata = world.cache.lookup(&path(name)).await.unwrap().metadata.unwrap();
    world.cache.file(&path(name), &metadata)
}

fn check(bytes: &Bytes, offset: u64, len: u64, version: u32) {
    assert_eq!(bytes.len() as u64, len);
    if len > 0 {
        // Fewer bytes than a stamp has do not tell a version.
        let found = stamp::verify(bytes, offset, 7).unwrap();
        assert!(found == version || (found == 0 && len < 16), "version {found}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c4_the_end_of_an_object_is_exact_whatever_its_size() {
    let world = World::new(|_| ());
    let sizes = [0, 1, MIB - 1, MIB, MIB + 1, 3 * MIB - 1, 3 * MIB, 3 * MIB + 1, 9 * MIB + 5];
    for size in sizes {
        stamped(&world, &format!("f{size}"), size, 1).await;
    }
    for size in sizes {
        let name = format!("f{size}");
        let file = open(&world, &name).await;
        for offset in [0, 1, size / 2, size.saturating_sub(1), size, size + 1, u64::MAX - 5] {
            for len in [0, 1, 4095, MIB, 10 * MIB, 2 << 30] {
                let end = offset.saturating_add(len);
                let expected = end.min(size).saturating_sub(offset);
                check(&file.read(offset..end).await.unwrap(), offset, expected, 1);
                if let Some(bytes) = file.try_read(offset..end) {
                    check(&bytes, offset, expected, 1);
                }
            }
        }
        let mut at = 0;
        while at < size {
            let bytes = file.read(at..at + 4095).await.unwrap();
            check(&bytes, at, 4095.min(size - at), 1);
            at += bytes.len() as u64;
        }
        let (n, buf) = file.read_into(size / 3, Buffer::with_capacity((size + 10) as usize)).await;
        check(&buf.freeze(), size / 3, size - size / 3, 1);
        assert_eq!(n.unwrap() as u64, size - size / 3);
        let before = world.cache.stats().fetches;
        assert!(file.read(size..size + 1).await.unwrap().is_empty());
        assert_eq!(world.cache.stats().fetches, before, "no request behind the end");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_byte_is_fetched_once_however_many_want_it() {
    let world = World::new(|_| ());
    stamped(&world, "small", 100 << 10, 1).await;
    stamped(&world, "large", 24 * MIB, 1).await;
    world.faults.inject(Fault::on(Operation::Read, FaultAction::Delay(Duration::from_millis(30))));
    for (name, size) in [("small", 100 << 10), ("large", 24 * MIB)] {
        let before = world.cache.stats().bytes_fetched;
        let file = open(&world, name).await;
        let readers = (0..16).map(|i| {
            let file = file.clone();
            tokio::spawn(async move {
                let mut at = 0;
                let step = (64 << 10) * (1 + i % 4);
                while at < size {
                    let bytes = file.read(at..at + step).await.unwrap();
                    check(&bytes, at, step.min(size - at), 1);
                    at += bytes.len() as u64;
                }
            })
        });
        for reader in readers.collect::<Vec<_>>() {
            reader.await.unwrap();
        }
        let fetched = world.cache.stats().bytes_fetched - before;
        assert!(fetched <= size + size / 20, "{name}: {fetched} of {size}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn b2_a_handle_never_mixes_versions_and_stays_stale() {
    let world = World::new(|_| ());
    stamped(&world, "m", 20 * MIB, 1).await;
    let file = open(&world, "m").await;
    check(&file.read(0..MIB).await.unwrap(), 0, MIB, 1);
    stamped(&world, "m", 18 * MIB, 2).await;
    // The reference store keeps old versions for open handles, so the refusal is injected.
    world.faults.inject(Fault::on(Operation::Read, FaultAction::Fail(ErrorKind::Stale)).times(1));
    let error = file.read(10 * MIB..11 * MIB).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Stale);
    assert_eq!(file.read(0..MIB).await.unwrap_err().kind(), ErrorKind::Stale, "also for what was held");
    assert!(file.try_read(0..4096).is_none());
    let stats = world.cache.stats();
    // A new lookup asks the store although the lifetime is not over, and gets the new version.
    assert!(world.cache.peek(&path("m")).is_none());
    let file = open(&world, "m").await;
    let all = file.read(0..u64::MAX).await.unwrap();
    check(&all, 0, 18 * MIB, 2);
    assert!(world.cache.stats().stats > stats.stats);
}

#[tokio::test(flavor = "multi_thread")]
async fn c1_a_short_or_broken_answer_is_never_the_end_of_the_file() {
    let cuts = [1, 64 << 10, (64 << 10) + 1, MIB];
    for size in [5 * MIB, 20 * MIB] {
        for cut in cuts {
            for action in [FaultAction::Short(cut), FaultAction::Cut(cut, ErrorKind::Unavailable)] {
                let world = World::new(|c| c.prefetch = false);
                stamped(&world, "r", size, 1).await;
                let file = open(&world, "r").await;
                world.faults.inject(Fault::on(Operation::Read, action.clone()).times(1));
                let mut at = 0;
                let mut failures = 0;
                while at < size {
                    match file.read(at..at + 100_000).await {
                        Ok(bytes) => {
                            check(&bytes, at, 100_000.min(size - at), 1);
                            at += bytes.len() as u64;
                        }
                        Err(e) => {
                            assert!(matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Unavailable), "{e}");
                            failures += 1;
                        }
                    }
                }
                assert!(failures <= 1, "an error was remembered: {failures} failures");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_reaches_all_who_wait_and_is_not_remembered() {
    let world = World::new(|_| ());
    stamped(&world, "f", 3 * MIB, 1).await;
    let file = open(&world, "f").await;
    world.faults.inject(Fault::on(Operation::Read, FaultAction::Delay(Duration::from_millis(50))).times(1));
    world.faults.inject(Fault::on(Operation::Read, FaultAction::Cut(MIB, ErrorKind::TimedOut)).times(1));
    let reads = (0..10u64).map(|i| file.read(i * 300_000..(i + 1) * 300_000));
    for read in futures::future::join_all(reads).await {
        assert!(read.is_ok() || read.unwrap_err().kind() == ErrorKind::TimedOut);
    }
    check(&file.read(0..3 * MIB).await.unwrap(), 0, 3 * MIB, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_leaves_changes_nothing_for_the_others() {
    let world = World::new(|_| ());
    stamped(&world, "f", 3 * MIB, 1).await;
    let file = open(&world, "f").await;
    world.faults.inject(Fault::on(Operation::Read, FaultAction::Delay(Duration::from_millis(80))));
    let leaver = tokio::time::timeout(Duration::from_millis(20), file.read(0..MIB)).await;
    assert!(leaver.is_err());
    check(&file.read(0..MIB).await.unwrap(), 0, MIB, 1);
    assert_eq!(world.cache.stats().fetches, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_budget_holds_and_every_reader_goes_on() {
    let world = World::new(|c| c.memory = 8 << 20);
    for i in 0..12 {
        stamped(&world, &format!("f{i}"), 12 * MIB, 1).await;
    }
    for i in 0..40 {
        stamped(&world, &format!("s/{i}"), 300 << 10, 1).await;
    }
    let mut tasks = Vec::new();
    for i in 0..12 {
        let file = open(&world, &format!("f{i}")).await;
        tasks.push(tokio::spawn(async move {
            let mut at = 0;
            while at < 12 * MIB {
                let bytes = file.read(at..at + MIB).await.unwrap();
                check(&bytes, at, MIB.min(12 * MIB - at), 1);
                at += bytes.len() as u64;
            }
        }));
    }
    for i in 0..40 {
        let file = open(&world, &format!("s/{i}")).await;
        tasks.push(tokio::spawn(async move {
            check(&file.read(0..MIB).await.unwrap(), 0, 300 << 10, 1);
        }));
    }
    let limit = world.cache.stats().memory_limit;
    for task in tasks {
        tokio::time::timeout(Duration::from_secs(60), task).await.expect("every reader goes on").unwrap();
        assert!(world.cache.stats().memory_used <= limit);
    }
    assert_eq!(limit, 8 << 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_object_leaves_room_for_others() {
    let world = World::new(|_| ());
    for i in 0..9 {
        stamped(&world, &format!("f{i}"), 40 * MIB, 1).await;
    }
    let healthy = open(&world, "f8").await;
    let mut stalled = Vec::new();
    for i in 0..8 {
        let name = format!("f{i}");
        world.faults.inject(Fault::on(Operation::Read, FaultAction::Stall(0)).at(&path(&name)));
        let file = open(&world, &name).await;
        for r in 0..16 {
            let file = file.clone();
            stalled.push(tokio::spawn(async move { file.read(r * 2 * MIB..(r * 2 + 1) * MIB).await }));
        }
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    let read = tokio::time::timeout(Duration::from_secs(30), healthy.read(0..40 * MIB)).await;
    check(&read.expect("a stalled object holds others up").unwrap(), 0, 40 * MIB, 1);
    assert!(world.cache.stats().in_flight <= 64 + 8, "{}", world.cache.stats().in_flight);
    world.faults.heal();
    for task in stalled {
        tokio::time::timeout(Duration::from_secs(30), task).await.unwrap().unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_behind_a_request_that_times_out_does_not_wait_again() {
    let world = World::new(|_| ());
    stamped(&world, "f", 60 * MIB, 1).await;
    let limits = TimeoutConfig { first_item: Duration::from_millis(300), ..TimeoutConfig::default() };
    let timed = Arc::new(TimeoutLayer::new(world.faults.clone(), limits));
    let config =
        CacheConfig { memory: 64 << 20, cache_local: true, prefetch: false, ..CacheConfig::default() };
    let cache = CachedFileSystem::new(timed, config, Spawner::current().unwrap());
    let metadata = cache.stat(&path("f")).await.unwrap();
    let file = cache.file(&path("f"), &metadata);
    world.faults.inject(Fault::on(Operation::Read, FaultAction::Stall(0)));
    let readers: Vec<_> = (0..40)
        .map(|i| {
            let file = file.clone();
            tokio::spawn(async move { file.read(i * MIB..i * MIB + 1000).await })
        })
        .collect();
    for reader in readers {
        let read =
            tokio::time::timeout(Duration::from_secs(20), reader).await.expect("a reader waits for ever");
        assert_eq!(read.unwrap().unwrap_err().kind(), ErrorKind::TimedOut);
    }
    // Four requests of a silent object may run with this budget; they stood for all.
    let fetches = cache.stats().fetches;
    assert!(fetches <= 8, "{fetches} requests of a silent object ran into their limit");
    world.faults.heal();
    check(&file.read(0..60 * MIB).await.unwrap(), 0, 60 * MIB, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_and_ranges_give_the_same_bytes() {
    let world = World::new(|_| ());
    stamped(&world, "f", 30 * MIB + 77, 1).await;
    let file = world.cache.open(&path("f"), OpenOptions::default()).await.unwrap();
    let mut stream = file.read_stream(5..u64::MAX);
    let mut at = 5;
    while let Some(bytes) = futures::StreamExt::next(&mut stream).await {
        let bytes = bytes.unwrap();
        check(&bytes, at, bytes.len() as u64, 1);
        at += bytes.len() as u64;
    }
    assert_eq!(at, 30 * MIB + 77);
    let ranges = [10..20, 0..5, 7 * MIB..7 * MIB + 9, 15..3000, 3..3, 29 * MIB..99 * MIB, 8 * MIB..16 * MIB];
    for (range, bytes) in ranges.iter().zip(file.read_ranges(&ranges).await.unwrap()) {
        let len = range.end.min(30 * MIB + 77) - range.start;
        assert_eq!(bytes.len() as u64, len, "{range:?}");
        assert_eq!(bytes, file.read_at(range.clone()).await.unwrap(), "{range:?}");
    }
    assert!(file.as_fd().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn data_of_an_unknown_version_is_good_for_one_handle() {
    let world = World::new(|_| ());
    stamped(&world, "f", 100_000, 1).await;
    let mut metadata = world.cache.stat(&path("f")).await.unwrap();
    let shared = world.cache.file(&path("f"), &metadata);
    assert!(Arc::ptr_eq(&shared, &world.cache.file(&path("f"), &metadata)));
    metadata.version = nearfs_backends::Version::Unknown;
    let one = world.cache.file(&path("f"), &metadata);
    assert!(!Arc::ptr_eq(&one, &world.cache.file(&path("f"), &metadata)));
}

#[tokio::test(flavor = "multi_thread")]
async fn k2_random_reads_cost_little_more_than_they_ask_for() {
    let world = World::new(|_| ());
    let size = 64 * MIB;
    stamped(&world, "f", size, 1).await;
    let file = open(&world, "f").await;
    let mut seed = 1u64;
    let mut next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 20) % (size / 4096 - 32) * 4096
    };
    let mut asked = 0;
    for _ in 0..300 {
        let at = next();
        check(&file.read(at..at + (128 << 10)).await.unwrap(), at, 128 << 10, 1);
        asked += 128 << 10;
    }
    let fetched = world.cache.stats().bytes_fetched;
    assert!(fetched * 4 <= asked * 5, "{fetched} fetched for {asked}");
    // A stride is fetched ahead, exactly.
    let stride = open(&world, "f").await;
    let before = world.cache.stats();
    for i in 0..60 {
        let at = i * MIB + 8192;
        check(&stride.read(at..at + (64 << 10)).await.unwrap(), at, 64 << 10, 1);
    }
    let after = world.cache.stats();
    let fetched = after.bytes_fetched - before.bytes_fetched;
    assert!(fetched <= 80 * (64 << 10), "{fetched} fetched for {}", 60 * (64 << 10));
    assert!(after.prefetch_bytes > before.prefetch_bytes);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_stream_has_passed_and_what_is_idle_is_given_back() {
    let world = World::new(|c| {
        c.memory = 256 << 20;
        c.idle = Duration::from_millis(200);
    });
    stamped(&world, "f", 100 * MIB, 1).await;
    stamped(&world, "small", MIB, 1).await;
    open(&world, "small").await.read(0..MIB).await.unwrap();
    let file = open(&world, "f").await;
    for i in 0..100 {
        check(&file.read(i * MIB..(i + 1) * MIB).await.unwrap(), i * MIB, MIB, 1);
    }
    let used = world.cache.stats().memory_used;
    assert!(used <= 20 * MIB, "{used} held at the end of a stream");
    world.clock.skip(Duration::from_secs(1));
    for _ in 0..100 {
        if world.cache.stats().memory_used <= MIB {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(world.cache.stats().memory_used, MIB, "the small file stays");
    assert!(open(&world, "small").await.try_read(0..MIB).is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn small_files_bring_their_neighbours_and_cost_one_request_each() {
    for shuffled in [false, true] {
        let world = World::new(|_| ());
        for i in 0..200 {
            stamped(&world, &format!("d/{i:03}"), 10_000 + i, 1).await;
        }
        world.names("d").await;
        world.faults.inject(Fault::on(Operation::Read, FaultAction::Delay(Duration::from_millis(3))));
        let mut order: Vec<u64> = (0..200).collect();
        if shuffled {
            order.sort_by_key(|i| i.wrapping_mul(2_654_435_761) % 1009);
        }
        for i in order {
            let file = open(&world, &format!("d/{i:03}")).await;
            check(&file.read(0..MIB).await.unwrap(), 0, 10_000 + i, 1);
        }
        let stats = world.cache.stats();
        assert_eq!(stats.fetches, 200, "shuffled {shuffled}: one request a file");
        assert!(stats.siblings_used > 150 && stats.siblings_wasted == 0, "{stats:?}");
        assert_eq!(world.calls(), (0, 1));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn data_of_local_filesystems_is_left_to_the_system() {
    let world = World::new(|c| c.cache_local = false);
    stamped(&world, "f", MIB, 1).await;
    let file = world.cache.open(&path("f"), OpenOptions::default()).await.unwrap();
    check(&file.read_at(0..MIB).await.unwrap(), 0, MIB, 1);
    check(&world.cache.read(&path("f"), MIB).await.unwrap(), 0, MIB, 1);
    let stats = world.cache.stats();
    assert_eq!((stats.bytes_fetched, stats.memory_used), (0, 0));
}
