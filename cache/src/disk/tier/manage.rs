//! What people ask of the cache directories: how full they are, whether they are sound, and to remove or keep things.

use std::path::PathBuf;
use std::sync::Arc;

use nearfs_backends::{FsPath, Identity, Metadata, Result};
use serde::{Deserialize, Serialize};

use super::super::evict::make_room;
use super::super::key::Key;
use super::super::parts::Parts;
use super::super::verify::{self, Report};
use super::{DiskTier, SMALL, Volume, choose};
use crate::config::DiskSize;

/// How full one cache directory is, all processes that use it included. Sizes are in bytes of disk.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DirectoryStatus {
    /// Where it is; on a network filesystem, where this machine's part is.
    pub path: PathBuf,
    /// Objects in it; of very large ones each part counts.
    pub objects: u64,
    /// Of these, objects up to 1 MiB.
    pub small: u64,
    /// Bytes of all objects, and of what is being written now.
    pub used: u64,
    /// The most that `used` may become.
    pub limit: u64,
    /// Bytes that cannot be evicted now because a program has them mapped, linked or passed through.
    pub lent: u64,
    /// Pinned objects.
    pub pinned: u64,
    /// Bytes that they have, or may come to have.
    pub pinned_bytes: u64,
    /// Objects that are gone, but whose accesses are remembered.
    pub remembered: u64,
    /// Processes that use it, this one included.
    pub processes: u64,
    /// Whether it is written to. Not so for half a minute after each failure of the disk.
    pub writable: bool,
    /// Size of the filesystem.
    pub total: u64,
    /// Bytes of the filesystem that are free.
    pub free: u64,
}

/// What [`DiskTier::verify`] found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Checked {
    /// Objects looked at.
    pub objects: u64,
    /// Bytes of them that are there and right.
    pub bytes: u64,
    /// Objects that were wrong or missing, wholly or in part, and were removed to that extent.
    pub damaged: u64,
    /// Objects that could not be read just now.
    pub unread: u64,
    /// Files that belonged to no object, and were removed.
    pub leftovers: u64,
    /// Files that are not the cache's, and were left alone.
    pub foreign: u64,
}

impl Checked {
    fn and(self, report: &Report) -> Checked {
        Checked {
            objects: self.objects + report.entries,
            bytes: self.bytes + report.bytes,
            damaged: self.damaged + report.dropped,
            unread: self.unread + report.unread,
            leftovers: self.leftovers + report.files.orphans,
            foreign: self.foreign + report.files.foreign,
        }
    }
}

/// What [`DiskTier::clear`] and [`DiskTier::evict`] did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Removed {
    /// Objects removed.
    pub objects: u64,
    /// Bytes of disk that are free again.
    pub bytes: u64,
    /// Objects that stay because somebody has them or, unless everything is cleared, because they are pinned.
    pub kept: u64,
}

impl Removed {
    fn add(&mut self, removed: verify::Removed) {
        self.objects += removed.entries;
        self.bytes += removed.bytes;
        self.kept += removed.kept;
    }
}

/// How much of a file [`DiskTier::pin`] found to keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Pinned {
    /// All of it.
    Whole,
    /// Some of it, or a place for it: what is still to come is kept as well.
    Partly,
    /// Nothing: it must be read first.
    Absent,
}

/// All of these block, and work while this process and others use the cache.
impl DiskTier {
    /// The directories. Does not block.
    pub fn directories(&self) -> Vec<PathBuf> {
        self.volumes.iter().map(|volume| outer(volume)).collect()
    }

    /// How full each directory is. Takes some 10 ms for each million objects.
    pub fn status(&self) -> Vec<DirectoryStatus> {
        self.volumes.iter().map(|volume| status(volume)).collect()
    }

    /// Reads everything that is cached and compares it with its checksums, whatever is believed of it. What is wrong
    /// is removed, and fetched again when it is read next. `step` is called after each object with the findings so
    /// far; it ends the work by returning false.
    pub fn verify(&self, step: &dyn Fn(&Checked) -> bool) -> Checked {
        let (mut all, mut wanted) = (Checked::default(), true);
        for volume in &self.volumes {
            let report = verify::verify(&volume.cat(), &mut |report| {
                wanted = step(&all.and(report));
                wanted
            });
            all = all.and(&report);
            if !wanted {
                break;
            }
        }
        all
    }

    /// Removes everything, pinned files too, but what is lent to somebody.
    pub fn clear(&self) -> Removed {
        let mut removed = Removed::default();
        self.volumes.iter().for_each(|volume| removed.add(verify::clear(&volume.cat())));
        removed
    }

    /// Removes the file `path` of the store `identity` at the version that `metadata` names, unless it is pinned or
    /// lent.
    pub fn evict(&self, identity: &Identity, path: &FsPath, metadata: &Metadata) -> Removed {
        let mut removed = Removed::default();
        if let Some((volume, keys)) = self.keys(identity, path, metadata) {
            removed.add(verify::evict(&volume.cat(), keys.map(|(key, _)| key)));
        }
        removed
    }

