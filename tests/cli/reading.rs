//! `cat` and `head`.

use std::io::{Read, Write};
use std::process::{Command, Stdio};

use nearfs_lab::{Fault, Lab, Model, Op, Rule, stamp};

use crate::harness::{fails, finish, nearfs, ok, run, signal};

fn lab() -> Lab {
    let lab = Lab::builder().bucket("b").start().unwrap();
    lab.put("b", "a", &b"one\ntwo\nthree\n"[..]);
    lab.put("b", "c", &b"four"[..]);
    lab.put("b", "empty", &b""[..]);
    lab
}

#[test]
fn cat_writes_files_one_after_the_other() {
    let lab = lab();
    assert_eq!(ok(&lab, ["cat", "s3://b/c", "s3://b/a", "s3://b/empty"]).out, b"fourone\ntwo\nthree\n");
    let part = fails(&lab, 1, "s3://b/none: ", ["cat", "s3://b/none", "s3://b/c"]);
    assert_eq!(part.out, b"four");
    fails(&lab, 2, "directory", ["cat", "s3://b"]);
    lab.put("b", "d/x", &b""[..]);
    fails(&lab, 2, "directory", ["cat", "s3://b/d"]);
}

#[test]
fn a_large_file_streams_within_its_memory() {
    let lab = lab();
    let size = 192 << 20;
    lab.put_synthetic("b", "big", size, 9);
    lab.set_model(Model::network(5.0, 90.0));
    // The peak is asked of the command's own shell: ru_maxrss of a waited-for child, in KiB.
    let mut child = Command::new("/usr/bin/env")
        .args(["python3", "-c"])
        .arg(
            "import resource, subprocess, sys\n\
             code = subprocess.call(sys.argv[1:])\n\
             sys.stderr.write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))\n\
             sys.exit(code)",
        )
        .arg(env!("CARGO_BIN_EXE_nearfs"))
        .args([
            "--endpoint-url",
            &lab.endpoint(),
            "--anonymous",
            "-q",
            "--memory",
            "32MiB",
            "--cache-size",
            "0",
            "cat",
            "s3://b/big",
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = child.stdout.take().unwrap();
    let (mut offset, mut buffer) = (0, vec![0; 1 << 20]);
    loop {
        let n = out.read(&mut buffer).unwrap();
        if n == 0 {
            break;
        }
        stamp::verify(&buffer[..n], offset, 9).unwrap();
        offset += n as u64;
    }
    let printed = finish(child);
    assert_eq!((printed.code, offset), (0, size), "{}", printed.err);
    let peak: u64 = printed.err.trim().parse().unwrap();
    assert!(peak < 160 << 10, "{peak} KiB at the peak for a file of {} KiB", size >> 10);
}

#[test]
fn a_reader_that_goes_away_early_is_a_success() {
    let lab = lab();
    lab.put_synthetic("b", "big", 64 << 20, 9);
    let mut child = nearfs(&lab)
        .args(["cat", "s3://b/big"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 4096];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    stamp::verify(&first, 0, 9).unwrap();
    let printed = finish(child);
    assert_eq!((printed.code, printed.err.as_str()), (0, ""));
}

#[test]
fn a_full_disk_under_standard_output_is_a_failure() {
    let lab = lab();
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let child = nearfs(&lab).args(["cat", "s3://b/a"]).stdout(full).stderr(Stdio::piped()).spawn().unwrap();
    let printed = finish(child);
    assert_eq!(printed.code, 2);
    assert!(printed.err.contains("cannot write to standard output"), "{}", printed.err);
}

#[test]
fn head_prints_lines_or_bytes_and_fetches_little() {
    let lab = lab();
    assert_eq!(ok(&lab, ["head", "-n", "2", "s3://b/a"]).out, b"one\ntwo\n");
    assert_eq!(ok(&lab, ["head", "-c", "5", "s3://b/a"]).out, b"one\nt");
    assert_eq!(ok(&lab, ["head", "s3://b/c"]).out, b"four");
    assert_eq!(ok(&lab, ["head", "-n", "0", "s3://b/a"]).out, b"");
    let several = ok(&lab, ["head", "-n1", "s3://b/a", "s3://b/c"]).text();
    assert_eq!(several, "==> s3://b/a <==\none\n\n==> s3://b/c <==\nfour");
    fails(&lab, 2, "cannot be used with", ["head", "-n", "1", "-c", "1", "s3://b/a"]);
    fails(&lab, 2, "not a size", ["head", "-c", "x", "s3://b/a"]);
    // Lines far into a large file: all of them, and not the whole file.
    let line = format!("{}\n", "l".repeat(999));
    lab.put("b", "lines", line.repeat(20_000).into_bytes());
    lab.reset_counters();
    assert_eq!(ok(&lab, ["head", "-n", "300", "s3://b/lines"]).out.len(), 300_000);
    let moved = lab.key_counters("b", "lines").body_bytes;
    assert!(moved < 16_000_000, "{moved} bytes for 300 000 of 20 000 000");
}

#[test]
fn failures_in_the_middle_are_told() {
    let lab = lab();
    lab.put_synthetic("b", "big", 32 << 20, 9);
    lab.fault(Rule::on(
        Op::GetObject,
        Fault::Status { status: 403, code: "AccessDenied".into(), retry_after: None },
    ));
    fails(&lab, 2, "s3://b/big: ", ["cat", "s3://b/big"]);
}

#[test]
fn ctrl_c_ends_with_130() {
    let lab = lab();
    lab.put_synthetic("b", "big", 1 << 30, 9);
    lab.set_model(Model { total_mbps: 20.0, ..Model::default() });
    let mut child = nearfs(&lab)
        .args(["cat", "s3://b/big"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 4096];
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    signal(child.id(), libc::SIGINT);
    assert_eq!(finish(child).code, 130);
    // Also when nobody empties the pipe: the second signal does not wait.
    let mut child = nearfs(&lab)
        .args(["cat", "s3://b/big"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(500));
    signal(child.id(), libc::SIGINT);
    std::thread::sleep(std::time::Duration::from_millis(500));
    signal(child.id(), libc::SIGINT);
    let status = crate::harness::eventually("the end", || child.try_wait().unwrap());
    assert_eq!(status.code(), Some(130));
}

#[test]
fn local_files_are_read_the_same_way() {
    let lab = lab();
    let dir = tempfile::tempdir().unwrap();
    let mut file = std::fs::File::create(dir.path().join("f")).unwrap();
    file.write_all(&stamp::make(3_000_001, 5, 1)).unwrap();
    let printed = run(nearfs(&lab).current_dir(dir.path()).args(["cat", "./f"]));
    assert_eq!(printed.code, 0, "{}", printed.err);
    assert_eq!(printed.out, stamp::make(3_000_001, 5, 1));
    let url = format!("file://{}/f", dir.path().display());
    assert_eq!(ok(&lab, ["head", "-c", "16", &url]).out, stamp::make(16, 5, 1));
}
