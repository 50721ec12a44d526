//! Reads that go on after a failure at the byte where they stopped.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, StreamExt};

use super::gate::Pass;
use super::patience::Patience;
use super::{Safety, Shared};
use crate::error::{Error, ErrorKind, Result, Retry};
use crate::file::{ByteStream, File};
use crate::io::Buffer;
use crate::metadata::Metadata;
use crate::path::FsPath;

/// A file whose reads are made again. All attempts go to the one file underneath, which is pinned to one version: what
/// is put together from several requests is never mixed.
#[derive(Debug)]
pub(super) struct RetryFile {
    pub(super) file: Arc<dyn File>,
    pub(super) shared: Arc<Shared>,
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl File for RetryFile {
    fn path(&self) -> &FsPath {
        self.file.path()
    }

    fn metadata(&self) -> &Metadata {
        self.file.metadata()
    }

    async fn read_at(&self, range: Range<u64>) -> Result<Bytes> {
        let attempt = || self.file.read_at(range.clone());
        self.shared.call("read", self.file.path(), Safety::Idempotent, attempt).await
    }

    async fn read_ranges(&self, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let attempt = || self.file.read_ranges(ranges);
        self.shared.call("read", self.file.path(), Safety::Idempotent, attempt).await
    }

    fn read_stream(&self, range: Range<u64>) -> ByteStream {
        resumed(self.file.clone(), self.shared.clone(), range)
    }

    async fn read_into(&self, offset: u64, mut buf: Buffer) -> (Result<usize>, Buffer) {
        let mut patience = Patience::new(&self.shared.config, "read", self.file.path());
        loop {
            let pass = match self.shared.gate.pass(&patience).await {
                Ok(pass) => pass,
                Err(e) => return (Err(e), buf),
            };
            let result;
            (result, buf) = self.file.read_into(offset, buf).await;
            match result {
                Ok(n) => {
                    self.shared.gate.succeeded(pass);
                    return (Ok(n), buf);
                }
                Err(e) => {
                    self.shared.gate.failed(pass, &e);
                    if let Err(e) = patience.pause(e).await {
                        return (Err(e), buf);
                    }
                }
            }
        }
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_fd()
    }
}

struct Resumed {
    /// What has not been delivered yet.
    rest: Range<u64>,
    /// The stream of `rest` under way; with its pass until its first item has come.
    running: Option<(ByteStream, Option<Pass>)>,
}

/// The bytes of `range`, asked for anew from the first missing one on whenever the stream fails in a way that may
/// pass. A stream that ends early is such a failure, one that gives too much is not to be believed.
fn resumed(file: Arc<dyn File>, shared: Arc<Shared>, range: Range<u64>) -> ByteStream {
    let rest = crate::range::clamp(range, file.metadata().size);
    stream::unfold(Some(Resumed { rest, running: None }), move |state| {
        let (file, shared) = (file.clone(), shared.clone());
        async move {
            let mut state = state?;
            let path = file.path();
            // New for every chunk: each is progress.
            let mut patience = Patience::new(&shared.config, "read", path);
            while state.rest.start < state.rest.end {
                let (stream, pass) = match &mut state.running {
                    Some(running) => running,
                    None => {
                        let pass = match shared.gate.pass(&patience).await {
                            Ok(pass) => pass,
                            Err(e) => return Some((Err(e), None)),
                        };
                        state.running.insert((file.read_stream(state.rest.clone()), Some(pass)))
                    }
                };
                let item = stream.next().await;
                let first = pass.take();
                let e = match item {
                    Some(Ok(chunk)) if chunk.is_empty() => continue,
                    Some(Ok(chunk)) => {
                        first.inspect(|pass| shared.gate.succeeded(*pass));
                        state.rest.start += chunk.len() as u64;
                        if state.rest.start > state.rest.end {
                            let e = Error::new(ErrorKind::Corrupt, "more bytes came than were asked for");
                            return Some((Err(e.during("read").at(path)), None));
                        }
                        return Some((Ok(chunk), Some(state)));
                    }
                    Some(Err(e)) if e.kind() == ErrorKind::Corrupt && first.is_none() => {
                        // Bytes of this attempt have been delivered, and are now known to be wrong: going on behind
                        // them is no cure. Whoever has them may throw them away and ask for all anew.
                        return Some((Err(e), None));
                    }
                    Some(Err(e)) => e,
                    None => Error::new(
                        ErrorKind::Corrupt,
                        format!("the stream ended {} bytes early", state.rest.end - state.rest.start),
                    )
                    .with_retry(Retry::Later(None))
                    .during("read")
                    .at(path),
                };
                shared.gate.failed(first.unwrap_or_else(Pass::now), &e);
                state.running = None;
                if let Err(e) = patience.pause(e).await {
                    return Some((Err(e), None));
                }
            }
            None
        }
    })
    .boxed()
}
