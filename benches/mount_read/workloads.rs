//! What is read, how the plain client reads the same, and what is aimed at.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use nearfs_lab::{Fault, Lab, Model, Op, Rule, fetch, stamp};

use crate::systems::{Mounted, System};
use crate::{BUCKET, GIB, SMALL, WALK_BUCKET};

/// Figures of one run by name.
pub(crate) type Figures = BTreeMap<&'static str, f64>;

const READ: usize = 1 << 20;
const RANDOM: u64 = 128 << 10;
const RANDOM_READS: usize = 800;
const FIRST_BYTE_MS: f64 = 30.0;
const TAIL_READS: u64 = 2_400;

/// A way of reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Workload {
    Seq,
    SeqCpu,
    Small32,
    Random8,
    First,
    Walk,
    Handles,
    Stalls,
    Tail,
}

/// Puts the data sets of all workloads; they cost no memory.
pub(crate) fn seed(lab: &Lab) {
    for i in 0..12 {
        let key = format!("big/b{i}");
        lab.put_synthetic(BUCKET, &key, GIB, stamp::key_id(&key));
        let key = format!("deep{i}/a/b/c/b.bin");
        lab.put_synthetic(BUCKET, &key, GIB, stamp::key_id(&key));
    }
    for i in 0..8 {
        let key = format!("stalled/s{i}");
        lab.put_synthetic(BUCKET, &key, GIB, stamp::key_id(&key));
    }
    for i in 0..500 {
        let key = format!("many/h{i:03}");
        lab.put_synthetic(BUCKET, &key, 2 * GIB, stamp::key_id(&key));
    }
    lab.tree(BUCKET, "small", 50, 100, SMALL);
    lab.tree(WALK_BUCKET, "m", 500, 100, 4096);
}

fn small_keys() -> Vec<String> {
    nearfs_lab::tree_keys("small", 50, 100)
}

