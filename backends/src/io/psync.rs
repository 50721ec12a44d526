//! Reads by plain system calls: at once from the page cache, otherwise on a thread of the pool.

use std::os::fd::AsRawFd;

use super::buffer::Buffer;
use super::lent::Lent;
use super::source::Source;
use super::threads::{Beat, BlockingPool};
use crate::error::{Error, Result};

/// Most bytes one system call is asked for: between two, a call shows that it is alive.
pub(super) const STEP: usize = 4 << 20;

/// Reads `want` bytes at `offset` behind the content of `buf`, fewer only at the end of the file.
pub(super) async fn read(
    pool: &BlockingPool,
    source: &Source,
    offset: u64,
    buf: Buffer,
    want: usize,
) -> (Result<usize>, Buffer) {
    let lent = Lent::new(buf, want);
    let (file, memory) = (source.clone(), lent.clone());
    let result = pool.run("read", move |beat| read_all(&file, offset, &memory, beat)).await;
    match result {
        // SAFETY: `read_all` returned this number, so it is over and wrote as many bytes.
        Ok(n) => (Ok(n), unsafe { lent.take(n) }),
        // The thread may still be writing: it keeps that memory, the caller gets other.
        Err(e) => (Err(e), lent.replace()),
    }
}

fn read_all(source: &Source, offset: u64, memory: &Lent, beat: &Beat) -> Result<usize> {
    let mut done = 0;
    while done < memory.len() {
        let step = (memory.len() - done).min(STEP);
        // SAFETY: `done + step <= len`, and the memory stays lent while this call holds its `Arc`.
        let n = unsafe {
            libc::pread(source.as_raw_fd(), memory.ptr().add(done).cast(), step, position(offset, done)?)
        };
        match n {
            0 => break,
            n if n > 0 => {
                done += n as usize;
                beat.touch();
            }
            _ => {
                let error = std::io::Error::last_os_error();
                if error.kind() != std::io::ErrorKind::Interrupted {
                    return Err(Error::from(error).during("read"));
                }
            }
        }
        if !beat.is_wanted() {
            break;
        }
    }
    Ok(done)
}

/// Fills what the page cache holds, without waiting for any disk, and returns how many bytes that was. Where the
/// filesystem cannot do this, that is 0.
pub(super) fn read_cached(source: &Source, offset: u64, buf: &mut Buffer, want: usize) -> usize {
    let spare = buf.spare_mut();
    let Ok(at) = position(offset, 0) else { return 0 };
    let iov = libc::iovec { iov_base: spare.as_mut_ptr().cast(), iov_len: want.min(spare.len()) };
    // SAFETY: `iov` describes spare memory of `buf`, which is borrowed for the whole call.
    let n = unsafe { libc::preadv2(source.as_raw_fd(), &iov, 1, at, libc::RWF_NOWAIT) };
    let n = usize::try_from(n).unwrap_or(0);
    // SAFETY: the kernel wrote `n` bytes at the start of the spare memory.
    unsafe { buf.advance(n) };
    n
}

fn position(offset: u64, done: usize) -> Result<libc::off_t> {
    offset.checked_add(done as u64).and_then(|o| libc::off_t::try_from(o).ok()).ok_or_else(|| {
        Error::new(crate::error::ErrorKind::InvalidInput, "an offset is beyond what a file can have")
            .during("read")
    })
}
