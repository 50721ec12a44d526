//! [`CacheConfig`]: the settings of the cache, plain data with working defaults.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use nearfs_backends::{Error, ErrorKind};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

mod disk;

pub use disk::{DiskConfig, DiskSize, PolicyKind};

/// How long something remembered is good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lifetime {
    /// This long from the moment the store was asked. Zero: the store is asked every time.
    For(Duration),
    /// As long as this process lives (or until its own writes change it).
    Forever,
}

impl Lifetime {
    /// True if nothing is ever remembered.
    pub fn is_zero(self) -> bool {
        self == Lifetime::For(Duration::ZERO)
    }
}

/// `0`, `inf`, or a duration such as `60s`, `500ms`, `1h 30m`.
impl FromStr for Lifetime {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text.trim() {
            "0" => Ok(Lifetime::For(Duration::ZERO)),
            "inf" | "forever" => Ok(Lifetime::Forever),
            other => humantime::parse_duration(other).map(Lifetime::For).map_err(|e| {
                Error::new(
                    ErrorKind::InvalidInput,
                    format!("expected a lifetime such as `60s`, `500ms`, `0` or `inf`, found `{text}`"),
                )
                .with_source(e)
            }),
        }
    }
}

impl fmt::Display for Lifetime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lifetime::For(d) if d.is_zero() => f.write_str("0"),
            Lifetime::For(d) => write!(f, "{}", humantime::format_duration(*d)),
            Lifetime::Forever => f.write_str("inf"),
        }
    }
}

impl Serialize for Lifetime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Lifetime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Settings of a [`CachedFileSystem`](crate::CachedFileSystem).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CacheConfig {
    /// Bytes of file data held in memory, over all files, what is being fetched included. At least 4 MiB is used.
    /// Default: 2 GiB or a quarter of [`memory_limit`], whichever is less.
    pub memory: u64,
    /// How long attributes and directory entries are good. Default: 60 s.
    pub metadata_ttl: Lifetime,
    /// How long the absence of a name is good. Asking again does not prolong it. Default: 2 s.
    pub negative_ttl: Lifetime,
    /// Fetch ahead of the reader. Without it only what is asked for is fetched (small objects still as a whole).
    /// Default: true.
    pub prefetch: bool,
    /// Upper bound of data requests in flight over all files, 1 to 65 536; the number used follows measurement.
    /// Default: 128.
    pub max_connections: usize,
    /// Directory entries remembered, over all directories (about 200 bytes each). A larger directory is listed
    /// without being remembered. Default: 2 000 000.
    pub max_entries: usize,
    /// Data of objects above 8 MiB that nobody asked for this long is given back. Default: 10 s.
    pub idle: Duration,
    /// Hold data of filesystems that are not remote too. They have the kernel's page cache, so this is only useful
    /// for slow local stores and tests. Default: false.
    pub cache_local: bool,
}

impl Default for CacheConfig {
    fn default() -> Self {
        CacheConfig {
            memory: (2 << 30).min(memory_limit() / 4),
            metadata_ttl: Lifetime::For(Duration::from_secs(60)),
            negative_ttl: Lifetime::For(Duration::from_secs(2)),
            prefetch: true,
            max_connections: 128,
            max_entries: 2_000_000,
            idle: Duration::from_secs(10),
            cache_local: false,
        }
    }
}

/// Bytes of memory this process may use: the machine's, or the least limit of the cgroups it runs in.
pub fn memory_limit() -> u64 {
    let total = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find_map(|l| l.strip_prefix("MemTotal:"))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    });
    // Without /proc there is nothing to go by; 4 GiB gives a budget of 1 GiB.
    let total = total.map_or(4 << 30, |kib| kib << 10);
    cgroup_limit(Path::new("/proc/self/cgroup"), Path::new("/sys/fs/cgroup")).map_or(total, |l| l.min(total))
}

/// The least `memory.max` (version 2) or `memory.limit_in_bytes` (version 1) from this process's cgroup up.
fn cgroup_limit(membership: &Path, mount: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(membership).ok()?;
    text.lines()
        .filter_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, path) = (fields.next()?, fields.next()?);
            let (root, file) = match controllers {
                "" => (mount.to_path_buf(), "memory.max"),
                c if c.split(',').any(|c| c == "memory") => (mount.join("memory"), "memory.limit_in_bytes"),
                _ => return None,
            };
            let inside = root.join(path.trim_start_matches('/'));
            let levels = inside.ancestors().take_while(|dir| dir.starts_with(&root));
            levels.filter_map(|dir| std::fs::read_to_string(dir.join(file)).ok()?.trim().parse().ok()).min()
        })
        .min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lifetimes_round_trip_and_bad_ones_say_what_was_expected() {
        for text in ["0", "inf", "60s", "500ms", "1h 30m"] {
            let parsed: Lifetime = text.parse().unwrap();
            assert_eq!(parsed.to_string().parse::<Lifetime>().unwrap(), parsed);
        }
        assert_eq!("60s".parse::<Lifetime>().unwrap(), CacheConfig::default().metadata_ttl);
        let e = "sixty".parse::<Lifetime>().unwrap_err();
        assert!(e.message().contains("`sixty`"), "{e}");
    }

    #[test]
    fn the_least_cgroup_limit_up_the_tree_counts() {
        let dir = std::env::temp_dir().join(format!("nearfs-cgroup-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("a/b")).unwrap();
        std::fs::write(dir.join("membership"), "0::/a/b\n").unwrap();
        std::fs::write(dir.join("a/b/memory.max"), "max\n").unwrap();
        std::fs::write(dir.join("a/memory.max"), "1073741824\n").unwrap();
        assert_eq!(cgroup_limit(&dir.join("membership"), &dir), Some(1 << 30));
        std::fs::remove_file(dir.join("a/memory.max")).unwrap();
        assert_eq!(cgroup_limit(&dir.join("membership"), &dir), None);
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(memory_limit() > 0);
    }
}
