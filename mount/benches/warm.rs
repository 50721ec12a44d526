//! What a warm mount costs through the kernel, next to the same call on a local directory.
//!
//! Needs root. Each group has the mount and the plain directory side by side; the ratio is what matters.

use std::hint::black_box;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use nearfs_backends::{FileSystemExt, FsPath, MemoryFileSystem, Spawner};
use nearfs_cache::{CacheConfig, CachedFileSystem, Lifetime};
use nearfs_mount::{Mount, MountOptions, MountSession};
use tempfile::TempDir;
use tokio::runtime::Runtime;

const SMALL: usize = 100 << 10;
const BIG: usize = 64 << 20;
const ENTRIES: usize = 2_000;

struct Pair {
    session: Option<MountSession>,
    mounted: TempDir,
    plain: TempDir,
    _runtime: Runtime,
}

impl Drop for Pair {
    fn drop(&mut self) {
        drop(self.session.take());
    }
}

/// The same files in a mount and in a local directory.
fn pair(ttl: Lifetime) -> Pair {
    let runtime = Runtime::new().unwrap();
    let (mounted, plain) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let memory = MemoryFileSystem::new();
    let put = |name: String, data: Vec<u8>| {
        let local = plain.path().join(&name);
        std::fs::create_dir_all(local.parent().unwrap()).unwrap();
        std::fs::write(local, &data).unwrap();
        runtime.block_on(memory.write(&FsPath::parse(&name).unwrap(), data.into())).unwrap();
    };
    put("small".into(), vec![7; SMALL]);
    put("big".into(), vec![7; BIG]);
    (0..ENTRIES).for_each(|i| put(format!("d/{i:05}"), Vec::new()));
    let spawner = Spawner::new(runtime.handle().clone());
    let config = CacheConfig { metadata_ttl: ttl, cache_local: true, ..Default::default() };
    let fs = CachedFileSystem::new(Arc::new(memory), config, spawner.clone());
    let session = Mount::start(fs, mounted.path(), MountOptions::default(), spawner).unwrap();
    Pair { session: Some(session), mounted, plain, _runtime: runtime }
}

fn both(c: &mut Criterion, name: &str, bytes: u64, pair: &Pair, work: impl Fn(&Path)) {
    let mut group = c.benchmark_group(name);
    group.measurement_time(Duration::from_secs(3)).sample_size(20);
    if bytes > 0 {
        group.throughput(Throughput::Bytes(bytes));
    }
    for (system, dir) in [("mount", pair.mounted.path()), ("plain", pair.plain.path())] {
        work(dir);
        group.bench_function(system, |b| b.iter(|| work(dir)));
    }
    group.finish();
}

fn walk(dir: &Path) {
    for entry in std::fs::read_dir(dir.join("d")).unwrap() {
        black_box(entry.unwrap().metadata().unwrap());
    }
}

fn warm(c: &mut Criterion) {
    let kept = pair(Lifetime::Forever);
    both(c, "open, read and close 100 KiB", SMALL as u64, &kept, |dir| {
        black_box(std::fs::read(dir.join("small")).unwrap());
    });
    both(c, "walk 2000 entries", 0, &kept, walk);
    let buffer = std::cell::RefCell::new(vec![0u8; (1 << 20) + 4096]);
    both(c, "read 64 MiB past the page cache", BIG as u64, &kept, |dir| {
        let file =
            std::fs::File::options().read(true).custom_flags(libc::O_DIRECT).open(dir.join("big")).unwrap();
        let mut buffer = buffer.borrow_mut();
        let start = buffer.as_ptr().align_offset(4096);
        for i in 0..(BIG >> 20) as u64 {
            file.read_exact_at(&mut buffer[start..start + (1 << 20)], i << 20).unwrap();
        }
    });
    // Every look at a name is a request: what a lookup through the mount costs.
    let asked = pair(Lifetime::For(Duration::ZERO));
    both(c, "look up a name whose lifetime is over", 0, &asked, |dir| {
        black_box(std::fs::metadata(dir.join("small")).unwrap());
    });
}

criterion_group!(benches, warm);
criterion_main!(benches);
