//! [`Race`]: the bytes of a range by one request, or by the better of two.

use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt};
use tokio::time::{Instant, Sleep};

use super::judge::{Judge, Limits, Reason, Took, class_of};
use crate::error::{Error, Result};
use crate::file::{ByteStream, File};

/// A stream of a range that gets a second request once, when it is slow.
///
/// * While nothing has come, both ask for the whole range, and the first byte decides.
/// * In the middle the second asks for what is missing. The first goes on delivering; the second has won when it gets
///   ahead. Where the range ends with the file the first is given up instead when the second starts: it may carry the
///   checksum of the whole object, which is handed on to who continues it only when it is gone.
///
/// Both read the same opened file, which is pinned to one version, so their bytes are the same.
pub(super) struct Race {
    judge: Arc<Judge>,
    file: Arc<dyn File>,
    class: usize,
    /// What has not been delivered yet.
    rest: Range<u64>,
    first: Option<ByteStream>,
    second: Option<Second>,
    /// How the first request failed (an early end has no error), while the second is still there.
    failure: Option<Option<Error>>,
    /// Since the first poll: a stream that nobody reads asks for nothing.
    begun: Option<(Instant, Limits)>,
    took: Took,
    /// Time that the reader has waited since the first byte.
    waited: Duration,
    /// Since when it waits now.
    waiting: Option<Instant>,
    /// The one chance is gone: taken, refused, or not wanted any more.
    spent: bool,
    /// There was a second request for a part: the time of the body says nothing of one request.
    helped: bool,
    /// Goes off when it is time, or earlier. It is not set anew for every item: that would cost more than the item.
    alarm: Option<Pin<Box<Sleep>>>,
}

struct Second {
    stream: ByteStream,
    /// Offset of its next byte.
    at: u64,
    started: Instant,
    won: bool,
}

impl Race {
    /// The bytes of `range` of `file`, which is inside the file and not empty.
    pub(super) fn new(judge: Arc<Judge>, file: Arc<dyn File>, range: Range<u64>) -> Self {
        Race {
            class: class_of(range.end - range.start),
            first: Some(file.read_stream(range.clone())),
            judge,
            file,
            rest: range,
            second: None,
            failure: None,
            begun: None,
            took: Took::default(),
            waited: Duration::ZERO,
            waiting: None,
            spent: false,
            helped: false,
            alarm: None,
        }
    }

    fn answered(&self) -> bool {
        self.took.first_byte.is_some()
    }

    /// What either of the two has to say.
    fn poll_both(&mut self, cx: &mut Context<'_>, begun: Instant) -> Poll<Option<Result<Bytes>>> {
        while let Some(first) = &mut self.first {
            match first.poll_next_unpin(cx) {
                Poll::Pending => break,
                Poll::Ready(Some(Ok(chunk))) if chunk.is_empty() => {}
                Poll::Ready(Some(Ok(chunk))) => {
                    if !self.answered() {
                        self.took.first_byte = Some(begun.elapsed());
                        // Too late: dropping it closes its connection.
                        self.second = None;
                    }
                    return Poll::Ready(Some(Ok(self.delivered(chunk, true))));
                }
                Poll::Ready(end) => {
                    let error = self.failed(end);
                    self.first = None;
                    if self.second.is_none() {
                        return Poll::Ready(error.map(Err));
                    }
                    self.failure = Some(error);
                }
            }
        }
        while let Some(second) = &mut self.second {
            match second.stream.poll_next_unpin(cx) {
                Poll::Pending => break,
                Poll::Ready(Some(Ok(chunk))) => {
                    let at = second.at;
                    second.at += chunk.len() as u64;
                    if second.at <= self.rest.start {
                        // The first was faster so far.
                        continue;
                    }
                    let chunk = chunk.slice(self.rest.start.saturating_sub(at) as usize..);
                    if !std::mem::replace(&mut second.won, true) {
                        // What the first would have taken is not known. To learn that it took longer than the limit
                        // would only raise the limit, again and again.
                        self.took.first_byte.get_or_insert(second.started.elapsed());
                        (self.first, self.failure) = (None, None);
                        self.judge.won();
                    }
                    return Poll::Ready(Some(Ok(self.delivered(chunk, false))));
                }
                Poll::Ready(end) => {
                    let error = self.failed(end);
                    self.second = None;
                    if self.first.is_none() {
                        return Poll::Ready(self.failure.take().unwrap_or(error).map(Err));
                    }
                }
            }
        }
        Poll::Pending
    }

    fn delivered(&mut self, chunk: Bytes, by_first: bool) -> Bytes {
        // More than was asked for is for others to notice.
        self.rest.start = (self.rest.start + chunk.len() as u64).min(self.rest.end);
        if self.rest.is_empty() {
            self.spent = true;
            if by_first {
                self.second = None;
            }
        }
        chunk
    }

    fn failed(&self, end: Option<Result<Bytes>>) -> Option<Error> {
        let error = end?.err()?;
        self.judge.hear(&error);
        Some(error)
    }

    /// When the present wait is too long.
    fn until(&self, begun: Instant, limits: Limits, waiting: Instant) -> Option<(Instant, Reason)> {
        if self.spent || self.first.is_none() {
            return None;
        }
        if !self.answered() {
            return Some((begun + limits.first_byte?, Reason::FirstByte));
        }
        Some((waiting + limits.body?.saturating_sub(self.waited), Reason::Body))
    }

    fn is_due(&mut self, cx: &mut Context<'_>, until: Instant) -> bool {
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until)));
        if alarm.deadline() > until {
            alarm.as_mut().reset(until);
        }
        while alarm.as_mut().poll(cx).is_ready() {
            if alarm.deadline() >= until {
                return true;
            }
            alarm.as_mut().reset(until);
        }
        false
    }

    fn start_second(&mut self, reason: Reason) {
        self.helped = reason == Reason::Body;
        if self.helped && self.rest.end == self.file.metadata().size {
            self.first = None;
        }
        let stream = self.file.read_stream(self.rest.clone());
        self.second = Some(Second { stream, at: self.rest.start, started: Instant::now(), won: false });
    }
}

impl Stream for Race {
    type Item = Result<Bytes>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if this.first.is_none() && this.second.is_none() {
            return Poll::Ready(None);
        }
        let (judge, class) = (&this.judge, this.class);
        let (begun, limits) = *this.begun.get_or_insert_with(|| (Instant::now(), judge.request(class)));
        loop {
            let answered = this.answered();
            let polled = this.poll_both(cx, begun);
            if polled.is_ready() {
                if let Some(since) = this.waiting.take().filter(|_| answered) {
                    this.waited += since.elapsed();
                }
                return polled;
            }
            let waiting = *this.waiting.get_or_insert_with(Instant::now);
            let Some((until, reason)) = this.until(begun, limits, waiting) else { return Poll::Pending };
            if !this.is_due(cx, until) {
                return Poll::Pending;
            }
            this.spent = true;
            if !this.judge.allow(reason) {
                return Poll::Pending;
            }
            this.start_second(reason);
        }
    }
}

impl Drop for Race {
    fn drop(&mut self) {
        if self.answered() {
            let body = (self.rest.is_empty() && !self.helped).then_some(self.waited);
            self.judge.learn(self.class, Took { body, ..self.took });
        }
    }
}
