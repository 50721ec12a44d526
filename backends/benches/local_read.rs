//! Local reads by io_uring and by threads against plain `pread`: one reader in order, and eight at random.
//!
//! `cargo bench -p nearfs-backends --bench local_read [-- MIB]` writes a file of MIB (default 512) into the directory
//! for temporary files and prints medians of five rounds as ratios to plain reads of the same round. Cold rounds
//! drop the file from the page cache first, so put `TMPDIR` on a real disk.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use nearfs_backends::config::LocalConfig;
use nearfs_backends::io::{BufferPool, EngineChoice};
use nearfs_backends::{File as NearFile, FileSystem, FsPath, LocalFileSystem, OpenOptions};

const ROUNDS: usize = 5;
const PIECE: usize = 1 << 20;
const RANDOM: usize = 64 << 10;
const DEEP: usize = 8;

/// Wall time and processor time of one run.
type Cost = (Duration, Duration);

fn main() {
    let size = std::env::args().skip(1).find_map(|a| a.parse::<usize>().ok()).unwrap_or(512) << 20;
    let dir = tempfile::tempdir().expect("a directory for temporary files");
    let path = dir.path().join("data");
    write(&path, size);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let open = |engine| {
        runtime.block_on(async {
            let config = LocalConfig { engine, ..LocalConfig::new(dir.path()) };
            let fs = LocalFileSystem::open(config).await.expect("the engine works here");
            let name = FsPath::parse("data").expect("a legal name");
            fs.open(&name, OpenOptions::default()).await.expect("the file was just written")
        })
    };
    let files = [("uring", open(EngineChoice::Uring)), ("psync", open(EngineChoice::Psync))];
    println!("{} MiB in {}, medians of {ROUNDS}", size >> 20, dir.path().display());
    println!("{:<28} {:>12} {:>10} {:>16} {:>16}", "", "pread MB/s", "", "time / pread", "CPU / pread");
    for cold in [true, false] {
        for random in [false, true] {
            let bytes = if random { size / 4 } else { size };
            let name = match random {
                true => format!("{DEEP} deep random {} KiB", RANDOM >> 10),
                false => format!("in order {} MiB", PIECE >> 20),
            };
            let mut costs: [Vec<Cost>; 3] = Default::default();
            for _ in 0..ROUNDS {
                prepare(&path, cold);
                costs[0].push(measure(|| {
                    if random { plain_random(&path, bytes, size) } else { plain_in_order(&path) }
                }));
                for ((_, file), costs) in files.iter().zip(&mut costs[1..]) {
                    prepare(&path, cold);
                    costs.push(measure(|| runtime.block_on(near(file, random, bytes, size))));
                }
            }
            let [plain, engines @ ..] = costs.map(median);
            let rate = bytes as f64 / 1e6 / plain.0.as_secs_f64();
            for ((engine, _), cost) in files.iter().zip(engines) {
                let ratio = |a: Duration, b: Duration| a.as_secs_f64() / b.as_secs_f64().max(1e-9);
                println!(
                    "{:<28} {rate:>12.0} {engine:>10} {:>16.2} {:>16.2}",
                    format!("{name}, {}", if cold { "cold" } else { "warm" }),
                    ratio(cost.0, plain.0),
                    ratio(cost.1, plain.1),
                );
            }
        }
    }
}

fn write(path: &Path, size: usize) {
    let file = File::create(path).expect("room for the file");
    let piece: Vec<u8> = (0..PIECE).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    for at in (0..size).step_by(PIECE) {
        file.write_all_at(&piece, at as u64).expect("room for the file");
    }
    file.sync_all().expect("a working disk");
}

fn prepare(path: &Path, cold: bool) {
    let file = File::open(path).expect("the file is there");
    match cold {
        true => rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("advice is taken"),
        false => plain_in_order(path),
    }
}

fn plain_in_order(path: &Path) {
    let file = File::open(path).expect("the file is there");
    let mut piece = vec![0; PIECE];
    let mut at = 0;
    while let n @ 1.. = file.read_at(&mut piece, at).expect("a working disk") {
        at += n as u64;
    }
}

fn plain_random(path: &Path, bytes: usize, size: usize) {
    std::thread::scope(|scope| {
        for thread in 0..DEEP {
            scope.spawn(move || {
                let file = File::open(path).expect("the file is there");
                let mut piece = vec![0; RANDOM];
                for n in (thread..bytes / RANDOM).step_by(DEEP) {
                    file.read_exact_at(&mut piece, place(n, size)).expect("a working disk");
                }
            });
        }
    });
}

async fn near(file: &Arc<dyn NearFile>, random: bool, bytes: usize, size: usize) {
    let pool = BufferPool::default();
    let (piece, deep) = if random { (RANDOM, DEEP) } else { (PIECE, 2) };
    let reads = (0..bytes / piece).map(|n| {
        let (file, buf) = (file.clone(), pool.get(piece));
        let at = if random { place(n, size) } else { (n * piece) as u64 };
        // On the runtime's threads, as a program with many files would have it.
        async move { tokio::spawn(async move { file.read_into(at, buf).await.0 }).await.expect("no panic") }
    });
    let mut reads = futures::stream::iter(reads).buffered(deep);
    while let Some(n) = reads.next().await {
        assert_eq!(n.expect("a working disk"), piece);
    }
}

/// The n-th of many places, far from its neighbours.
fn place(n: usize, size: usize) -> u64 {
    let pieces = size / RANDOM;
    ((n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) % pieces * RANDOM) as u64
}

fn measure(work: impl FnOnce()) -> Cost {
    let (wall, cpu) = (Instant::now(), processor_time());
    work();
    (wall.elapsed(), processor_time() - cpu)
}

fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn median(mut costs: Vec<Cost>) -> Cost {
    costs.sort();
    costs[costs.len() / 2]
}
