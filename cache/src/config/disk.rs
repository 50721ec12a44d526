//! [`DiskConfig`]: the settings of the disk tier, plain data.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use nearfs_backends::{Error, ErrorKind};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Where the disk tier keeps bytes, and how many.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DiskConfig {
    /// The directories, usually one for each disk; an object is kept in one of them, chosen by hash. Empty:
    /// [`default_dir`](Self::default_dir). Default: empty.
    pub dirs: Vec<PathBuf>,
    /// The directory used when [`dirs`](Self::dirs) is empty. The tier reads no environment variables, so its caller
    /// says which directory that is. Default: none, which means that there is no disk tier.
    pub default_dir: Option<PathBuf>,
    /// The directory used, with one warning, in place of one that belongs to somebody else. Default: none, which
    /// makes that an error.
    pub fallback: Option<PathBuf>,
    /// Limit of bytes on disk for each directory, stored in the directory and valid for every process that uses it.
    /// None: what is stored there, or half of the filesystem's size in a new directory. Default: none.
    pub size: Option<DiskSize>,
    /// Share of the filesystem that the tier leaves free for others, 0 to 0.95. Default: 0.05.
    pub free: f64,
    /// Share the directories with this group (its number): members read and write one another's files and trust one
    /// another. Default: none, the directories are for this user alone.
    pub group: Option<u32>,
    /// Which entries go first when room is needed. Default: [`PolicyKind::Epochs`].
    pub policy: PolicyKind,
}

impl Default for DiskConfig {
    fn default() -> Self {
        DiskConfig {
            dirs: Vec::new(),
            default_dir: None,
            fallback: None,
            size: None,
            free: 0.05,
            group: None,
            policy: PolicyKind::default(),
        }
    }
}

impl DiskConfig {
    /// The directories in force: [`dirs`](Self::dirs), or else the default one; empty if there is none.
    pub fn directories(&self) -> Vec<PathBuf> {
        if self.dirs.is_empty() { self.default_dir.iter().cloned().collect() } else { self.dirs.clone() }
    }
}

/// Limit of bytes on disk.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum DiskSize {
    /// This many bytes.
    Bytes(u64),
    /// This share of the filesystem's size, above 0 and at most 1, taken when the directory is opened.
    Share(f64),
}

impl DiskSize {
    /// The limit in bytes on a filesystem of `total` bytes.
    pub fn of(self, total: u64) -> u64 {
        match self {
            DiskSize::Bytes(bytes) => bytes,
            // Of sizes below 2^53 nothing is lost; a few bytes of larger ones do not matter.
            DiskSize::Share(share) => (total as f64 * share.clamp(0.0, 1.0)) as u64,
        }
    }
}

const UNITS: [(&str, u64); 12] = [
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("k", 1 << 10),
    ("m", 1 << 20),
    ("g", 1 << 30),
    ("t", 1 << 40),
];

/// `20GiB`, `500MB`, `1.5TiB`, `1073741824`, or a share of the filesystem such as `80%`. `K`, `M`, `G` and `T` alone
/// are powers of 1024, as `B` with them are powers of 1000.
impl FromStr for DiskSize {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        parse(text).ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidInput,
                format!("expected a size such as `20GiB`, or a share of the filesystem such as `80%`, found `{text}`"),
            )
        })
    }
}

fn parse(text: &str) -> Option<DiskSize> {
    let text = text.trim().to_ascii_lowercase();
    if let Some(percent) = text.strip_suffix('%') {
        let percent: f64 = percent.trim().parse().ok()?;
        return (percent > 0.0 && percent <= 100.0).then_some(DiskSize::Share(percent / 100.0));
    }
    let (number, factor) = UNITS
        .iter()
        .find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, *factor)))
        .unwrap_or_else(|| (text.strip_suffix('b').unwrap_or(&text), 1));
    let number = number.trim();
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(factor).map(DiskSize::Bytes);
    }
    let bytes = number.parse::<f64>().ok()? * factor as f64;
    (bytes >= 0.0 && bytes < u64::MAX as f64).then_some(DiskSize::Bytes(bytes as u64))
}

