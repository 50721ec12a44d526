//! A read gives the right bytes or an error; its end is the object's end.

use std::fs;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use nearfs_lab::{Fault, Lab, Op, Rule, stamp};

use crate::harness::{BUCKET, Mount, lab, within};

const SIZE: u64 = 40 << 20;

fn read_whole(mount: &Mount, key: &str) -> io::Result<Vec<u8>> {
    let path = mount.join(key);
    within(Duration::from_secs(100), move || {
        let mut data = Vec::new();
        File::open(path)?.read_to_end(&mut data)?;
        Ok(data)
    })
}

fn faults() -> Vec<(&'static str, Fault)> {
    vec![
        ("cut at 1 byte", Fault::Cut { after: 1 }),
        ("cut at 100 KiB", Fault::Cut { after: 100 << 10 }),
        ("cut at 1 MiB - 1", Fault::Cut { after: (1 << 20) - 1 }),
        ("reset at 64 KiB", Fault::Reset { after: 64 << 10 }),
        ("status 500", Fault::status(500)),
        ("empty body", Fault::EmptyBody),
        ("chunked, cut", Fault::TruncatedChunked { after: 10_000 }),
        ("range ignored", Fault::IgnoreRange),
        ("wrong range", Fault::WrongRange { shift: 4096 }),
        ("hang-up", Fault::Hangup),
    ]
}

#[test]
fn c1_a_failure_in_mid_file_is_resumed_where_it_happened() {
    for (name, fault) in faults() {
        let lab = lab();
        lab.put_synthetic(BUCKET, "r.bin", SIZE, stamp::key_id("r.bin"));
        let mount = Mount::bucket(&lab);
        // Not the first request only: also one in the middle of the stream.
        lab.fault(Rule::on(Op::GetObject, fault.clone()).once());
        lab.fault(Rule::on(Op::GetObject, fault).skip(3).once());
        let data = read_whole(&mount, "r.bin").unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(data.len() as u64, SIZE, "{name}");
        stamp::verify(&data, 0, stamp::key_id("r.bin")).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(lab.faults().iter().any(|f| f.fired > 0), "{name} never happened");
    }
}

#[test]
fn c1_a_failure_that_stays_is_an_error_within_the_deadline() {
    for (name, fault) in faults() {
        let lab = lab();
        lab.put_synthetic(BUCKET, "r.bin", SIZE, stamp::key_id("r.bin"));
        lab.put_synthetic(BUCKET, "well.bin", 1 << 20, stamp::key_id("well.bin"));
        let mount = Mount::start(&lab, "s3://data", &["--deadline", "4s"]);
        lab.fault(Rule::on(Op::GetObject, fault).key("r.bin"));
        match read_whole(&mount, "r.bin") {
            // Where every attempt brings some bytes, the file is read correctly, only slowly.
            Ok(data) => {
                assert!(!["status 500", "empty body", "wrong range", "hang-up"].contains(&name), "{name}");
                assert_eq!(data.len() as u64, SIZE, "{name}");
                stamp::verify(&data, 0, stamp::key_id("r.bin")).unwrap();
            }
            Err(e) => assert!(
                matches!(e.raw_os_error(), Some(libc::EIO | libc::ETIMEDOUT | libc::ESTALE)),
                "{name}: {e}"
            ),
        }
        assert_eq!(read_whole(&mount, "well.bin").unwrap().len(), 1 << 20, "the neighbour is well");
        lab.clear_faults();
        // A failure is remembered for a second, for those who wait behind it.
        std::thread::sleep(Duration::from_millis(1500));
        let data = read_whole(&mount, "r.bin").unwrap_or_else(|e| panic!("after {name} is over: {e}"));
        assert_eq!(data.len() as u64, SIZE);
        stamp::verify(&data, 0, stamp::key_id("r.bin")).unwrap();
    }
}

#[test]
fn c2_empty_objects_are_empty_files() {
    let lab = lab();
    lab.put(BUCKET, "empty", &b""[..]);
    lab.put(BUCKET, "one", &b"1"[..]);
    for i in 0..1000 {
        let size = if i % 20 == 0 { 0 } else { 100 + i };
        lab.put_synthetic(BUCKET, format!("many/f{i:04}"), size, i as u32);
    }
    for listed in [false, true] {
        let mount = Mount::bucket(&lab);
        if listed {
            assert_eq!(fs::read_dir(mount.path()).unwrap().count(), 3);
        }
        lab.reset_counters();
        assert_eq!(fs::metadata(mount.join("empty")).unwrap().len(), 0);
        assert_eq!(fs::read(mount.join("empty")).unwrap(), b"");
        let file = File::open(mount.join("empty")).unwrap();
        assert_eq!(file.read_at(&mut [0; 10], 0).unwrap(), 0);
        assert_eq!(file.read_at(&mut [0; 10], 1 << 20).unwrap(), 0);
        assert_eq!(
            lab.key_counters(BUCKET, "empty").of(Op::GetObject),
            0,
            "no bytes are asked of an empty object"
        );
        assert_eq!(fs::read(mount.join("one")).unwrap(), b"1");
    }
    let mount = Mount::bucket(&lab);
    for i in 0..1000u32 {
        let data = fs::read(mount.join(format!("many/f{i:04}"))).unwrap();
        assert_eq!(data.len(), if i.is_multiple_of(20) { 0 } else { 100 + i as usize });
        stamp::verify(&data, 0, i).unwrap();
    }
}

