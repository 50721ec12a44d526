//! What the cache costs and gains, as ratios in one run: a hit, and streams, small files, random reads and a walk
//! against a plain parallel client of the same store.
//!
//! `cargo bench -p nearfs-cache [-- PART…]` with parts of `hit stream small random first walk`; `stream trace`
//! shows how a stream gets going.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use nearfs_backends::layer::{RetryLayer, TimeoutConfig, TimeoutLayer};
use nearfs_backends::{
    FileSystem, FileSystemExt, FsPath, MemoryFileSystem, Metadata, Registry, Spawner, StoreOptions, StoreUrl,
};
use nearfs_cache::{CacheConfig, CachedFileSystem};
use nearfs_lab::{Lab, Model, fetch, stamp};

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;
const ROUNDS: usize = 3;

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let on = |part: &str| wanted.is_empty() || wanted.iter().any(|w| w == part);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    if on("hit") {
        runtime.block_on(hit());
    }
    let lab = Lab::builder().bucket("b").start().unwrap();
    lab.put_synthetic("b", "big", GIB, 7);
    if on("stream") {
        for (name, model) in
            [("30 ms, 90 MB/s a connection", Model::network(30.0, 90.0)), ("no latency", Model::default())]
        {
            lab.set_model(model);
            stream(&runtime, &lab, name, wanted.iter().any(|w| w == "trace"));
        }
    }
    lab.set_model(Model::network(30.0, 90.0));
    if on("small") {
        let keys = lab.tree("b", "small", 1, 5000, 100 << 10);
        small(&runtime, &lab, &keys);
    }
    if on("random") {
        random(&runtime, &lab);
    }
    if on("first") {
        first(&runtime, &lab);
    }
    if on("walk") {
        lab.tree("b", "walk", 500, 100, 0);
        lab.set_model(Model { list_ms: Some(60.0), ..Model::default() });
        lab.reset_counters();
        let cache = runtime.block_on(cache(&lab, |_| ()));
        let started = Instant::now();
        let files = runtime.block_on(walk(&cache, "walk"));
        let counters = lab.counters();
        println!(
            "walk: {files} files in {:?}, {} LISTs, {:?}",
            started.elapsed(),
            counters.lists(),
            counters.requests
        );
    }
}

async fn hit() {
    let store = Arc::new(MemoryFileSystem::new());
    let path = FsPath::parse("f").unwrap();
    store.write(&path, stamp::make(32 << 20, 1, 1).into()).await.unwrap();
    let config = CacheConfig { cache_local: true, ..CacheConfig::default() };
    let cache = CachedFileSystem::new(store, config, Spawner::current().unwrap());
    let metadata = cache.stat(&path).await.unwrap();
    let file = cache.file(&path, &metadata);
    for (name, len) in [("4 KiB", 4096u64), ("1 MiB", MIB)] {
        file.read(8 * MIB..9 * MIB).await.unwrap();
        let n = 200_000;
        let started = Instant::now();
        for i in 0..n {
            let at = 8 * MIB + if len == MIB { 0 } else { i % 256 * 4096 };
            std::hint::black_box(file.try_read(at..at + len).unwrap());
        }
        println!("try_read of {name}, a hit: {:?}", started.elapsed() / n as u32);
    }
    let n = 200_000;
    let started = Instant::now();
    for _ in 0..n {
        std::hint::black_box(cache.peek(&path).unwrap());
    }
    println!("peek, a hit: {:?}", started.elapsed() / n);
}

async fn store(lab: &Lab) -> Arc<dyn FileSystem> {
    let mut options = StoreOptions::new(Spawner::current().unwrap());
    options.s3.endpoint = Some(lab.endpoint());
    options.s3.anonymous = true;
    let fs = Registry::with_defaults().open(&StoreUrl::parse("s3://b").unwrap(), &options).await.unwrap();
    let fs = Arc::new(TimeoutLayer::new(fs, TimeoutConfig::default()));
    Arc::new(RetryLayer::new(fs, Default::default()).unwrap())
}

async fn cache(lab: &Lab, change: impl FnOnce(&mut CacheConfig)) -> Arc<CachedFileSystem> {
    let mut config = CacheConfig::default();
    change(&mut config);
    CachedFileSystem::new(store(lab).await, config, Spawner::current().unwrap())
}