impl Workload {
    pub(crate) const ALL: [Workload; 9] = [
        Workload::Seq,
        Workload::SeqCpu,
        Workload::Small32,
        Workload::Random8,
        Workload::First,
        Workload::Walk,
        Workload::Handles,
        Workload::Stalls,
        Workload::Tail,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Workload::Seq => "seq",
            Workload::SeqCpu => "seq_cpu",
            Workload::Small32 => "small32",
            Workload::Random8 => "random8",
            Workload::First => "first",
            Workload::Walk => "walk",
            Workload::Handles => "handles",
            Workload::Stalls => "stalls",
            Workload::Tail => "tail",
        }
    }

    pub(crate) fn describe(self) -> &'static str {
        match self {
            Workload::Seq => {
                "one reader of 1 GiB, cold; 30 ms, 90 MB/s per connection; plain client: 16 connections"
            }
            Workload::SeqCpu => "one reader of 1 GiB, cold; no latency model; plain client: 4 connections",
            Workload::Small32 => {
                "5000 x 100 KiB by 32 threads after find; 30 ms; plain client: 32 connections"
            }
            Workload::Random8 => "random 128 KiB reads by 8 threads; 30 ms; plain client: 8 connections",
            Workload::First => "open to first 4 KiB of 1 GiB objects; 30 ms",
            Workload::Walk => "find and stat of 50 000 keys in 500 directories; 60 ms per LIST",
            Workload::Handles => {
                "500 handles of 2 GiB: 4 MiB each, then random 64 KiB for 20 s by 32 threads"
            }
            Workload::Stalls => {
                "1 GiB by one reader and 100 KiB files by 8 threads, alone and beside 128 readers of 8 stalled objects"
            }
            Workload::Tail => {
                "1 MiB at random offsets by 8 threads; 30 ms, 2 % of GETs 1 s; a second mount without hedging"
            }
        }
    }

    pub(crate) fn target(self) -> &'static str {
        match self {
            Workload::Seq => "mb_s >= 1.4 x plain client, peak_mb < 315 (300 MiB)",
            Workload::SeqCpu => "mb_s >= 1.8 x s3fs and >= 2.5 x rclone, cpu_s_per_gb <= 0.65",
            Workload::Small32 => {
                "files_s >= 0.85 x plain client, gets_per_file <= 1.05, lists_per_file <= 0.02, heads 0"
            }
            Workload::Random8 => "reads_s >= 0.9 x plain client, bytes_ratio <= 1.25",
            Workload::First => "known_ms <= 33, cold_ms <= 185 (depth 5)",
            Workload::Walk => "lists <= 510, seconds < 5",
            Workload::Handles => "peak_mb < 1235 (1.15 GiB) with --memory 1GiB",
            Workload::Stalls => "kept_seq and kept_small >= 0.8 of the rate alone",
            Workload::Tail => "p99_ms < 250, extra requests < 4 % (extra_percent)",
        }
    }

    /// The figure that is compared between systems: more is better.
    pub(crate) fn rate(self) -> &'static str {
        match self {
            Workload::Seq | Workload::SeqCpu => "mb_s",
            Workload::Small32 => "files_s",
            Workload::Random8 | Workload::Handles => "reads_s",
            Workload::First => "opens_s",
            Workload::Walk => "entries_s",
            Workload::Stalls => "kept_seq",
            Workload::Tail => "reads_s",
        }
    }

    /// Peers that would only take minutes to show what is known are left out.
    pub(crate) fn runs_on(self, system: System) -> bool {
        system == System::Nearfs
            || matches!(
                (self, system),
                (Workload::Seq | Workload::SeqCpu, _)
                    | (Workload::Small32, System::NearfsMemory)
                    | (Workload::Small32 | Workload::Random8, System::Rclone)
            )
    }

    fn model(self) -> Model {
        match self {
            Workload::SeqCpu | Workload::Handles => Model::default(),
            Workload::Walk => Model { list_ms: Some(60.0), ..Model::network(FIRST_BYTE_MS, 90.0) },
            Workload::Tail => {
                Model { slow_percent: 2.0, slow_ms: 1000.0, ..Model::network(FIRST_BYTE_MS, 90.0) }
            }
            _ => Model::network(FIRST_BYTE_MS, 90.0),
        }
    }

    /// The same bytes by the plain client.
    pub(crate) fn reference(self, lab: &Lab) -> Option<Figures> {
        lab.set_model(self.model());
        let (connections, jobs) = match self {
            Workload::Seq => (16, fetch::parts(BUCKET, "big/b0", GIB, 8 << 20)),
            Workload::SeqCpu => (4, fetch::parts(BUCKET, "big/b0", GIB, 8 << 20)),
            Workload::Small32 => (32, fetch::whole(BUCKET, small_keys())),
            Workload::Random8 => (8, fetch::random(BUCKET, "big/b1", GIB, RANDOM, RANDOM_READS, 1)),
            _ => return None,
        };
        let report = fetch::run(lab.address(), connections, &jobs).expect("the plain client reads the lab");
        let mut figures = Figures::new();
        match self {
            Workload::Seq | Workload::SeqCpu => figures.insert("mb_s", report.mb_per_second),
            Workload::Small32 => figures.insert("files_s", report.requests_per_second),
            _ => figures.insert("reads_s", report.requests_per_second),
        };
        Some(figures)
    }

    /// A run on a fresh mount.
    pub(crate) fn run(self, lab: &Lab, system: System, rep: u64) -> Figures {
        lab.set_model(Model::default());
        let bucket = if self == Workload::Walk { WALK_BUCKET } else { BUCKET };
        let args: &[&str] = match self {
            // What memory holds is measured, so nothing else may hold it.
            Workload::Handles => &["--memory", "1GiB", "--cache-size", "0"],
            Workload::Stalls => &["--deadline", "15s"],
            _ => &[],
        };
        let mount = system.mount(lab, bucket, args);
        lab.set_model(self.model());
        lab.reset_counters();
        let cpu = mount.cpu_seconds();
        let start = Instant::now();
        let mut figures = match self {
            Workload::Seq | Workload::SeqCpu => sequential(&mount, self == Workload::Seq),
            Workload::Small32 => small(lab, &mount, rep),
            Workload::Random8 => random(lab, &mount, rep),
            Workload::First => first(&mount),
            Workload::Walk => walk(lab, &mount),
            Workload::Handles => handles(&mount),
            Workload::Stalls => stalls(lab, &mount),
            Workload::Tail => tail(lab, &mount, rep),
        };
        figures.insert("seconds", start.elapsed().as_secs_f64());
        let cpu = mount.cpu_seconds() - cpu;
        if matches!(self, Workload::Seq | Workload::SeqCpu) {
            figures.insert("cpu_s_per_gb", cpu / (GIB as f64 / 1e9));
        }
        figures.insert("cpu_s", cpu);
        figures.insert("peak_mb", mount.peak_mb());
        let counters = lab.counters();
        figures.insert("gets", counters.of(Op::GetObject) as f64);
        figures.insert("max_connections", counters.connections_max as f64);
        if self == Workload::Tail {
            drop(mount);
            figures.extend(without_hedging(lab, system, figures["requests_per_read"], rep));
        }
        lab.set_model(Model::default());
        figures
    }
}

