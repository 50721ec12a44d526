//! [`BufferPool`]: recycles the memory of [`Buffer`]s, so that hot paths neither fault fresh pages nor fragment the
//! heap.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::buffer::Buffer;

/// Smallest size class, in bytes.
const MIN_CLASS: usize = 64 << 10;
/// Largest size class, in bytes. Larger buffers get a mapping of their own, which is not kept.
const MAX_CLASS: usize = 8 << 20;
const CLASSES: usize = (MAX_CLASS.trailing_zeros() - MIN_CLASS.trailing_zeros() + 1) as usize;
/// Below this a mapping would waste more than it saves: such buffers come from the heap.
const HEAP_BELOW: usize = MIN_CLASS / 2;
/// How often use of the pool looks for buffers that have been idle too long.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// Settings of a [`BufferPool`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BufferPoolConfig {
    /// Most bytes kept while nobody uses them. Default: 64 MiB.
    pub max_idle: usize,
    /// How long unused memory is kept. Default: 10 s.
    pub idle_timeout: Duration,
}

impl Default for BufferPoolConfig {
    fn default() -> Self {
        BufferPoolConfig { max_idle: 64 << 20, idle_timeout: Duration::from_secs(10) }
    }
}

/// A pool of buffer memory in size classes of 64 KiB to 8 MiB (powers of two). Clones share one pool.
///
/// A [`Buffer`] from [`BufferPool::get`] brings its memory back when it is dropped, also after
/// [`Buffer::freeze`] when the last `Bytes` goes. The memory is mapped, not allocated, so what the pool lets go of
/// returns to the system at once. Unused memory is let go after `idle_timeout`: a cheap look at most once a second,
/// whenever the pool is used, and [`BufferPool::trim`] at any time.
///
/// The pool bounds what lies idle, not what is in use: whoever hands buffers out keeps that budget.
#[derive(Clone)]
pub struct BufferPool(Arc<Inner>);

struct Inner {
    config: BufferPoolConfig,
    /// Oldest first; taken from the end, where pages are still in the processor's caches.
    idle: [Mutex<Vec<Idle>>; CLASSES],
    idle_bytes: AtomicUsize,
    used_bytes: AtomicUsize,
    epoch: Instant,
    /// When the next sweep is due, in milliseconds since `epoch`.
    next_sweep: AtomicU64,
}

struct Idle {
    mapping: Mapping,
    since: Instant,
}

impl BufferPool {
    /// An empty pool.
    pub fn new(config: BufferPoolConfig) -> Self {
        BufferPool(Arc::new(Inner {
            config,
            idle: std::array::from_fn(|_| Mutex::new(Vec::new())),
            idle_bytes: AtomicUsize::new(0),
            used_bytes: AtomicUsize::new(0),
            epoch: Instant::now(),
            next_sweep: AtomicU64::new(0),
        }))
    }

    /// An empty buffer that can hold exactly `capacity` bytes, in recycled memory where there is some.
    /// Aborts when memory is out, as `Vec`.
    pub fn get(&self, capacity: usize) -> Buffer {
        if capacity < HEAP_BELOW {
            return Buffer::with_capacity(capacity);
        }
        self.0.sweep_if_due();
        let class = class_of(capacity);
        if let Some(mapping) = class.and_then(|c| self.0.take(c)) {
            return self.wrap(mapping, capacity);
        }
        let size = class.map_or_else(|| capacity.next_multiple_of(super::ALIGNMENT), class_size);
        let mapping = Mapping::new(size).or_else(|| {
            // Address space or the number of mappings is exhausted: idle ones are the first to go.
            self.trim();
            Mapping::new(size)
        });
        match mapping {
            Some(mapping) => self.wrap(mapping, capacity),
            None => Buffer::with_capacity(capacity),
        }
    }

    /// Gives all idle memory back to the system and returns how many bytes that was.
    pub fn trim(&self) -> usize {
        let mut freed = 0;
        for (class, idle) in self.0.idle.iter().enumerate() {
            let gone = std::mem::take(&mut *idle.lock());
            freed += self.0.forget(class, &gone);
        }
        freed
    }

