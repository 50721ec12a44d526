//! Reads by io_uring: one ring and one thread, whose memory outlives whoever asked.

mod inflight;
mod probe;
mod ring;
mod watch;

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::sync::Semaphore;

use super::buffer::Buffer;
use super::completion::pair;
use super::lent::Lent;
use super::source::Source;
use super::threads::{BlockingPoolConfig, too_many_blocked};
use crate::error::{Error, ErrorKind, Result};
use inflight::{Read, State};

/// Reads that one ring works on at the same time; who comes later waits for a place.
const DEPTH: u32 = 256;
/// Processors for which one ring is enough: its thread copies what has arrived.
const CPUS_PER_RING: usize = 8;
const MAX_RINGS: usize = 4;

/// The rings of one engine. When it is dropped, each thread ends as soon as nothing of it is in flight.
pub(super) struct Uring {
    rings: Vec<Arc<Shared>>,
    next: AtomicUsize,
}

/// One ring, as its thread, its watchdog and its callers share it.
struct Shared {
    state: Mutex<State>,
    /// The watchdog has something to watch again.
    watch: Condvar,
    /// Written to when the thread must look at the queue; part of the ring's own wait.
    wake: OwnedFd,
    places: Arc<Semaphore>,
    timeout: Duration,
    max_blocked: usize,
    /// Reads given up that the kernel has not returned.
    stuck: AtomicUsize,
    /// The kernel refused to go on; nothing more is asked of this ring.
    broken: AtomicBool,
}

impl Uring {
    /// Starts rings if io_uring is permitted here; the text says how that was found out.
    ///
    /// # Errors
    /// Why it is not, in words for people.
    pub(super) fn start(config: &BlockingPoolConfig) -> std::result::Result<(Self, String), String> {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let count = (cpus / CPUS_PER_RING).clamp(1, MAX_RINGS);
        // Made first, so that what has started ends again when a later one fails.
        let mut uring = Uring { rings: Vec::new(), next: AtomicUsize::new(0) };
        for number in 0..count {
            uring.rings.push(ring::start(number, config)?);
        }
        Ok((uring, format!("io_uring works here (kernel {})", probe::kernel())))
    }

    /// As [`Engine::read_queued`](super::Engine::read_queued). `None` instead of a result when the ring is broken
    /// and somebody else must read.
    pub(super) async fn read(
        &self,
        source: &Source,
        offset: u64,
        buf: Buffer,
        want: usize,
    ) -> (Option<Result<usize>>, Buffer) {
        let ring = &self.rings[self.next.fetch_add(1, Ordering::Relaxed) % self.rings.len()];
        if i64::try_from(offset.saturating_add(want as u64)).is_err() {
            let error = Error::new(ErrorKind::InvalidInput, "an offset is beyond what a file can have");
            return (Some(Err(error.during("read"))), buf);
        }
        if want == 0 {
            return (Some(Ok(0)), buf);
        }
        if ring.broken.load(Ordering::Acquire) {
            return (None, buf);
        }
        let place = ring.places.clone().acquire_owned().await.ok();
        let stuck = ring.stuck.load(Ordering::Relaxed);
        if stuck >= ring.max_blocked {
            return (Some(Err(too_many_blocked("read", stuck))), buf);
        }
        let memory = Lent::new(buf, want);
        let (promise, outcome) = pair();
        let read = Read::new(source.clone(), memory.clone(), promise, offset, place, ring.timeout);
        let outcome = if ring.push(read) { outcome.await } else { Err(broken()) };
        match outcome {
            // SAFETY: the ring settles with a number only when the last read of this memory has completed.
            Ok(n) => (Some(Ok(n)), unsafe { memory.take(n) }),
            Err(_) if ring.broken.load(Ordering::Acquire) => (None, memory.replace()),
            Err(e) => (Some(Err(e)), memory.replace()),
        }
    }

    /// Reads given up that are still in the kernel.
    pub(super) fn stuck(&self) -> usize {
        self.rings.iter().map(|r| r.stuck.load(Ordering::Relaxed)).sum()
    }
}

impl fmt::Debug for Uring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Uring({} rings, {} reads stuck)", self.rings.len(), self.stuck())
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        for ring in &self.rings {
            ring.state.lock().closed = true;
            ring.watch.notify_all();
            ring.ring_the_bell();
        }
    }
}

impl Shared {
    /// Queues a read. False if the ring is broken; the read is then dropped.
    fn push(&self, read: Read) -> bool {
        let mut state = self.state.lock();
        if self.broken.load(Ordering::Acquire) {
            return false;
        }
        state.queue.push_back(read);
        let sleeps = std::mem::take(&mut state.sleeping);
        let unwatched = std::mem::take(&mut state.unwatched);
        drop(state);
        if sleeps {
            self.ring_the_bell();
        }
        if unwatched {
            self.watch.notify_one();
        }
        true
    }

    fn ring_the_bell(&self) {
        // Fails only when the counter is full, and then the thread has every reason to wake up.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

fn broken() -> Error {
    Error::new(ErrorKind::Other, "io_uring stopped working").during("read")
}

#[cfg(test)]
mod tests;
