//! [`Directory`]: one directory of the cache, as all of this process uses it.

mod renew;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Once, OnceLock};
use std::time::{Duration, Instant};

use nearfs_backends::{Error, ErrorKind, Result};
use rustix::fs::{AtFlags, Mode, OFlags};

use super::control::{self, CONTROL_LEN, Control, Found};
use super::health::Health;
use super::index::Index;
use super::key::Key;
use super::mapping::Mapping;
use super::place::{self, Place};
use super::process::{self, OPENING, Owner};
use super::publish::{TEMPORARY, Unnamed};
use super::rights::Rights;
use super::space::Space;
use super::{INDEX_SLOTS, MIN_LIMIT};
use crate::clock::Clock;
use crate::config::DiskConfig;

/// How long another process may take to open the directory.
const PATIENCE: Duration = Duration::from_secs(10);
/// One index slot for this many bytes of the limit.
const BYTES_PER_SLOT: u64 = 32 << 10;
/// The index and the control file count against the limit as far as they are larger than this.
const FREE_OF_CHARGE: u64 = 16 << 20;
/// How often a directory that changes while it is being opened is looked at again.
const ATTEMPTS: u32 = 16;

/// One directory of the cache. All parts of a process that use the same directory share it.
#[derive(Debug)]
pub(crate) struct Directory {
    asked: PathBuf,
    path: PathBuf,
    dir: Arc<File>,
    /// What the directory of the format version is in.
    parent: File,
    rights: Rights,
    control: &'static Control,
    index: Index,
    space: Space,
    health: Arc<Health>,
    boot: u64,
    objects: File,
    /// The directories below `objects`, opened when first needed.
    fans: [OnceLock<File>; 256],
}

impl Directory {
    /// Opens the directories that `config` names; in place of one that belongs to somebody else, with a warning, the
    /// fallback. Empty if it names none. Blocks.
    ///
    /// # Errors
    /// As [`Directory::open`].
    pub(crate) fn open_all(config: &DiskConfig) -> Result<Vec<Arc<Directory>>> {
        let mut opened: Vec<Arc<Directory>> = Vec::new();
        for path in config.directories() {
            let directory = match (Self::open(&path, config), &config.fallback) {
                (Err(e), Some(fallback)) if e.kind() == ErrorKind::PermissionDenied && *fallback != path => {
                    // The fallback is this user's own, whatever group the other was for.
                    let own = DiskConfig { group: None, ..config.clone() };
                    let directory = Self::open(fallback, &own)?;
                    static TOLD: Once = Once::new();
                    TOLD.call_once(|| {
                        tracing::warn!(
                            directory = %path.display(),
                            fallback = %fallback.display(),
                            error = %e,
                            "the cache directory cannot be used by this user; using the fallback"
                        );
                    });
                    directory
                }
                (result, _) => result?,
            };
            if !opened.iter().any(|other| Arc::ptr_eq(other, &directory)) {
                opened.push(directory);
            }
        }
        Ok(opened)
    }

    /// Opens the directory `path`, making it if it is missing. If this process has it open already, that is what
    /// comes back, with the limit and the free share of `config`. Blocks.
    ///
    /// # Errors
    /// `PermissionDenied` if the directory belongs to somebody else, `InvalidInput` if others may write to it or the
    /// settings are out of range, `NoSpace` if the disk or the process table is full, `TimedOut` if another process
    /// was opening it for ten seconds, `Corrupt` if something else is in its place and in use; otherwise what the
    /// filesystem says. Nothing half-made is left behind.
    pub(crate) fn open(path: &Path, config: &DiskConfig) -> Result<Arc<Directory>> {
        Self::open_with(path, config, &Clock::system()).map_err(|e| e.during("open cache"))
    }