fn median(mut runs: Vec<(f64, f64)>) -> (f64, f64) {
    runs.sort_by(|a, b| a.0.total_cmp(&b.0));
    runs[runs.len() / 2]
}

/// MB/s and CPU seconds of the whole process per GB, of a run that moves `bytes`.
fn measure(bytes: u64, mut run: impl FnMut()) -> (f64, f64) {
    let runs = (0..ROUNDS).map(|_| {
        let (started, before) = (Instant::now(), cpu());
        run();
        let gb = bytes as f64 / 1e9;
        (gb * 1e3 / started.elapsed().as_secs_f64(), (cpu() - before) / gb)
    });
    median(runs.collect())
}

fn cpu() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = text[text.rfind(')').unwrap() + 2..].split(' ').collect();
    let ticks = fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap();
    ticks / 100.0
}

fn stream(runtime: &tokio::runtime::Runtime, lab: &Lab, name: &str, trace: bool) {
    let connections = if name.starts_with("no") { 4 } else { 16 };
    let jobs = fetch::parts("b", "big", GIB, 8 * MIB);
    let plain = measure(GIB, || _ = fetch::run(lab.address(), connections, &jobs).unwrap());
    let mut peak = 0;
    let mut used = Vec::new();
    let cached = measure(GIB, || {
        runtime.block_on(async {
            let cache = cache(lab, |_| ()).await;
            let path = FsPath::parse("big").unwrap();
            let metadata = cache.stat(&path).await.unwrap();
            let file = cache.file(&path, &metadata);
            // As the kernel asks: a MiB at a time, the next one before the last is here.
            let reads = futures::stream::iter((0..GIB / MIB).map(|i| {
                let file = file.clone();
                async move { file.read(i * MIB..(i + 1) * MIB).await.unwrap().len() }
            }));
            let mut reads = reads.buffered(2);
            let (started, mut read) = (Instant::now(), 0);
            while reads.next().await.is_some() {
                let stats = cache.stats();
                peak = peak.max(stats.memory_used);
                read += 1;
                if trace && read % 32 == 0 {
                    let (t, s) = (started.elapsed(), stats);
                    println!(
                        "  {t:?}: {read} MiB read, {} fetched, {} in flight of {}",
                        s.bytes_fetched >> 20,
                        s.in_flight,
                        s.connections
                    );
                }
            }
            used.push(cache.stats());
        });
    });
    let stats = used.pop().unwrap();
    println!(
        "stream, {name}: plain {connections} connections {:.0} MB/s ({:.2} CPU s/GB with the server), cached one \
         reader {:.0} MB/s ({:.2}), ratio {:.2}; peak {} MiB, {} GETs, connections {}, wasted {} MiB",
        plain.0,
        plain.1,
        cached.0,
        cached.1,
        cached.0 / plain.0,
        peak >> 20,
        stats.fetches,
        stats.connections,
        stats.prefetch_wasted >> 20,
    );
}

fn small(runtime: &tokio::runtime::Runtime, lab: &Lab, keys: &[String]) {
    let bytes = keys.len() as u64 * (100 << 10);
    let jobs = fetch::whole("b", keys);
    let plain = measure(bytes, || _ = fetch::run(lab.address(), 32, &jobs).unwrap());
    for shuffled in [false, true] {
        let mut order: Vec<&String> = keys.iter().collect();
        if shuffled {
            order.sort_by_key(|k| stamp::key_id(k).wrapping_mul(2_654_435_761));
        }
        let mut last = None;
        lab.reset_counters();
        let cached = measure(bytes, || {
            runtime.block_on(async {
                let cache = cache(lab, |_| ()).await;
                let reads = order.iter().map(|key| {
                    let cache = cache.clone();
                    let path = FsPath::parse(key.as_str()).unwrap();
                    async move {
                        let metadata = cache.stat(&path).await.unwrap();
                        cache.file(&path, &metadata).read(0..MIB).await.unwrap().len()
                    }
                });
                assert_eq!(walk(&cache, "small").await, keys.len());
                let mut reads = futures::stream::iter(reads).buffer_unordered(32);
                while reads.next().await.is_some() {}
                last = Some(cache.stats());
            });
        });
        let (counters, stats) = (lab.counters(), last.unwrap());
        println!(
            "5000 small files, 32 readers, shuffled {shuffled}: plain 32 connections {:.0} MB/s, cached {:.0} MB/s, \
             ratio {:.2}; {:?} in {ROUNDS} rounds; siblings {} used {} wasted, connections {}",
            plain.0,
            cached.0,
            cached.0 / plain.0,
            counters.requests,
            stats.siblings_used,
            stats.siblings_wasted,
            stats.connections,
        );
    }
}

