//! One open handle, one version: files replaced, changed in place and deleted under it.

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::TryStreamExt;
use nearfs_backends::io::Buffer;
use nearfs_backends::{ErrorKind, File, FileSystem, LocalFileSystem, OpenOptions};

mod support;

use support::{ENGINES, local, make_cold, path, put, stamped};

const SIZE: usize = 8 << 20;

async fn open(fs: &LocalFileSystem, name: &str) -> Arc<dyn File> {
    fs.open(&path(name), OpenOptions::default()).await.unwrap()
}

fn overwrite(file: &Path, data: &[u8]) {
    let file = std::fs::File::options().write(true).open(file).unwrap();
    // Coarse clocks tick every few milliseconds; a change within one tick of the last cannot be seen.
    std::thread::sleep(Duration::from_millis(12));
    file.write_all_at(data, 0).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn b2_object_replaced_during_a_read() {
    let dir = tempfile::tempdir().unwrap();
    for engine in ENGINES {
        let fs = local(dir.path(), engine).await;
        let (old, new) = (stamped(1, 1, SIZE), stamped(1, 2, SIZE / 2));
        put(&fs, "m", old.clone()).await.unwrap();
        make_cold(&dir.path().join("m"));
        let file = open(&fs, "m").await;
        let first = file.read_at(0..1 << 20).await.unwrap();
        put(&fs, "m", new.clone()).await.unwrap();
        // The descriptor holds the old file: all of it can still be read.
        let rest: Vec<_> = file.read_stream(1 << 20..u64::MAX).try_collect().await.unwrap();
        assert!([&first[..], &rest.concat()].concat() == old, "{engine}: one version in one handle");
        assert!(open(&fs, "m").await.read_at(0..u64::MAX).await.unwrap() == new);
        std::fs::remove_file(dir.path().join("m")).unwrap();
        assert!(file.read_at(0..100).await.unwrap() == old[..100]);
        assert_eq!(fs.stat(&path("m")).await.unwrap_err().kind(), ErrorKind::NotFound);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn b2_a_file_changed_in_place_is_stale_and_stays_so() {
    let dir = tempfile::tempdir().unwrap();
    let on_disk = dir.path().join("m");
    for engine in ENGINES {
        for cold in [true, false] {
            let fs = local(dir.path(), engine).await;
            let old = stamped(1, 1, SIZE);
            std::fs::write(&on_disk, &old).unwrap();
            let file = open(&fs, "m").await;
            assert!(file.read_at(0..1 << 20).await.unwrap() == old[..1 << 20]);
            assert!(file.as_fd().is_some());
            overwrite(&on_disk, &stamped(1, 2, SIZE));
            if cold {
                make_cold(&on_disk);
            }
            let mut buf = Buffer::with_capacity(5000);
            buf.append(b"kept");
            let (result, buf) = file.read_into(1 << 20, buf).await;
            assert_eq!(result.unwrap_err().kind(), ErrorKind::Stale, "{engine}");
            assert_eq!((&buf[..], buf.remaining()), (&b"kept"[..], 4996));
            assert!(file.as_fd().is_none());
            // Even with the old bytes back it is another version.
            overwrite(&on_disk, &old);
            for _ in 0..2 {
                assert_eq!(file.read_at(0..10).await.unwrap_err().kind(), ErrorKind::Stale);
                assert_eq!(file.read_ranges(&[0..1, 5..9]).await.unwrap_err().kind(), ErrorKind::Stale);
                let items: Vec<_> = futures::StreamExt::collect(file.read_stream(0..u64::MAX)).await;
                assert_eq!(items.len(), 1, "the stream ends with its error");
                assert_eq!(items[0].as_ref().unwrap_err().kind(), ErrorKind::Stale);
            }
            assert!(open(&fs, "m").await.read_at(0..u64::MAX).await.unwrap() == old);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn b1_a_file_that_grows_or_shrinks_is_never_padded_or_cut() {
    let dir = tempfile::tempdir().unwrap();
    let on_disk = dir.path().join("s.bin");
    for engine in ENGINES {
        let fs = local(dir.path(), engine).await;
        for change in ["grow", "shrink"] {
            std::fs::write(&on_disk, [1; 10]).unwrap();
            let seen = fs.stat(&path("s.bin")).await.unwrap();
            let file = open(&fs, "s.bin").await;
            let mut writer = std::fs::File::options().append(true).open(&on_disk).unwrap();
            match change {
                "grow" => writer.write_all(&[2; 15]).unwrap(),
                _ => writer.set_len(4).unwrap(),
            }
            let error = file.read_at(0..100).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Stale, "{engine} {change}: {error}");
            let pinned = OpenOptions { metadata: Some(seen) };
            let error = fs.open(&path("s.bin"), pinned).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Stale, "{engine} {change}");
            let now = open(&fs, "s.bin").await;
            let data = now.read_at(0..100).await.unwrap();
            assert_eq!(
                (data.len() as u64, data.len()),
                (now.metadata().size, if change == "grow" { 25 } else { 4 })
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_with_metadata_pins_that_version() {
    let dir = tempfile::tempdir().unwrap();
    let fs = local(dir.path(), ENGINES[0]).await;
    let first = put(&fs, "f", "first").await.unwrap();
    let pinned = || OpenOptions { metadata: Some(first.clone()) };
    assert_eq!(fs.open(&path("f"), pinned()).await.unwrap().read_at(0..9).await.unwrap(), "first");
    put(&fs, "f", "other").await.unwrap();
    assert_eq!(fs.open(&path("f"), pinned()).await.unwrap_err().kind(), ErrorKind::Stale);
    std::fs::remove_file(dir.path().join("f")).unwrap();
    assert_eq!(fs.open(&path("f"), pinned()).await.unwrap_err().kind(), ErrorKind::Stale);
    let missing = fs.open(&path("f"), OpenOptions::default()).await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_descriptor_is_the_pinned_file() {
    let dir = tempfile::tempdir().unwrap();
    let fs = local(dir.path(), ENGINES[0]).await;
    put(&fs, "f", "first").await.unwrap();
    let file = open(&fs, "f").await;
    put(&fs, "f", "second").await.unwrap();
    let fd = file.as_fd().unwrap();
    let mut data = [0; 10];
    let n = rustix::io::pread(fd, &mut data, 0).unwrap();
    assert_eq!(&data[..n], b"first");
    assert!(fs.capabilities().local_fd);
    let flags = rustix::fs::fcntl_getfl(fd.as_fd()).unwrap();
    assert!(!flags.contains(rustix::fs::OFlags::NONBLOCK));
}

/// A writer goes over the file again and again while it is read: what is read is all of the version that was opened,
/// or an error. Opens fall between two writes; a write that is already under way then cannot be told from the file.
#[tokio::test(flavor = "multi_thread")]
async fn readers_beside_a_writer_never_see_two_versions_in_one_read() {
    let dir = tempfile::tempdir().unwrap();
    let on_disk = dir.path().join("f");
    for engine in ENGINES {
        let fs = local(dir.path(), engine).await;
        std::fs::write(&on_disk, stamped(1, 0, 1 << 20)).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let version = Arc::new(tokio::sync::Mutex::new(0));
        let writer = std::thread::spawn({
            let (stop, on_disk, version) = (stop.clone(), on_disk.clone(), version.clone());
            move || {
                while !stop.load(Ordering::Relaxed) {
                    let mut version = version.blocking_lock();
                    *version += 1;
                    overwrite(&on_disk, &stamped(1, *version, 1 << 20));
                    drop(version);
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
        });
        let (mut whole, mut stale) = (0, 0);
        let end = std::time::Instant::now() + Duration::from_secs(2);
        while std::time::Instant::now() < end {
            let (file, right) = {
                let version = version.lock().await;
                (open(&fs, "f").await, stamped(1, *version, 1 << 20))
            };
            for _ in 0..8 {
                match file.read_at(0..u64::MAX).await {
                    Ok(data) => {
                        assert!(data == right, "{engine}: bytes of another version");
                        whole += 1;
                    }
                    Err(e) => {
                        assert_eq!(e.kind(), ErrorKind::Stale, "{engine}: {e}");
                        stale += 1;
                    }
                }
                tokio::time::sleep(Duration::from_millis(3)).await;
            }
        }
        stop.store(true, Ordering::Relaxed);
        writer.join().unwrap();
        assert!(whole > 0 && stale > 0, "{engine}: {whole} whole, {stale} stale");
    }
}
