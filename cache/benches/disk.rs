//! What the disk tier costs and gains, as ratios in one run: cold reads with it against the same without, warm reads
//! against the same bytes as plain local files.
//!
//! `cargo bench -p nearfs-cache --bench disk [-- PART…]` with parts of `cold small warm epoch`. The directory is made
//! in `$TMPDIR`; take one on a disk.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use futures::StreamExt;
use nearfs_backends::layer::{RetryLayer, TimeoutConfig, TimeoutLayer};
use nearfs_backends::{FileSystem, FsPath, Registry, Spawner, StoreOptions, StoreUrl};
use nearfs_cache::{CacheConfig, CachedFileSystem, DiskConfig, DiskSize, DiskTier};
use nearfs_lab::{Lab, Model};

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;
const ROUNDS: usize = 5;
const FILES: usize = 5000;
const SMALL: u64 = 100 << 10;

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let on = |part: &str| wanted.is_empty() || wanted.iter().any(|w| w == part);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let lab = Lab::builder().bucket("b").start().unwrap();
    lab.put_synthetic("b", "big", GIB, 7);
    let keys = lab.tree("b", "small", 1, FILES, SMALL);
    if on("cold") {
        for (name, model) in
            [("30 ms, 90 MB/s a connection", Model::network(30.0, 90.0)), ("no latency", Model::default())]
        {
            lab.set_model(model);
            pairs(&format!("cold stream of 1 GiB, {name}"), "without", "with the disk", GIB, |disk| {
                cold(&runtime, &lab, disk, |cache| stream(cache, "big"))
            });
        }
    }
    if on("small") {
        lab.set_model(Model::network(30.0, 90.0));
        let bytes = FILES as u64 * SMALL;
        pairs("cold epoch of 5000 x 100 KiB, 30 ms", "without", "with the disk", bytes, |disk| {
            cold(&runtime, &lab, disk, |cache| epoch(cache, keys.clone()))
        });
    }
    lab.set_model(Model::default());
    if on("warm") {
        warm(&runtime, &lab);
    }
    if on("epoch") {
        warm_epoch(&runtime, &lab, &keys);
    }
}

/// Runs both in turn, and prints the median of each and of their ratios.
fn pairs(what: &str, first: &str, second: &str, bytes: u64, mut run: impl FnMut(bool) -> f64) {
    let mut rows: Vec<(f64, f64)> = (0..ROUNDS).map(|_| (run(false), run(true))).collect();
    let rate = |seconds: f64| bytes as f64 / 1e6 / seconds;
    let median = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        (values[values.len() / 2], values[0], values[values.len() - 1])
    };
    let (a, ..) = median(rows.iter().map(|r| rate(r.0)).collect());
    let (b, ..) = median(rows.iter().map(|r| rate(r.1)).collect());
    let (ratio, low, high) = median(rows.drain(..).map(|r| r.0 / r.1).collect());
    println!("{what}: {first} {a:.0} MB/s, {second} {b:.0} MB/s, ratio {ratio:.2} ({low:.2} to {high:.2})");
}

async fn caching(lab: &Lab, disk: Option<Arc<DiskTier>>) -> Arc<CachedFileSystem> {
    let mut options = StoreOptions::new(Spawner::current().unwrap());
    options.s3.endpoint = Some(lab.endpoint());
    options.s3.anonymous = true;
    let fs = Registry::with_defaults().open(&StoreUrl::parse("s3://b").unwrap(), &options).await.unwrap();
    let fs = Arc::new(TimeoutLayer::new(fs, TimeoutConfig::default()));
    let fs = Arc::new(RetryLayer::new(fs, Default::default()).unwrap());
    CachedFileSystem::with_disk(fs, CacheConfig::default(), disk, Spawner::current().unwrap())
}

fn disk_at(dir: &Path) -> Arc<DiskTier> {
    let size = Some(DiskSize::Bytes(8 * GIB));
    DiskTier::open(&DiskConfig { dirs: vec![dir.to_owned()], size, ..DiskConfig::default() }).unwrap()
}

/// Seconds of a run over an empty cache.
fn cold<F: Future<Output = ()>>(
    runtime: &tokio::runtime::Runtime,
    lab: &Lab,
    with_disk: bool,
    run: impl FnOnce(Arc<CachedFileSystem>) -> F,
) -> f64 {
    let dir = tempfile::tempdir().unwrap();
    let disk = with_disk.then(|| disk_at(dir.path()));
    runtime.block_on(async {
        let cache = caching(lab, disk.clone()).await;
        cache.stat(&FsPath::parse("big").unwrap()).await.unwrap();
        let started = Instant::now();
        run(cache.clone()).await;
        let seconds = started.elapsed().as_secs_f64();
        if let Some(disk) = disk {
            disk.flush().await;
            let stats = cache.stats();
            println!(
                "  {} MiB of {} dropped, written after {:.2} s",
                stats.disk_dropped >> 20,
                stats.bytes_fetched >> 20,
                started.elapsed().as_secs_f64()
            );
        }
        seconds
    })
}

/// Reads again until nothing of it has to be fetched: what was dropped comes then.
async fn complete<F: Future<Output = ()>>(
    lab: &Lab,
    disk: &Arc<DiskTier>,
    run: impl Fn(Arc<CachedFileSystem>) -> F,
) {
    for _ in 0..10 {
        disk.flush().await;
        let cache = caching(lab, Some(disk.clone())).await;
        run(cache.clone()).await;
        if cache.stats().fetches == 0 {
            return;
        }
    }
    panic!("something is never kept");
}