    pub(super) fn open_with(path: &Path, config: &DiskConfig, clock: &Clock) -> Result<Arc<Directory>> {
        if !(0.0..=0.95).contains(&config.free) {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!("expected a free share between 0 and 0.95, found {}", config.free),
            ));
        }
        let place = place::prepare(path, Rights::new(config.group)?)?;
        let limit = config.size.map(|size| size.of(place.total));
        if let Some(limit) = limit
            && limit < MIN_LIMIT
        {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!("expected a cache size of at least {MIN_LIMIT} bytes, found {limit}"),
            ));
        }
        for _ in 0..ATTEMPTS {
            let Some(control) = Self::find_control(&place, limit)? else { continue };
            let mut shared = control.shared().lock();
            if let Some(directory) = shared.upgrade()
                && !directory.health.is_gone()
            {
                limit.inspect(|limit| directory.space.set_limit(*limit));
                directory.space.set_free(config.free);
                return Ok(directory);
            }
            let _opening = Opening::lock(control, PATIENCE)?;
            if !control.is_named(place.dir.as_fd()) {
                continue;
            }
            let started = Self::start(&place, control, limit, config.free, clock);
            if started.is_err() && control.index_file().load(Ordering::Acquire) == 0 && control.is_alone()? {
                // There was no room for an index. Who waits for the lock finds the name gone, and begins anew.
                let _ = rustix::fs::unlinkat(&place.dir, "control", AtFlags::empty());
            }
            let directory = Arc::new(started?);
            *shared = Arc::downgrade(&directory);
            return Ok(directory);
        }
        Err(Error::new(ErrorKind::Corrupt, "the cache directory is being replaced again and again")
            .with_context("directory", place.path.display()))
    }

    /// The control file, made if it is missing. `None`: look again.
    fn find_control(place: &Place, limit: Option<u64>) -> Result<Option<&'static Control>> {
        let dir = place.dir.as_fd();
        let found = match Control::open(dir).map_err(|e| at(place, e))? {
            Found::Missing => {
                let limit = limit.unwrap_or(place.total / 2).max(MIN_LIMIT);
                let slots = (limit / BYTES_PER_SLOT).next_power_of_two();
                let slots = slots.clamp(*INDEX_SLOTS.start(), *INDEX_SLOTS.end());
                Control::create(dir, place.rights, slots, limit).map_err(|e| at(place, e))?
            }
            found => found,
        };
        match found {
            Found::Control(control) => Ok(Some(control)),
            Found::Missing => Ok(None),
            Found::Foreign(what, file) => {
                control::remove_foreign(dir, &file).map_err(|e| {
                    Error::new(ErrorKind::Corrupt, format!("expected a control file of nearfs, found {what}"))
                        .with_source(e)
                        .with_context("directory", place.path.display())
                        .with_context("hint", "remove the directory when no process uses it")
                })?;
                tracing::warn!(directory = %place.path.display(), what, "replaced a damaged control file of the cache");
                Ok(None)
            }
        }
    }

    /// The rest of opening, while no other process opens the directory.
    fn start(
        place: &Place,
        control: &'static Control,
        limit: Option<u64>,
        free: f64,
        clock: &Clock,
    ) -> Result<Directory> {
        let alone = control.is_alone()?;
        let boot = boot_tag();
        if alone {
            control.boot().store(boot, Ordering::Release);
        } else if control.boot().load(Ordering::Acquire) != boot {
            return Err(Error::new(
                ErrorKind::Corrupt,
                "another machine uses the cache directory, expected one directory for each machine",
            )
            .with_context("directory", place.path.display())
            .with_context("hint", "machines with equal /etc/machine-id must name different directories"));
        }
        control.me()?;
        let slots = control.index_slots() as usize;
        let index = Index::new(index_mapping(place, control, slots, alone)?, slots);
        let (objects, _) = place.rights.make_dir(place.dir.as_fd(), "objects").map_err(|e| at(place, e))?;
        if alone {
            remove_temporary(&place.dir);
            // Made here once, so that nobody ever sees one that has not its rights yet.
            for fan in 0..=u8::MAX {
                place.rights.make_dir(objects.as_fd(), &format!("{fan:02x}")).map_err(|e| at(place, e))?;
            }
        }
        limit.inspect(|limit| control.limit().store(*limit, Ordering::Release));
        let dir = Arc::new(place.dir.try_clone()?);
        let health = Arc::new(Health::new(&place.path, clock.clone()));
        let base = (CONTROL_LEN + Index::<Mapping>::bytes(slots)).saturating_sub(FREE_OF_CHARGE);
        let space = Space::new(control, dir.clone(), health.clone(), clock.clone(), base, free);
        if alone {
            space.recount(index.disown());
        }
        Ok(Directory {
            asked: place.asked.clone(),
            path: place.path.clone(),
            dir,
            parent: place.parent.try_clone()?,
            rights: place.rights,
            control,
            index,
            space,
            health,
            boot,
            objects,
            fans: [const { OnceLock::new() }; 256],
        })
    }

    /// The path it was opened by.
    pub(crate) fn asked(&self) -> &Path {
        &self.asked
    }

    /// Where it is, the directory of the format version included.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The directory of the format version.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// Who may use it: the modes of new files.
    pub(crate) fn rights(&self) -> Rights {
        self.rights
    }

    /// This process. After a fork the child is another one; if no slot is left for it, [`Owner::NO_SLOT`], which is
    /// never alive, and [`writable`](Self::writable) is false.
    pub(crate) fn me(&self) -> Owner {
        self.control.me().unwrap_or(Owner::NO_SLOT)
    }

    /// Whether the process that `owner` names is still there. One system call, unless it is this process.
    pub(crate) fn is_alive(&self, owner: Owner) -> bool {
        self.control.is_alive(owner)
    }

    /// What names this boot of the machine: bytes written under another one are not believed unchecked.
    pub(crate) fn boot(&self) -> u64 {
        self.boot
    }

    /// Counts an access; the logical time of it, from 1 on.
    pub(crate) fn tick(&self) -> u64 {
        self.control.clock().fetch_add(1, Ordering::Relaxed)
    }

    /// The logical time: accesses of the whole cache so far, and 1.
    pub(crate) fn now(&self) -> u64 {
        self.control.clock().load(Ordering::Relaxed)
    }

    /// What is in the directory.
    pub(crate) fn index(&self) -> &Index {
        &self.index
    }

    /// What all processes of the directory count together.
    pub(crate) fn control(&self) -> &'static Control {
        self.control
    }

    pub(crate) fn space(&self) -> &Space {
        &self.space
    }

    /// The directory that the files of `key` are in.
    ///
    /// # Errors
    /// What the filesystem says.
    pub(crate) fn objects(&self, key: &Key) -> io::Result<BorrowedFd<'_>> {
        self.fan(key.bucket())
    }

    /// One of the 256 directories below `objects`.
    ///
    /// # Errors
    /// What the filesystem says.
    pub(crate) fn fan(&self, number: u8) -> io::Result<BorrowedFd<'_>> {
        let fan = &self.fans[usize::from(number)];
        if let Some(dir) = fan.get() {
            return Ok(dir.as_fd());
        }
        let (dir, _) = self.rights.make_dir(self.objects.as_fd(), &format!("{number:02x}"))?;
        Ok(fan.get_or_init(|| dir).as_fd())
    }

    /// Limit of the bytes kept, over all processes.
    pub(crate) fn limit(&self) -> u64 {
        self.space.limit()
    }

    /// Sets the limit for every process, now and later.
    pub(crate) fn set_limit(&self, bytes: u64) {
        self.space.set_limit(bytes.max(MIN_LIMIT));
    }

    /// Bytes kept and reserved, over all processes.
    pub(crate) fn used(&self) -> u64 {
        self.space.used()
    }

    /// Bytes that cannot go because somebody outside has them.
    pub(crate) fn lent(&self) -> u64 {
        self.space.lent()
    }

    /// Whether to write into it now. False for 30 s after a failure, for good after it was removed, and for a process
    /// without a slot.
    pub(crate) fn writable(&self) -> bool {
        self.health.writable() && self.control.me().is_ok()
    }

    /// Writing failed with `e`: nothing is written for a while. Readers need not know.
    pub(crate) fn failed(&self, e: &io::Error) {
        self.health.failed(e);
    }

    /// Removes what older format versions left beside this directory and nobody uses. May take long.
    pub(crate) fn remove_older_formats(&self) {
        if let Some(parent) = self.path.parent() {
            super::formats::remove_older(&self.parent, parent);
        }
    }

    /// Owners and process ids of the processes that have it open.
    pub(crate) fn processes(&self) -> Vec<(Owner, u32)> {
        self.control.processes()
    }
}