fn check(data: &[u8], offset: u64, key: &str) {
    if let Err(e) = stamp::verify(data, offset, stamp::key_id(key)) {
        panic!("{key}: {e}");
    }
}

/// `every` byte is checked, or one read in 16 where the check would cost what is measured.
fn sequential(mount: &Mounted, every: bool) -> Figures {
    let key = "big/b0";
    let mut file = File::open(mount.join(key)).expect("the object opens");
    let mut buf = vec![0; READ];
    let (start, mut at, mut reads) = (Instant::now(), 0, 0);
    loop {
        let n = file.read(&mut buf).expect("the object reads");
        if n == 0 {
            break;
        }
        if every || reads % 16 == 0 {
            check(&buf[..n], at, key);
        }
        at += n as u64;
        reads += 1;
    }
    assert_eq!(at, GIB);
    Figures::from([("mb_s", at as f64 / 1e6 / start.elapsed().as_secs_f64())])
}

fn shuffled(mut keys: Vec<String>, seed: u64) -> Vec<String> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for i in (1..keys.len()).rev() {
        state = next(state);
        keys.swap(i, (state >> 33) as usize % (i + 1));
    }
    keys
}

fn next(state: u64) -> u64 {
    state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407)
}

fn small(lab: &Lab, mount: &Mounted, rep: u64) -> Figures {
    let dirs: Vec<_> =
        fs::read_dir(mount.join("small")).expect("lists").map(|e| e.expect("an entry").path()).collect();
    let listed: usize = dirs.iter().map(|d| fs::read_dir(d).expect("lists").count()).sum();
    assert_eq!(listed, 5000);
    let lists = lab.counters().lists();
    lab.reset_counters();
    let keys = shuffled(small_keys(), rep + 11);
    let taken = AtomicUsize::new(0);
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..32 {
            scope.spawn(|| {
                let mut data = Vec::with_capacity(SMALL as usize + 1);
                while let Some(key) = keys.get(taken.fetch_add(1, Relaxed)) {
                    data.clear();
                    File::open(mount.join(key))
                        .and_then(|mut f| f.read_to_end(&mut data))
                        .expect("the file reads");
                    assert_eq!(data.len() as u64, SMALL, "{key}");
                    check(&data, 0, key);
                }
            });
        }
    });
    let seconds = start.elapsed().as_secs_f64();
    let counters = lab.counters();
    let per_file = |n: u64| n as f64 / keys.len() as f64;
    Figures::from([
        ("files_s", keys.len() as f64 / seconds),
        ("gets_per_file", per_file(counters.of(Op::GetObject))),
        ("heads", counters.of(Op::HeadObject) as f64),
        ("lists_per_file", per_file(counters.lists() + lists)),
    ])
}

/// MB/s of one reader of a large object, then files/s of 8 readers of small ones; nothing is read twice.
fn healthy(mount: &Mounted, run: usize) -> (f64, f64) {
    let mut file = File::open(mount.join(&format!("big/b{run}"))).expect("the object opens");
    let (mut buf, start) = (vec![0; READ], Instant::now());
    while file.read(&mut buf).expect("the object reads") > 0 {}
    let large = GIB as f64 / 1e6 / start.elapsed().as_secs_f64();
    let (keys, taken, start) = (small_keys(), AtomicUsize::new(run * 1000), Instant::now());
    let end = (run + 1) * 1000;
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                loop {
                    let i = taken.fetch_add(1, Relaxed);
                    if i >= end {
                        return;
                    }
                    let data = fs::read(mount.join(&keys[i])).expect("the file reads");
                    check(&data, 0, &keys[i]);
                }
            });
        }
    });
    (large, 1000.0 / start.elapsed().as_secs_f64())
}

