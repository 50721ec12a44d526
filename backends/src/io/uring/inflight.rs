//! What is queued and in flight: the owner of buffers and descriptors until the kernel is done with them.

use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use io_uring::{opcode, squeue, types};
use tokio::sync::OwnedSemaphorePermit;

use crate::error::Result;
use crate::io::completion::Promise;
use crate::io::lent::Lent;
use crate::io::psync::STEP;
use crate::io::source::{Medium, Source};

/// `user_data` of the poll that wakes the thread.
pub(super) const BELL: u64 = u64::MAX;
/// `user_data` of cancellations, whose own result tells nothing.
pub(super) const CANCEL: u64 = u64::MAX - 1;

/// Times that one read is begun again after EINTR or EAGAIN before that counts as its result.
const MAX_RETRIES: u32 = 1000;

/// Everything of one ring that is under its lock.
#[derive(Default)]
pub(super) struct State {
    pub(super) queue: VecDeque<Read>,
    /// `user_data` of reads that the watchdog gave up and wants cancelled.
    pub(super) cancel: Vec<u64>,
    pub(super) inflight: Inflight,
    /// The thread waits, or is about to, and has seen an empty queue.
    pub(super) sleeping: bool,
    /// The watchdog waits until somebody tells it of work.
    pub(super) unwatched: bool,
    pub(super) closed: bool,
}

/// One read. Whoever asked for it may be gone: descriptor and memory stay until it ends.
pub(super) struct Read {
    source: Source,
    memory: Arc<Lent>,
    promise: Promise<usize>,
    offset: u64,
    done: usize,
    retries: u32,
    timeout: Duration,
    pub(super) deadline: Instant,
    /// Given back when the read ends or is given up.
    pub(super) place: Option<OwnedSemaphorePermit>,
    /// Its caller was told `TimedOut`; only the kernel still holds it.
    pub(super) given_up: bool,
}

impl Read {
    pub(super) fn new(
        source: Source,
        memory: Arc<Lent>,
        promise: Promise<usize>,
        offset: u64,
        place: Option<OwnedSemaphorePermit>,
        timeout: Duration,
    ) -> Self {
        let deadline = Instant::now() + timeout;
        Read {
            source,
            memory,
            promise,
            offset,
            done: 0,
            retries: 0,
            timeout,
            deadline,
            place,
            given_up: false,
        }
    }

    pub(super) fn promise(&self) -> &Promise<usize> {
        &self.promise
    }

    fn entry(&self, key: u64) -> squeue::Entry {
        let length = (self.memory.len() - self.done).min(STEP) as u32;
        // In bounds: `done` never exceeds the length of the memory.
        let at = self.memory.ptr().wrapping_add(self.done);
        let entry = opcode::Read::new(types::Fd(self.source.as_raw_fd()), at, length)
            .offset(self.offset + self.done as u64)
            .build()
            .user_data(key);
        match self.source.medium() {
            Medium::Disk => entry,
            // FUSE and some network filesystems block in the submission, and would hold up everybody's reads.
            Medium::Network => entry.flags(squeue::Flags::ASYNC),
        }
    }
}

/// A read that has ended, with what its caller is to be told (nothing if it was given up before).
pub(super) struct Ended {
    pub(super) read: Read,
    pub(super) result: Result<usize>,
}

/// Reads that the kernel has, found by the `user_data` of their entries. A place is used again only with another
/// number, so that a late completion can never be taken for a newer read's.
#[derive(Default)]
pub(super) struct Inflight {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

#[derive(Default)]
struct Slot {
    generation: u32,
    read: Option<Read>,
}

impl Inflight {
    /// Takes `read` in and gives the entry to submit for it.
    pub(super) fn insert(&mut self, read: Read) -> squeue::Entry {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[index as usize];
        let entry = read.entry(key(slot.generation, index));
        slot.read = Some(read);
        entry
    }

    /// Takes note of a completion: either the read has ended, or its next entry must be submitted.
    pub(super) fn complete(
        &mut self,
        key: u64,
        result: i32,
    ) -> Option<std::result::Result<Ended, squeue::Entry>> {
        let index = key as u32 as usize;
        let slot = self.slots.get_mut(index).filter(|s| u64::from(s.generation) == key >> 32)?;
        let read = slot.read.as_mut()?;
        let result = match result {
            n if n > 0 => {
                read.done += n as usize;
                read.deadline = Instant::now() + read.timeout;
                let full = read.done >= read.memory.len();
                // What nobody waits for is not read to its end.
                let is_over =
                    full || read.given_up || !crate::io::completion::Expected::is_wanted(&read.promise);
                is_over.then_some(Ok(read.done))
            }
            0 => Some(Ok(read.done)),
            // Completions carry negated errnos.
            n => match -n {
                libc::EINTR | libc::EAGAIN if read.retries < MAX_RETRIES && !read.given_up => {
                    read.retries += 1;
                    None
                }
                errno => {
                    Some(Err(crate::Error::from(std::io::Error::from_raw_os_error(errno)).during("read")))
                }
            },
        };
        let Some(result) = result else { return Some(Err(read.entry(key))) };
        let read = slot.read.take()?;
        slot.generation = slot.generation.wrapping_add(1) & (u32::MAX >> 1);
        self.free.push(index as u32);
        Some(Ok(Ended { read, result }))
    }

    /// Every read in flight, with its `user_data`.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (u64, &mut Read)> {
        self.slots.iter_mut().enumerate().filter_map(|(index, slot)| {
            let key = key(slot.generation, index as u32);
            slot.read.as_mut().map(|read| (key, read))
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.len() == self.free.len()
    }
}

/// Never [`BELL`] or [`CANCEL`]: generations stay below 2^31.
fn key(generation: u32, index: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(index)
}
