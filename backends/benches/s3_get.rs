//! Moving bytes out of S3: our body streams against a plain parallel client, one server, one run.
//!
//! `cargo bench -p nearfs-backends --bench s3_get`. The server is a process of its own, so that the CPU time is the
//! client's alone. Ratios are what counts; the absolute numbers are the machine's.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use futures::{StreamExt, TryStreamExt};
use nearfs_backends::config::{S3Config, S3Keys};
use nearfs_backends::io::{BufferPool, BufferPoolConfig};
use nearfs_backends::{File, FileSystem, FsPath, ListOptions, OpenOptions, S3FileSystem, Spawner};
use nearfs_lab::{Lab, fetch};

const SIZE: u64 = 4 << 30;
const PART: u64 = 8 << 20;
const SMALL: usize = 5000;
const ROUNDS: usize = 3;

fn main() {
    if std::env::args().any(|a| a == "--serve") {
        serve();
        return;
    }
    let mut server = Server::start();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    println!("{:<34}{:>10}{:>14}{:>16}", "8 MiB ranges of one object", "MB/s", "CPU s/GB", "CPU vs plain");
    for connections in [1, 8] {
        let jobs = fetch::parts("b", "big", SIZE, PART);
        let plain = median((0..ROUNDS).map(|_| {
            let report = fetch::run(server.address.parse().unwrap(), connections, &jobs).unwrap();
            (report.mb_per_second, report.cpu_seconds / (SIZE as f64 / 1e9))
        }));
        show(&format!("plain client, {connections} connections"), plain, plain);
        for way in ["stream", "read_into", "read_at"] {
            let ours =
                median((0..ROUNDS).map(|_| runtime.block_on(read_all(&server.address, connections, way))));
            show(&format!("nearfs {way}, {connections} connections"), ours, plain);
        }
    }
    println!(
        "\n{:<34}{:>10}{:>14}{:>16}",
        "100 KiB objects, 32 at a time", "GETs/s", "CPU us/GET", "GETs/s vs plain"
    );
    let keys: Vec<_> = (0..SMALL).map(small).collect();
    let plain = median((0..ROUNDS).map(|_| {
        let report = fetch::run(server.address.parse().unwrap(), 32, &fetch::whole("b", &keys)).unwrap();
        (report.requests_per_second, report.cpu_seconds)
    }));
    let ours = median((0..ROUNDS).map(|_| runtime.block_on(read_small(&server.address))));
    for (name, (rate, cpu)) in [("plain client", plain), ("nearfs read_at", ours)] {
        println!("{name:<34}{rate:>10.0}{:>14.1}{:>16.2}", cpu * 1e6 / SMALL as f64, rate / plain.0);
    }
    server.stop();
}

fn small(i: usize) -> String {
    format!("small/{i:05}")
}

/// GETs a second and CPU seconds, metadata known.
async fn read_small(address: &str) -> (f64, f64) {
    let fs = connect(address).await;
    let (start, cpu) = (Instant::now(), cpu_seconds());
    let entries = fs.list(&FsPath::parse("small").unwrap(), ListOptions::default());
    let done = entries
        .map(|entry| {
            let fs = Arc::clone(&fs);
            async move {
                let entry = entry.unwrap();
                let options = OpenOptions { metadata: Some(entry.metadata) };
                let read =
                    async move { fs.open(&entry.path, options).await.unwrap().read_at(0..u64::MAX).await };
                tokio::spawn(read).await.unwrap().unwrap().len()
            }
        })
        .buffer_unordered(32)
        .fold(0, |sum, n| async move { sum + n })
        .await;
    assert_eq!(done, SMALL * (100 << 10));
    (SMALL as f64 / start.elapsed().as_secs_f64(), cpu_seconds() - cpu)
}

fn show(name: &str, (rate, cpu): (f64, f64), plain: (f64, f64)) {
    println!("{name:<34}{rate:>10.0}{cpu:>14.3}{:>16.2}", cpu / plain.1);
}

fn median(runs: impl Iterator<Item = (f64, f64)>) -> (f64, f64) {
    let (mut rates, mut cpus): (Vec<_>, Vec<_>) = runs.unzip();
    rates.sort_by(f64::total_cmp);
    cpus.sort_by(f64::total_cmp);
    (rates[rates.len() / 2], cpus[cpus.len() / 2])
}

/// MB/s and CPU seconds per GB.
async fn read_all(address: &str, connections: usize, way: &str) -> (f64, f64) {
    let fs = connect(address).await;
    let file = fs.open(&FsPath::parse("big").unwrap(), OpenOptions::default()).await.unwrap();
    let pool = BufferPool::new(BufferPoolConfig::default());
    let (start, cpu) = (Instant::now(), cpu_seconds());
    let total: u64 =
        futures::stream::iter((0..SIZE / PART).map(|i| {
            let (file, pool) = (Arc::clone(&file), pool.clone());
            let way = way.to_owned();
            async move {
                tokio::spawn(async move { read_part(&*file, &pool, i * PART, &way).await }).await.unwrap()
            }
        }))
        .buffer_unordered(connections)
        .fold(0, |sum, n| async move { sum + n })
        .await;
    assert_eq!(total, SIZE);
    let seconds = start.elapsed().as_secs_f64();
    (SIZE as f64 / 1e6 / seconds, (cpu_seconds() - cpu) / (SIZE as f64 / 1e9))
}

async fn connect(address: &str) -> Arc<S3FileSystem> {
    let config = S3Config {
        endpoint: Some(format!("http://{address}")),
        credentials: Some(S3Keys::new("id", "secret", None)),
        ..S3Config::new("b")
    };
    S3FileSystem::connect(config, Spawner::current().unwrap()).await.unwrap()
}

async fn read_part(file: &dyn File, pool: &BufferPool, at: u64, way: &str) -> u64 {
    match way {
        "stream" => {
            let pieces = file.read_stream(at..at + PART);
            pieces.try_fold(0, |n, piece| async move { Ok(n + piece.len() as u64) }).await.unwrap()
        }
        "read_into" => file.read_into(at, pool.get(PART as usize)).await.0.unwrap() as u64,
        _ => file.read_at(at..at + PART).await.unwrap().len() as u64,
    }
}

fn cpu_seconds() -> f64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: `usage` is a valid place for the kernel to fill.
    let done = unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) };
    assert_eq!(done, 0, "getrusage fails only on wrong arguments");
    // SAFETY: filled by the successful call above.
    let usage = unsafe { usage.assume_init() };
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

fn serve() {
    let lab = Lab::builder().bucket("b").start().unwrap();
    lab.put_synthetic("b", "big", SIZE, 1);
    for i in 0..SMALL {
        lab.put_synthetic("b", small(i), 100 << 10, 1);
    }
    println!("{}", lab.address());
    // Until the bench closes its end, also by dying.
    let _ = std::io::stdin().read(&mut [0]);
}

struct Server {
    process: Child,
    address: String,
}

impl Server {
    fn start() -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .arg("--serve")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut address = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut address).unwrap();
        Server { process, address: address.trim().to_owned() }
    }

    fn stop(&mut self) {
        drop(self.process.stdin.take());
        self.process.wait().unwrap();
    }
}