/// Holds the byte that processes open the directory under. Threads of one process are kept apart by
/// [`Control::shared`].
struct Opening(&'static Control);

impl Opening {
    fn lock(control: &'static Control, patience: Duration) -> Result<Self> {
        let deadline = Instant::now() + patience;
        let mut pause = Duration::from_millis(1);
        while !process::try_lock(control.fd(), OPENING)? {
            if Instant::now() >= deadline {
                return Err(Error::new(
                    ErrorKind::TimedOut,
                    format!("another process has been opening the cache directory for {patience:?}"),
                ));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(20));
        }
        Ok(Opening(control))
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        process::unlock(self.0.fd(), OPENING);
    }
}

/// Maps the index that belongs to `control`, or makes it.
fn index_mapping(place: &Place, control: &Control, slots: usize, alone: bool) -> Result<Mapping> {
    let len = Index::<Mapping>::bytes(slots);
    let dir = place.dir.as_fd();
    let known = control.index_file().load(Ordering::Acquire);
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let wrong = match rustix::fs::openat(dir, "index", flags, Mode::empty()).map(File::from) {
        Ok(file) if known == file.metadata()?.ino() => match Mapping::open(&file, len) {
            Ok(mapping) => return Ok(mapping),
            Err(e) if e.kind() == io::ErrorKind::InvalidData => e.to_string(),
            Err(e) => return Err(at(place, e)),
        },
        Ok(_) => "it is another file than the one that was made".to_owned(),
        Err(rustix::io::Errno::NOENT) => "it is missing".to_owned(),
        // A link, or something that cannot be opened for writing.
        Err(e) => e.to_string(),
    };
    if known != 0 {
        if !alone {
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!("the index of the cache was changed while other processes use it: {wrong}"),
            )
            .with_context("directory", place.path.display())
            .with_context("hint", "stop the processes that use it, then start again"));
        }
        tracing::warn!(directory = %place.path.display(), wrong, "starting with an empty index of the cache");
    }
    match rustix::fs::unlinkat(dir, "index", AtFlags::empty()) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => {}
        Err(e) => return Err(at(place, e.into())),
    }
    let made = Unnamed::create(dir, place.rights).and_then(|unnamed| {
        let mapping = Mapping::create(unnamed.file(), len)?;
        let ino = unnamed.file().metadata()?.ino();
        match unnamed.publish("index")? {
            Some(_) => Ok((mapping, ino)),
            None => {
                Err(io::Error::new(io::ErrorKind::ResourceBusy, "somebody made an index at the same time"))
            }
        }
    });
    let (mapping, ino) = made.map_err(|e| at(place, e))?;
    control.index_file().store(ino, Ordering::Release);
    Ok(mapping)
}

