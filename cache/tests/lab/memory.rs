//! One budget for all handles.

use std::time::Duration;

use super::{MIB, World, check, random};

#[tokio::test(flavor = "multi_thread")]
async fn k1_many_open_handles_share_the_budget_and_all_progress() {
    let limit = 48 * MIB;
    let world = World::new(|c| {
        c.memory = limit;
        c.idle = Duration::from_millis(500);
    })
    .await;
    let mut files = Vec::new();
    let keys: Vec<_> = (0..200).map(|i| format!("h/{i:03}")).collect();
    keys.iter().for_each(|key| _ = world.put(key, 2 << 30));
    for key in &keys {
        files.push(world.open(key).await);
    }
    let watch = |when: &str| {
        let used = world.cache.stats().memory_used;
        assert!(used <= limit, "{when}: {used} of {limit}");
    };
    // Every handle 2 MiB from the front, 32 at a time; then everywhere.
    let mut next = random(3);
    for (phase, len, steps) in [("sequential", 256 << 10, 8u64), ("random", 64 << 10, 4)] {
        for group in files.chunks(32) {
            let mut readers = Vec::new();
            for file in group {
                let file = file.clone();
                let at: Vec<u64> = (0..steps)
                    .map(|i| if phase == "random" { next((2 << 30) / 4096 - 32) * 4096 } else { i * len })
                    .collect();
                readers.push(tokio::spawn(async move {
                    for at in at {
                        let bytes = file.read(at..at + len).await.unwrap();
                        assert_eq!(bytes.len() as u64, len);
                        check(&file, &bytes, at, 1);
                    }
                }));
            }
            for reader in readers {
                tokio::time::timeout(Duration::from_secs(60), reader)
                    .await
                    .expect("a handle starves")
                    .unwrap();
                watch(phase);
            }
        }
    }
    // Idle, with all handles open.
    for _ in 0..100 {
        if world.cache.stats().memory_used == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(world.cache.stats().memory_used, 0, "idle handles keep memory");
    drop(files);
    assert_eq!(world.cache.stats().files, 0, "closed files are remembered");
}

#[tokio::test(flavor = "multi_thread")]
async fn k2_random_then_sequential_reads_of_one_object() {
    let world = World::new(|c| c.memory = 256 << 20).await;
    let size = 1 << 30;
    world.put("big", size);
    let file = world.open("big").await;
    let mut next = random(5);
    let mut readers = Vec::new();
    for _ in 0..8 {
        let file = file.clone();
        let at: Vec<u64> = (0..100).map(|_| next(size / 65_536 - 1) * 65_536).collect();
        readers.push(tokio::spawn(async move {
            for at in at {
                check(&file, &file.read(at..at + 65_536).await.unwrap(), at, 1);
            }
        }));
    }
    for reader in readers {
        reader.await.unwrap();
    }
    let stats = world.cache.stats();
    let asked = 8 * 100 * 65_536;
    assert!(stats.bytes_fetched * 4 <= asked * 5, "{} fetched for {asked}", stats.bytes_fetched);
    // Sequential after random is recognised: most of it was under way before it was asked for.
    let before = world.cache.stats();
    for i in 0..64 {
        let at = 512 * MIB + i * MIB;
        check(&file, &file.read(at..at + MIB).await.unwrap(), at, 1);
    }
    let after = world.cache.stats();
    assert!(after.prefetch_used - before.prefetch_used >= 48 * MIB, "{after:?}");
    // And one early stream does not leave prefetch on for ever.
    while world.cache.stats().in_flight > 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let before = world.cache.stats().bytes_fetched;
    for _ in 0..100 {
        let at = next(size / 65_536 - 1) * 65_536;
        check(&file, &file.read(at..at + 65_536).await.unwrap(), at, 1);
    }
    let fetched = world.cache.stats().bytes_fetched - before;
    assert!(fetched <= 100 * 65_536 * 3 / 2, "{fetched} fetched for {}", 100 * 65_536);
}
