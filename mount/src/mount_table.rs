//! What is mounted where, from `/proc/self/mountinfo`. Reading it touches no filesystem, so it never hangs.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use nearfs_backends::{Error, Result};

use crate::readahead::Device;

/// Type of our mounts, as `/proc/mounts` shows it.
pub(crate) const FS_TYPE: &str = "fuse.nearfs";

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountEntry {
    /// Where it is mounted.
    pub dir: PathBuf,
    /// What is mounted: a URL without secrets, or `nearfs` for several.
    pub source: String,
    /// `fuse.nearfs`, or another type for mounts of others.
    pub fs_type: String,
    /// True if it is read-only for the kernel.
    pub read_only: bool,
    /// True if users other than the one that mounted it may use it.
    pub allow_other: bool,
    /// Device number, `(major, minor)`.
    pub device: (u32, u32),
}

impl MountEntry {
    /// True for any FUSE mount.
    pub(crate) fn is_fuse(&self) -> bool {
        self.fs_type == "fuse" || self.fs_type.starts_with("fuse.")
    }

    /// Number of the FUSE connection, as sysfs names it.
    pub(crate) fn connection(&self) -> u64 {
        connection(self.device)
    }
}

/// The kernel's own form of a device number.
pub(crate) fn connection(device: Device) -> u64 {
    u64::from(device.0) << 20 | u64::from(device.1)
}

/// The nearfs mounts that this process sees, in mount order. Never hangs, also if one of them does.
///
/// # Errors
/// Those of reading `/proc/self/mountinfo`.
pub fn list_mounts() -> Result<Vec<MountEntry>> {
    Ok(all()?.into_iter().filter(|m| m.fs_type == FS_TYPE).collect())
}

/// Everything that is mounted, in mount order.
pub(crate) fn all() -> Result<Vec<MountEntry>> {
    let text =
        std::fs::read("/proc/self/mountinfo").map_err(|e| Error::from(e).during("read the mount table"))?;
    Ok(text.split(|b| *b == b'\n').filter_map(parse).collect())
}

/// The mount one sees at `dir`: the last one made there. `dir` must be absolute and free of symbolic links.
pub(crate) fn at(dir: &Path) -> Result<Option<MountEntry>> {
    Ok(all()?.into_iter().rfind(|m| m.dir == dir))
}

/// One line: `36 35 98:0 /root /dir ro,nosuid - fuse.nearfs source ro,user_id=0`, with any number of optional fields
/// before the `-`.
fn parse(line: &[u8]) -> Option<MountEntry> {
    let fields: Vec<&[u8]> = line.split(|b| *b == b' ').collect();
    let dash = fields.iter().position(|f| *f == b"-")?;
    let text = |f: &[u8]| String::from_utf8_lossy(&unescape(f)).into_owned();
    let (major, minor) = std::str::from_utf8(fields.get(2)?).ok()?.split_once(':')?;
    let options = *fields.get(5)?;
    let super_options = *fields.get(dash + 3)?;
    let has = |list: &[u8], name: &[u8]| list.split(|b| *b == b',').any(|o| o == name);
    Some(MountEntry {
        dir: PathBuf::from(OsString::from_vec(unescape(fields.get(4)?))),
        source: text(fields.get(dash + 2)?),
        fs_type: text(fields.get(dash + 1)?),
        read_only: has(options, b"ro") || has(super_options, b"ro"),
        allow_other: has(super_options, b"allow_other"),
        device: (major.parse().ok()?, minor.parse().ok()?),
    })
}

/// Undoes `\040` and the like.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        match tail {
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..] if byte == b'\\' => {
                out.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = after;
            }
            _ => {
                out.push(byte);
                rest = tail;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_mount_table() {
        let line = b"36 35 0:45 / /mnt/a\\040b\\134 ro,nosuid,nodev shared:1 master:2 - fuse.nearfs s3://b/x\\040y rw,user_id=0,allow_other";
        let m = parse(line).unwrap();
        assert_eq!(m.dir, PathBuf::from("/mnt/a b\\"));
        assert_eq!((m.source.as_str(), m.fs_type.as_str()), ("s3://b/x y", FS_TYPE));
        assert!(m.read_only && m.allow_other && m.is_fuse());
        assert_eq!((m.device, m.connection()), ((0, 45), 45));
        assert_eq!(parse(b""), None);
        assert_eq!(parse(b"36 35 0:45 / /mnt ro"), None);
    }

    #[test]
    fn the_table_of_this_process_can_be_read() {
        assert!(all().unwrap().iter().any(|m| m.dir == Path::new("/proc")));
        assert!(at(Path::new("/proc")).unwrap().is_some_and(|m| m.fs_type == "proc"));
    }
}
