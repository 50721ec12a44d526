//! Requests, bytes and memory stay within bounds.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nearfs_lab::{Fault, Model, Op, Rule, stamp};

use crate::harness::{BUCKET, Mount, lab, read_stamped, within};

#[test]
fn k1_many_open_handles_share_one_budget() {
    let lab = lab();
    let size = 2u64 << 30;
    let keys: Vec<_> = (0..500).map(|i| format!("big{i:03}")).collect();
    for key in &keys {
        lab.put_synthetic(BUCKET, key, size, stamp::key_id(key));
    }
    let mount = Mount::start(&lab, "s3://data", &["--memory", "256MiB"]);
    let start = mount.memory();
    let files: Vec<_> = keys.iter().map(|k| File::open(mount.join(k)).unwrap()).collect();
    let next = AtomicU64::new(0);
    let peak = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..32 {
            scope.spawn(|| {
                loop {
                    peak.fetch_max(mount.memory(), Relaxed);
                    let i = next.fetch_add(1, Relaxed) as usize;
                    let Some(file) = files.get(i) else { break };
                    for at in 0..4u64 {
                        read_stamped(file, &keys[i], at << 20..(at + 1) << 20).unwrap();
                    }
                }
            });
        }
    });
    let served = AtomicU64::new(0);
    let until = Instant::now() + Duration::from_secs(10);
    std::thread::scope(|scope| {
        for thread in 0..32u64 {
            let (files, keys, served, peak, mount) = (&files, &keys, &served, &peak, &mount);
            scope.spawn(move || {
                let mut state = thread * 7919 + 1;
                while Instant::now() < until {
                    state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    let i = (state >> 33) as usize % files.len();
                    let at = (state >> 20) % (size / 65536) * 65536;
                    read_stamped(&files[i], &keys[i], at..at + 65536).unwrap();
                    if served.fetch_add(1, Relaxed) % 16 == 0 {
                        peak.fetch_max(mount.memory(), Relaxed);
                    }
                }
            });
        }
    });
    assert!(served.load(Relaxed) > 100, "the readers make progress");
    let peak = peak.into_inner();
    assert!(peak < 400 << 20, "peak {} MiB with a budget of 256 MiB", peak >> 20);
    // Idle handles give their buffers back, although they stay open.
    let deadline = Instant::now() + Duration::from_secs(40);
    while mount.memory() > start + (100 << 20) && Instant::now() < deadline {
        sleep(Duration::from_millis(500));
    }
    let idle = mount.memory();
    assert!(idle <= start + (100 << 20), "{} MiB idle, {} MiB at the start", idle >> 20, start >> 20);
}

#[test]
fn k2_small_random_reads_fetch_little_more_than_is_asked() {
    let lab = lab();
    let size = 4u64 << 30;
    lab.put_synthetic(BUCKET, "big", size, stamp::key_id("big"));
    let mount = Mount::start(&lab, "s3://data", &["--memory", "128MiB"]);
    let file = File::open(mount.join("big")).unwrap();
    // As a data loader that knows what it does: no kernel readahead around random reads.
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).unwrap();
    for threads in [1u64, 16] {
        lab.reset_counters();
        let per_thread = 800 / threads;
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let file = &file;
                scope.spawn(move || {
                    let mut state = thread * 104729 + threads;
                    for _ in 0..per_thread {
                        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                        let at = (state >> 20) % (size / 65536) * 65536;
                        read_stamped(file, "big", at..at + 65536).unwrap();
                    }
                });
            }
        });
        let asked = 800 * 65536;
        let fetched = lab.counters().body_bytes;
        eprintln!("{threads} threads: {:.2} bytes fetched for each asked", fetched as f64 / asked as f64);
        assert!(fetched <= 4 * asked, "{threads} threads: fetched {fetched}, asked {asked}");
    }
    // A stride of 64 KiB in each MiB is not a stream either.
    lab.reset_counters();
    for i in 0..200u64 {
        let at = (1 << 30) + (i << 20);
        read_stamped(&file, "big", at..at + 65536).unwrap();
    }
    let fetched = lab.counters().body_bytes;
    assert!(fetched <= 200 * 4 * 65536, "stride: fetched {} KiB a read", fetched / 200 / 1024);
    // One early sequential run does not leave prefetch on for ever.
    for i in 0..64u64 {
        read_stamped(&file, "big", i << 20..(i + 1) << 20).unwrap();
    }
    sleep(Duration::from_secs(2));
    lab.reset_counters();
    let mut state = 99u64;
    for _ in 0..300 {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let at = (2 << 30) + (state >> 20) % ((1 << 30) / 65536) * 65536;
        read_stamped(&file, "big", at..at + 65536).unwrap();
    }
    let fetched = lab.counters().body_bytes;
    assert!(fetched <= 4 * 300 * 65536 + (16 << 20), "random after sequential: fetched {fetched}");
}

