//! What changes in the store: seen in time, never mixed.

use std::time::{Duration, Instant};

use nearfs_backends::ErrorKind;
use nearfs_cache::Lifetime;
use nearfs_lab::{Fault, Op, Rule};

use super::{MIB, World, check, path, read_all};

#[tokio::test(flavor = "multi_thread")]
async fn b1_a_new_version_is_seen_after_the_lifetime_and_never_in_parts() {
    let lifetime = Duration::from_millis(700);
    let world = World::new(|c| c.metadata_ttl = Lifetime::For(lifetime)).await;
    let mut size_before = 0;
    for size in [10, 25, 4, 3 * MIB, MIB] {
        let written = Instant::now();
        let version = world.put("s.bin", size);
        loop {
            let before = Instant::now();
            let file = world.open("s.bin").await;
            let seen = file.metadata().size;
            match read_all(&file, 100_000).await {
                Ok(found) if seen == size => assert!(found == 0 || found == version),
                Ok(_) => assert_eq!(seen, size_before, "neither the old nor the new size"),
                Err(e) => assert_eq!(e.kind(), ErrorKind::Stale),
            }
            if seen == size {
                break;
            }
            assert!(
                before - written < lifetime + Duration::from_millis(300),
                "the old version is still shown"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        size_before = size;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn b2_object_replaced_during_a_read() {
    for (how, new_size) in [("longer", Some(64 * MIB)), ("shorter", Some(8 * MIB)), ("deleted", None)] {
        let world = World::new(|_| ()).await;
        let v1 = world.put("m.bin", 48 * MIB);
        let file = world.open("m.bin").await;
        let first = file.read(0..8 * MIB).await.unwrap();
        assert_eq!(check(&file, &first, 0, 0), v1);
        match new_size {
            Some(size) => {
                world.put("m.bin", size);
            }
            None => assert!(world.lab.delete("b", "m.bin")),
        }
        let mut readers = Vec::new();
        for reader in 0..8u64 {
            let file = file.clone();
            readers.push(tokio::spawn(async move {
                let mut failed = false;
                for i in 0..24 {
                    let at = (i * 7 + reader * 3) % 24 * 2 * MIB;
                    match file.read(at..at + MIB).await {
                        Ok(bytes) => {
                            assert!(!failed, "a stale handle gave bytes again");
                            check(&file, &bytes, at, 1);
                        }
                        Err(e) => {
                            assert_eq!(e.kind(), ErrorKind::Stale, "{e:#}");
                            failed = true;
                        }
                    }
                }
                failed
            }));
        }
        for reader in readers {
            assert!(reader.await.unwrap(), "{how}: the end of the old version is gone");
        }
        assert_eq!(file.read(0..4096).await.unwrap_err().kind(), ErrorKind::Stale);
        // A new open asks anew, though the lifetime is a minute.
        let lookup = world.cache.lookup(&path("m.bin")).await.unwrap();
        match new_size {
            None => assert!(lookup.metadata.is_none()),
            Some(size) => {
                let file = world.open("m.bin").await;
                assert_eq!(file.metadata().size, size);
                assert_eq!(read_all(&file, MIB).await.unwrap(), v1 + 1);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn d1_a_busy_store_is_never_an_empty_one() {
    let world = World::new(|c| c.metadata_ttl = Lifetime::For(Duration::from_millis(300))).await;
    for i in 0..20 {
        world.put(&format!("shards/{i:03}"), 300_000);
    }
    world.lab.fault(Rule::on(Op::HeadObject, Fault::status(503)).or(Op::ListObjectsV2).probability(0.2, 7));
    world.lab.fault(Rule::on(Op::GetObject, Fault::status(503)).probability(0.1, 11));
    let mut readers = Vec::new();
    for reader in 0..8u64 {
        let cache = world.cache.clone();
        readers.push(tokio::spawn(async move {
            for i in 0..5 {
                let key = path(&format!("shards/{:03}", (i * 7 + reader * 5) % 20));
                match cache.lookup(&key).await {
                    Ok(lookup) => {
                        let metadata = lookup.metadata.expect("busy is not absent");
                        let file = cache.file(&key, &metadata);
                        if let Err(e) = read_all(&file, 100_000).await {
                            assert!(
                                matches!(e.kind(), ErrorKind::Throttled | ErrorKind::Unavailable),
                                "{e:#}"
                            );
                        }
                    }
                    Err(e) => {
                        assert!(matches!(e.kind(), ErrorKind::Throttled | ErrorKind::Unavailable), "{e:#}")
                    }
                }
            }
        }));
    }
    for reader in readers {
        reader.await.unwrap();
    }
    world.lab.clear_faults();
    tokio::time::sleep(Duration::from_millis(400)).await;
    for i in 0..20 {
        assert_eq!(read_all(&*world.open(&format!("shards/{i:03}")).await, MIB).await.unwrap(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn b3_a_new_object_is_seen_within_the_negative_lifetime_while_polled() {
    let negative = Duration::from_millis(400);
    let world = World::new(|c| c.negative_ttl = Lifetime::For(negative)).await;
    for i in 0..3 {
        world.put(&format!("ck/{i}"), 100);
    }
    assert_eq!(world.names("ck").await.len(), 3);
    let started = Instant::now();
    let mut written = None;
    let seen = loop {
        if written.is_none() && started.elapsed() > Duration::from_millis(1500) {
            world.put("ck/step-4.pt", 5);
            written = Some(Instant::now());
        }
        let lookup = world.cache.lookup(&path("ck/step-4.pt")).await.unwrap();
        if lookup.metadata.is_some() {
            break Instant::now();
        }
        assert!(started.elapsed() < Duration::from_secs(10), "polling extends absence");
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    // With slack for a busy machine.
    assert!(seen - written.unwrap() < negative + Duration::from_millis(600));
    let heads = world.lab.counters().of(Op::HeadObject);
    assert!(heads <= 8, "{heads} requests for one name in two seconds");
}
