//! The cache on disk: where it is, how full, and what its filesystem and the kernel can do for it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nearfs::cache::{DirectoryStatus, DiskConfig, DiskTier};
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags};

use super::Finding;
use crate::cli::output::human_bytes;

/// `RWF_DONTCACHE` of Linux 6.14 (uapi/linux/fs.h): written pages leave the page cache by themselves.
const DONT_CACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);
/// Bytes of the file that is written to try things out.
const SAMPLE: usize = 4096;
/// Bit of `CAP_SYS_ADMIN` in `CapEff` (uapi/linux/capability.h).
const SYS_ADMIN: u64 = 1 << 21;

/// Filesystems that several machines may have mounted; by the kernel's names.
const NETWORK: [&str; 14] = [
    "nfs", "nfs4", "cifs", "smb3", "9p", "lustre", "ceph", "ocfs2", "gfs2", "afs", "coda", "vboxsf", "gpfs",
    "beegfs",
];

/// `config` is `None` if nothing is kept on disk.
pub(super) fn check(config: Option<&DiskConfig>) -> Vec<Finding> {
    let Some(config) = config else {
        return vec![
            Finding::note("cache", "`cache_size` is 0: nothing is kept on disk")
                .means("every mount and every program fetches everything anew")
                .advise("set `cache_size` to more if there is a local disk"),
        ];
    };
    let dirs = config.directories();
    if dirs.is_empty() {
        return vec![
            Finding::attention("cache", "neither XDG_CACHE_HOME nor HOME says where")
                .means("nothing is kept on disk, and everything is fetched anew")
                .advise("set `cache_dir`"),
        ];
    }
    // Only what exists is opened: looking makes no directories.
    let opened = dirs.iter().any(|dir| dir.exists()).then(|| DiskTier::open(config));
    let statuses = match &opened {
        Some(Ok(tier)) => tier.status(),
        _ => Vec::new(),
    };
    let mut findings = Vec::new();
    for dir in &dirs {
        findings.push(match &opened {
            Some(Err(error)) => unusable(dir, error),
            _ => match statuses.iter().find(|s| s.path.starts_with(dir)) {
                Some(status) => usable(dir, status),
                None if dir.exists() => replaced(dir, &statuses),
                None => planned(dir),
            },
        });
        let place = existing(dir);
        findings.push(features(&place));
        findings.push(passthrough(&place));
    }
    findings
}

fn unusable(dir: &Path, error: &nearfs::Error) -> Finding {
    let hint = error.context("hint").unwrap_or("name another directory with `cache_dir`").to_owned();
    Finding::attention("cache", format!("{}: {error:#}", shown(dir)))
        .means("nothing is kept on disk, and everything is fetched anew")
        .advise(hint)
}

fn usable(dir: &Path, status: &DirectoryStatus) -> Finding {
    let found = format!(
        "{}: {} objects, {} of {} used, {} of {} free",
        shown(dir),
        status.objects,
        human_bytes(status.used),
        human_bytes(status.limit),
        human_bytes(status.free),
        human_bytes(status.total)
    );
    if !status.writable {
        return Finding::attention("cache", found)
            .means("a write failed lately: nothing new is kept for half a minute at a time")
            .advise("look for errors of the disk, and for free space");
    }
    if status.limit.saturating_sub(status.used) > status.free && status.free < status.total / 20 {
        return Finding::note("cache", found)
            .means("the disk is nearly full with other things: the cache gives way and stays below its limit")
            .advise("make room on the disk, or name a directory on another one");
    }
    on_network(dir, found)
}

/// A directory that another user has: the fallback is used.
fn replaced(dir: &Path, statuses: &[DirectoryStatus]) -> Finding {
    let found = format!("{} cannot be used by this user", shown(dir));
    let used: Vec<_> = statuses.iter().map(|s| s.path.display().to_string()).collect();
    Finding::note("cache", found)
        .means(format!("{} is used instead, and shared with nobody", used.join(", ")))
        .advise("share one directory with `cache_group`, or name one of your own with `cache_dir`")
}

fn planned(dir: &Path) -> Finding {
    let place = existing(dir);
    let found = format!("{}, made at the first use", shown(dir));
    if rustix::fs::access(&place, rustix::fs::Access::WRITE_OK).is_err() {
        return Finding::attention("cache", format!("{found}, but {} is not writable", place.display()))
            .means("nothing is kept on disk, and everything is fetched anew")
            .advise("name a directory of your own with `cache_dir`");
    }
    on_network(dir, found)
}

fn on_network(dir: &Path, found: String) -> Finding {
    let kind = filesystem(&existing(dir));
    if NETWORK.contains(&kind.as_str()) || kind == "fuse" || kind.starts_with("fuse.") {
        return Finding::note("cache", found)
            .means(
                "this is no local disk: each machine has its own part of it, and reads go over the network",
            )
            .advise("name a directory on a local disk with `cache_dir`");
    }
    if kind == "tmpfs" {
        return Finding::note("cache", found)
            .means("this is memory: the cache takes it from programs, and is empty after a restart")
            .advise("name a directory on a local disk with `cache_dir`");
    }
    Finding::ok("cache", found)
}

/// `/dir (ext4, uid 0, mode 0700)`.
fn shown(dir: &Path) -> String {
    let kind = filesystem(&existing(dir));
    match fs::metadata(dir) {
        Ok(m) => format!("{} ({kind}, uid {}, mode {:04o})", dir.display(), m.uid(), m.mode() & 0o7777),
        Err(_) => format!("{} ({kind}, not there yet)", dir.display()),
    }
}

