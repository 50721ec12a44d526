//! nearfs in one minute, with nothing but this machine: a small S3 server with the latency of a real one, a data set
//! of images and a shard in it, a mount, and a "training job" that knows nothing of any of this.
//!
//! ```sh
//! cargo run --release --example quickstart
//! ```
//!
//! Runs as root, or as a user who has `fusermount3`. Leaves nothing behind.

use std::error::Error;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use nearfs::mount::{Mount, MountOptions, UnmountOptions};
use nearfs_lab::{Lab, Model, stamp};

const CLASSES: usize = 20;
const IMAGES: usize = 100;
const IMAGE_BYTES: u64 = 110 << 10;
const SHARD: &str = "shards/train-000.tar";
const SHARD_BYTES: u64 = 256 << 20;
const SHARD_ID: u32 = 7;
const THREADS: usize = 8;

type Failure = Box<dyn Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let stopped = Arc::new(AtomicBool::new(false));
    watch_for_interrupt(stopped.clone());

    // The "cloud": 30 ms to the first byte, 90 MB/s on each connection.
    let lab = Lab::builder().bucket("quickstart").model(Model::network(30.0, 90.0)).start()?;
    lab.tree("quickstart", "images", CLASSES, IMAGES, IMAGE_BYTES);
    lab.put_synthetic("quickstart", SHARD, SHARD_BYTES, SHARD_ID);
    println!(
        "data set: {} images of {} KiB and one shard of {} MiB, behind 30 ms and 90 MB/s per connection",
        CLASSES * IMAGES,
        IMAGE_BYTES >> 10,
        SHARD_BYTES >> 20
    );

    // The mount. `nearfs mount s3://quickstart DIR` is the same from a shell.
    let dir = tempfile::Builder::new().prefix("nearfs-quickstart-").tempdir()?;
    let cache = tempfile::Builder::new().prefix("nearfs-quickstart-cache-").tempdir()?;
    let client = nearfs::Client::builder()
        .endpoint_url(lab.endpoint())
        .anonymous(true)
        .cache_dir(cache.path())
        .cache_size(1 << 30)
        .build()?;
    let opened = client.clone();
    let fs = nearfs::blocking::wait(async move { opened.cached("s3://quickstart", 1.0).await })?;
    let session = Mount::start(fs, dir.path(), MountOptions::default(), nearfs::spawner()?)?;
    println!("mounted on {}\n", dir.path().display());

    let result = job(&lab, dir.path(), &stopped);

    session.unmount(UnmountOptions { drain: Duration::from_secs(5), ..Default::default() })?;
    drop(session);
    // Nothing writes into the cache any more when it is removed.
    nearfs::blocking::wait(async move {
        client.flush(Duration::from_secs(5)).await;
        Ok(())
    })?;
    dir.close()?;
    cache.close()?;
    if stopped.load(Relaxed) {
        return Err("stopped; the mount, its directory and its cache are gone".into());
    }
    let rows = result?;
    print_table(&rows);
    println!("\nevery byte was checked; the mount, its directory and its cache are gone");
    Ok(())
}

/// One line of the table.
struct Row {
    name: &'static str,
    seconds: f64,
    files: u64,
    bytes: u64,
    requests: u64,
}

/// What a training job does, with plain file calls: look at everything, then read everything, twice.
fn job(lab: &Lab, root: &Path, stopped: &AtomicBool) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    let mut measure = |name, work: &mut dyn FnMut() -> Result<(u64, u64), Failure>| {
        lab.reset_counters();
        let start = Instant::now();
        let (files, bytes) = work()?;
        let seconds = start.elapsed().as_secs_f64();
        rows.push(Row { name, seconds, files, bytes, requests: lab.counters().total() });
        Ok::<_, Failure>(())
    };
    let mut files = Vec::new();
    measure("walk", &mut || {
        files = walk(root, stopped)?;
        Ok((files.len() as u64, 0))
    })?;
    let (shards, mut images): (Vec<_>, Vec<_>) = files.into_iter().partition(|p| p.ends_with(SHARD));
    if images.len() != CLASSES * IMAGES || shards.len() != 1 {
        return Err(format!("found {} images and {} shards", images.len(), shards.len()).into());
    }
    for (epoch, name) in ["images, first epoch", "images, second epoch"].into_iter().enumerate() {
        shuffle(&mut images, epoch as u64 + 1);
        measure(name, &mut || read_all(name, root, &images, stopped))?;
    }
    for name in ["shard, first epoch", "shard, second epoch"] {
        measure(name, &mut || read_all(name, root, &shards, stopped))?;
    }
    Ok(rows)
}

