//! Bodies of answers, piece by piece, with a limit on the gap between two pieces.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::Body as _;
use object_store::client::HttpResponseBody;
use tokio::runtime::Handle;
use tokio::time::{Instant, Sleep};

use super::super::error::transport;
use super::xml::malformed;
use crate::error::{Error, ErrorKind, Result};

/// The body of an answer. May be polled from any thread and runtime: the timer is our runtime's.
#[derive(Debug)]
pub(crate) struct Body {
    inner: HttpResponseBody,
    gap: Duration,
    runtime: Handle,
    timer: Option<Pin<Box<Sleep>>>,
    waiting: bool,
}

impl Body {
    pub(crate) fn new(inner: HttpResponseBody, gap: Duration, runtime: Handle) -> Self {
        Body { inner, gap, runtime, timer: None, waiting: false }
    }

    /// The next piece; `None` at the end as the connection tells it, which is not yet proof of completeness.
    pub(crate) fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes>>> {
        loop {
            match Pin::new(&mut self.inner).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    self.waiting = false;
                    match frame.into_data() {
                        Ok(data) => return Poll::Ready(Some(Ok(data))),
                        Err(_trailers) => continue,
                    }
                }
                Poll::Ready(Some(Err(e))) => return Poll::Ready(Some(Err(transport(e)))),
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => break,
            }
        }
        if !self.waiting {
            self.waiting = true;
            match &mut self.timer {
                Some(timer) => timer.as_mut().reset(Instant::now() + self.gap),
                None => {
                    let _context = self.runtime.enter();
                    self.timer = Some(Box::pin(tokio::time::sleep(self.gap)));
                }
            }
        }
        match self.timer.as_mut().map(|t| t.as_mut().poll(cx)) {
            Some(Poll::Ready(())) => Poll::Ready(Some(Err(stalled(self.gap)))),
            _ => Poll::Pending,
        }
    }

    /// The whole body, at most `limit` bytes.
    ///
    /// # Errors
    /// `Corrupt` if it is longer; those of the connection.
    pub(crate) async fn collect(mut self, limit: usize) -> Result<Bytes> {
        let mut all = BytesMut::new();
        while let Some(chunk) = poll_fn(|cx| self.poll_chunk(cx)).await {
            let chunk = chunk?;
            if all.len() + chunk.len() > limit {
                return Err(malformed(&format!("is longer than {limit} bytes")));
            }
            all.extend_from_slice(&chunk);
        }
        Ok(all.freeze())
    }

    /// The first `limit` bytes, or what came before a failure: for texts of errors.
    pub(crate) async fn collect_some(mut self, limit: usize) -> Bytes {
        let mut all = BytesMut::new();
        while let Some(Ok(chunk)) = poll_fn(|cx| self.poll_chunk(cx)).await {
            let n = chunk.len().min(limit - all.len());
            all.extend_from_slice(&chunk[..n]);
            if all.len() == limit {
                break;
            }
        }
        all.freeze()
    }
}

fn stalled(gap: Duration) -> Error {
    Error::new(
        ErrorKind::TimedOut,
        format!("the body stopped: no byte for {}", humantime::format_duration(gap)),
    )
}
