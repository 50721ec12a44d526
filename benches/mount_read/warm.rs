//! Reads of what is on disk already, beside the same bytes in plain local files: pairs in turns, ratios of each pair.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use nearfs_lab::{Lab, Model, Op, stamp};
use tempfile::TempDir;

use crate::systems::{Mounted, System, drop_caches};
use crate::{BUCKET, GIB, SMALL};

const READ: usize = 1 << 20;
const FILES: usize = 5000;
const THREADS: usize = 4;
const KEY: &str = "big/b0";

/// A comparison that prints itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Warm {
    Large,
    Small,
    Expired,
}

impl Warm {
    pub(crate) const ALL: [Warm; 3] = [Warm::Large, Warm::Small, Warm::Expired];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Warm::Large => "warm_large",
            Warm::Small => "warm_small",
            Warm::Expired => "warm_expired",
        }
    }

    /// Compares `reps` pairs in each state.
    pub(crate) fn run(self, lab: &Lab, reps: usize) {
        lab.set_model(Model::default());
        let local = TempDir::new().expect("a temporary directory");
        match self {
            Warm::Large => {
                println!("\n## warm_large: 1 GiB that is on disk, beside a local file; target: >= 0.95");
                for mode in ["stateless", "passthrough"] {
                    large(lab, local.path(), mode, reps);
                }
            }
            Warm::Small => {
                println!(
                    "\n## warm_small: 5000 x 100 KiB by 4 threads, beside local files; target: >= 0.9, no request"
                );
                small(lab, local.path(), reps);
            }
            Warm::Expired => {
                println!(
                    "\n## warm_expired: the same for 10 s with --metadata-ttl 1s; target: >= 0.8, no HEAD, <= 1.1 \
                     LISTs per directory and lifetime"
                );
                expired(lab, local.path());
            }
        }
    }
}

/// Median, least and greatest.
fn spread(mut ratios: Vec<f64>) -> String {
    ratios.sort_by(f64::total_cmp);
    let (low, high) = (ratios[0], ratios[ratios.len() - 1]);
    format!("{:.3} ({low:.3} to {high:.3})", ratios[ratios.len() / 2])
}

fn seconds(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Ratios local time / mount time, and the median rates of both, in runs per second.
fn pairs(reps: usize, dropped: bool, local: impl Fn(), mount: impl Fn()) -> (String, f64, f64) {
    let (mut ratios, mut locals, mut mounts) = (Vec::new(), Vec::new(), Vec::new());
    for rep in 0..reps {
        let one = |work: &dyn Fn()| {
            if dropped {
                drop_caches();
            }
            seconds(work)
        };
        // In turns, so that nobody always comes first.
        let (a, b) = if rep % 2 == 0 {
            let a = one(&local);
            (a, one(&mount))
        } else {
            let b = one(&mount);
            (one(&local), b)
        };
        ratios.push(a / b);
        locals.push(1.0 / a);
        mounts.push(1.0 / b);
    }
    (spread(ratios), median(locals), median(mounts))
}

fn read_whole(path: &Path, checked: bool) {
    let mut file = File::open(path).expect("the file opens");
    let (mut buf, mut at) = (vec![0; READ], 0);
    loop {
        let n = file.read(&mut buf).expect("the file reads");
        if n == 0 {
            break;
        }
        if checked && let Err(e) = stamp::verify(&buf[..n], at, stamp::key_id(KEY)) {
            panic!("{}: {e}", path.display());
        }
        at += n as u64;
    }
    assert_eq!(at, GIB);
}

/// Waits until `bytes` are in the cache on disk and nothing is on its way there.
fn await_disk(mount: &Mounted, bytes: u64) {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let text = fs::read_to_string(mount.join(".nearfs/stats")).expect("the statistics are there");
        let stats: serde_json::Value = serde_json::from_str(&text).expect("they are JSON");
        let number = |name: &str| find(&stats, name).unwrap_or(0);
        if number("disk_used") >= bytes && number("disk_queued") == 0 {
            return;
        }
        assert!(Instant::now() < until, "{bytes} bytes do not come to the disk: {text}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The number called `name`, wherever it stands.
fn find(value: &serde_json::Value, name: &str) -> Option<u64> {
    match value {
        serde_json::Value::Object(map) => {
            let here = map.get(name).and_then(serde_json::Value::as_u64);
            here.or_else(|| map.values().find_map(|v| find(v, name)))
        }
        serde_json::Value::Array(all) => all.iter().find_map(|v| find(v, name)),
        _ => None,
    }
}

fn large(lab: &Lab, dir: &Path, mode: &str, reps: usize) {
    let mount = System::Nearfs.mount(lab, BUCKET, &["--open", mode]);
    let (near, far) = (dir.join("local"), mount.join(KEY));
    read_whole(&far, true);
    await_disk(&mount, GIB);
    if !near.exists() {
        fs::copy(&far, &near).expect("the disk has room");
    }
    read_whole(&far, true);
    for dropped in [false, true] {
        if !dropped {
            read_whole(&near, false);
            read_whole(&far, true);
        }
        lab.reset_counters();
        let cpu = mount.cpu_seconds();
        let (ratio, a, b) = pairs(reps, dropped, || read_whole(&near, false), || read_whole(&far, false));
        let cpu = (mount.cpu_seconds() - cpu) / reps as f64;
        println!(
            "{mode:>13}, page cache {}: {ratio}; local {:.0} MB/s, mount {:.0} MB/s; daemon {cpu:.3} CPU s a pass; \
             GETs {}",
            if dropped { "dropped" } else { "warm" },
            a * GIB as f64 / 1e6,
            b * GIB as f64 / 1e6,
            lab.counters().of(Op::GetObject)
        );
    }
    let text = fs::read_to_string(mount.join(".nearfs/stats")).expect("the statistics are there");
    let stats: serde_json::Value = serde_json::from_str(&text).expect("they are JSON");
    println!("{mode:>13}, in force: {}", stats.pointer("/mount/open_mode").expect("the mode is told"));
}

/// The same names in the directory tree below `root`.
fn paths(root: &Path) -> Vec<PathBuf> {
    nearfs_lab::tree_keys("small", 50, 100).iter().map(|key| root.join(key)).collect()
}

fn read_all(paths: &[PathBuf], checked: bool) {
    let taken = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let mut data = Vec::with_capacity(SMALL as usize + 1);
                while let Some(path) = paths.get(taken.fetch_add(1, Relaxed)) {
                    data.clear();
                    File::open(path).and_then(|mut f| f.read_to_end(&mut data)).expect("the file reads");
                    assert_eq!(data.len() as u64, SMALL, "{}", path.display());
                    if checked {
                        let text = path.to_str().expect("plain names");
                        let key = &text[text.find("small/").expect("below the data set")..];
                        if let Err(e) = stamp::verify(&data, 0, stamp::key_id(key)) {
                            panic!("{key}: {e}");
                        }
                    }
                }
            });
        }
    });
}