fn walk(root: &Path, stopped: &AtomicBool) -> Result<Vec<PathBuf>, Failure> {
    let (mut files, mut dirs) = (Vec::new(), vec![root.to_owned()]);
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            check(stopped)?;
            if entry.metadata()?.is_dir() { dirs.push(entry.path()) } else { files.push(entry.path()) }
        }
    }
    files.sort();
    Ok(files)
}

/// Reads every file with [`THREADS`] threads and checks each byte.
fn read_all(
    name: &'static str,
    root: &Path,
    files: &[PathBuf],
    stopped: &AtomicBool,
) -> Result<(u64, u64), Failure> {
    let total: u64 = files.iter().map(|f| fs::metadata(f).map_or(0, |m| m.len())).sum();
    let bar = ProgressBar::new(total);
    bar.set_style(ProgressStyle::with_template("{msg:22} {bar:30} {bytes}/{total_bytes} {bytes_per_sec}")?);
    bar.set_message(name);
    let (next, bytes, failure) = (AtomicUsize::new(0), AtomicU64::new(0), Mutex::new(None));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let mut buffer = vec![0; 1 << 20];
                while let Some(file) = files.get(next.fetch_add(1, Relaxed)) {
                    match read_one(root, file, &mut buffer, &bar, stopped) {
                        Ok(n) => bytes.fetch_add(n, Relaxed),
                        Err(error) => {
                            failure.lock().expect("no thread panics").get_or_insert(error);
                            return;
                        }
                    };
                }
            });
        }
    });
    bar.finish_and_clear();
    match failure.into_inner()? {
        Some(error) => Err(error),
        None => Ok((files.len() as u64, bytes.into_inner())),
    }
}

fn read_one(
    root: &Path,
    path: &Path,
    buffer: &mut [u8],
    bar: &ProgressBar,
    stopped: &AtomicBool,
) -> Result<u64, Failure> {
    let key = path.strip_prefix(root)?.as_os_str().as_bytes();
    let id = if key == SHARD.as_bytes() { SHARD_ID } else { stamp::key_id(key) };
    let mut file = fs::File::open(path)?;
    let mut offset = 0;
    loop {
        check(stopped)?;
        let n = file.read(buffer)?;
        if n == 0 {
            break;
        }
        stamp::verify(&buffer[..n], offset, id).map_err(|e| format!("{}: {e}", path.display()))?;
        offset += n as u64;
        bar.inc(n as u64);
    }
    let size = file.metadata()?.len();
    if offset != size {
        return Err(format!("{}: {offset} of {size} bytes", path.display()).into());
    }
    Ok(offset)
}

fn print_table(rows: &[Row]) {
    println!("{:22} {:>8} {:>10} {:>10} {:>10}", "", "seconds", "files/s", "MB/s", "requests");
    for r in rows {
        let rate =
            if r.bytes > 0 { format!("{:.0}", r.bytes as f64 / 1e6 / r.seconds) } else { "-".to_owned() };
        println!(
            "{:22} {:>8.2} {:>10.0} {:>10} {:>10}",
            r.name,
            r.seconds,
            r.files as f64 / r.seconds,
            rate,
            r.requests
        );
    }
    let times = |first: &str, second: &str| {
        let of = |name: &str| rows.iter().find(|r| r.name == name).map_or(f64::NAN, |r| r.seconds);
        of(first) / of(second)
    };
    println!(
        "\nsecond epoch: images {:.1} times as fast as the first, shard {:.1} times",
        times("images, first epoch", "images, second epoch"),
        times("shard, first epoch", "shard, second epoch")
    );
}

/// A fixed order for each epoch: Fisher-Yates with a 64-bit linear congruential generator (Knuth's MMIX constants).
fn shuffle(files: &mut [PathBuf], seed: u64) {
    let mut state = seed;
    for i in (1..files.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        files.swap(i, (state >> 33) as usize % (i + 1));
    }
}

fn check(stopped: &AtomicBool) -> Result<(), Failure> {
    if stopped.load(Relaxed) { Err("stopped".into()) } else { Ok(()) }
}

/// Ctrl-C ends the job between two reads, so that the mount is taken down in order.
fn watch_for_interrupt(stopped: Arc<AtomicBool>) {
    std::thread::spawn(move || {
        let waited = nearfs::blocking::wait(async { tokio::signal::ctrl_c().await.map_err(Into::into) });
        if waited.is_ok() {
            stopped.store(true, Relaxed);
        }
    });
}