fn stalls(lab: &Lab, mount: &Mounted) -> Figures {
    for dir in ["big", "stalled"] {
        fs::read_dir(mount.join(dir)).expect("lists").for_each(drop);
    }
    // The first figures of a mount include what is found out once.
    healthy(mount, 0);
    let alone = healthy(mount, 1);
    for i in 0..8 {
        lab.fault(Rule::on(Op::GetObject, Fault::Stall { after: 0 }).key(format!("stalled/s{i}")));
    }
    let stuck: Vec<_> = (0..128u64)
        .map(|i| {
            let path = mount.join(&format!("stalled/s{}", i % 8));
            std::thread::spawn(move || {
                let file = File::open(path).expect("the object opens");
                file.read_exact_at(&mut [0; 4096], (i / 8) * (8 << 20))
            })
        })
        .collect();
    std::thread::sleep(std::time::Duration::from_secs(1));
    let beside = healthy(mount, 2);
    let waiting = stuck.iter().filter(|t| !t.is_finished()).count();
    lab.clear_faults();
    let started = Instant::now();
    let failed = stuck.into_iter().map(|t| t.join().expect("no panic")).filter(Result::is_err).count();
    Figures::from([
        ("kept_seq", beside.0 / alone.0),
        ("kept_small", beside.1 / alone.1),
        ("waiting", waiting as f64),
        ("failed", failed as f64),
        ("ended_s", started.elapsed().as_secs_f64()),
    ])
}

fn random(lab: &Lab, mount: &Mounted, rep: u64) -> Figures {
    let key = "big/b1";
    let path = mount.join(key);
    fs::metadata(&path).expect("the object is there");
    lab.reset_counters();
    let taken = AtomicUsize::new(0);
    let start = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (taken, path) = (&taken, &path);
            scope.spawn(move || {
                let file = File::open(path).expect("the object opens");
                // As random readers do; the kernel would read around each read otherwise.
                rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).expect("advice is taken");
                let mut buf = vec![0; RANDOM as usize];
                let mut state = rep * 8 + thread + 1;
                while taken.fetch_add(1, Relaxed) < RANDOM_READS {
                    state = next(state);
                    let at = (state >> 24) % (GIB / RANDOM) * RANDOM;
                    file.read_exact_at(&mut buf, at).expect("the object reads");
                    check(&buf, at, key);
                }
            });
        }
    });
    let seconds = start.elapsed().as_secs_f64();
    let asked = RANDOM_READS as f64 * RANDOM as f64;
    Figures::from([
        ("reads_s", RANDOM_READS as f64 / seconds),
        ("bytes_ratio", lab.counters().body_bytes as f64 / asked),
    ])
}

/// Reads of 1 MiB that nothing has read before, in no order that could be seen through.
fn tail(lab: &Lab, mount: &Mounted, rep: u64) -> Figures {
    const FILES: u64 = 8;
    let mut places: Vec<(u64, u64)> = (0..TAIL_READS).map(|i| (i % FILES, i / FILES * 3)).collect();
    let mut state = rep + 7;
    for i in (1..places.len()).rev() {
        state = next(state);
        places.swap(i, (state >> 33) as usize % (i + 1));
    }
    let keys: Vec<String> = (0..FILES).map(|i| format!("big/b{}", i + 2)).collect();
    let files: Vec<File> =
        keys.iter().map(|k| File::open(mount.join(k)).expect("the object opens")).collect();
    for file in &files {
        rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::Random).expect("advice is taken");
    }
    lab.reset_counters();
    let taken = AtomicUsize::new(0);
    let start = Instant::now();
    let mut took: Vec<f64> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    let (mut buf, mut took) = (vec![0; READ], Vec::new());
                    while let Some((file, mib)) = places.get(taken.fetch_add(1, Relaxed)) {
                        let (file, key, at) = (&files[*file as usize], &keys[*file as usize], mib << 20);
                        let start = Instant::now();
                        file.read_exact_at(&mut buf, at).expect("the object reads");
                        took.push(start.elapsed().as_secs_f64() * 1e3);
                        check(&buf, at, key);
                    }
                    took
                })
            })
            .collect();
        threads.into_iter().flat_map(|t| t.join().expect("no panic")).collect()
    });
    let seconds = start.elapsed().as_secs_f64();
    took.sort_by(f64::total_cmp);
    let at = |share: f64| took[(took.len() as f64 * share) as usize];
    Figures::from([
        ("p50_ms", at(0.5)),
        ("p99_ms", at(0.99)),
        ("max_ms", took[took.len() - 1]),
        ("reads_s", took.len() as f64 / seconds),
        ("requests_per_read", lab.counters().of(Op::GetObject) as f64 / took.len() as f64),
    ])
}