    /// Keeps what is there of a file, and what is still to come of it, until it is unpinned, evicted with
    /// [`clear`](Self::clear), or its directory is removed. For a file of which nothing is there, room is made.
    ///
    /// # Errors
    /// `NoSpace` if more than half of a directory's limit would be pinned; nothing of the file is pinned then.
    pub fn pin(&self, identity: &Identity, path: &FsPath, metadata: &Metadata) -> Result<Pinned> {
        let Some((volume, keys)) = self.keys(identity, path, metadata) else { return Ok(Pinned::Absent) };
        let (mut here, mut whole, mut missing) = (0, true, 0);
        for (key, size) in keys {
            match verify::pin(&volume.cat(), &key) {
                Ok(true) => {
                    here += 1;
                    whole &= is_whole(volume, &key, size);
                }
                Ok(false) => {
                    whole = false;
                    missing += size;
                }
                Err(e) => {
                    self.unpin(identity, path, metadata);
                    return Err(e.at(path));
                }
            }
        }
        let dir = volume.dir();
        let needed = (dir.used() + missing).saturating_sub(dir.limit());
        if missing > 0 && needed > 0 {
            make_room(&volume.cat(), needed, None);
        }
        Ok(match (here, whole) {
            (0, _) => Pinned::Absent,
            (_, false) => Pinned::Partly,
            (_, true) => Pinned::Whole,
        })
    }

    /// Lets a file go again when room is needed, and says whether any of it is here.
    pub fn unpin(&self, identity: &Identity, path: &FsPath, metadata: &Metadata) -> bool {
        let Some((volume, keys)) = self.keys(identity, path, metadata) else { return false };
        // All of them, not only up to the first.
        keys.fold(false, |here, (key, _)| verify::unpin(&volume.cat(), &key) || here)
    }

    /// Sets the limit of each directory, for every process that uses it, now and later, and removes what is above it
    /// as far as it can go. Returns the limits in bytes.
    pub fn set_limit(&self, size: DiskSize) -> Vec<(PathBuf, u64)> {
        let set = |volume: &Arc<Volume>| {
            let dir = volume.dir();
            dir.set_limit(size.of(filesystem(volume).0));
            let over = dir.used().saturating_sub(dir.limit());
            if over > 0 {
                make_room(&volume.cat(), over, None);
            }
            (outer(volume), dir.limit())
        };
        self.volumes.iter().map(set).collect()
    }

    /// Where a file is, and under which keys, each with its bytes.
    fn keys(
        &self,
        identity: &Identity,
        path: &FsPath,
        metadata: &Metadata,
    ) -> Option<(&Volume, impl Iterator<Item = (Key, u64)> + use<>)> {
        let size = metadata.size;
        let key = Key::new(identity, path, &metadata.version, size)?;
        let volume = &self.volumes[choose(&key, self.volumes.len())];
        let parts = Parts::of(size, volume.dir().limit()).filter(|_| size > SMALL);
        let keys = (0..parts.map_or(1, Parts::count)).map(move |number| match parts {
            None => (key, size),
            Some(parts) => {
                let range = parts.range_of(number);
                (key.part(parts.part_size(), number), range.end - range.start)
            }
        });
        Some((&**volume, keys))
    }
}

fn is_whole(volume: &Volume, key: &Key, size: u64) -> bool {
    if size <= SMALL && volume.has(key) {
        return true;
    }
    let large = volume.open_large(key, size, false);
    large.is_some_and(|large| large.resident(0..size) == (true, 0..size))
}

fn status(volume: &Volume) -> DirectoryStatus {
    let of = verify::status(&volume.cat());
    let (total, free) = filesystem(volume);
    DirectoryStatus {
        path: outer(volume),
        objects: of.small + of.large,
        small: of.small,
        used: of.used,
        limit: of.limit,
        lent: of.lent,
        pinned: of.pinned,
        pinned_bytes: of.pinned_bytes,
        remembered: of.remembered,
        processes: of.processes,
        writable: volume.dir().writable(),
        total,
        free,
    }
}

/// Without the directory of the format version, which people need not know.
fn outer(volume: &Volume) -> PathBuf {
    let dir = volume.dir();
    let path = dir.path();
    path.parent().unwrap_or(path).to_owned()
}

/// Size and free bytes of the filesystem; 0 if it does not tell.
fn filesystem(volume: &Volume) -> (u64, u64) {
    let Ok(stat) = rustix::fs::fstatvfs(volume.dir().fd()) else { return (0, 0) };
    (stat.f_blocks.saturating_mul(stat.f_frsize), stat.f_bavail.saturating_mul(stat.f_frsize))
}
