use std::io::{BufRead, Read, Seek, Write as _};

use proptest::prelude::*;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncSeekExt};

use super::*;
use crate::ext::{FileExt, FileSystemExt};
use crate::fs::FileSystem;
use crate::memory::MemoryFileSystem;
use crate::options::OpenOptions;
use crate::path::FsPath;
use crate::spawner::Spawner;

fn data(size: usize) -> Vec<u8> {
    (0..size as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

async fn file(data: &[u8]) -> Arc<dyn File> {
    let fs = MemoryFileSystem::new();
    let path = FsPath::parse("f").unwrap();
    fs.write(&path, data.to_vec().into()).await.unwrap();
    fs.open(&path, OpenOptions::default()).await.unwrap()
}

#[derive(Debug, Clone)]
enum Step {
    Read(usize),
    Seek(SeekFrom),
}

fn steps(size: u64) -> impl Strategy<Value = Vec<Step>> {
    let end = size as i64;
    let step = prop_oneof![
        (0..200_000usize).prop_map(Step::Read),
        (0..size + 100).prop_map(|n| Step::Seek(SeekFrom::Start(n))),
        (-end..100).prop_map(|n| Step::Seek(SeekFrom::End(n))),
        (-300_000..600_000i64).prop_map(|n| Step::Seek(SeekFrom::Current(n))),
    ];
    prop::collection::vec(step, 1..40)
}

const SIZE: usize = (2 << 20) + 12_345;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn both_readers_behave_like_a_cursor(steps in steps(SIZE as u64)) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let data = data(SIZE);
        let file = runtime.block_on(file(&data));
        let mut cursor = io::Cursor::new(&data);
        let mut asynchronous = file.reader();
        let mut blocking = BlockingReader::new(file.clone(), Spawner::new(runtime.handle().clone()));
        for step in steps {
            match step {
                Step::Read(n) => {
                    let mut expected = vec![0; n];
                    let n = fill(|buf| Read::read(&mut cursor, buf), &mut expected);
                    let mut found = vec![0; expected.len()];
                    let m = fill(|buf| runtime.block_on(asynchronous.read(buf)), &mut found);
                    prop_assert_eq!(&found[..m], &expected[..n]);
                    let m = fill(|buf| blocking.read(buf), &mut found);
                    prop_assert_eq!(&found[..m], &expected[..n]);
                }
                Step::Seek(to) => {
                    let expected = Seek::seek(&mut cursor, to).ok();
                    prop_assert_eq!(runtime.block_on(asynchronous.seek(to)).ok(), expected);
                    prop_assert_eq!(blocking.seek(to).ok(), expected);
                    prop_assert_eq!(asynchronous.position(), cursor.position());
                    prop_assert_eq!(blocking.position(), cursor.position());
                }
            }
        }
    }
}

fn fill(mut read: impl FnMut(&mut [u8]) -> io::Result<usize>, buf: &mut [u8]) -> usize {
    let mut filled = 0;
    while let n @ 1.. = read(&mut buf[filled..]).unwrap() {
        filled += n;
    }
    filled
}

#[tokio::test]
async fn lines_come_from_the_buffered_side() {
    let mut text = Vec::new();
    for i in 0..1_000 {
        writeln!(text, "line {i}").unwrap();
    }
    let mut lines = file(&text).await.reader().lines();
    let mut count = 0;
    while let Some(line) = lines.next_line().await.unwrap() {
        assert_eq!(line, format!("line {count}"));
        count += 1;
    }
    assert_eq!(count, 1_000);
}

/// Every place from which a program may want to read without `await`.
#[test]
fn blocking_reads_work_on_any_thread_and_inside_any_runtime() {
    let own = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let spawner = Spawner::new(own.handle().clone());
    let expected = data(3 << 20);
    let file = own.block_on(file(&expected));
    let read = {
        let expected = expected.clone();
        move |place: &str| {
            let mut reader = BlockingReader::new(file.clone(), spawner.clone());
            let mut found = Vec::new();
            reader.read_to_end(&mut found).unwrap();
            assert!(found == expected, "{place}");
            assert!(reader.fill_buf().unwrap().is_empty());
        }
    };
    read("a plain thread");
    let foreign = tokio::runtime::Builder::new_current_thread().build().unwrap();
    foreign.block_on(async { read("a foreign current-thread runtime without drivers") });
    let foreign = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
    foreign.block_on(async { read("a foreign multi-thread runtime") });
    own.block_on(async { read("block_on of its own runtime") });
    let inside = read.clone();
    own.block_on(own.spawn(async move { inside("the only worker of its own runtime") })).unwrap();
    own.block_on(own.spawn_blocking(move || read("the blocking pool of its own runtime"))).unwrap();
}

#[test]
fn a_blocking_read_that_could_never_end_is_refused() {
    let own = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    own.block_on(async {
        let file = file(b"data").await;
        let mut reader = BlockingReader::new(file, Spawner::current().unwrap());
        let e = Error::from(reader.read(&mut [0; 4]).unwrap_err());
        assert_eq!(e.kind(), ErrorKind::Unsupported);
        assert!(e.context("hint").is_some());
    });
}

#[test]
fn a_runtime_that_is_gone_is_an_error_and_not_a_hang() {
    let own = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let spawner = Spawner::new(own.handle().clone());
    let file = own.block_on(file(b"data"));
    own.shutdown_timeout(std::time::Duration::from_secs(5));
    let e = Error::from(BlockingReader::new(file, spawner).read(&mut [0; 4]).unwrap_err());
    assert_eq!(e.kind(), ErrorKind::Interrupted);
}

#[test]
fn after_an_error_the_position_is_unchanged_and_the_next_read_goes_on() {
    use crate::error::ErrorKind::Unavailable;
    use crate::layer::{Fault, FaultAction, FaultLayer, Operation};

    let own = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let expected = data(300_000);
    let (fault, file) = own.block_on(async {
        let memory = MemoryFileSystem::new();
        memory.write(&FsPath::parse("f").unwrap(), expected.clone().into()).await.unwrap();
        let fault = FaultLayer::new(Arc::new(memory));
        let file = fault.open(&FsPath::parse("f").unwrap(), OpenOptions::default()).await.unwrap();
        (fault, file)
    });
    let cut = |action| fault.inject(Fault::on(Operation::Read, action).times(1));
    for short in [false, true] {
        let action = if short { FaultAction::Short(100_000) } else { FaultAction::Cut(100_000, Unavailable) };
        let kind = if short { ErrorKind::Corrupt } else { Unavailable };

        cut(action.clone());
        let mut reader = file.reader();
        let mut found = Vec::new();
        let e = own.block_on(reader.read_to_end(&mut found)).unwrap_err();
        assert_eq!((Error::from(e).kind(), reader.position()), (kind, 100_000));
        own.block_on(reader.read_to_end(&mut found)).unwrap();
        assert!(found == expected);

        cut(action);
        let mut reader = BlockingReader::new(file.clone(), Spawner::new(own.handle().clone()));
        let mut found = Vec::new();
        let e = Read::read_to_end(&mut reader, &mut found).unwrap_err();
        assert_eq!((Error::from(e).kind(), reader.position()), (kind, 100_000));
        Read::read_to_end(&mut reader, &mut found).unwrap();
        assert!(found == expected);
    }
}
