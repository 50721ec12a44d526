//! [`BlockingReader`]: std `Read`, `BufRead` and `Seek` from any thread.

use std::fmt;
use std::io::{self, BufRead, Read, Seek, SeekFrom};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use bytes::{Buf, Bytes};
use futures::StreamExt;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;

use super::{SKIP, WINDOWS};
use crate::error::{Error, ErrorKind, Result};
use crate::file::File;
use crate::spawner::Spawner;

/// Bytes that may wait between the fetching task and the reading thread.
const READ_AHEAD: usize = 4 << 20;

/// A position in one version of a file: std `Read`, `BufRead` and `Seek`.
///
/// The bytes are fetched by a task on the [`Spawner`]'s runtime and handed over through a plain channel, so any
/// thread may read: one without a runtime, one of a blocking pool, one inside a foreign runtime of any kind (which
/// then waits, as for a local file). At most 4 MiB wait to be read, or one chunk if that is larger.
///
/// # Errors
/// Those of [`File`] reads, inside [`std::io::Error`]; and `Unsupported` on the runtime of the spawner itself when
/// that has only one thread: waiting there for work that only the same thread can do would never end.
pub struct BlockingReader {
    file: Arc<dyn File>,
    spawner: Spawner,
    position: u64,
    chunk: Bytes,
    feed: Option<Feed>,
    windows_used: usize,
}

/// A running fetch of everything from the end of the chunk to `until`.
struct Feed {
    chunks: Receiver<Result<Bytes>>,
    room: Arc<Semaphore>,
    until: u64,
    skip: u64,
    task: AbortHandle,
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl BlockingReader {
    /// A reader at the start of `file`, whose work runs on `spawner`.
    pub fn new(file: Arc<dyn File>, spawner: Spawner) -> Self {
        BlockingReader { file, spawner, position: 0, chunk: Bytes::new(), feed: None, windows_used: 0 }
    }

    /// The file underneath.
    pub fn file(&self) -> &Arc<dyn File> {
        &self.file
    }

    /// Where the next read starts, in bytes from the start of the file.
    pub fn position(&self) -> u64 {
        self.position
    }

    fn restart(&mut self) {
        self.chunk = Bytes::new();
        self.feed = None;
        self.windows_used = 0;
    }

    fn start(&mut self) -> Feed {
        let window = WINDOWS.get(self.windows_used).copied().unwrap_or(u64::MAX);
        self.windows_used += 1;
        let until = self.position.saturating_add(window).min(self.file.metadata().size);
        let room = Arc::new(Semaphore::new(READ_AHEAD));
        let (file, space, range) = (self.file.clone(), room.clone(), self.position..until);
        let (send, chunks) = channel();
        let task = self.spawner.spawn(async move {
            // Made here: a backend may need to be inside the runtime already to start a request.
            let mut stream = file.read_stream(range);
            while let Some(item) = stream.next().await {
                let cost = item.as_ref().map_or(1, |b| b.len().clamp(1, READ_AHEAD));
                // The semaphore is never closed, so this waits for room and for nothing else.
                let Ok(permit) = space.acquire_many(cost as u32).await else { return };
                permit.forget();
                if send.send(item).is_err() {
                    return;
                }
            }
            // Heard only if bytes are missing: a stream that ended early is not a runtime that went away.
            let e = Error::new(ErrorKind::Corrupt, "the stream ended before its range did");
            let _ = send.send(Err(e.during("read").at(file.path())));
        });
        Feed { chunks, room, until, skip: 0, task: task.abort_handle() }
    }

    /// Makes `chunk` non-empty, or leaves it empty at the end of the file.
    fn fill(&mut self) -> io::Result<()> {
        let size = self.file.metadata().size;
        while self.chunk.is_empty() && self.position < size {
            let mut feed = match self.feed.take() {
                Some(feed) if self.position < feed.until => feed,
                // The window is used up: the next one.
                _ => self.start(),
            };
            match self.wait(&feed)? {
                Some(Ok(mut bytes)) => {
                    feed.room.add_permits(bytes.len().clamp(1, READ_AHEAD));
                    let dropped = feed.skip.min(bytes.len() as u64);
                    bytes.advance(dropped as usize);
                    feed.skip -= dropped;
                    self.chunk = bytes;
                    self.feed = Some(feed);
                }
                Some(Err(e)) => {
                    self.restart();
                    return Err(e.into());
                }
                None => {
                    self.restart();
                    let e =
                        Error::new(ErrorKind::Interrupted, "the runtime shut down while bytes were awaited");
                    return Err(e.during("read").at(self.file.path()).into());
                }
            }
        }
        Ok(())
    }

    /// The next item of `feed`; `None` when its task has ended.
    fn wait(&self, feed: &Feed) -> io::Result<Option<Result<Bytes>>> {
        let inside = Handle::try_current().is_ok_and(|here| here.id() == self.spawner.handle().id());
        if !inside {
            return Ok(feed.chunks.recv().ok());
        }
        match self.spawner.handle().runtime_flavor() {
            // Lets the other tasks of this worker move to another thread first.
            RuntimeFlavor::MultiThread => Ok(tokio::task::block_in_place(|| feed.chunks.recv().ok())),
            _ => match feed.chunks.try_recv() {
                Ok(item) => Ok(Some(item)),
                Err(_) => {
                    let e = Error::unsupported(
                        "a blocking read inside the single-threaded runtime that serves it",
                    )
                    .with_context("hint", "use the asynchronous reader here");
                    Err(e.during("read").at(self.file.path()).into())
                }
            },
        }
    }
}

impl BufRead for BlockingReader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.fill()?;
        Ok(&self.chunk)
    }

    fn consume(&mut self, n: usize) {
        self.chunk.advance(n);
        self.position += n as u64;
    }
}

impl Read for BlockingReader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        let bytes = self.fill_buf()?;
        let n = bytes.len().min(out.len());
        out[..n].copy_from_slice(&bytes[..n]);
        self.consume(n);
        Ok(n)
    }
}

impl Seek for BlockingReader {
    fn seek(&mut self, from: SeekFrom) -> io::Result<u64> {
        let (base, offset) = match from {
            SeekFrom::Start(n) => (n, 0),
            SeekFrom::End(n) => (self.file.metadata().size, n),
            SeekFrom::Current(n) => (self.position, n),
        };
        let target = base.checked_add_signed(offset).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, "a seek to before the start of the file")
        })?;
        match (target.checked_sub(self.position), &mut self.feed) {
            (Some(n), _) if n <= self.chunk.len() as u64 => self.chunk.advance(n as usize),
            (Some(n), Some(feed)) if target < feed.until && n <= SKIP => {
                feed.skip += n - self.chunk.len() as u64;
                self.chunk = Bytes::new();
            }
            _ => self.restart(),
        }
        self.position = target;
        Ok(target)
    }
}

impl fmt::Debug for BlockingReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockingReader")
            .field("path", self.file.path())
            .field("position", &self.position)
            .field("buffered", &self.chunk.len())
            .finish_non_exhaustive()
    }
}