/// What a process that was killed left under a temporary name.
fn remove_temporary(dir: &File) {
    let Ok(entries) = rustix::fs::Dir::read_from(dir) else { return };
    for entry in entries.flatten() {
        if entry.file_name().to_bytes().starts_with(TEMPORARY.as_bytes()) {
            let gone = rustix::fs::unlinkat(dir, entry.file_name(), AtFlags::empty())
                .or_else(|_| rustix::fs::unlinkat(dir, entry.file_name(), AtFlags::REMOVEDIR));
            if let Err(e) = gone {
                tracing::debug!(error = %e, "a temporary file of the cache stays");
            }
        }
    }
}

/// Names this boot: the first half of the kernel's random boot id, the same in every container. Where it cannot be
/// read, a number that nobody else has, so that nothing of before is believed unchecked.
fn boot_tag() -> u64 {
    static TAG: OnceLock<u64> = OnceLock::new();
    *TAG.get_or_init(|| {
        let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let digits: String = id.chars().filter(char::is_ascii_hexdigit).take(16).collect();
        match u64::from_str_radix(&digits, 16) {
            Ok(tag) if digits.len() == 16 && tag != 0 => tag,
            _ => std::hash::BuildHasher::hash_one(&std::collections::hash_map::RandomState::new(), 0) | 1,
        }
    })
}

fn at(place: &Place, e: io::Error) -> Error {
    Error::from(e).with_context("directory", place.path.display())
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