/// The same reads by a mount that waits for every answer; `hedged` is what the other needed for a read.
fn without_hedging(lab: &Lab, system: System, hedged: f64, rep: u64) -> Figures {
    lab.set_model(Model::default());
    let dir = tempfile::tempdir().expect("a temporary directory");
    let config = dir.path().join("nearfs.toml");
    fs::write(&config, "hedge = \"off\"\n").expect("the directory is writable");
    let config = config.to_str().expect("temporary directories have plain names");
    let mount = system.mount(lab, BUCKET, &["--config", config]);
    lab.set_model(Workload::Tail.model());
    let plain = tail(lab, &mount, rep);
    Figures::from([
        ("off_p99_ms", plain["p99_ms"]),
        ("off_requests_per_read", plain["requests_per_read"]),
        ("extra_percent", (hedged / plain["requests_per_read"] - 1.0) * 100.0),
    ])
}

fn first(mount: &Mounted) -> Figures {
    let one = |key: &str| {
        let mut buf = [0; 4096];
        let start = Instant::now();
        File::open(mount.join(key)).and_then(|f| f.read_exact_at(&mut buf, 0)).expect("the object reads");
        let ms = start.elapsed().as_secs_f64() * 1e3;
        check(&buf, 0, key);
        std::thread::sleep(std::time::Duration::from_millis(200));
        ms
    };
    let cold: Vec<f64> = (0..12).map(|i| one(&format!("deep{i}/a/b/c/b.bin"))).collect();
    fs::read_dir(mount.join("big")).expect("lists").for_each(drop);
    let known: Vec<f64> = (0..12).map(|i| one(&format!("big/b{i}"))).collect();
    let median = |mut v: Vec<f64>| {
        v.sort_by(f64::total_cmp);
        v[v.len() / 2]
    };
    let (cold, known) = (median(cold), median(known));
    Figures::from([("cold_ms", cold), ("known_ms", known), ("opens_s", 1e3 / known)])
}

fn walk(lab: &Lab, mount: &Mounted) -> Figures {
    let start = Instant::now();
    let out = std::process::Command::new("find")
        .arg(mount.join("m"))
        .args(["-type", "f"])
        .output()
        .expect("find runs");
    let paths: Vec<_> =
        String::from_utf8(out.stdout).expect("plain names").lines().map(str::to_owned).collect();
    assert_eq!(paths.len(), 50_000);
    let find = start.elapsed().as_secs_f64();
    for path in &paths {
        assert_eq!(fs::metadata(path).expect("it is there").len(), 4096);
    }
    let all = start.elapsed().as_secs_f64();
    let counters = lab.counters();
    Figures::from([
        ("entries_s", 50_000.0 / all),
        ("find_s", find),
        ("stat_s", all - find),
        ("lists", counters.lists() as f64),
        ("heads", counters.of(Op::HeadObject) as f64),
    ])
}

fn handles(mount: &Mounted) -> Figures {
    let keys: Vec<String> = (0..500).map(|i| format!("many/h{i:03}")).collect();
    let files: Vec<File> =
        keys.iter().map(|k| File::open(mount.join(k)).expect("the object opens")).collect();
    let taken = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..32 {
            scope.spawn(|| {
                let mut buf = vec![0; READ];
                loop {
                    let i = taken.fetch_add(1, Relaxed);
                    let Some(file) = files.get(i) else { break };
                    for part in 0..4u64 {
                        file.read_exact_at(&mut buf, part << 20).expect("the object reads");
                        check(&buf, part << 20, &keys[i]);
                    }
                }
            });
        }
    });
    let (reads, start) = (AtomicUsize::new(0), Instant::now());
    std::thread::scope(|scope| {
        for thread in 0..32u64 {
            let (files, keys, reads) = (&files, &keys, &reads);
            scope.spawn(move || {
                let mut buf = vec![0; 64 << 10];
                let mut state = thread + 1;
                while start.elapsed().as_secs() < 20 {
                    state = next(state);
                    let i = (state >> 40) as usize % files.len();
                    state = next(state);
                    let at = (state >> 24) % (2 * GIB / 65_536) * 65_536;
                    files[i].read_exact_at(&mut buf, at).expect("the object reads");
                    check(&buf, at, &keys[i]);
                    reads.fetch_add(1, Relaxed);
                }
            });
        }
    });
    Figures::from([("reads_s", reads.load(Relaxed) as f64 / start.elapsed().as_secs_f64())])
}
