//! Readers with a position over a [`File`]: [`FileReader`] for tokio, [`BlockingReader`] for plain threads.

mod blocking;

use std::fmt;
use std::io::{self, SeekFrom};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use futures::Stream;
use tokio::io::{AsyncBufRead, AsyncRead, AsyncSeek, ReadBuf};

use crate::error::{Error, ErrorKind};
use crate::file::{ByteStream, File};

pub use blocking::BlockingReader;

/// Bytes of the first requests after a start or a seek; after these one stream runs to the end of the file.
///
/// A program that jumps about (an archive's directory, a Parquet footer) then never opens a request for the whole
/// rest of a large file, and one that reads on soon gets the uninterrupted stream.
const WINDOWS: [u64; 2] = [1 << 20, 8 << 20];

/// A forward seek of at most this many bytes reads on and drops them: cheaper than a new request.
const SKIP: u64 = 256 << 10;

/// A position in one version of a file: tokio `AsyncRead`, `AsyncBufRead` and `AsyncSeek`.
///
/// Sequential reads share one running stream; a seek ends it unless the target is near. Nothing is requested before
/// the first read. After an error the position is unchanged and the next read tries again.
///
/// # Errors
/// Those of [`File`] reads, inside [`std::io::Error`]; `Error::from` gives them back.
///
/// # Cancellation
/// Dropping the reader, or a read future, loses nothing; bytes that arrived stay in the reader.
pub struct FileReader<F: File + ?Sized = dyn File> {
    file: Arc<F>,
    position: u64,
    /// Bytes at `position`, already here.
    chunk: Bytes,
    /// What follows `chunk`, up to `until`.
    stream: Option<ByteStream>,
    until: u64,
    /// Bytes of the stream to drop before the next one counts (after a near forward seek).
    skip: u64,
    windows_used: usize,
}

impl<F: File + ?Sized> FileReader<F> {
    /// A reader at the start of `file`.
    pub fn new(file: Arc<F>) -> Self {
        FileReader {
            file,
            position: 0,
            chunk: Bytes::new(),
            stream: None,
            until: 0,
            skip: 0,
            windows_used: 0,
        }
    }

    /// The file underneath.
    pub fn file(&self) -> &Arc<F> {
        &self.file
    }

    /// Where the next read starts, in bytes from the start of the file.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Moves to `position`, which may lie after the end (reads give nothing there). Makes no request.
    pub fn set_position(&mut self, position: u64) {
        let ahead = position.checked_sub(self.position);
        match ahead {
            Some(n) if n <= self.chunk.len() as u64 => self.chunk.advance(n as usize),
            Some(n) if self.stream.is_some() && position < self.until && n <= SKIP => {
                self.skip += n - self.chunk.len() as u64;
                self.chunk = Bytes::new();
            }
            _ => self.restart(),
        }
        self.position = position;
    }

    fn restart(&mut self) {
        self.chunk = Bytes::new();
        self.stream = None;
        self.skip = 0;
        self.windows_used = 0;
    }

    fn target(&self, from: SeekFrom) -> io::Result<u64> {
        let (base, offset) = match from {
            SeekFrom::Start(n) => return Ok(n),
            SeekFrom::End(n) => (self.file.metadata().size, n),
            SeekFrom::Current(n) => (self.position, n),
        };
        base.checked_add_signed(offset).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, "a seek to before the start of the file")
        })
    }

    /// Makes `chunk` non-empty, or leaves it empty at the end of the file.
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let size = self.file.metadata().size;
        while self.chunk.is_empty() && self.position < size {
            let stream = match &mut self.stream {
                Some(stream) => stream,
                None => {
                    let window = WINDOWS.get(self.windows_used).copied().unwrap_or(u64::MAX);
                    self.windows_used += 1;
                    self.until = self.position.saturating_add(window).min(size);
                    self.stream.insert(self.file.read_stream(self.position..self.until))
                }
            };
            match ready!(Pin::new(stream).poll_next(cx)) {
                Some(Ok(mut bytes)) => {
                    let dropped = self.skip.min(bytes.len() as u64);
                    bytes.advance(dropped as usize);
                    self.skip -= dropped;
                    self.chunk = bytes;
                }
                Some(Err(e)) => {
                    self.restart();
                    return Poll::Ready(Err(e.into()));
                }
                None if self.position >= self.until => self.stream = None,
                None => {
                    self.restart();
                    let e = Error::new(ErrorKind::Corrupt, "the stream ended before its range did");
                    return Poll::Ready(Err(e.during("read").at(self.file.path()).into()));
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<F: File + ?Sized> AsyncBufRead for FileReader<F> {
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let this = self.get_mut();
        ready!(this.poll_chunk(cx))?;
        Poll::Ready(Ok(&this.chunk))
    }

    fn consume(self: Pin<&mut Self>, n: usize) {
        let this = self.get_mut();
        this.chunk.advance(n);
        this.position += n as u64;
    }
}

impl<F: File + ?Sized> AsyncRead for FileReader<F> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if out.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let bytes = ready!(self.as_mut().poll_fill_buf(cx))?;
        let n = bytes.len().min(out.remaining());
        out.put_slice(&bytes[..n]);
        self.consume(n);
        Poll::Ready(Ok(()))
    }
}

impl<F: File + ?Sized> AsyncSeek for FileReader<F> {
    fn start_seek(self: Pin<&mut Self>, from: SeekFrom) -> io::Result<()> {
        let this = self.get_mut();
        let target = this.target(from)?;
        this.set_position(target);
        Ok(())
    }

    fn poll_complete(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<u64>> {
        Poll::Ready(Ok(self.position))
    }
}

impl<F: File + ?Sized> fmt::Debug for FileReader<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileReader")
            .field("path", self.file.path())
            .field("position", &self.position)
            .field("buffered", &self.chunk.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
