//! Reads of local files by both engines: the same bytes, the same ends, and memory that stays whole.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::TryStreamExt;
use nearfs_backends::config::LocalConfig;
use nearfs_backends::io::{Buffer, BufferPool, EngineChoice};
use nearfs_backends::{ErrorKind, File, FileSystem, LocalFileSystem, MemoryFileSystem, OpenOptions};

mod support;

use support::{ENGINES, local, make_cold, path, put, stamped};

const B: usize = 1 << 20;

/// Every filesystem that is read without a network, with the directory under it if there is one.
async fn everyone(root: &Path) -> Vec<(String, Arc<dyn FileSystem>, Option<&Path>)> {
    let mut all: Vec<(String, Arc<dyn FileSystem>, _)> =
        vec![("memory".into(), Arc::new(MemoryFileSystem::new()), None)];
    for engine in ENGINES {
        all.push((engine.to_string(), Arc::new(local(root, engine).await), Some(root)));
    }
    all
}

async fn open(fs: &dyn FileSystem, name: &str) -> Arc<dyn File> {
    fs.open(&path(name), OpenOptions::default()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn c4_arithmetic_at_the_end_of_the_object() {
    let dir = tempfile::tempdir().unwrap();
    for (who, fs, root) in everyone(dir.path()).await {
        for size in [0, 1, B - 1, B, B + 1, 3 * B - 1, 3 * B, 3 * B + 1, 4 * B + 1] {
            let data = stamped(size as u32, 1, size);
            put(&*fs, "f", data.clone()).await.unwrap();
            if let Some(root) = root {
                make_cold(&root.join("f"));
            }
            let file = open(&*fs, "f").await;
            let end = size as u64;
            assert_eq!(file.metadata().size, end, "{who}");
            assert_eq!(file.read_at(0..end + 10 * B as u64).await.unwrap(), data, "{who} {size}");
            for at in [end.saturating_sub(1), end, end + 1, u64::MAX - 5] {
                for length in [0, 1, B as u64, 10 * B as u64, 2 << 30, u64::MAX] {
                    let got = file.read_at(at..at.saturating_add(length)).await.unwrap();
                    let right = &data[at.min(end) as usize..at.saturating_add(length).min(end) as usize];
                    assert_eq!(got, right, "{who}: {length} bytes at {at} of {size}");
                    let (n, buf) =
                        file.read_into(at, Buffer::with_capacity(length.min(3 * B as u64) as usize)).await;
                    assert_eq!((n.unwrap(), &buf[..]), (buf.len(), &right[..buf.len()]), "{who}");
                    assert_eq!(buf.len(), right.len().min(buf.capacity()), "{who}");
                }
            }
            let streamed: Vec<_> = file.read_stream(0..u64::MAX).try_collect().await.unwrap();
            assert_eq!(streamed.concat(), data, "{who} {size}");
            let mut got = Vec::new();
            while got.len() < size {
                let piece = file.read_at(got.len() as u64..got.len() as u64 + 4095).await.unwrap();
                assert!(!piece.is_empty(), "{who}: no early end of {size} at {}", got.len());
                got.extend_from_slice(&piece);
            }
            assert_eq!(got, data, "{who} {size} in small steps");
            let ranges = [0..1, end / 2..end / 2 + 5000, end.saturating_sub(3)..end + 9, end..end + 1, 7..7];
            let parts = file.read_ranges(&ranges).await.unwrap();
            for (range, part) in ranges.iter().zip(parts) {
                let (from, to) = (range.start.min(end) as usize, range.end.min(end) as usize);
                assert_eq!(part, &data[from..to], "{who} {size} {range:?}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_buffer_keeps_what_it_holds_and_is_filled_behind_it() {
    let dir = tempfile::tempdir().unwrap();
    let data = stamped(3, 1, 5 * B);
    for (who, fs, root) in everyone(dir.path()).await {
        put(&*fs, "f", data.clone()).await.unwrap();
        let file = open(&*fs, "f").await;
        let mut buf = Buffer::with_capacity(5 * B);
        buf.append(b"head");
        for _ in 0..2 {
            if let Some(root) = root {
                make_cold(&root.join("f"));
            }
            buf.truncate(4);
            let (n, filled) = file.read_into(100, buf).await;
            buf = filled;
            assert_eq!(n.unwrap(), 5 * B - 100, "{who}: up to the end of the file");
            assert_eq!((&buf[..4], &buf[4..]), (&b"head"[..], &data[100..]), "{who}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_agree_on_cold_and_warm_files_and_on_errors() {
    let dir = tempfile::tempdir().unwrap();
    let data = stamped(4, 1, 9 * B + 123);
    std::fs::write(dir.path().join("f"), &data).unwrap();
    for engine in ENGINES {
        let fs = local(dir.path(), engine).await;
        let source = fs.engine().adopt(std::fs::File::open(dir.path().join("f")).unwrap().into());
        for (offset, want) in [(0, 10), (5, B), (B, 8 * B), (9 * B, 4096), (9 * B + 123, 10), (0, 10 * B)] {
            make_cold(&dir.path().join("f"));
            for _ in 0..2 {
                let buf = Buffer::with_capacity(10 * B);
                let (n, buf) = fs.engine().read_queued(&source, offset as u64, buf, want).await;
                let right = &data[offset..(offset + want).min(data.len())];
                assert!(n.unwrap() == right.len() && buf[..] == *right, "{engine}: {want} at {offset}");
            }
        }
        let not_readable = std::fs::File::options().append(true).open(dir.path().join("f")).unwrap();
        let source = fs.engine().adopt(not_readable.into());
        let mut buf = Buffer::with_capacity(100);
        buf.append(b"kept");
        let (error, buf) = fs.engine().read(&source, 0, buf, 10).await;
        let error = error.unwrap_err();
        assert_eq!((error.kind(), error.operation()), (ErrorKind::Other, Some("read")), "{engine}");
        assert!(error.to_string().contains("Bad file descriptor"), "{engine}: {error}");
        assert_eq!((&buf[..], buf.remaining()), (&b"kept"[..], 96));
    }
}

/// Thousands of reads into recycled memory, half of them dropped at a random moment. Memory that came back too early
/// would be written to by the kernel while somebody else's canary is in it.
#[tokio::test(flavor = "multi_thread")]
async fn dropped_reads_never_write_into_memory_that_was_given_away() {
    let dir = tempfile::tempdir().unwrap();
    let data = Arc::new(stamped(5, 1, 32 * B));
    let file = dir.path().join("f");
    std::fs::write(&file, &*data).unwrap();
    for engine in ENGINES {
        let fs = local(dir.path(), engine).await;
        let pool = BufferPool::default();
        let source = fs.engine().adopt(std::fs::File::open(&file).unwrap().into());
        let (mut completed, mut dropped) = (0, 0);
        for round in 0..40u64 {
            make_cold(&file);
            let reads = (0..100u64).map(|n| {
                let (fs, pool, source, data) = (fs.clone(), pool.clone(), source.clone(), data.clone());
                tokio::spawn(async move {
                    // A cheap spread of places, sizes and moments.
                    let mix = (round * 100 + n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                    let want = 4096 + (mix >> 20) as usize % (256 << 10);
                    let offset = (mix >> 8) as usize % (data.len() - want);
                    let read = fs.engine().read_queued(&source, offset as u64, pool.get(want), want);
                    let patience =
                        if n % 2 == 0 { Duration::from_secs(60) } else { Duration::from_micros(mix % 400) };
                    match tokio::time::timeout(patience, read).await {
                        Ok((result, buf)) => {
                            assert_eq!(result.unwrap(), want);
                            assert!(
                                buf[..] == data[offset..offset + want],
                                "{engine}: {want} bytes at {offset}"
                            );
                            true
                        }
                        Err(_) => {
                            let mut canary = pool.get(want);
                            let mark = [n as u8; 4096];
                            while canary.append(&mark) > 0 {}
                            tokio::time::sleep(Duration::from_millis(3)).await;
                            assert!(
                                canary.iter().all(|b| *b == n as u8),
                                "{engine}: a dropped read wrote here"
                            );
                            false
                        }
                    }
                })
            });
            for read in futures::future::join_all(reads).await {
                if read.unwrap() { completed += 1 } else { dropped += 1 }
            }
        }
        assert!(completed >= 2000 && dropped > 100, "{engine}: {completed} completed, {dropped} dropped");
        support::until("all memory came back", || pool.used_bytes() == 0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn auto_takes_io_uring_where_it_works_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let fs = LocalFileSystem::open(LocalConfig::new(dir.path())).await.unwrap();
    assert_eq!(fs.describe().engine, EngineChoice::Uring);
    assert!(fs.describe().reason.starts_with("io_uring works here (kernel "), "{:?}", fs.describe());
    for text in ["auto", "uring", "psync"] {
        assert_eq!(text.parse::<EngineChoice>().unwrap().to_string(), text);
    }
    assert_eq!("aio".parse::<EngineChoice>().unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn reads_need_no_runtime() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("f"), b"no runtime here").unwrap();
    for engine in ENGINES {
        let read = async {
            let fs = local(dir.path(), engine).await;
            make_cold(&dir.path().join("f"));
            let file = open(&fs, "f").await;
            file.read_at(3..100).await.unwrap()
        };
        assert_eq!(futures::executor::block_on(read), "runtime here", "{engine}");
    }
}

/// Refuses io_uring to this thread and those it starts, as container runtimes do.
fn forbid_io_uring() {
    let step = |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter { code: code as u16, jt, jf, k };
    let filter = [
        // The number of the system call is the first word of what the filter sees.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::SYS_io_uring_setup as u32, 0, 1),
        step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32, 0, 0),
        step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    // SAFETY: both calls act on the calling thread; `program` and what it points to outlive the second one.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program), 0);
    }
}

#[test]
fn where_io_uring_is_forbidden_auto_reads_by_threads_and_uring_says_why() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("f"), b"read all the same").unwrap();
    let root = dir.path().to_owned();
    let forbidden = std::thread::spawn(move || {
        forbid_io_uring();
        futures::executor::block_on(async {
            let config = |engine| LocalConfig { engine, ..LocalConfig::new(&root) };
            let fs = LocalFileSystem::open(config(EngineChoice::Auto)).await.unwrap();
            assert_eq!(fs.describe().engine, EngineChoice::Psync);
            assert!(fs.describe().reason.contains("io_uring is not permitted"), "{:?}", fs.describe());
            make_cold(&root.join("f"));
            assert_eq!(open(&fs, "f").await.read_at(0..99).await.unwrap(), "read all the same");
            let error = LocalFileSystem::open(config(EngineChoice::Uring)).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains("io_uring is not permitted"), "{error}");
            assert!(error.context("hint").is_some());
        });
    });
    forbidden.join().unwrap();
}