#[test]
fn c4_arithmetic_at_the_end_of_the_object() {
    let lab = lab();
    let mut keys = Vec::new();
    for block in [4096u64, 64 << 10, 128 << 10, 1 << 20, 8 << 20] {
        for size in [1, block - 1, block, block + 1, 3 * block - 1, 3 * block, 3 * block + 1] {
            let key = format!("o{size}");
            lab.put_synthetic(BUCKET, &key, size, stamp::key_id(&key));
            keys.push((key, size));
        }
    }
    let mount = Mount::bucket(&lab);
    for (key, size) in &keys {
        let file = File::open(mount.join(key)).unwrap();
        let check = |at: u64, len: u64| {
            let mut buf = vec![0xee; len as usize];
            let n = file.read_at(&mut buf, at).unwrap();
            let expected = len.min(size.saturating_sub(at));
            // One pread may be cut at the kernel's request size, never before data that is there.
            assert!(
                n as u64 == expected || (n > 0 && (n as u64) < expected),
                "{key}: {n} of {expected} at {at}"
            );
            stamp::verify(&buf[..n], at, stamp::key_id(key)).unwrap();
            assert!(buf[n..].iter().all(|b| *b == 0xee));
        };
        for at in [size - 1, *size, size + 1, size + (10 << 20)] {
            for len in [1, 4096, 1 << 20, 10 << 20] {
                check(at, len);
            }
        }
        check(0, size + 10);
        let mut data = Vec::new();
        let mut reader = io::BufReader::with_capacity(4095, &file);
        reader.read_to_end(&mut data).unwrap();
        assert_eq!(data.len() as u64, *size, "{key} in steps of 4095 bytes");
        stamp::verify(&data, 0, stamp::key_id(key)).unwrap();
    }
    for entry in lab.log().iter().filter(|r| r.op == Op::GetObject) {
        let size: u64 = entry.key[1..].parse().unwrap();
        if let Some(range) = &entry.range {
            let start: u64 =
                range.strip_prefix("bytes=").unwrap().split('-').next().unwrap().parse().unwrap();
            assert!(start < size, "{} asked for {range}", entry.key);
        }
    }
}

#[test]
fn c5_an_etag_identifies_and_is_never_compared_with_the_content() {
    let lab = lab();
    lab.put_synthetic(BUCKET, "synthetic.bin", 3 << 20, stamp::key_id("synthetic.bin"));
    for etag in ["\"0123456789abcdef0123456789abcdef\"", "\"0123456789abcdef0123456789abcdef-5\""] {
        assert!(lab.set_etag(BUCKET, "synthetic.bin", etag));
        let data = read_whole(&Mount::bucket(&lab), "synthetic.bin").unwrap();
        assert_eq!(data.len(), 3 << 20);
        stamp::verify(&data, 0, stamp::key_id("synthetic.bin")).unwrap();
    }
}

/// An object with the checksum that a store keeps of it.
fn put_proven(lab: &Lab, key: &str, data: &[u8]) {
    use base64::Engine as _;
    let sum = base64::engine::general_purpose::STANDARD.encode(crc32c::crc32c(data).to_be_bytes());
    lab.put_with(BUCKET, key, data.to_vec(), &[("x-amz-checksum-crc32c", &sum)]);
}

#[test]
fn c5_a_byte_flipped_on_the_way_is_fetched_again_or_an_error() {
    let lab = lab();
    for size in [1, 1000, 100 << 10, 1 << 20, (5 << 20) + 7, 8 << 20] {
        let data: Vec<u8> = (0..size).map(|i| (i * 7 + i / 251) as u8).collect();
        let key = format!("o{size}");
        put_proven(&lab, &key, &data);
        for offset in [0, size as u64 / 2, size as u64 - 1] {
            let flip = Rule::on(Op::GetObject, Fault::FlipByte { offset });
            let mount = Mount::start(&lab, "s3://data", &["--prefetch", "off"]);
            lab.clear_faults();
            lab.reset_counters();
            lab.fault(flip.clone().once());
            assert!(read_whole(&mount, &key).unwrap() == data, "{key}, {offset}: once");
            assert_eq!(lab.key_counters(BUCKET, &key).of(Op::GetObject), 2, "{key}: one more request");
            assert_eq!(mount.log().matches("wrong bytes came").count(), 1, "one warning");

            let mount = Mount::start(&lab, "s3://data", &["--prefetch", "off"]);
            lab.clear_faults();
            lab.fault(flip);
            let file = File::open(mount.join(&key)).unwrap();
            // Not even the bytes before the wrong one.
            for at in [0, size as u64 / 3] {
                let e = file.read_at(&mut [0; 1], at).unwrap_err();
                assert_eq!(e.raw_os_error(), Some(libc::EIO), "{key}, {offset}, read at {at}: {e}");
            }
            lab.clear_faults();
            assert!(read_whole(&mount, &key).unwrap() == data, "{key}, {offset}: nothing wrong was kept");
        }
    }
}

#[test]
fn c5_without_a_checksum_of_the_whole_nothing_is_compared() {
    let lab = lab();
    let data = vec![7; 1 << 20];
    let composite = [("x-amz-checksum-crc32c", "AAAAAA==-3"), ("x-amz-checksum-type", "COMPOSITE")];
    for headers in [&[][..], &composite] {
        lab.put_with(BUCKET, "k", data.clone(), headers);
        let mount = Mount::bucket(&lab);
        lab.reset_counters();
        assert!(read_whole(&mount, "k").unwrap() == data);
        assert_eq!(lab.key_counters(BUCKET, "k").of(Op::GetObject), 1);
    }
}