    /// Bytes of memory that wait for their next use.
    pub fn idle_bytes(&self) -> usize {
        self.0.idle_bytes.load(Ordering::Relaxed)
    }

    /// Bytes of mapped memory in buffers of this pool that are alive now (whole size classes).
    pub fn used_bytes(&self) -> usize {
        self.0.used_bytes.load(Ordering::Relaxed)
    }

    fn wrap(&self, mapping: Mapping, capacity: usize) -> Buffer {
        self.0.used_bytes.fetch_add(mapping.size(), Ordering::Relaxed);
        Buffer::from_pool(mapping, capacity, Home(self.clone()))
    }
}

impl Default for BufferPool {
    fn default() -> Self {
        BufferPool::new(BufferPoolConfig::default())
    }
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BufferPool({} bytes idle, {} used)", self.idle_bytes(), self.used_bytes())
    }
}

impl Inner {
    fn take(&self, class: usize) -> Option<Mapping> {
        let idle = self.idle[class].lock().pop()?;
        self.idle_bytes.fetch_sub(class_size(class), Ordering::Relaxed);
        Some(idle.mapping)
    }

    fn put(&self, mapping: Mapping) {
        let size = mapping.size();
        self.used_bytes.fetch_sub(size, Ordering::Relaxed);
        // Own mappings of large buffers are not whole classes and are not kept.
        let Some(class) = class_of(size).filter(|c| class_size(*c) == size) else { return };
        let room = self.idle_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| {
            n.checked_add(size).filter(|n| *n <= self.config.max_idle)
        });
        if room.is_ok() {
            self.idle[class].lock().push(Idle { mapping, since: Instant::now() });
        }
        self.sweep_if_due();
    }

    fn sweep_if_due(&self) {
        let now = self.epoch.elapsed().as_millis() as u64;
        let due = self.next_sweep.load(Ordering::Relaxed);
        let every = SWEEP_EVERY.min(self.config.idle_timeout).as_millis() as u64;
        let next = now + every;
        if now < due
            || self.next_sweep.compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed).is_err()
        {
            return;
        }
        let Some(limit) = Instant::now().checked_sub(self.config.idle_timeout) else { return };
        for (class, idle) in self.idle.iter().enumerate() {
            let gone: Vec<_> = {
                let mut idle = idle.lock();
                let old = idle.partition_point(|i| i.since < limit);
                idle.drain(..old).collect()
            };
            self.forget(class, &gone);
        }
    }

    fn forget(&self, class: usize, gone: &[Idle]) -> usize {
        let bytes = gone.len() * class_size(class);
        self.idle_bytes.fetch_sub(bytes, Ordering::Relaxed);
        bytes
    }
}

/// The way back into the pool, held by a buffer.
pub(super) struct Home(BufferPool);

impl Home {
    /// Another buffer from the same pool.
    pub(super) fn get(&self, capacity: usize) -> Buffer {
        self.0.get(capacity)
    }

    /// Brings memory back; `None` is nothing.
    pub(super) fn put(&self, mapping: Option<Mapping>) {
        if let Some(mapping) = mapping {
            self.0.0.put(mapping);
        }
    }
}

fn class_size(class: usize) -> usize {
    MIN_CLASS << class
}

/// The smallest class that holds `capacity` bytes; `None` above the largest.
fn class_of(capacity: usize) -> Option<usize> {
    (capacity <= MAX_CLASS).then(|| {
        let size = capacity.max(MIN_CLASS).next_power_of_two();
        (size.trailing_zeros() - MIN_CLASS.trailing_zeros()) as usize
    })
}

/// Anonymous memory of its own, unmapped on drop.
pub(super) struct Mapping {
    ptr: NonNull<u8>,
    size: usize,
}