impl fmt::Display for DiskSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            DiskSize::Share(share) => write!(f, "{}%", share * 100.0),
            DiskSize::Bytes(bytes) => {
                let unit = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
                match unit.into_iter().find(|(_, bits)| bytes > 0 && bytes % (1 << bits) == 0) {
                    Some((unit, bits)) => write!(f, "{}{unit}", bytes >> bits),
                    None => write!(f, "{bytes}"),
                }
            }
        }
    }
}

impl Serialize for DiskSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for DiskSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Which entries of the disk tier go first when room is needed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum PolicyKind {
    /// Knows shuffled epochs: a data set larger than the cache keeps what it has instead of pushing itself out, a
    /// new data set still gets in, and scans do not.
    #[default]
    Epochs,
    /// What was not used for the longest time goes first.
    Lru,
    /// W-TinyLFU: what is used least often goes first, seen through a small window of recent entries.
    TinyLfu,
    /// A score of size, frequency and age.
    Score,
}

impl FromStr for PolicyKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text.trim().to_ascii_lowercase().as_str() {
            "epochs" => Ok(PolicyKind::Epochs),
            "lru" => Ok(PolicyKind::Lru),
            "tiny-lfu" => Ok(PolicyKind::TinyLfu),
            "score" => Ok(PolicyKind::Score),
            _ => Err(Error::new(
                ErrorKind::InvalidInput,
                format!("expected `epochs`, `lru`, `tiny-lfu` or `score`, found `{text}`"),
            )),
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PolicyKind::Epochs => "epochs",
            PolicyKind::Lru => "lru",
            PolicyKind::TinyLfu => "tiny-lfu",
            PolicyKind::Score => "score",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_written() {
        for (text, size, written) in [
            ("20GiB", DiskSize::Bytes(20 << 30), "20GiB"),
            ("20g", DiskSize::Bytes(20 << 30), "20GiB"),
            (" 500 MB ", DiskSize::Bytes(500_000_000), "500000000"),
            ("1.5TiB", DiskSize::Bytes(3 << 39), "1536GiB"),
            ("1073741824", DiskSize::Bytes(1 << 30), "1GiB"),
            ("4096b", DiskSize::Bytes(4096), "4KiB"),
            ("80%", DiskSize::Share(0.8), "80%"),
            ("0", DiskSize::Bytes(0), "0"),
        ] {
            let parsed: DiskSize = text.parse().unwrap();
            assert_eq!(parsed, size, "{text}");
            assert_eq!(parsed.to_string(), written);
            assert_eq!(written.parse::<DiskSize>().unwrap(), size);
        }
    }

    #[test]
    fn wrong_sizes_say_what_was_expected() {
        for text in ["", "GiB", "-1", "0%", "101%", "nan", "99999999999TiB", "20 apples", "1e400"] {
            let e = text.parse::<DiskSize>().unwrap_err();
            assert_eq!(e.kind(), ErrorKind::InvalidInput);
            assert!(e.message().contains("20GiB"), "{e}");
        }
    }

    #[test]
    fn a_share_is_one_of_the_filesystem() {
        assert_eq!(DiskSize::Share(0.5).of(1 << 40), 1 << 39);
        assert_eq!(DiskSize::Share(7.0).of(1 << 40), 1 << 40);
        assert_eq!(DiskSize::Bytes(5).of(1 << 40), 5);
    }

    #[test]
    fn policies_keep_their_names() {
        for kind in [PolicyKind::Epochs, PolicyKind::Lru, PolicyKind::TinyLfu, PolicyKind::Score] {
            assert_eq!(kind.to_string().parse::<PolicyKind>().unwrap(), kind);
        }
        assert!("mru".parse::<PolicyKind>().unwrap_err().message().contains("tiny-lfu"));
    }

    #[test]
    fn the_default_directory_counts_only_when_none_is_given() {
        let mut config = DiskConfig { default_dir: Some("/a".into()), ..Default::default() };
        assert_eq!(config.directories(), [PathBuf::from("/a")]);
        config.dirs = vec!["/b".into(), "/c".into()];
        assert_eq!(config.directories(), [PathBuf::from("/b"), PathBuf::from("/c")]);
        assert!(DiskConfig::default().directories().is_empty());
    }
}
