//! [`Counted`]: the bytes of one answer. The end comes after exactly the range, proven where that can be, or as an error.

use std::future::poll_fn;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures::stream::Stream;
use parking_lot::Mutex;

use super::super::wire::body::Body;
use super::super::wire::xml::malformed;
use super::FileState;
use super::proof::{Mismatch, Proof};
use crate::error::{Error, ErrorKind, Result, Retry};

/// What one open file knows about the truth of its bytes.
#[derive(Default)]
pub(super) struct Proofs {
    /// The proof of a stream that broke off, and where: whoever goes on from there to the end goes on with it. One is
    /// enough, because a file is streamed as a whole by one at a time.
    broken_off: Mutex<Option<(u64, Proof)>>,
    /// The last whole body was not what the store has.
    disproved: AtomicBool,
}

impl std::fmt::Debug for Proofs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Proofs").field("disproved", &self.disproved).finish_non_exhaustive()
    }
}

impl Proofs {
    /// What a mismatch means. Once is bad luck on the way, worth another request; twice in a row is the store's.
    fn mismatch(&self, wrong: Mismatch, continued: bool) -> Error {
        let retry = match (self.disproved.swap(true, Ordering::Relaxed), continued) {
            (true, _) => Retry::Exhausted,
            // Going on behind what earlier requests brought is no cure: one of them may have brought the wrong byte.
            (false, true) => Retry::Never,
            (false, false) => Retry::Later(None),
        };
        let Mismatch { algorithm, promised, found } = wrong;
        let text = format!("the {algorithm} of what arrived does not match what the store says");
        Error::new(ErrorKind::Corrupt, text)
            .with_retry(retry)
            .with_context("expected", promised)
            .with_context("found", found)
    }
}

/// The body of one answer, of which the bytes of a range are wanted.
///
/// The last piece is given out only when the whole is proven, where the store said how: so the end of a whole object
/// is never reached with wrong bytes.
pub(super) struct Counted {
    file: Arc<FileState>,
    body: Body,
    /// Offset of the next byte.
    at: u64,
    end: u64,
    /// The object was asked for as a whole: nothing more may come.
    whole: bool,
    proof: Option<Proof>,
    /// What came before this request was given out by another.
    continued: bool,
    /// If it breaks off, somebody may go on from there.
    streamed: bool,
}

impl Counted {
    /// The bytes `range` of `file`, which `body` begins with.
    pub(super) fn new(
        file: Arc<FileState>,
        body: Body,
        range: Range<u64>,
        proof: Option<Proof>,
        streamed: bool,
    ) -> Self {
        let whole = range == (0..file.metadata.size);
        let mut counted =
            Counted { file, body, at: range.start, end: range.end, whole, proof, continued: false, streamed };
        if streamed && range.start > 0 && range.end == counted.file.metadata.size {
            let mut broken_off = counted.file.proofs.broken_off.lock();
            let here = broken_off.take_if(|(at, _)| *at == range.start);
            drop(broken_off);
            counted.continued = here.is_some();
            counted.proof = here.map(|(_, proof)| proof);
        }
        counted
    }

    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes>>> {
        if self.at == self.end {
            return Poll::Ready(None);
        }
        let left = self.end - self.at;
        let chunk = match ready!(self.body.poll_chunk(cx)) {
            Some(Ok(chunk)) => self.take(chunk, left),
            Some(Err(e)) => Err(e),
            None => {
                let text = format!("the body ended {left} bytes too early");
                Err(Error::new(ErrorKind::Unavailable, text).with_retry(Retry::Later(None)))
            }
        };
        if chunk.is_err() {
            self.break_off();
        }
        Poll::Ready(Some(chunk))
    }

    fn take(&mut self, mut chunk: Bytes, left: u64) -> Result<Bytes> {
        if chunk.len() as u64 > left {
            if self.whole {
                self.proof = None;
                return Err(malformed("has more bytes than the object"));
            }
            // More than asked for comes only with a 200 from the beginning.
            chunk.truncate(left as usize);
        }
        if let Some(proof) = &mut self.proof {
            proof.update(&chunk);
        }
        if chunk.len() as u64 == left
            && let Some(proof) = self.proof.take()
        {
            let proofs = &self.file.proofs;
            proof.verify().map_err(|wrong| {
                let e = proofs.mismatch(wrong, self.continued);
                tracing::warn!(path = %self.file.path, error = %e.chain(), "wrong bytes came");
                e
            })?;
            proofs.disproved.store(false, Ordering::Relaxed);
        }
        self.at += chunk.len() as u64;
        Ok(chunk)
    }

    /// Ends it, and leaves the proof to whoever goes on.
    fn break_off(&mut self) {
        if let Some(proof) = self.proof.take()
            && self.streamed
            && (1..self.end).contains(&self.at)
        {
            *self.file.proofs.broken_off.lock() = Some((self.at, proof));
        }
        self.at = self.end;
    }

    pub(super) async fn next(&mut self) -> Option<Result<Bytes>> {
        poll_fn(|cx| self.poll_chunk(cx)).await
    }
}

impl Stream for Counted {
    type Item = Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_chunk(cx)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        // A layer above may have lost its patience: it drops the stream, and asks for the rest.
        self.break_off();
    }
}
