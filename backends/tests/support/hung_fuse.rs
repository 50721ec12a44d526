//! A FUSE filesystem that does not answer: what a dead network filesystem looks like to a program.
//!
//! It speaks just enough of the kernel's protocol (`linux/fuse.h`, version 7.31) for one directory with three names:
//! `healthy` reads as zeros, every read of `hung` hangs, and looking at `dead` hangs.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::thread::JoinHandle;

use super::mounted::Mounted;

pub const FILE_SIZE: u64 = 1 << 20;

const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
const STATFS: u32 = 17;
const RELEASE: u32 = 18;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const OPENDIR: u32 = 27;
const READDIR: u32 = 28;
const RELEASEDIR: u32 = 29;
const INTERRUPT: u32 = 36;
const BATCH_FORGET: u32 = 42;

/// Without it one hanging look-up locks the whole directory.
const PARALLEL_DIROPS: u32 = 1 << 18;

const ROOT: u64 = 1;
const HEALTHY: u64 = 2;
const HUNG: u64 = 3;

pub struct HungFuse {
    mounted: Mounted,
    server: Option<JoinHandle<()>>,
}

impl HungFuse {
    pub fn mount() -> Self {
        let device = File::options().read(true).write(true).open("/dev/fuse").expect("the kernel has FUSE");
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", device.as_raw_fd());
        let mounted = Mounted::new("nearfs-test", "fuse", &options);
        let server = std::thread::spawn(move || serve(device));
        HungFuse { mounted, server: Some(server) }
    }

    pub fn path(&self) -> &std::path::Path {
        self.mounted.path()
    }

    /// Every call that hangs fails now.
    pub fn abort(&self) {
        self.mounted.abort();
    }
}

impl Drop for HungFuse {
    fn drop(&mut self) {
        self.mounted.abort();
        if let Some(server) = self.server.take() {
            server.join().unwrap();
        }
    }
}

/// Answers until the filesystem is taken away.
fn serve(mut device: File) {
    let mut request = vec![0; 2 << 20];
    while let Ok(n) = device.read(&mut request) {
        if n < 40 {
            break;
        }
        let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap());
        let long = |at: usize| u64::from_ne_bytes(request[at..at + 8].try_into().unwrap());
        let (opcode, unique, node) = (word(4), long(8), long(16));
        let answer = match opcode {
            INIT => Some(Ok(init(word(48)))),
            LOOKUP => match request[40..n].split(|b| *b == 0).next().unwrap() {
                b"healthy" => Some(Ok(entry(HEALTHY))),
                b"hung" => Some(Ok(entry(HUNG))),
                b"dead" => None,
                _ => Some(Err(libc::ENOENT)),
            },
            GETATTR => Some(Ok([&1u64.to_ne_bytes()[..], &[0; 8], &attributes(node)].concat())),
            OPEN | OPENDIR => Some(Ok(vec![0; 16])),
            READ if node == HUNG => None,
            READ => {
                let (offset, size) = (long(48), u64::from(word(56)));
                Some(Ok(vec![0; size.min(FILE_SIZE.saturating_sub(offset)) as usize]))
            }
            STATFS => Some(Ok(vec![0; 80])),
            READDIR | RELEASE | RELEASEDIR | FLUSH => Some(Ok(Vec::new())),
            FORGET | BATCH_FORGET | INTERRUPT => None,
            _ => Some(Err(libc::ENOSYS)),
        };
        let Some(answer) = answer else { continue };
        let (error, body) = answer.map_or_else(|errno| (-errno, Vec::new()), |body| (0i32, body));
        let length = (16 + body.len()) as u32;
        let reply = [&length.to_ne_bytes()[..], &error.to_ne_bytes(), &unique.to_ne_bytes(), &body].concat();
        // A request interrupted meanwhile is no longer known.
        let _ = device.write(&reply);
    }
}

fn init(max_readahead: u32) -> Vec<u8> {
    let mut out = Vec::new();
    for word in [7, 31, max_readahead, PARALLEL_DIROPS] {
        out.extend_from_slice(&u32::to_ne_bytes(word));
    }
    out.extend_from_slice(&[64, 0, 48, 0]); // max_background and congestion_threshold, for a little-endian machine
    out.extend_from_slice(&(1u32 << 17).to_ne_bytes()); // max_write
    out.extend_from_slice(&1u32.to_ne_bytes()); // time_gran
    out.resize(64, 0);
    out
}

fn entry(node: u64) -> Vec<u8> {
    let mut out = Vec::new();
    for long in [node, 0, 1, 1] {
        out.extend_from_slice(&long.to_ne_bytes()); // node, generation, lifetimes of entry and attributes
    }
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(&attributes(node));
    out
}

fn attributes(node: u64) -> Vec<u8> {
    let (mode, size): (u32, u64) = if node == ROOT { (0o40755, 0) } else { (0o100644, FILE_SIZE) };
    let mut out = Vec::new();
    for long in [node, size, size / 512, 0, 1_000_000_000, 0] {
        out.extend_from_slice(&long.to_ne_bytes());
    }
    for word in [0, 0, 0, mode, 1, 0, 0, 0, 4096, 0] {
        out.extend_from_slice(&u32::to_ne_bytes(word));
    }
    out
}