#[test]
fn k3_names_cost_pages_of_listings_not_requests_each() {
    let lab = lab();
    for i in 0..20_000 {
        lab.put(BUCKET, format!("big/f{i:05}"), &b""[..]);
    }
    lab.tree(BUCKET, "tree", 200, 100, 100);
    lab.set_model(Model { list_ms: Some(20.0), head_ms: Some(20.0), ..Model::default() });
    let mount = Mount::start(&lab, "s3://data", &["--metadata-ttl", "300s"]);

    lab.reset_counters();
    let sizes: Vec<u64> =
        fs::read_dir(mount.join("big")).unwrap().map(|e| e.unwrap().metadata().unwrap().len()).collect();
    assert_eq!(sizes, [0; 20_000]);
    let counters = lab.counters();
    assert!(
        counters.lists() <= 25 && counters.of(Op::HeadObject) <= 2,
        "list and stat of 20 000: {counters:?}"
    );

    let mount = Mount::start(&lab, "s3://data", &["--metadata-ttl", "300s"]);
    lab.reset_counters();
    assert_eq!(fs::read(mount.join("big/f12345")).unwrap(), b"");
    let counters = lab.counters();
    assert!(counters.total() <= 5, "one open by name: {counters:?}");

    let walk = || {
        let mut files = 0;
        for dir in fs::read_dir(mount.join("tree")).unwrap() {
            for file in fs::read_dir(dir.unwrap().path()).unwrap() {
                assert_eq!(file.unwrap().metadata().unwrap().len(), 100);
                files += 1;
            }
        }
        files
    };
    lab.reset_counters();
    assert_eq!(walk(), 20_000);
    let counters = lab.counters();
    assert!(counters.lists() <= 206 && counters.of(Op::HeadObject) <= 3, "walk: {counters:?}");
    lab.reset_counters();
    assert_eq!(walk(), 20_000);
    // The kernel forgets everything; within the lifetime that costs no request to the store.
    fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
    assert_eq!(walk(), 20_000);
    assert_eq!(lab.counters().total(), 0, "{:?}", lab.counters());
    let per_entry = mount.memory() / 40_000;
    eprintln!("{} bytes resident for each remembered entry, everything included", per_entry);
}

fn paged(mount: &Mount) -> Result<BTreeSet<String>, std::io::Error> {
    let dir = mount.join("dir");
    within(Duration::from_secs(60), move || {
        let mut names = BTreeSet::new();
        for entry in fs::read_dir(dir)? {
            let name = entry?.file_name().into_string().unwrap();
            assert!(names.insert(name.clone()), "{name} is listed twice");
        }
        Ok(names)
    })
}