// SAFETY: the mapping is private anonymous memory, owned by this value and not tied to a thread.
unsafe impl Send for Mapping {}
// SAFETY: `&Mapping` gives out only an address and a size.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(size: usize) -> Option<Self> {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        // SAFETY: a new private anonymous mapping at an address of the kernel's choice touches no existing memory.
        let ptr = unsafe {
            mmap_anonymous(std::ptr::null_mut(), size, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        };
        Some(Mapping { ptr: NonNull::new(ptr.ok()?.cast())?, size })
    }

    pub(super) fn ptr(&self) -> NonNull<u8> {
        self.ptr
    }

    pub(super) fn size(&self) -> usize {
        self.size
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this size, unmapped once; the buffer that used it is gone.
        let unmapped = unsafe { rustix::mm::munmap(self.ptr.as_ptr().cast(), self.size) };
        debug_assert!(unmapped.is_ok(), "a whole mapping can be unmapped");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_recycled_by_class_and_bounded() {
        let pool = BufferPool::new(BufferPoolConfig { max_idle: 1 << 20, ..Default::default() });
        let mut buf = pool.get(100_000);
        assert_eq!((buf.capacity(), buf.as_ptr() as usize % super::super::ALIGNMENT), (100_000, 0));
        assert_eq!(buf.append(&[7; 200_000]), 100_000);
        let at = buf.as_ptr();
        let shared = buf.freeze();
        let clone = shared.clone();
        drop(shared);
        assert_eq!((pool.idle_bytes(), pool.used_bytes()), (0, 128 << 10));
        drop(clone);
        assert_eq!((pool.idle_bytes(), pool.used_bytes()), (128 << 10, 0));
        let again = pool.get(70_000);
        assert_eq!((again.as_ptr(), again.len(), again.capacity()), (at, 0, 70_000));
        drop(again);

        let many: Vec<_> = (0..20).map(|_| pool.get(1 << 17)).collect();
        assert_eq!(pool.idle_bytes(), 0);
        drop(many);
        assert_eq!(pool.idle_bytes(), 1 << 20);
        assert_eq!((pool.trim(), pool.idle_bytes(), pool.used_bytes()), (1 << 20, 0, 0));
    }

    #[test]
    fn small_and_huge_buffers_are_not_kept() {
        let pool = BufferPool::default();
        for capacity in [0, 1, HEAP_BELOW - 1, MAX_CLASS + 1, 3 * MAX_CLASS + 5] {
            let mut buf = pool.get(capacity);
            assert_eq!((buf.capacity(), buf.remaining()), (capacity, capacity));
            assert_eq!(buf.append(&[1; 10]), capacity.min(10));
            drop(buf);
            assert_eq!((pool.idle_bytes(), pool.used_bytes()), (0, 0), "{capacity}");
        }
    }

    #[test]
    fn idle_memory_goes_after_a_time() {
        let idle_timeout = Duration::from_millis(30);
        let pool = BufferPool::new(BufferPoolConfig { idle_timeout, ..Default::default() });
        drop((pool.get(MIN_CLASS), pool.get(MAX_CLASS)));
        assert_eq!(pool.idle_bytes(), MIN_CLASS + MAX_CLASS);
        let end = Instant::now() + Duration::from_secs(20);
        while pool.idle_bytes() > MIN_CLASS << 1 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
            drop(pool.get(MIN_CLASS << 1));
        }
        assert_eq!(pool.idle_bytes(), MIN_CLASS << 1);
    }

    #[test]
    fn threads_share_a_pool_without_sharing_memory() {
        let pool = BufferPool::default();
        std::thread::scope(|s| {
            for t in 0..4u8 {
                let pool = pool.clone();
                s.spawn(move || {
                    for i in 0..200 {
                        let mut buf = pool.get(MIN_CLASS << (i % 3));
                        let mark = [t; 4096];
                        while buf.append(&mark) > 0 {}
                        std::thread::yield_now();
                        assert!(buf.iter().all(|b| *b == t));
                    }
                });
            }
        });
        assert_eq!(pool.used_bytes(), 0);
    }
}
