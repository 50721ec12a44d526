//! Answers that break off, stall or lie: whole right bytes or an error.

use std::time::Duration;

use nearfs_backends::io::Buffer;
use nearfs_backends::{FileSystem, OpenOptions};
use nearfs_lab::{Fault, Model, Op, Rule};

use super::{MIB, World, check, path, read_all};

#[tokio::test(flavor = "multi_thread")]
async fn c1_a_failure_that_looks_like_the_end_of_the_file() {
    let size = 20 * MIB;
    let faults = [
        Fault::Cut { after: 1 },
        Fault::Cut { after: MIB },
        Fault::Reset { after: MIB },
        Fault::EmptyBody,
        Fault::TruncatedChunked { after: 70_000 },
        Fault::status(500),
        Fault::WrongRange { shift: 16 },
    ];
    for fault in faults {
        // Once: the read goes on and is complete.
        let world = World::new(|_| ()).await;
        world.put("r.bin", size);
        world.lab.fault(Rule::on(Op::GetObject, fault.clone()).skip(1).once());
        let file = world.open("r.bin").await;
        match read_all(&file, 777_777).await {
            Ok(version) => assert_eq!(version, 1),
            // What is provably wrong is reported; asking again gives all of it.
            Err(e) => println!("{fault:?} once: {e}"),
        }
        assert_eq!(read_all(&file, MIB).await.unwrap(), 1, "{fault:?} was remembered");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c4_the_end_of_an_object_is_exact_and_nothing_is_asked_behind_it() {
    let world = World::new(|_| ()).await;
    let sizes = [1, MIB - 1, MIB, MIB + 1, 3 * MIB - 1, 3 * MIB, 3 * MIB + 1, 9 * MIB + 1];
    for size in sizes {
        world.put(&format!("f{size}"), size);
    }
    world.put("empty", 0);
    for size in sizes {
        let file = world.cache.open(&path(&format!("f{size}")), OpenOptions::default()).await.unwrap();
        for (offset, len) in
            [(0, size + 10 * MIB), (size - 1, 1), (size - 1, MIB), (size, 1), (size + 1, 10 * MIB)]
        {
            let expected = (offset + len).min(size).saturating_sub(offset);
            assert_eq!(file.read_at(offset..offset + len).await.unwrap().len() as u64, expected);
        }
        let (n, buf) = file.read_into(0, Buffer::with_capacity(2 * size as usize)).await;
        assert_eq!((n.unwrap() as u64, buf.len() as u64), (size, size));
    }
    let empty = world.cache.open(&path("empty"), OpenOptions::default()).await.unwrap();
    let before = world.lab.counters().of(Op::GetObject);
    assert!(empty.read_at(0..100).await.unwrap().is_empty());
    assert_eq!(world.lab.counters().of(Op::GetObject), before);
    assert_eq!(world.lab.counters().statuses.get(&416), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn stalled_objects_leave_others_their_connections() {
    let world = World::new(|c| c.memory = 256 << 20).await;
    for i in 0..8 {
        world.put(&format!("stalled/{i}"), 64 * MIB);
    }
    world.put("healthy", 32 * MIB);
    world.lab.fault(Rule::on(Op::GetObject, Fault::Stall { after: 0 }).prefix("stalled/"));
    let mut readers = Vec::new();
    for i in 0..8u64 {
        let file = world.open(&format!("stalled/{i}")).await;
        for reader in 0..16 {
            let file = file.clone();
            readers.push(tokio::spawn(async move {
                file.read(reader * 4 * MIB..reader * 4 * MIB + 100_000).await
            }));
        }
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let in_flight = world.cache.stats().in_flight;
    assert!(in_flight <= 8 * 8, "{in_flight} connections for stalled objects");
    let healthy = world.open("healthy").await;
    let read = tokio::time::timeout(Duration::from_secs(20), read_all(&healthy, MIB)).await;
    assert_eq!(read.expect("stalled objects hold others up").unwrap(), 1);
    readers.iter().for_each(|r| r.abort());
    // Nobody waits for them any more: they are given up, and their memory and connections come back.
    for _ in 0..200 {
        if world.cache.stats().in_flight == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(world.cache.stats().in_flight, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_store_serves_the_first_bytes_of_a_read_before_the_last() {
    let world = World::new(|_| ()).await;
    world.put("slow", 6 * MIB);
    // The whole object takes six seconds; the first bytes are there at once.
    world.lab.set_model(Model { connection_mbps: 1.0, ..Model::default() });
    let file = world.open("slow").await;
    let first = tokio::time::timeout(Duration::from_secs(4), file.read(0..65_536)).await;
    check(&file, &first.expect("it waits for the whole object").unwrap(), 0, 1);
    world.lab.set_model(Model::default());
    assert_eq!(read_all(&file, MIB).await.unwrap(), 1);
    assert_eq!(world.lab.counters().of(Op::GetObject), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_object_is_shown_when_it_is_proven_or_slow() {
    let world = World::new(|_| ()).await;
    let key = "wrong";
    let data = vec![0; 4 << 20];
    world.lab.put_with(crate::BUCKET, key, data, &[("x-amz-checksum-crc32c", "AAAAAA==")]);
    let file = world.open(key).await;
    let gets = || world.lab.counters().of(Op::GetObject);
    for part in [0..1, MIB..MIB + 10] {
        let before = gets();
        let e = file.read(part).await.unwrap_err();
        assert_eq!(e.kind(), nearfs_backends::ErrorKind::Corrupt, "{e:#}");
        assert!(gets() > before, "nothing of it was kept");
    }
    // The end is too far: what is here is shown.
    world.lab.set_model(Model { connection_mbps: 1.0, ..Model::default() });
    let first = tokio::time::timeout(Duration::from_secs(4), file.read(0..65_536)).await;
    first.expect("it waits for the whole object").unwrap();
    assert_eq!(
        file.read(4 * MIB - 1..4 * MIB).await.unwrap_err().kind(),
        nearfs_backends::ErrorKind::Corrupt
    );
    world.lab.set_model(Model::default());
    assert!(file.read(0..1).await.is_err(), "nothing of it was kept");
}
