//! The body of an answer: content in chunks, held to the model's rates, ended early when a fault says so.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::Sleep;

use crate::content::{CHUNK, Content};
use crate::counters::{InFlight, KeyCounter};
use crate::model::THAW_TICK;
use crate::server::{Connection, Shared};

/// Waits shorter than this are not worth a timer; the pacer catches up.
const WORTH_A_TIMER: Duration = Duration::from_micros(200);
/// How often a body that is about to be cut looks whether its bytes are out.
const DRAIN_TICK: Duration = Duration::from_millis(2);
/// Looks before it is cut all the same: 10 s.
const DRAIN_TICKS: u32 = 5000;
/// The longest gap between the pieces of a dripped body.
const DRIP_GAP: Duration = Duration::from_millis(50);

/// How a body ends before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Stall,
    Cut,
    Reset,
}

#[derive(Debug)]
pub(crate) struct OutBody {
    shared: Arc<Shared>,
    connection: Arc<Connection>,
    content: Content,
    pos: u64,
    end: u64,
    /// Counts bytes of objects; none for other bodies.
    pub(crate) counter: Option<Arc<KeyCounter>>,
    /// Bytes of body after which it ends early (position, not count).
    ending: Option<(u64, Ending)>,
    pub(crate) drip: Option<u64>,
    pub(crate) flip: Option<u64>,
    /// No length is promised: chunked transfer encoding.
    chunked: bool,
    started: bool,
    held: Option<Bytes>,
    timer: Option<Pin<Box<Sleep>>>,
    waiting: bool,
    drain_ticks: u32,
    unwritten: Arc<AtomicUsize>,
    _in_flight: InFlight,
}

impl OutBody {
    /// Bytes `pos..end` of `content`.
    pub(crate) fn new(
        shared: &Arc<Shared>,
        connection: &Arc<Connection>,
        content: Content,
        (pos, end): (u64, u64),
        in_flight: InFlight,
    ) -> Self {
        Self {
            shared: shared.clone(),
            connection: connection.clone(),
            content,
            pos,
            end,
            counter: None,
            ending: None,
            drip: None,
            flip: None,
            chunked: false,
            started: false,
            held: None,
            timer: None,
            waiting: false,
            drain_ticks: 0,
            unwritten: Arc::default(),
            _in_flight: in_flight,
        }
    }

    pub(crate) fn len(&self) -> u64 {
        self.end - self.pos
    }

    /// Ends the body after `after` bytes; beyond its length this does nothing.
    pub(crate) fn end_after(&mut self, after: u64, ending: Ending) {
        self.ending = Some((self.pos.saturating_add(after), ending));
    }

    /// Promises no length, and is cut after `after` bytes or at its end.
    pub(crate) fn truncate_chunked(&mut self, after: u64) {
        self.chunked = true;
        self.end_after(after.min(self.len()), Ending::Cut);
    }

    fn sleep_until(&mut self, at: Instant) {
        match &mut self.timer {
            Some(timer) => timer.as_mut().reset(at.into()),
            None => self.timer = Some(Box::pin(tokio::time::sleep_until(at.into()))),
        }
        self.waiting = true;
    }

    /// The next chunk, and the instant it is due.
    fn next_chunk(&mut self) -> (Bytes, Option<Instant>) {
        let model = *self.shared.model.read();
        let limit = self.ending.map_or(self.end, |(at, _)| at.min(self.end));
        let rest = (limit - self.pos).min(CHUNK as u64) as usize;
        let mut max = model.chunk(CHUNK).min(rest);
        if rest <= max + max / 2 {
            // A short rest is not worth a timer of its own.
            max = rest;
        }
        if let Some(rate) = self.drip {
            max = max.min(((rate as f64 * DRIP_GAP.as_secs_f64()) as usize).max(1));
        }
        let mut chunk = self.content.chunk(self.pos, max, &self.shared.buffers);
        if let Some(at) = self.flip
            && (self.pos..self.pos + chunk.len() as u64).contains(&at)
        {
            let mut changed = chunk.to_vec();
            changed[(at - self.pos) as usize] ^= 0xff;
            chunk = changed.into();
        }
        self.pos += chunk.len() as u64;
        let mut due = None;
        if model.connection_mbps > 0.0 {
            due = due.max(Some(self.connection.down.reserve(chunk.len(), model.connection_mbps)));
        }
        if model.total_mbps > 0.0 {
            due = due.max(Some(self.shared.total.reserve(chunk.len(), model.total_mbps)));
        }
        if let Some(rate) = self.drip {
            due = due.max(Some(self.connection.down.reserve(chunk.len(), rate as f64 / 1e6)));
        }
        if self.ending.is_some() {
            self.unwritten.fetch_add(1, Relaxed);
            chunk = Bytes::from_owner(Tracked { bytes: chunk, unwritten: self.unwritten.clone() });
        }
        (chunk, due)
    }

    /// True once what was sent so far has left for the peer, as far as can be told, or waiting is no use.
    fn drained(&mut self, ending: Ending) -> bool {
        let out =
            self.unwritten.load(Relaxed) == 0 && (ending == Ending::Cut || self.connection.unsent() == 0);
        // The first look comes before the head is even written: only later ones count.
        self.drain_ticks += 1;
        self.drain_ticks > 1 && (out || self.drain_ticks > DRAIN_TICKS)
    }
}

impl Body for OutBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let body = &mut *self;
        loop {
            if body.waiting {
                if let Some(timer) = &mut body.timer {
                    ready!(timer.as_mut().poll(cx));
                }
                body.waiting = false;
            }
            if let Some(chunk) = body.held.take() {
                if let Some(counter) = &body.counter {
                    body.shared.tally.sent(counter, chunk.len());
                }
                return Poll::Ready(Some(Ok(Frame::data(chunk))));
            }
            if body.is_end_stream() {
                return Poll::Ready(None);
            }
            match body.ending {
                Some((at, Ending::Stall)) if body.pos >= at => return Poll::Pending,
                Some((at, ending)) if body.pos >= at => {
                    if body.drained(ending) {
                        if ending == Ending::Reset {
                            body.connection.reset_on_close();
                        }
                        return Poll::Ready(Some(Err(io::Error::other("cut by a fault"))));
                    }
                    body.sleep_until(Instant::now() + DRAIN_TICK);
                    continue;
                }
                _ => {}
            }
            if body.shared.model.read().frozen {
                body.sleep_until(Instant::now() + THAW_TICK);
                continue;
            }
            if !body.started {
                body.started = true;
                body.connection.down.restart();
            }
            let (chunk, due) = body.next_chunk();
            body.held = Some(chunk);
            if let Some(due) = due.filter(|due| *due > Instant::now() + WORTH_A_TIMER) {
                body.sleep_until(due);
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.pos >= self.end && self.held.is_none() && !(self.chunked && self.ending.is_some())
    }

    fn size_hint(&self) -> SizeHint {
        if self.chunked {
            return SizeHint::default();
        }
        SizeHint::with_exact(self.len() + self.held.as_ref().map_or(0, |h| h.len() as u64))
    }
}

/// Bytes that tell when they have been written: hyper drops a chunk then.
struct Tracked {
    bytes: Bytes,
    unwritten: Arc<AtomicUsize>,
}

impl AsRef<[u8]> for Tracked {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        self.unwritten.fetch_sub(1, Relaxed);
    }
}
