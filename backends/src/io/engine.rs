//! [`Engine`]: reads of local files, by io_uring or by threads, with the same results.

use std::fmt;
use std::os::fd::OwnedFd;
use std::str::FromStr;
use std::sync::Arc;

use super::buffer::Buffer;
use super::psync;
use super::source::{Medium, Source};
use super::threads::{BlockingPool, BlockingPoolConfig};
use super::uring::Uring;
use crate::error::{Error, ErrorKind, Result};

/// Longest read that is tried from the page cache on the calling thread, in bytes: copying it takes about as long as
/// handing it over would.
const INLINE_MAX: usize = 1 << 20;

/// Which way of reading is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineChoice {
    /// io_uring for files on disks of this machine where the kernel permits it, threads for everything else.
    #[default]
    Auto,
    /// io_uring for every file; an error where it is not permitted.
    Uring,
    /// Threads and `pread` for every file.
    Psync,
}

impl FromStr for EngineChoice {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "auto" => Ok(EngineChoice::Auto),
            "uring" | "io_uring" => Ok(EngineChoice::Uring),
            "psync" => Ok(EngineChoice::Psync),
            other => Err(Error::new(
                ErrorKind::InvalidInput,
                format!("expected `auto`, `uring` or `psync` as the local engine, found `{other}`"),
            )),
        }
    }
}

impl fmt::Display for EngineChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            EngineChoice::Auto => "auto",
            EngineChoice::Uring => "uring",
            EngineChoice::Psync => "psync",
        })
    }
}

/// Which way of reading is used, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineReport {
    /// [`EngineChoice::Uring`] or [`EngineChoice::Psync`].
    pub engine: EngineChoice,
    /// One line for people: `io_uring works here (kernel 6.18)`, `io_uring is switched off by …`.
    pub reason: String,
}

/// Settings of an [`Engine`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EngineConfig {
    /// Default: [`EngineChoice::Auto`].
    pub choice: EngineChoice,
    /// Threads and deadlines, also of io_uring reads.
    pub threads: BlockingPoolConfig,
}

/// Reads local files. Clones share one engine; with the last one its threads end once nothing is in flight.
///
/// Both ways read the same bytes and report the same errors: negative results are errnos, short answers are
/// continued up to the end of the file, and a read without progress for the timeout is given up with `TimedOut`.
/// It needs no runtime.
#[derive(Debug, Clone)]
pub struct Engine(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    choice: EngineChoice,
    report: EngineReport,
    pool: BlockingPool,
    uring: Option<Uring>,
}

impl Engine {
    /// Starts the engine that `config` asks for.
    ///
    /// # Errors
    /// `Unsupported` when io_uring is demanded and not permitted here; the message says why.
    pub fn new(config: EngineConfig) -> Result<Self> {
        let pool = BlockingPool::new(config.threads.clone());
        let (uring, reason) = match config.choice {
            EngineChoice::Psync => (None, "asked for by the configuration".into()),
            choice => match Uring::start(&config.threads) {
                Ok((uring, reason)) => (Some(uring), reason),
                Err(reason) if choice == EngineChoice::Uring => {
                    let error = Error::unsupported("the local engine `uring` is not possible here");
                    return Err(error
                        .with_context("reason", reason)
                        .with_context("hint", "use `auto` or `psync`"));
                }
                Err(reason) => (None, reason),
            },
        };
        let engine = if uring.is_some() { EngineChoice::Uring } else { EngineChoice::Psync };
        let report = EngineReport { engine, reason };
        Ok(Engine(Arc::new(Inner { choice: config.choice, report, pool, uring })))
    }

    /// Takes an open regular file in. Asks its filesystem what it is, so call it where blocking is allowed
    /// ([`Engine::pool`]).
    pub fn adopt(&self, fd: OwnedFd) -> Source {
        let medium = Medium::of(&fd);
        Source::new(fd, medium, self.0.pool.clone())
    }

    /// Reads up to `want` bytes at `offset` of `source` behind the content of `buf`, and gives `buf` back with the
    /// number of bytes added: fewer than wanted only at the end of the file or of the buffer's room. What the page
    /// cache holds is copied at once, on the calling thread.
    ///
    /// # Errors
    /// `TimedOut` without progress for the timeout; those of the disk. `buf` then comes back with what it held.
    ///
    /// # Cancellation
    /// Dropping the future gives up the read; the memory lives until the kernel has finished with it.
    pub async fn read(
        &self,
        source: &Source,
        offset: u64,
        mut buf: Buffer,
        want: usize,
    ) -> (Result<usize>, Buffer) {
        let want = want.min(buf.remaining());
        let mut cached = 0;
        if want <= INLINE_MAX && source.medium() == Medium::Disk {
            cached = psync::read_cached(source, offset, &mut buf, want);
        }
        if cached == want {
            return (Ok(want), buf);
        }
        let before = buf.len() - cached;
        let (result, mut buf) = self.read_queued(source, offset + cached as u64, buf, want - cached).await;
        if result.is_err() {
            buf.truncate(before);
        }
        (result.map(|n| n + cached), buf)
    }

    /// As [`Engine::read`], but always through the engine's queue, never on the calling thread.
    ///
    /// # Errors
    /// As [`Engine::read`].
    pub async fn read_queued(
        &self,
        source: &Source,
        offset: u64,
        mut buf: Buffer,
        want: usize,
    ) -> (Result<usize>, Buffer) {
        // On network and FUSE filesystems io_uring would use kernel threads, which can be neither counted nor bounded.
        let fits = source.medium() == Medium::Disk || self.0.choice == EngineChoice::Uring;
        if let Some(uring) = self.0.uring.as_ref().filter(|_| fits) {
            let (result, same) = uring.read(source, offset, buf, want).await;
            match result {
                Some(result) => return (result, same),
                None => buf = same,
            }
        }
        psync::read(&self.0.pool, source, offset, buf, want).await
    }

    /// The threads for calls that may block.
    pub fn pool(&self) -> &BlockingPool {
        &self.0.pool
    }

    /// Which way of reading is used, and why.
    pub fn describe(&self) -> &EngineReport {
        &self.0.report
    }

    /// Reads and calls that were given up and are still stuck in the kernel.
    pub fn blocked(&self) -> usize {
        self.0.pool.blocked_threads() + self.0.uring.as_ref().map_or(0, Uring::stuck)
    }
}
