//! [`Host`]: what a large object needs of the directory it lies in.

use std::fmt::Debug;
use std::io;
use std::os::fd::BorrowedFd;

use nearfs_backends::io::Engine;

use super::index::SlotRef;
use super::key::Key;
use super::process::Owner;
use super::rights::Rights;
use super::write::Writing;

/// A cache directory, as large objects see it. A trait, so that their tests can be several processes at once.
pub(crate) trait Host: Debug + Send + Sync {
    /// This process; another one after a fork.
    fn me(&self) -> Owner;

    /// Whether a process lives. May be a system call.
    fn is_alive(&self, owner: Owner) -> bool;

    /// What tells this boot of the machine from all others.
    fn boot(&self) -> u64;

    /// The directory that the files of `key` are in.
    ///
    /// # Errors
    /// What the filesystem says.
    fn objects(&self, key: &Key) -> io::Result<BorrowedFd<'_>>;

    /// The modes of new files.
    fn rights(&self) -> Rights;

    /// Has `write` put up to `bytes` more on disk, after room was made for them, and charges them to `slot`. False if
    /// there is no room, or the entry is gone; nothing is charged then, nor after an error.
    ///
    /// # Errors
    /// That of `write`.
    fn spend(&self, slot: SlotRef, bytes: u64, write: &mut dyn FnMut() -> io::Result<()>)
    -> io::Result<bool>;

    /// Takes `bytes` off the charge of `slot`: they are no longer on disk. Nothing happens if the entry is gone.
    fn discharge(&self, slot: SlotRef, bytes: u64);

    /// Counts `bytes` as lent until the result is dropped or this process ends; nothing if too much is lent already.
    fn lend(&self, bytes: u64) -> Option<Box<dyn Send + Sync>>;

    /// Notes that bytes of `key` were dropped because the disk did not have what it should have had.
    fn count_wrong(&self, key: &Key, why: &str);

    /// Writing failed; what to do about it is up to the directory.
    fn failed(&self, error: &io::Error);
}

/// What all open large objects of one directory share.
#[derive(Debug)]
pub(crate) struct Ground {
    pub(crate) host: std::sync::Arc<dyn Host>,
    pub(crate) engine: Engine,
    pub(crate) writing: Writing,
}
