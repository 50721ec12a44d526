//! Writing a local file: into a [`Temp`], then named in one step under the condition.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use rustix::fs::{AtFlags, FlockOperation};
use rustix::io::Errno;

use super::attr::{self, Found};
use super::temp::Temp;
use super::{Inner, is_hidden};
use crate::error::{Error, ErrorKind, Result};
use crate::file::FileWriter;
use crate::io::Beat;
use crate::metadata::{Metadata, Version};
use crate::options::Condition;
use crate::path::FsPath;

/// Bytes gathered before a thread is asked to write them.
const GATHER: usize = 1 << 20;
/// Pieces gathered at most, however small.
const GATHER_PIECES: usize = 1024;
/// Permission bits of new files, less the umask.
const NEW_FILE_MODE: u32 = 0o666;

/// Refuses names that cannot be written to.
pub(super) fn check_name(path: &FsPath) -> Result<()> {
    if path.is_root() {
        return Err(Error::new(ErrorKind::IsADirectory, "the root is a directory"));
    }
    if is_hidden(path) {
        return Err(Error::new(ErrorKind::InvalidInput, "names that begin with `.nearfs-tmp-` are reserved"));
    }
    Ok(())
}

pub(super) fn create(fs: Arc<Inner>, path: &FsPath, condition: Condition) -> Result<LocalWriter> {
    check_name(path)?;
    let dir = attr::make_parent(&fs.root, path)?;
    let temp = Temp::new(dir, NEW_FILE_MODE)?;
    check(temp.dir(), path, &condition)?;
    Ok(LocalWriter {
        fs,
        path: path.clone(),
        condition,
        temp: Some(temp),
        gathered: Vec::new(),
        gathered_len: 0,
    })
}

/// Fails if `condition` does not hold at `path` in `dir` now, or a directory is there.
fn check(dir: BorrowedFd<'_>, path: &FsPath, condition: &Condition) -> Result<()> {
    // `Absent` means the name itself, be it a link that leads nowhere.
    let flags = if *condition == Condition::Absent { AtFlags::SYMLINK_NOFOLLOW } else { AtFlags::empty() };
    let current = match rustix::fs::statat(dir, path.name(), flags) {
        Ok(_) if *condition == Condition::Absent => {
            return Err(Error::new(ErrorKind::AlreadyExists, "the name is taken"));
        }
        Ok(stat) => match attr::classify(&stat) {
            Found::Known(m) if m.is_dir() => {
                return Err(Error::new(ErrorKind::IsADirectory, "a directory has this name"));
            }
            Found::Known(m) => m.version,
            Found::Special(kind) => return Err(attr::special(kind)),
        },
        Err(Errno::NOENT) => Version::Unknown,
        Err(e) => return Err(attr::error(e)),
    };
    match condition {
        Condition::Version(wanted) if !current.is_known() || current != *wanted => {
            Err(Error::new(ErrorKind::Stale, "the file is not the version that should be replaced"))
        }
        _ => Ok(()),
    }
}

/// Syncs `temp`, names it `path` if `condition` holds, and makes that durable.
pub(super) fn publish(temp: Temp, path: &FsPath, condition: &Condition, beat: &Beat) -> Result<Metadata> {
    rustix::fs::fsync(temp.file()).map_err(attr::error)?;
    beat.touch();
    let stat = rustix::fs::fstat(temp.file()).map_err(attr::error)?;
    let Found::Known(metadata) = attr::classify(&stat) else {
        return Err(Error::new(ErrorKind::Other, "a temporary file turned into something else"));
    };
    // Writers of all nearfs processes exclude whoever checks a version. Where locks do not work, the check remains.
    let (dir, lock) = (temp.dir().try_clone_to_owned()?, temp.dir().try_clone_to_owned()?);
    let how = match condition {
        Condition::Version(_) => FlockOperation::LockExclusive,
        _ => FlockOperation::LockShared,
    };
    let locked = rustix::fs::flock(&lock, how).is_ok();
    let named = check(temp.dir(), path, condition)
        .and_then(|()| temp.publish(path.name(), *condition == Condition::Absent));
    if locked {
        // The lock belongs to the open directory, which lives on for the sync below.
        let _ = rustix::fs::flock(&lock, FlockOperation::Unlock);
    }
    named?;
    beat.touch();
    match rustix::fs::fsync(&dir) {
        // Network and FUSE filesystems that cannot sync a directory have named the file durably, or never do.
        Ok(()) | Err(Errno::INVAL | Errno::BADF | Errno::NOSYS | Errno::OPNOTSUPP) => Ok(metadata),
        Err(e) => Err(attr::error(e)),
    }
}

/// A file being written. What a cancelled or failed call took with it is gone, and with it the writer.
pub(super) struct LocalWriter {
    fs: Arc<Inner>,
    path: FsPath,
    condition: Condition,
    temp: Option<Temp>,
    gathered: Vec<Bytes>,
    gathered_len: usize,
}

impl fmt::Debug for LocalWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LocalWriter({:?})", self.path)
    }
}

impl LocalWriter {
    /// Hands what was gathered to a thread, and the temporary file for as long as that takes.
    async fn flush(&mut self) -> Result<()> {
        let data = std::mem::take(&mut self.gathered);
        self.gathered_len = 0;
        let mut temp = self.take_temp()?;
        let work = move |beat: &Beat| {
            for piece in &data {
                temp.append(piece, || beat.touch())?;
            }
            Ok(temp)
        };
        self.temp = Some(self.fs.engine.pool().run("write", work).await.map_err(|e| e.at(&self.path))?);
        Ok(())
    }

    fn take_temp(&mut self) -> Result<Temp> {
        self.temp.take().ok_or_else(|| {
            Error::new(ErrorKind::Interrupted, "an earlier write failed or was cancelled")
                .during("write")
                .at(&self.path)
        })
    }
}

#[async_trait]
impl FileWriter for LocalWriter {
    async fn write(&mut self, data: Bytes) -> Result<()> {
        if self.temp.is_none() {
            self.take_temp()?;
        }
        self.gathered_len += data.len();
        self.gathered.push(data);
        if self.gathered_len >= GATHER || self.gathered.len() >= GATHER_PIECES {
            self.flush().await?;
        }
        Ok(())
    }

    async fn finish(mut self: Box<Self>) -> Result<Metadata> {
        self.flush().await?;
        let temp = self.take_temp()?;
        let (path, condition) = (self.path.clone(), self.condition.clone());
        let done = self.fs.change("finish", move |_, beat| publish(temp, &path, &condition, beat)).await;
        done.map_err(|e| e.during("finish").at(&self.path))
    }

    async fn abort(mut self: Box<Self>) -> Result<()> {
        let Some(temp) = self.temp.take() else { return Ok(()) };
        self.fs
            .engine
            .pool()
            .run("abort", move |_| {
                drop(temp);
                Ok(())
            })
            .await
            .map_err(|e| e.at(&self.path))
    }
}

impl Drop for LocalWriter {
    fn drop(&mut self) {
        if let Some(temp) = self.temp.take() {
            // Closing and unlinking may block; whoever drops a writer may not.
            self.fs.engine.pool().detach("abort", move || drop(temp));
        }
    }
}