/// Reads as the kernel asks: a MiB at a time, the next one before the last is here.
async fn stream(cache: Arc<CachedFileSystem>, key: &str) {
    let path = FsPath::parse(key).unwrap();
    let metadata = cache.stat(&path).await.unwrap();
    let file = cache.file(&path, &metadata);
    let reads = (0..metadata.size / MIB).map(|i| {
        let file = file.clone();
        async move { file.read(i * MIB..(i + 1) * MIB).await.unwrap().len() }
    });
    let mut reads = futures::stream::iter(reads).buffered(2);
    while reads.next().await.is_some() {}
}

async fn epoch(cache: Arc<CachedFileSystem>, keys: Vec<String>) {
    let reads = keys.into_iter().map(|key| {
        let cache = cache.clone();
        async move {
            let path = FsPath::parse(&key).unwrap();
            let metadata = cache.stat(&path).await.unwrap();
            cache.file(&path, &metadata).read(0..MIB).await.unwrap().len()
        }
    });
    let mut reads = futures::stream::iter(reads).buffer_unordered(32);
    while reads.next().await.is_some() {}
}

/// A plain file of 1 GiB and the same in the cache, read by one thread.
fn warm(runtime: &tokio::runtime::Runtime, lab: &Lab) {
    let dir = tempfile::tempdir().unwrap();
    let disk = disk_at(&dir.path().join("cache"));
    runtime.block_on(async {
        let cache = caching(lab, Some(disk.clone())).await;
        stream(cache.clone(), "big").await;
        complete(lab, &disk, |cache| stream(cache, "big")).await;
    });
    let plain = dir.path().join("plain");
    let file = File::create(&plain).unwrap();
    (0..GIB / MIB).for_each(|i| file.write_all_at(&vec![i as u8; MIB as usize], i * MIB).unwrap());
    for dropped in [false, true] {
        let what = format!("warm stream of 1 GiB, page cache {}", if dropped { "dropped" } else { "warm" });
        pairs(&what, "plain file", "cache", GIB, |cached| {
            settle(dir.path(), dropped);
            if cached {
                return runtime.block_on(async {
                    let cache = caching(lab, Some(disk.clone())).await;
                    let before = Instant::now();
                    stream(cache.clone(), "big").await;
                    assert_eq!(cache.stats().fetches, 0);
                    before.elapsed().as_secs_f64()
                });
            }
            let before = Instant::now();
            let (file, mut buf) = (File::open(&plain).unwrap(), vec![0; MIB as usize]);
            (0..GIB / MIB).for_each(|i| file.read_exact_at(&mut buf, i * MIB).unwrap());
            before.elapsed().as_secs_f64()
        });
    }
}

/// Files and the same in the cache, read by 4 threads.
fn warm_epoch(runtime: &tokio::runtime::Runtime, lab: &Lab, keys: &[String]) {
    let dir = tempfile::tempdir().unwrap();
    let disk = disk_at(&dir.path().join("cache"));
    runtime.block_on(async {
        let cache = caching(lab, Some(disk.clone())).await;
        epoch(cache.clone(), keys.to_vec()).await;
        complete(lab, &disk, |cache| epoch(cache, keys.to_vec())).await;
    });
    let plain: Vec<PathBuf> = keys.iter().map(|key| dir.path().join("plain").join(key)).collect();
    for path in &plain {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, vec![7; SMALL as usize]).unwrap();
    }
    let threads = |read: &(dyn Fn(usize) + Sync)| {
        std::thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || (thread..FILES).step_by(4).for_each(read));
            }
        });
    };
    for dropped in [false, true] {
        let state = if dropped { "dropped" } else { "warm" };
        let what = format!("warm epoch of 5000 x 100 KiB by 4 threads, page cache {state}");
        pairs(&what, "plain files", "cache", FILES as u64 * SMALL, |cached| {
            settle(dir.path(), dropped);
            if !cached {
                let before = Instant::now();
                threads(&|i| {
                    let (file, mut buf) = (File::open(&plain[i]).unwrap(), vec![0; SMALL as usize]);
                    file.read_exact_at(&mut buf, 0).unwrap();
                });
                return before.elapsed().as_secs_f64();
            }
            let cache = runtime.block_on(async {
                let cache = caching(lab, Some(disk.clone())).await;
                let listing = cache.read_dir(&FsPath::parse("small/d0000").unwrap()).await.unwrap();
                listing.entries(FILES - 1, 1).await.unwrap();
                cache
            });
            let before = Instant::now();
            threads(&|i| {
                let path = FsPath::parse(&keys[i]).unwrap();
                let metadata = cache.peek(&path).unwrap().metadata.unwrap();
                let file = cache.file(&path, &metadata);
                if file.try_read(0..MIB).is_none() {
                    runtime.block_on(file.read(0..MIB)).unwrap();
                }
            });
            let seconds = before.elapsed().as_secs_f64();
            let stats = cache.stats();
            assert_eq!(stats.fetches, 0);
            if dropped != (stats.disk_hits < FILES as u64 / 2) {
                println!("  {} of {FILES} out of the page cache", stats.disk_hits);
            }
            seconds
        });
    }
}

/// Has everything below `dir` written back, and out of the page cache if so wanted; otherwise in it.
fn settle(dir: &Path, dropped: bool) {
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        if entry.path().is_dir() {
            settle(&entry.path(), dropped);
            continue;
        }
        let Ok(file) = File::open(entry.path()) else { continue };
        if dropped {
            rustix::fs::fdatasync(file.as_fd()).unwrap();
            rustix::fs::fadvise(file.as_fd(), 0, None, rustix::fs::Advice::DontNeed).unwrap();
        } else {
            let (mut at, mut buf) = (0, vec![0; MIB as usize]);
            while let Ok(n @ 1..) = file.read_at(&mut buf, at) {
                at += n as u64;
            }
        }
    }
}
