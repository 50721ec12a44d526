//! The files of a large object: how they come into being, are opened, and go.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::host::Ground;
use super::index::SlotRef;
use super::key::Key;
use super::locks::{self, Lock};
use super::mapping::Mapping;
use super::object::{Large, state_in};
use super::publish::Unnamed;
use super::state::{Known, Label, Layout, State};

impl Large {
    /// Makes the files of an object that has none, and gives them their names; whatever has those names is removed.
    /// Only for whoever owns the entry `slot` while it is being filled, and has [`Large::overhead`] charged for it.
    /// Blocks.
    ///
    /// # Errors
    /// What the filesystem says; nothing is left behind.
    ///
    /// # Panics
    /// If `size` is 0.
    pub(crate) fn create(ground: &Arc<Ground>, key: &Key, slot: SlotRef, size: u64) -> io::Result<Large> {
        assert!(size > 0, "an empty object has no units");
        let layout = Layout::new(size);
        let dir = ground.host.objects(key)?;
        let data = Unnamed::create(dir, ground.host.rights())?;
        data.file().set_len(size)?;
        let state = Unnamed::create(dir, ground.host.rights())?;
        let mapping = Mapping::create(state.file(), layout.file_len())?;
        let label = Label { key: *key.bytes(), size };
        state_in(&mapping, layout).initialise(&label, ground.host.boot(), random(), known(data.file())?);
        discard(ground, key)?;
        let taken = || io::Error::from(ErrorKind::AlreadyExists);
        state.publish(&key.state_name())?.ok_or_else(taken)?;
        let data = match data.publish(&key.name()).and_then(|file| file.ok_or_else(taken)) {
            Ok(file) => file,
            Err(e) => {
                unlink(ground, key, &key.state_name())?;
                return Err(e);
            }
        };
        Ok(Self::assemble(ground, key, slot, size, mapping, data.into()))
    }

    /// Opens the files of an object; nothing if they are missing, dead, or not what they should be: the entry is
    /// to be dropped then. Blocks.
    ///
    /// # Errors
    /// What the filesystem says. Nothing is known about the entry then.
    pub(crate) fn open(
        ground: &Arc<Ground>,
        key: &Key,
        slot: SlotRef,
        size: u64,
    ) -> io::Result<Option<Large>> {
        let layout = Layout::new(size);
        let Some(state_file) = open_file(ground, key, &key.state_name())? else { return Ok(None) };
        let mapping = match Mapping::open(&state_file, layout.file_len()) {
            Ok(mapping) => mapping,
            Err(e) if e.kind() == ErrorKind::InvalidData => return Ok(None),
            Err(e) => return Err(e),
        };
        let state = state_in(&mapping, layout);
        let label = Label { key: *key.bytes(), size };
        if !state.is_of(&label) || state.is_dead() {
            return Ok(None);
        }
        let Some(data) = open_file(ground, key, &key.name())? else { return Ok(None) };
        if data.metadata()?.len() != size {
            return Ok(None);
        }
        if state.boot() != ground.host.boot() || !agrees(ground, &state, &data)? {
            // One at a time, and only the first finds something to do. An interruption by death leaves it to the next.
            locks::lock(&state_file, Lock::Exclusive)?;
            let taken_over = take_over(ground, &state, &data);
            locks::unlock(&state_file);
            taken_over?;
        }
        Ok(Some(Self::assemble(ground, key, slot, size, mapping, data.into())))
    }
}

/// Whether the data file is the one that the state knows, as far as can be told while others fill it.
pub(super) fn agrees(ground: &Ground, state: &State<'_>, data: impl AsFd) -> io::Result<bool> {
    loop {
        let before = state.known();
        let found = known(data.as_fd())?;
        if (before.inode, before.device) != (found.inode, found.device) {
            return Ok(false);
        }
        // Who fills has a claim from before the first change until it is accounted for.
        if before.changed == found.changed || state.is_busy(&mut |owner| ground.host.is_alive(owner)) {
            return Ok(true);
        }
        if state.known() == before {
            return Ok(false);
        }
    }
}

/// Makes the state one of this boot, and of the data file as it is now. Under the lock of the state file.
fn take_over(ground: &Ground, state: &State<'_>, data: &File) -> io::Result<()> {
    let boot = ground.host.boot();
    if state.boot() != boot {
        state.take_over(boot);
    }
    if !agrees(ground, state, data)? {
        distrust(state, data)?;
    }
    Ok(())
}

/// Has every unit proven anew, and accepts the data file as it is now.
pub(super) fn distrust(state: &State<'_>, data: impl AsFd) -> io::Result<()> {
    state.distrust(random(), known(data)?);
    Ok(())
}

fn known(data: impl AsFd) -> io::Result<Known> {
    let stat = rustix::fs::fstat(data)?;
    let changed = nanoseconds(stat.st_mtime as i64, stat.st_mtime_nsec as i64);
    Ok(Known { inode: stat.st_ino, device: stat.st_dev, changed })
}

/// When the bytes of `file` were changed last, in nanoseconds.
pub(super) fn changed(file: impl AsFd) -> io::Result<u64> {
    Ok(known(file)?.changed)
}

fn nanoseconds(seconds: i64, nanoseconds: i64) -> u64 {
    (seconds as u64).wrapping_mul(1_000_000_000).wrapping_add(nanoseconds as u64)
}

fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(())
}

/// Opens a regular file of `key`; nothing if there is none of that name.
fn open_file(ground: &Ground, key: &Key, name: &str) -> io::Result<Option<File>> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    match rustix::fs::openat(ground.host.objects(key)?, name, flags, Mode::empty()) {
        Ok(fd) => {
            let file = File::from(fd);
            // io_uring reads O_NONBLOCK literally where a filesystem cannot read asynchronously.
            rustix::fs::fcntl_setfl(&file, OFlags::empty())?;
            Ok(file.metadata()?.is_file().then_some(file))
        }
        // A link, a directory, a socket: not ours.
        Err(Errno::NOENT | Errno::LOOP | Errno::ISDIR | Errno::NXIO) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// Removes the files of `key`, whatever they are, after telling whoever has them open. Only for whoever owns the
/// entry of `key` while it is filled or removed. Blocks.
///
/// # Errors
/// What the filesystem says; that there are no such files is none.
pub(crate) fn discard(ground: &Ground, key: &Key) -> io::Result<()> {
    if let Some(file) = open_file(ground, key, &key.state_name())? {
        super::reclaim::kill_file(key, &file);
    }
    unlink(ground, key, &key.state_name())?;
    unlink(ground, key, &key.name())
}

pub(super) fn unlink(ground: &Ground, key: &Key, name: &str) -> io::Result<()> {
    match rustix::fs::unlinkat(ground.host.objects(key)?, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(e) => Err(e.into()),
    }
}