/// A mount whose cache has all small files, their names below it, and local copies.
fn small_set(lab: &Lab, dir: &Path, args: &[&str]) -> (Mounted, Vec<PathBuf>, Vec<PathBuf>) {
    let mount = System::Nearfs.mount(lab, BUCKET, args);
    let far = paths(&mount.join(""));
    read_all(&far, true);
    await_disk(&mount, FILES as u64 * SMALL);
    let near = paths(dir);
    for (from, to) in far.iter().zip(&near) {
        fs::create_dir_all(to.parent().expect("it has one")).expect("the disk has room");
        fs::copy(from, to).expect("the disk has room");
    }
    (mount, far, near)
}

fn small(lab: &Lab, dir: &Path, reps: usize) {
    let (mount, far, near) = small_set(lab, dir, &[]);
    for dropped in [false, true] {
        if !dropped {
            read_all(&near, false);
            read_all(&far, true);
        }
        lab.reset_counters();
        let cpu = mount.cpu_seconds();
        let (ratio, a, b) = pairs(reps, dropped, || read_all(&near, false), || read_all(&far, false));
        let cpu = (mount.cpu_seconds() - cpu) / (reps * FILES) as f64;
        println!(
            "page cache {}: {ratio}; local {:.0} files/s, mount {:.0} files/s; daemon {:.1} CPU us a file; requests {}",
            if dropped { "dropped" } else { "warm" },
            a * FILES as f64,
            b * FILES as f64,
            cpu * 1e6,
            lab.counters().total()
        );
    }
}

fn expired(lab: &Lab, dir: &Path) {
    let (_mount, far, near) = small_set(lab, dir, &["--metadata-ttl", "1s"]);
    read_all(&near, false);
    read_all(&far, true);
    let epochs = |paths: &[PathBuf]| {
        let (start, mut files) = (Instant::now(), 0);
        while start.elapsed() < Duration::from_secs(10) {
            read_all(paths, false);
            files += paths.len();
        }
        files as f64 / start.elapsed().as_secs_f64()
    };
    let a = epochs(&near);
    lab.reset_counters();
    let b = epochs(&far);
    let counters = lab.counters();
    // 50 directories of one page each; the directory above them is a page, too.
    let lists = counters.lists() as f64 / 51.0 / 10.0;
    println!(
        "{:.3}; local {a:.0} files/s, mount {b:.0} files/s; {lists:.2} LISTs a directory and second, {} HEADs, {} GETs",
        b / a,
        counters.of(Op::HeadObject),
        counters.of(Op::GetObject)
    );
}