#[test]
fn l1_a_listing_is_complete_or_an_error() {
    let lab = lab();
    let mut expected = BTreeSet::new();
    for i in 0..2402 {
        lab.put(BUCKET, format!("dir/k{i:05}"), &b"x"[..]);
        expected.insert(format!("k{i:05}"));
    }
    for i in 0..1500 {
        lab.put(BUCKET, format!("dir/k{:05}d/x", i * 2), &b"x"[..]);
        expected.insert(format!("k{:05}d", i * 2));
    }
    for size in [7, 999, 1000] {
        let id = lab.fault(Rule::on(Op::ListObjectsV2, Fault::ListPageSize { keys: size }));
        assert_eq!(paged(&Mount::bucket(&lab)).unwrap(), expected, "pages of {size}");
        lab.remove_fault(id);
    }
    // What can be saved is saved.
    for (name, rule) in [
        ("an empty page in the middle", Rule::on(Op::ListObjectsV2, Fault::ListEmptyPage).skip(2).once()),
        ("503 on page 3 once", Rule::on(Op::ListObjectsV2, Fault::status(503)).skip(2).once()),
        ("a dropped marker once", Rule::on(Op::ListObjectsV2, Fault::ListDropMarker).skip(1).once()),
    ] {
        lab.clear_faults();
        lab.fault(rule);
        let mount = Mount::bucket(&lab);
        match paged(&mount) {
            Ok(names) => assert_eq!(names, expected, "{name}"),
            Err(e) => {
                assert_eq!(e.raw_os_error(), Some(libc::EIO), "{name}: {e}");
                sleep(Duration::from_millis(1500));
                assert_eq!(paged(&mount).unwrap(), expected, "{name}, asked again");
            }
        }
        assert_eq!(lab.faults()[0].fired, 1, "{name} happened");
    }
    // What cannot is an error, and never remembered as a complete listing.
    for (name, rule) in [
        ("dropped markers", Rule::on(Op::ListObjectsV2, Fault::ListDropMarker).skip(1)),
        ("repeated tokens", Rule::on(Op::ListObjectsV2, Fault::ListRepeatToken).skip(1)),
        ("503 from page 3 on", Rule::on(Op::ListObjectsV2, Fault::status(503)).skip(2)),
    ] {
        lab.clear_faults();
        lab.fault(rule);
        let mount = Mount::start(&lab, "s3://data", &["--deadline", "5s"]);
        match paged(&mount) {
            // Some can be saved by asking again after the last name.
            Ok(names) => assert_eq!(names, expected, "{name}"),
            Err(e) => assert!(matches!(e.raw_os_error(), Some(libc::EIO | libc::ETIMEDOUT)), "{name}: {e}"),
        }
        lab.clear_faults();
        // A failure is remembered for a second, for those who wait behind it.
        sleep(Duration::from_millis(1500));
        assert_eq!(paged(&mount).unwrap(), expected, "after {name}");
    }
}

#[test]
fn l1_keys_that_come_and_go_between_pages_do_not_disturb_the_others() {
    let lab = lab();
    let mut untouched = BTreeSet::new();
    for i in 0..3000 {
        lab.put(BUCKET, format!("dir/k{i:05}"), &b"x"[..]);
        if i % 300 != 7 {
            untouched.insert(format!("k{i:05}"));
        }
    }
    lab.set_model(Model { list_ms: Some(100.0), ..Model::default() });
    let mount = Mount::bucket(&lab);
    let names = std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in 0..10 {
                sleep(Duration::from_millis(40));
                lab.put(BUCKET, format!("dir/k{:05}new", i * 300), &b"x"[..]);
                lab.delete(BUCKET, format!("dir/k{:05}", i * 300 + 7));
            }
        });
        paged(&mount).unwrap()
    });
    assert_eq!(untouched.difference(&names).count(), 0, "every untouched key is listed");
    assert!(
        names.iter().all(|n| untouched.contains(n) || n.ends_with("new") || n.ends_with("07")),
        "{names:?}"
    );
}

#[test]
fn random_reads_at_the_end_do_not_ask_past_it() {
    let lab = lab();
    lab.put_synthetic(BUCKET, "odd", (100 << 20) + 1, stamp::key_id("odd"));
    let mount = Mount::bucket(&lab);
    let file = File::open(mount.join("odd")).unwrap();
    let mut buf = [0; 4096];
    assert_eq!(file.read_at(&mut buf, 100 << 20).unwrap(), 1);
    assert_eq!(file.read_at(&mut buf, (100 << 20) + 1).unwrap(), 0);
    assert!(lab.counters().of(Op::GetObject) <= 2);
}
