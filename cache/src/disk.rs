//! The disk tier: bytes of object versions kept as plain files, shared live by every process of this machine.
//!
//! # On disk: format version 1
//! ```text
//! DIR/                       a directory of --cache-dir; mode 0700, or 2770 for a cache group. On a network
//!                            filesystem everything is in DIR/hosts/<machine-id>/ instead, one for each machine
//!   CACHEDIR.TAG             tells backup programs to leave this out
//!   nearfs-v1/               this format; another format version has another directory
//!     control                fixed size: a header of 4 KiB, then the process table, 4096 slots of 64 bytes
//!     index                  fixed size: N slots of 128 bytes, then one bit a slot, set while it is in use, then
//!                            16 KiB for what the eviction policy learned
//!     objects/00 … ff/       <64 hex>: exactly the bytes of one object version (or of one part of a very large one)
//!                            <64 hex>.s: which 64 KiB units of it are there, for objects above 1 MiB
//! ```
//! Integers are in the order of the machine; a file that another order wrote is a foreign file. `control`, `index`
//! and the `.s` files are mapped into memory by every process. Their pages are allocated before they are mapped, and
//! nobody ever truncates or rewrites them: either would kill a process that touches the mapping (SIGBUS). They come
//! into being under no name, wholly initialised, and get their name in one step.
//!
//! **Upgrade rule.** What changes the meaning of any of these files raises the format version, and so uses another
//! directory. Directories of older versions are removed once no process uses them; those of newer versions are left
//! alone. Nothing is ever converted: it is a cache.
//!
//! # Who is alive
//! A process is named by an `Owner`: its slot of the process table and the generation of that slot. It holds the
//! slot by a POSIX lock on one byte of `control`, which the kernel takes back the moment the process is gone, however
//! it ends and in whatever PID namespace it runs. `control` is opened once in a process and never closed, because
//! closing any descriptor of a file drops all of the process's POSIX locks on it. A forked child takes its own slot.
//!
//! # Space
//! `control` counts the bytes of all entries and of all reservations. Bytes are reserved before they are written,
//! room being made first, so the limit holds at all times over all processes. What a process had reserved when it
//! died is given back once, by whoever finds it first. The first process to open a directory alone counts anew.
//!
//! # What is believed
//! Power loss may leave any mixture of old and new pages behind, so nothing is synced and everything is checked:
//! bytes are believed unchecked only under the boot in which they were written, and if the file is still the very
//! one that was written; else their CRC32C is compared before their first use.

pub(crate) mod backlog;
mod catalogue;
#[cfg(test)]
mod children;
mod claims;
mod cleaning;
mod control;
mod dir;
mod direct;
mod evict;
mod files;
mod formats;
mod health;
mod host;
mod index;
mod key;
mod lend;
pub(crate) mod lent;
mod locks;
mod mapping;
mod object;
mod opened;
mod parts;
mod place;
pub mod policy;
mod process;
mod publish;
mod reclaim;
mod recover;
pub(crate) mod refill;
mod rights;
#[cfg(all(test, feature = "shuttle"))]
mod schedules;
mod small;
mod space;
mod state;
pub(crate) mod tier;
mod verify;
mod volume;
mod words;
mod write;
pub(crate) mod writer;

use std::ops::RangeInclusive;

pub(crate) use state::UNIT;

/// Version of the format on disk.
const FORMAT: u64 = 1;
/// Bytes of a slot of the index.
const INDEX_SLOT: u64 = 128;
/// Slots that an index may have.
const INDEX_SLOTS: RangeInclusive<u64> = 1 << 16..=1 << 22;
/// The least limit of a directory, in bytes.
const MIN_LIMIT: u64 = 1 << 20;
