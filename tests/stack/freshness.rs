//! Freshness, and one version per open file.

use std::fs;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nearfs_lab::{Lab, Op, stamp};

use crate::harness::{BUCKET, Mount, lab, read_stamped};

fn put(lab: &Lab, key: &str, size: u64) -> u32 {
    lab.put_synthetic(BUCKET, key, size, stamp::key_id(key))
}

fn is_stale(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::ESTALE | libc::EIO))
}

/// Reads to the end; gives the version of all the bytes, or the error.
fn read_whole(mount: &Mount, key: &str) -> io::Result<(u32, u64)> {
    let mut file = File::open(mount.join(key))?;
    let size = file.metadata()?.len();
    let mut data = Vec::new();
    file.read_to_end(&mut data)?;
    assert_eq!(data.len() as u64, size, "size of the open handle against bytes read");
    Ok((stamp::verify(&data, 0, stamp::key_id(key)).unwrap(), size))
}

#[test]
fn b1_a_new_object_is_never_read_with_the_old_size() {
    let lab = lab();
    let v1 = put(&lab, "s.bin", 40);
    let mount = Mount::start(&lab, "s3://data", &["--metadata-ttl", "1s"]);
    assert_eq!(read_whole(&mount, "s.bin").unwrap(), (v1, 40));
    let (mut old, mut old_size) = (v1, 40);
    for size in [100, 16, 100_000, 17] {
        let new = put(&lab, "s.bin", size);
        match read_whole(&mount, "s.bin") {
            Ok(got) => assert!(got == (old, old_size) || got == (new, size), "{got:?}"),
            Err(e) => assert!(is_stale(&e), "{e}"),
        }
        sleep(Duration::from_millis(1300));
        assert_eq!(read_whole(&mount, "s.bin").unwrap(), (new, size), "after the lifetime");
        (old, old_size) = (new, size);
    }
}

/// Far more than is ever fetched ahead of a reader, so that most of it is not there when the object changes.
const REPLACED: u64 = 1 << 30;

fn replaced_while_open(change: impl Fn(&Lab), readers: usize) {
    let lab = lab();
    let v1 = put(&lab, "m.bin", REPLACED);
    let mount = Mount::start(&lab, "s3://data", &["--metadata-ttl", "1s", "--negative-ttl", "1s"]);
    let file = File::open(mount.join("m.bin")).unwrap();
    for at in (0..8 << 20).step_by(1 << 20) {
        assert_eq!(read_stamped(&file, "m.bin", at..at + (1 << 20)).unwrap(), v1);
    }
    change(&lab);
    std::thread::scope(|scope| {
        for reader in 0..readers {
            let file = &file;
            scope.spawn(move || {
                let mut failed = false;
                for i in 0..64u64 {
                    let at = ((i + reader as u64 * 7) % 64) * (REPLACED / 64);
                    match read_stamped(file, "m.bin", at..at + (1 << 20)) {
                        Ok(version) => assert_eq!(version, v1, "only the version that was opened"),
                        Err(e) => {
                            assert!(is_stale(&e), "{e}");
                            failed = true;
                        }
                    }
                }
                // What lies beyond the part fetched before cannot be proven any more.
                assert!(failed, "not everything was fetched before the change");
                let far = REPLACED - (1 << 20);
                let mut buf = [0; 16];
                if let Err(first) = file.read_exact_at(&mut buf, far) {
                    assert!(is_stale(&first), "{first}");
                    let again = file.read_exact_at(&mut buf, far).expect_err("a stale handle stays stale");
                    assert!(is_stale(&again), "{again}");
                }
            });
        }
    });
    assert_eq!(file.metadata().unwrap().len(), REPLACED, "the open handle keeps its size");
    let log = lab.log();
    let gets: Vec<_> = log.iter().filter(|r| r.op == Op::GetObject).collect();
    assert!(!gets.is_empty() && gets.iter().all(|r| r.if_match.is_some()), "every GET is pinned");
}

#[test]
fn b2_object_replaced_during_a_read() {
    for (new_size, readers) in [(REPLACED, 1), (REPLACED, 8), (1 << 20, 2)] {
        let lab_after = std::sync::Mutex::new(None);
        replaced_while_open(|lab| *lab_after.lock().unwrap() = Some(put(lab, "m.bin", new_size)), readers);
        assert!(lab_after.into_inner().unwrap().is_some());
    }
}

#[test]
fn b2_object_deleted_during_a_read() {
    replaced_while_open(|lab| assert!(lab.delete(BUCKET, "m.bin")), 2);
}

#[test]
fn b2_a_new_open_gets_all_of_the_new_version() {
    let lab = lab();
    put(&lab, "m.bin", 64 << 20);
    let mount = Mount::start(&lab, "s3://data", &["--metadata-ttl", "1s"]);
    let old = File::open(mount.join("m.bin")).unwrap();
    read_stamped(&old, "m.bin", 0..8 << 20).unwrap();
    let v2 = put(&lab, "m.bin", 64 << 20);
    let _ = read_stamped(&old, "m.bin", 40 << 20..41 << 20);
    sleep(Duration::from_millis(1300));
    assert_eq!(read_whole(&mount, "m.bin").unwrap(), (v2, 64 << 20));
    drop(old);
    assert_eq!(read_whole(&mount, "m.bin").unwrap(), (v2, 64 << 20));
}

