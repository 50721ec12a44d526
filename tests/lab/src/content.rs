//! Where the bytes of an object come from, and the pool of buffers that synthetic ones are written into.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::stamp;

/// The size of a pooled buffer, hence the longest chunk of synthetic content.
pub(crate) const CHUNK: usize = 256 << 10;
/// Buffers kept for reuse; more may be in flight, but no more than this are kept.
const KEPT: usize = 64;

/// The bytes of one object.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// Computed from key id, version and offset.
    Synthetic { key_id: u32, version: u32 },
    /// Kept in memory: (offset of the piece, piece), in order, without gaps.
    Data(Arc<[(u64, Bytes)]>),
}

impl Content {
    /// Content made of `pieces`, one after the other, and its length.
    pub(crate) fn from_pieces(pieces: impl IntoIterator<Item = Bytes>) -> (Self, u64) {
        let mut size = 0;
        let mut list = Vec::new();
        for piece in pieces {
            if !piece.is_empty() {
                let len = piece.len() as u64;
                list.push((size, piece));
                size += len;
            }
        }
        (Self::Data(list.into()), size)
    }

    pub(crate) fn from_bytes(bytes: Bytes) -> Self {
        Self::from_pieces([bytes]).0
    }

    /// Between 1 and `max` bytes from `pos`; `max` > 0, and `pos + max` within the object.
    pub(crate) fn chunk(&self, pos: u64, max: usize, pool: &Arc<BufferPool>) -> Bytes {
        match self {
            Self::Synthetic { key_id, version } => {
                let mut buf = pool.take(max.min(CHUNK));
                stamp::fill(buf.bytes_mut(), pos, *key_id, *version);
                Bytes::from_owner(buf)
            }
            Self::Data(pieces) => {
                let i = pieces.partition_point(|(start, _)| *start <= pos) - 1;
                let (start, piece) = &pieces[i];
                let from = (pos - start) as usize;
                piece.slice(from..piece.len().min(from + max))
            }
        }
    }

    /// Bytes `start..end` in pieces; synthetic content is written out.
    pub(crate) fn pieces(&self, start: u64, end: u64) -> Vec<Bytes> {
        let mut out = Vec::new();
        let mut pos = start;
        while pos < end {
            let piece = match self {
                Self::Synthetic { key_id, version } => {
                    let mut bytes = vec![0; ((end - pos) as usize).min(8 << 20)];
                    stamp::fill(&mut bytes, pos, *key_id, *version);
                    Bytes::from(bytes)
                }
                Self::Data(pieces) => {
                    let i = pieces.partition_point(|(from, _)| *from <= pos) - 1;
                    let (from, piece) = &pieces[i];
                    piece.slice((pos - from) as usize..piece.len().min((end - from) as usize))
                }
            };
            pos += piece.len() as u64;
            out.push(piece);
        }
        out
    }
}

/// Buffers for synthetic content. The last one given back is the first one taken, so that a server writing
/// faster than its peers drain keeps touching the same few cache lines.
#[derive(Debug, Default)]
pub(crate) struct BufferPool {
    free: Mutex<Vec<Box<[u8]>>>,
}

impl BufferPool {
    fn take(self: &Arc<Self>, len: usize) -> PooledBuf {
        let buf = self.free.lock().pop().unwrap_or_else(|| vec![0; CHUNK].into_boxed_slice());
        PooledBuf { buf, len, pool: self.clone() }
    }
}

/// A buffer that returns to its pool when the last reference to its bytes goes.
struct PooledBuf {
    buf: Box<[u8]>,
    len: usize,
    pool: Arc<BufferPool>,
}

impl PooledBuf {
    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buf[..self.len]
    }
}

impl AsRef<[u8]> for PooledBuf {
    fn as_ref(&self) -> &[u8] {
        &self.buf[..self.len]
    }
}

impl Drop for PooledBuf {
    fn drop(&mut self) {
        let mut free = self.pool.free.lock();
        if free.len() < KEPT {
            free.push(std::mem::take(&mut self.buf));
        }
    }
}