/// `dir`, or the nearest directory above it that exists.
fn existing(dir: &Path) -> PathBuf {
    dir.ancestors().find(|d| d.is_dir()).unwrap_or(Path::new("/")).to_owned()
}

/// Type of the filesystem that `path` is on, as the kernel calls it.
fn filesystem(path: &Path) -> String {
    let unknown = || "unknown filesystem".to_owned();
    let (Ok(path), Ok(table)) = (fs::canonicalize(path), fs::read_to_string("/proc/self/mountinfo")) else {
        return unknown();
    };
    // `ID PARENT DEV ROOT POINT OPTIONS [TAGS] - TYPE SOURCE OPTIONS`; of several on one point the last one is seen.
    let lines = table.lines().filter_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let point = before.split(' ').nth(4)?.replace("\\040", " ");
        path.starts_with(&point)
            .then(|| (point.len(), after.split(' ').next().unwrap_or_default().to_owned()))
    });
    lines.max_by_key(|(len, _)| *len).map_or_else(unknown, |(_, kind)| kind)
}

/// What the filesystem does for the files of the cache.
fn features(place: &Path) -> Finding {
    let tried = match try_out(place) {
        Ok(tried) => tried,
        Err(e) => {
            return Finding::note("cache files", format!("nothing can be tried in {}: {e}", place.display()))
                .means("what its filesystem can do is found out when the cache is used");
        }
    };
    let features = [
        ("unnamed files", tried.unnamed, "files are made under temporary names"),
        ("direct reads", tried.direct, "reads go through the page cache"),
        (
            "writes that leave memory",
            tried.dont_cache,
            "what is written takes page cache from others for a while",
        ),
        ("preallocation", tried.allocate, "files that describe the cache are written out in full once"),
        ("holes", tried.punch, "large objects are evicted whole"),
    ];
    let names = |has: bool| {
        let of = features.iter().filter(|f| f.1 == has).map(|f| f.0).collect::<Vec<_>>();
        if of.is_empty() { "none".to_owned() } else { of.join(", ") }
    };
    let missing: Vec<_> = features.iter().filter(|f| !f.1).map(|f| f.2).collect();
    if missing.is_empty() {
        return Finding::ok("cache files", names(true));
    }
    Finding::note("cache files", format!("{}; without {}", names(true), names(false)))
        .means(format!("everything works; {}", missing.join("; ")))
}

#[derive(Debug, Default)]
struct Tried {
    unnamed: bool,
    direct: bool,
    dont_cache: bool,
    allocate: bool,
    punch: bool,
}

/// Tries the features on a file that nobody else sees.
fn try_out(place: &Path) -> io::Result<Tried> {
    use rustix::fs::FallocateFlags;
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::TMPFILE;
    let unnamed = rustix::fs::open(place, flags, Mode::from_raw_mode(0o600));
    let mut tried = Tried { unnamed: unnamed.is_ok(), ..Tried::default() };
    let file = match unnamed {
        Ok(fd) => File::from(fd),
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => named(place)?,
        Err(e) => return Err(e.into()),
    };
    tried.allocate = rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 2 * SAMPLE as u64).is_ok();
    let data = [1; SAMPLE];
    std::os::unix::fs::FileExt::write_all_at(&file, &data, 0)?;
    let part = [io::IoSlice::new(&data)];
    tried.dont_cache = rustix::io::pwritev2(&file, &part, SAMPLE as u64, DONT_CACHE).is_ok();
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    tried.punch = rustix::fs::fallocate(&file, hole, 0, SAMPLE as u64).is_ok();
    tried.direct = rustix::fs::fcntl_setfl(&file, OFlags::DIRECT).is_ok();
    Ok(tried)
}

/// A file whose name is gone before anything is done with it.
fn named(place: &Path) -> io::Result<File> {
    let path = place.join(format!(".tmp-nearfs-doctor-{}", std::process::id()));
    let file = File::options().read(true).write(true).create_new(true).open(&path)?;
    fs::remove_file(&path)?;
    Ok(file)
}

/// Whether the kernel can read cached files for the mount by itself.
fn passthrough(place: &Path) -> Finding {
    let check = "passthrough";
    let means = "cached files are read by nearfs for the kernel: some CPU time for each gigabyte, with the same results";
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map(|p| p.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version < (6, 9) {
        return Finding::note(check, format!("Linux {release} cannot"))
            .means(means)
            .advise("use Linux 6.9 or later");
    }
    if !is_admin() {
        return Finding::note(check, "this process lacks CAP_SYS_ADMIN")
            .means(means)
            .advise("mount as root; in a container add the capability SYS_ADMIN");
    }
    // The mount stacks on the cache's filesystem, and may be two levels high at most.
    match filesystem(place).as_str() {
        "overlay" => Finding::ok(check, "possible, on an overlay (one level more)"),
        kind if kind == "fuse" || kind.starts_with("fuse.") => {
            Finding::note(check, format!("not with the cache on {kind}"))
                .means(means)
                .advise("name a directory on a local disk with `cache_dir`")
        }
        _ => Finding::ok(check, "possible"),
    }
}

/// `CAP_SYS_ADMIN`, and not only in a user namespace of its own.
fn is_admin() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let capabilities = status.lines().find_map(|l| l.strip_prefix("CapEff:"));
    let has =
        capabilities.and_then(|c| u64::from_str_radix(c.trim(), 16).ok()).is_some_and(|c| c & SYS_ADMIN != 0);
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let numbers: Vec<&str> = map.split_whitespace().collect();
    has && matches!(numbers.as_slice(), ["0", "0", "4294967295"] | [])
}