#[test]
fn b3_absence_is_remembered_for_its_own_short_time() {
    for listed_first in [true, false] {
        let lab = lab();
        for i in 1..4 {
            put(&lab, &format!("ck/step-{i}.pt"), 100);
        }
        let mount = Mount::start(&lab, "s3://data", &["--metadata-ttl", "1h", "--negative-ttl", "2s"]);
        if listed_first {
            assert_eq!(fs::read_dir(mount.join("ck")).unwrap().count(), 3);
        }
        lab.reset_counters();
        for (name, key) in [("ck/step-4.pt", "ck/step-4.pt"), ("ck/new", "ck/new/x")] {
            let start = Instant::now();
            let mut uploaded = None;
            let mut polls = 0;
            loop {
                polls += 1;
                if fs::metadata(mount.join(name)).is_ok() {
                    break;
                }
                if uploaded.is_none() && start.elapsed() > Duration::from_secs(5) {
                    put(&lab, key, 100);
                    uploaded = Some(Instant::now());
                }
                if let Some(at) = uploaded {
                    assert!(
                        at.elapsed() < Duration::from_secs(4),
                        "{name} is still absent 4 s after its upload"
                    );
                }
                sleep(Duration::from_millis(100));
            }
            assert!(uploaded.is_some(), "{name} was there before it was uploaded");
            assert!(polls > 40, "it was polled");
        }
        // About one look at the store per negative lifetime and name, not one per poll.
        let counters = lab.counters();
        assert!(counters.total() <= 30, "{counters:?}");
    }
}

#[test]
fn c3_stored_compression_is_never_undone() {
    let lab = lab();
    let text: Vec<u8> =
        b"a text of one hundred thousand bytes\n".iter().cycle().take(100_000).copied().collect();
    let script = "import gzip,sys; sys.stdout.buffer.write(gzip.compress(sys.stdin.buffer.read()))";
    let mut gzip = std::process::Command::new("python3")
        .args(["-c", script])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    gzip.stdin.take().unwrap().write_all(&text).unwrap();
    let packed = gzip.wait_with_output().unwrap().stdout;
    assert!(packed.len() < 2000);
    for (key, headers) in [
        ("encoded", "content-encoding: gzip\r\n"),
        ("no-transform", "content-encoding: gzip\r\ncache-control: no-transform\r\n"),
        ("plain.gz", ""),
    ] {
        let mut stream = TcpStream::connect(lab.address()).unwrap();
        let head = format!(
            "PUT /{BUCKET}/{key} HTTP/1.1\r\nhost: lab\r\n{headers}content-length: {}\r\nconnection: close\r\n\r\n",
            packed.len()
        );
        stream.write_all(&[head.as_bytes(), &packed].concat()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    let mount = Mount::bucket(&lab);
    for key in ["encoded", "no-transform", "plain.gz"] {
        for _ in 0..2 {
            assert_eq!(fs::metadata(mount.join(key)).unwrap().len(), packed.len() as u64, "{key}");
            assert_eq!(fs::read(mount.join(key)).unwrap(), packed, "{key}");
        }
        let mut middle = vec![0; 100];
        File::open(mount.join(key)).unwrap().read_exact_at(&mut middle, 50).unwrap();
        assert_eq!(middle, packed[50..150]);
    }
}

#[test]
fn walks_after_the_lifetime_show_new_keys_and_cost_lists_not_heads() {
    let lab = lab();
    lab.tree(BUCKET, "tree", 20, 50, 4096);
    let mount = Mount::start(&lab, "s3://data", &["--metadata-ttl", "2s", "--negative-ttl", "1s"]);
    let walk = || {
        let mut files = 0;
        for dir in fs::read_dir(mount.join("tree")).unwrap() {
            for file in fs::read_dir(dir.unwrap().path()).unwrap() {
                let path = file.unwrap().path();
                assert_eq!(fs::metadata(&path).unwrap().len(), 4096);
                files += 1;
            }
        }
        files
    };
    assert_eq!(walk(), 1000);
    for round in 0..3 {
        lab.put_synthetic(BUCKET, format!("tree/d0003/new{round}.bin"), 4096, 1);
        lab.delete(BUCKET, format!("tree/d0004/f{round:05}.bin"));
        sleep(Duration::from_millis(2600));
        lab.reset_counters();
        assert_eq!(walk(), 1000, "one came and one went");
        let names: Vec<_> =
            fs::read_dir(mount.join("tree/d0003")).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert!(names.iter().any(|n| *n == *format!("new{round}.bin")));
        assert!(fs::metadata(mount.join(format!("tree/d0004/f{round:05}.bin"))).is_err());
        // Opens with expired attributes are covered by the renewed listing of their directory.
        for i in 10..50 {
            let name = format!("tree/d0007/f{i:05}.bin");
            read_stamped(&File::open(mount.join(&name)).unwrap(), &name, 0..4096).unwrap();
        }
        let counters = lab.counters();
        assert!(
            counters.of(Op::HeadObject) <= 1,
            "a HEAD only for what a listing cannot answer: {counters:?}"
        );
        // 21 directories, and at most one refresh ahead of expiry for each.
        assert!(counters.lists() <= 45, "{counters:?}");
    }
}
