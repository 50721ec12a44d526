//! A plain parallel client: the speed that benches compare with. Blocking threads, one keep-alive connection
//! each, bytes read into one buffer and dropped; nothing is checked but status and length.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::request::encode;
use crate::rng::Rng;

/// Read at a time. Larger buffers fall out of the second-level cache, smaller ones cost more calls.
const BUFFER: usize = 256 << 10;
/// A server that is silent for this long is taken for dead.
const SILENCE: Duration = Duration::from_secs(60);

/// One GET.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// `/bucket/key`, percent-encoded.
    target: String,
    /// First byte and the byte after the last; none for the whole object.
    range: Option<(u64, u64)>,
}

/// What a run took.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Wall time.
    pub seconds: f64,
    /// Bytes of bodies.
    pub bytes: u64,
    /// GETs.
    pub requests: u64,
    /// 10^6 bytes a second.
    pub mb_per_second: f64,
    /// GETs a second.
    pub requests_per_second: f64,
    /// CPU time of the whole process, user and system.
    pub cpu_seconds: f64,
}

/// GETs of one object in ranges of `part` bytes, in order.
#[must_use]
pub fn parts(bucket: &str, key: &str, size: u64, part: u64) -> Vec<Job> {
    let target = target(bucket, key);
    let part = part.max(1);
    let range = |i: u64| (i * part, size.min((i + 1) * part));
    (0..size.div_ceil(part)).map(|i| Job { target: target.clone(), range: Some(range(i)) }).collect()
}

/// `count` GETs of `len` bytes at random places of one object, aligned to `len`.
#[must_use]
pub fn random(bucket: &str, key: &str, size: u64, len: u64, count: usize, seed: u64) -> Vec<Job> {
    let (target, rng) = (target(bucket, key), Rng::new(seed));
    let len = len.clamp(1, size.max(1));
    let range = |_| {
        let start = rng.next() % (size / len).max(1) * len;
        (start, size.min(start + len))
    };
    (0..count).map(range).map(|range| Job { target: target.clone(), range: Some(range) }).collect()
}

/// GETs of whole objects.
#[must_use]
pub fn whole<K: AsRef<str>>(bucket: &str, keys: impl IntoIterator<Item = K>) -> Vec<Job> {
    keys.into_iter().map(|key| Job { target: target(bucket, key.as_ref()), range: None }).collect()
}

fn target(bucket: &str, key: &str) -> String {
    format!("/{bucket}/{}", encode(key.as_bytes(), true))
}

/// Does all jobs over `connections` connections, each taking the next one when it is free.
///
/// # Errors
/// The first connection that fails, is silent for a minute, or gets another status or length than asked for.
pub fn run(address: SocketAddr, connections: usize, jobs: &[Job]) -> io::Result<Report> {
    let (next, bytes) = (AtomicUsize::new(0), AtomicU64::new(0));
    let (started, cpu) = (Instant::now(), cpu_time());
    let worker = || -> io::Result<()> {
        let mut connection = Connection::open(address)?;
        while let Some(job) = jobs.get(next.fetch_add(1, Relaxed)) {
            bytes.fetch_add(connection.fetch(job)?, Relaxed);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..connections.max(1)).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().try_for_each(|w| w.join().map_err(|_| io::Error::other("a worker panicked"))?)
    })?;
    let (seconds, bytes) = (started.elapsed().as_secs_f64(), bytes.into_inner());
    Ok(Report {
        seconds,
        bytes,
        requests: jobs.len() as u64,
        mb_per_second: bytes as f64 / 1e6 / seconds,
        requests_per_second: jobs.len() as f64 / seconds,
        cpu_seconds: (cpu_time() - cpu).as_secs_f64(),
    })
}

struct Connection {
    stream: TcpStream,
    buffer: Box<[u8]>,
    request: Vec<u8>,
}

impl Connection {
    fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE))?;
        Ok(Self { stream, buffer: vec![0; BUFFER].into(), request: Vec::new() })
    }

    /// Bytes of the body.
    fn fetch(&mut self, job: &Job) -> io::Result<u64> {
        self.request.clear();
        write!(self.request, "GET {} HTTP/1.1\r\nHost: lab\r\n", job.target)?;
        if let Some((start, end)) = job.range {
            write!(self.request, "Range: bytes={start}-{}\r\n", end - 1)?;
        }
        self.request.extend_from_slice(b"\r\n");
        self.stream.write_all(&self.request)?;
        let mut have = 0;
        let head = loop {
            let n = self.stream.read(&mut self.buffer[have..])?;
            if n == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let from = have.saturating_sub(3);
            have += n;
            // The head is short: when its end is not near, it is still to come.
            if let Some(at) = self.buffer[from..have].windows(4).position(|w| w == b"\r\n\r\n") {
                break from + at + 4;
            }
        };
        let wrong = |what: &str| io::Error::other(format!("{what} to GET {}", job.target));
        let text =
            std::str::from_utf8(&self.buffer[..head]).map_err(|_| wrong("an answer that is not text"))?;
        let status = text.get(9..12).unwrap_or("");
        if status != if job.range.is_some() { "206" } else { "200" } {
            return Err(wrong(&format!("status {status}")));
        }
        let length = text
            .lines()
            .find_map(|line| {
                line.split_once(':').filter(|(name, _)| name.eq_ignore_ascii_case("content-length"))
            })
            .and_then(|(_, value)| value.trim().parse::<u64>().ok())
            .ok_or_else(|| wrong("an answer without a length"))?;
        if job.range.is_some_and(|(start, end)| end - start != length) {
            return Err(wrong("an answer of another length"));
        }
        let mut left = length.checked_sub((have - head) as u64).ok_or_else(|| wrong("too many bytes"))?;
        while left > 0 {
            let want = left.min(BUFFER as u64) as usize;
            match self.stream.read(&mut self.buffer[..want])? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => left -= n as u64,
            }
        }
        Ok(length)
    }
}

/// CPU time of this process so far.
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock id is a constant of the kernel, and the call writes one timespec to the address of a
    // live local variable.
    let done = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    if done == 0 { Duration::new(time.tv_sec as u64, time.tv_nsec as u32) } else { Duration::ZERO }
}
