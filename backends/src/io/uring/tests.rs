//! Reads of pipes: they hang, come in parts and end when the test wants it.

use std::io::Write;
use std::time::Instant;

use super::*;
use crate::io::{BlockingPool, Medium};

const TIMEOUT: Duration = Duration::from_millis(200);
/// Far beyond any wait that is right.
const SLACK: Duration = Duration::from_secs(20);

fn uring(timeout: Duration) -> (Uring, BlockingPool) {
    let config = BlockingPoolConfig { timeout, ..Default::default() };
    let (uring, reason) = Uring::start(&config).expect("io_uring is permitted where the tests run");
    assert!(reason.contains("io_uring works here"), "{reason}");
    (uring, BlockingPool::new(config))
}

fn pipe(pool: &BlockingPool) -> (Source, std::io::PipeWriter) {
    let (reader, writer) = std::io::pipe().unwrap();
    (Source::new(reader.into(), Medium::Disk, pool.clone()), writer)
}

fn buffer(prefix: &[u8], room: usize) -> Buffer {
    let mut buf = Buffer::with_capacity(prefix.len() + room);
    buf.append(prefix);
    buf
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + SLACK;
    while !condition() {
        assert!(Instant::now() < end, "never happened: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn short_reads_are_continued_until_full_or_the_end() {
    let (uring, pool) = uring(SLACK);
    let (source, mut writer) = pipe(&pool);
    let write = async {
        for piece in ["abc", "defg", "hij"] {
            tokio::time::sleep(Duration::from_millis(20)).await;
            writer.write_all(piece.as_bytes()).unwrap();
        }
    };
    let ((result, buf), ()) = tokio::join!(uring.read(&source, 0, buffer(b"<", 10), 10), write);
    assert_eq!((result.unwrap().unwrap(), &buf[..]), (10, &b"<abcdefghij"[..]));

    writer.write_all(b"xy").unwrap();
    drop(writer);
    let (result, buf) = uring.read(&source, 0, buffer(b"<", 10), 10).await;
    assert_eq!((result.unwrap().unwrap(), &buf[..]), (2, &b"<xy"[..]));
    let (result, buf) = uring.read(&source, 0, buf, 0).await;
    assert_eq!((result.unwrap().unwrap(), &buf[..]), (0, &b"<xy"[..]));
}

#[tokio::test]
async fn a_hanging_read_is_given_up_and_cancelled() {
    let (uring, pool) = uring(TIMEOUT);
    let (source, mut writer) = pipe(&pool);
    let begun = Instant::now();
    let (result, buf) = uring.read(&source, 0, buffer(b"kept", 100), 100).await;
    let error = result.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.operation()), (ErrorKind::TimedOut, Some("read")));
    assert!(begun.elapsed() >= TIMEOUT && begun.elapsed() < SLACK);
    assert_eq!((&buf[..], buf.capacity()), (&b"kept"[..], 104));
    until("the kernel gave the read back", || uring.stuck() == 0).await;
    // The cancelled read took nothing with it.
    writer.write_all(b"later").unwrap();
    let (result, buf) = uring.read(&source, 0, buf, 5).await;
    assert_eq!((result.unwrap().unwrap(), &buf[..]), (5, &b"keptlater"[..]));
}