fn random(runtime: &tokio::runtime::Runtime, lab: &Lab) {
    const LEN: u64 = 128 << 10;
    const COUNT: usize = 2000;
    let bytes = COUNT as u64 * LEN;
    let jobs = fetch::random("b", "big", GIB, LEN, COUNT, 1);
    let plain = measure(bytes, || _ = fetch::run(lab.address(), 8, &jobs).unwrap());
    let mut fetched = 0;
    let mut seed = 1u64;
    let cached = measure(bytes, || {
        runtime.block_on(async {
            let cache = cache(lab, |_| ()).await;
            let path = FsPath::parse("big").unwrap();
            let metadata: Metadata = cache.stat(&path).await.unwrap();
            let file = cache.file(&path, &metadata);
            let reads = (0..COUNT).map(|_| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let at = (seed >> 20) % (GIB / 4096 - 32) * 4096;
                let file = file.clone();
                async move { file.read(at..at + LEN).await.unwrap().len() }
            });
            let mut reads = futures::stream::iter(reads.collect::<Vec<_>>()).buffer_unordered(8);
            while reads.next().await.is_some() {}
            fetched = cache.stats().bytes_fetched;
        });
    });
    println!(
        "random 128 KiB, 8 readers: plain 8 connections {:.0} MB/s, cached {:.0} MB/s, ratio {:.2}; {:.2} x the bytes",
        plain.0,
        cached.0,
        cached.0 / plain.0,
        fetched as f64 / bytes as f64,
    );
}

/// Time to the first 4 KiB of objects whose metadata is known.
fn first(runtime: &tokio::runtime::Runtime, lab: &Lab) {
    const COUNT: usize = 60;
    let keys: Vec<String> = (0..COUNT).map(|i| format!("first/{i:02}")).collect();
    keys.iter().for_each(|key| _ = lab.put_synthetic("b", key, GIB, 7));
    let middle = |mut times: Vec<Duration>| {
        times.sort();
        times[COUNT / 2]
    };
    let plain = (0..COUNT).map(|i| {
        let job = fetch::random("b", &keys[i], GIB, 4096, 1, 1);
        Duration::from_secs_f64(fetch::run(lab.address(), 1, &job).unwrap().seconds)
    });
    let plain = middle(plain.collect());
    runtime.block_on(async {
        let (store, cache) = (store(lab).await, cache(lab, |_| ()).await);
        assert_eq!(walk(&cache, "first").await, COUNT);
        let (mut raw, mut cached) = (Vec::new(), Vec::new());
        for key in &keys {
            let path = FsPath::parse(key).unwrap();
            let metadata = cache.stat(&path).await.unwrap();
            let started = Instant::now();
            let options = nearfs_backends::OpenOptions { metadata: Some(metadata.clone()) };
            store.open(&path, options).await.unwrap().read_at(0..4096).await.unwrap();
            raw.push(started.elapsed());
            let started = Instant::now();
            cache.file(&path, &metadata).read(0..16_384).await.unwrap();
            cached.push(started.elapsed());
        }
        println!("first 4 KiB: plain {plain:?}, store {:?}, cached {:?}", middle(raw), middle(cached));
    });
}

/// Walks as `find` does: one directory after the other, depth first. Returns the number of files.
async fn walk(cache: &Arc<CachedFileSystem>, dir: &str) -> usize {
    let mut todo = vec![FsPath::parse(dir).unwrap()];
    let mut files = 0;
    while let Some(dir) = todo.pop() {
        let listing = cache.read_dir(&dir).await.unwrap();
        let (mut from, mut dirs) = (0, Vec::new());
        loop {
            let page = listing.entries(from, 1024).await.unwrap();
            from += page.entries.len();
            for entry in page.entries.iter() {
                let path = dir.join(&entry.name).unwrap();
                let metadata = cache.stat(&path).await.unwrap();
                if metadata.is_dir() { dirs.push(path) } else { files += 1 }
            }
            if page.end {
                break;
            }
        }
        dirs.reverse();
        todo.append(&mut dirs);
    }
    tokio::time::sleep(Duration::ZERO).await;
    files
}