#[tokio::test]
async fn errors_are_errnos_and_the_buffer_comes_back() {
    let (uring, pool) = uring(SLACK);
    let dir = std::fs::File::open("/").unwrap();
    let source = Source::new(dir.into(), Medium::Disk, pool.clone());
    let (result, buf) = uring.read(&source, 0, buffer(b"kept", 10), 10).await;
    assert_eq!(result.unwrap().unwrap_err().kind(), ErrorKind::IsADirectory);
    assert_eq!((&buf[..], buf.remaining()), (&b"kept"[..], 10));
    let (result, _) = uring.read(&source, u64::MAX - 1, buf, 10).await;
    assert_eq!(result.unwrap().unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[tokio::test]
async fn memory_of_a_dropped_read_is_the_kernels_until_it_ends() {
    let (uring, pool) = uring(SLACK);
    let (source, mut writer) = pipe(&pool);
    let (buf, other) = (buffer(b"", 1 << 16), Buffer::with_capacity(1 << 16));
    let at = buf.as_ptr();
    {
        let read = uring.read(&source, 0, buf, 8);
        futures::pin_mut!(read);
        assert!(futures::poll!(&mut read).is_pending());
        until("the read is in flight", || !uring.rings[0].state.lock().inflight.is_empty()).await;
    }
    drop(source);
    // Were the memory free, the allocator would give it out again.
    let buffers: Vec<_> = (0..64).map(|_| Buffer::with_capacity(1 << 16)).collect();
    assert!(buffers.iter().chain([&other]).all(|b| b.as_ptr() != at));
    writer.write_all(b"12345678").unwrap();
    until("the read ended", || uring.rings[0].state.lock().inflight.is_empty()).await;
}

#[tokio::test]
async fn more_reads_than_places_all_end_in_time() {
    let (uring, pool) = uring(TIMEOUT);
    let (source, _writer) = pipe(&pool);
    let begun = Instant::now();
    let reads = (0..DEPTH * 2).map(|_| uring.read(&source, 0, buffer(b"", 16), 16));
    for (result, buf) in futures::future::join_all(reads).await {
        assert_eq!(result.unwrap().unwrap_err().kind(), ErrorKind::TimedOut);
        assert_eq!((buf.len(), buf.capacity()), (0, 16));
    }
    assert!(begun.elapsed() < SLACK);
    until("the kernel gave all back", || uring.stuck() == 0).await;
    assert_eq!(uring.rings[0].places.available_permits(), DEPTH as usize);
}

#[tokio::test]
async fn a_dropped_engine_waits_for_what_is_in_flight_and_ends() {
    let (uring, pool) = uring(Duration::from_secs(60));
    let (source, mut writer) = pipe(&pool);
    {
        let read = uring.read(&source, 0, buffer(b"", 8), 8);
        futures::pin_mut!(read);
        assert!(futures::poll!(&mut read).is_pending());
        until("the read is in flight", || !uring.rings[0].state.lock().inflight.is_empty()).await;
    }
    let ring = Arc::downgrade(&uring.rings[0]);
    drop(uring);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(ring.upgrade().is_some_and(|r| !r.state.lock().inflight.is_empty()), "it still owns the memory");
    writer.write_all(b"12345678").unwrap();
    until("the threads ended", || ring.strong_count() == 0).await;
}

#[tokio::test]
async fn a_broken_ring_hands_its_reads_to_somebody_else() {
    let (uring, _pool) = uring(SLACK);
    uring.rings[0].broken.store(true, Ordering::Release);
    let source =
        Source::new(std::fs::File::open("/proc/self/exe").unwrap().into(), Medium::Disk, _pool.clone());
    let (result, buf) = uring.read(&source, 0, buffer(b"kept", 10), 10).await;
    assert!(result.is_none());
    assert_eq!((&buf[..], buf.remaining()), (&b"kept"[..], 10));
}

#[tokio::test]
async fn an_idle_ring_sleeps() {
    let (uring, pool) = uring(SLACK);
    let (source, mut writer) = pipe(&pool);
    writer.write_all(b"1").unwrap();
    let (result, _) = uring.read(&source, 0, buffer(b"", 1), 1).await;
    assert_eq!(result.unwrap().unwrap(), 1);
    let cpu = || -> u64 {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let stats = tasks.filter_map(|t| std::fs::read_to_string(t.ok()?.path().join("stat")).ok());
        let of = |stat: String| -> Option<u64> {
            let (name, rest) = stat.rsplit_once(')')?;
            let fields: Vec<_> = rest.split(' ').collect();
            // The 14th and 15th fields of the line: ticks of user and system time.
            name.contains("nearfs-uring-0")
                .then(|| fields[12].parse::<u64>().unwrap() + fields[13].parse::<u64>().unwrap())
        };
        stats.filter_map(of).sum()
    };
    // A pending read of a silent pipe as well: waiting is not work.
    let read = uring.read(&source, 0, buffer(b"", 1), 1);
    futures::pin_mut!(read);
    assert!(futures::poll!(&mut read).is_pending());
    let before = cpu();
    tokio::time::sleep(Duration::from_millis(500)).await;
    // Other tests of this process have rings of the same name; a spinning one would alone use 50 ticks.
    assert!(cpu().saturating_sub(before) < 25, "the ring's thread is busy with nothing");
}
