//! Stamped content: bytes that tell where they came from.
//!
//! Content is a run of 16-byte little-endian records `key id (u32) | version (u32) | offset (u64)`, where the
//! offset is that of the record itself; the last record is cut to the length of the object. Any range read
//! back then shows which object, which version and which place it belongs to, so that mixed versions, shifted
//! windows, zero fill, repeated or skipped bytes and another object's bytes are all told apart.

use std::fmt;

/// The length of one record in bytes.
pub const RECORD: usize = 16;

/// The key id of a name: its 32-bit FNV-1a hash (parameters from the FNV specification).
///
/// [`crate::Lab::tree`] stamps every file with the id of its full key.
#[must_use]
pub fn key_id(key: impl AsRef<[u8]>) -> u32 {
    key.as_ref().iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// The record that begins at `offset`, a multiple of [`RECORD`].
#[must_use]
pub fn record(key_id: u32, version: u32, offset: u64) -> [u8; RECORD] {
    let head = u128::from(key_id) | (u128::from(version) << 32);
    (head | (u128::from(offset) << 64)).to_le_bytes()
}

/// Writes the content of the object at bytes `offset..offset + buf.len()` into `buf`.
pub fn fill(buf: &mut [u8], offset: u64, key_id: u32, version: u32) {
    let skip = (offset % RECORD as u64) as usize;
    let mut at = offset - skip as u64;
    let mut rest = buf;
    if skip > 0 {
        let n = rest.len().min(RECORD - skip);
        let (head, tail) = rest.split_at_mut(n);
        head.copy_from_slice(&record(key_id, version, at)[skip..skip + n]);
        rest = tail;
        at += RECORD as u64;
    }
    let head = u128::from(key_id) | (u128::from(version) << 32);
    let (records, cut) = rest.as_chunks_mut::<RECORD>();
    for record in records {
        *record = (head | (u128::from(at) << 64)).to_le_bytes();
        at += RECORD as u64;
    }
    cut.copy_from_slice(&record(key_id, version, at)[..cut.len()]);
}

/// The first `len` bytes of the object, as a new vector.
#[must_use]
pub fn make(len: usize, key_id: u32, version: u32) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fill(&mut bytes, 0, key_id, version);
    bytes
}

/// Checks that `buf` is the content of object `key_id` at `offset`, all of one version, and returns it.
///
/// A buffer shorter than a record may not contain all bytes of the version: those missing count as zero.
///
/// # Errors
/// [`Mismatch`] names the first record that differs.
pub fn verify(buf: &[u8], offset: u64, key_id: u32) -> Result<u32, Mismatch> {
    let version = version_in(buf, offset);
    let skip = (offset % RECORD as u64) as usize;
    let mut at = offset - skip as u64;
    let mut rest = buf;
    if skip > 0 {
        let n = rest.len().min(RECORD - skip);
        compare(&rest[..n], at, skip, key_id, version)?;
        rest = &rest[n..];
        at += RECORD as u64;
    }
    let head = u128::from(key_id) | (u128::from(version) << 32);
    let (records, cut) = rest.as_chunks::<RECORD>();
    for record in records {
        if u128::from_le_bytes(*record) != head | (u128::from(at) << 64) {
            compare(record, at, 0, key_id, version)?;
        }
        at += RECORD as u64;
    }
    compare(cut, at, 0, key_id, version)?;
    Ok(version)
}

/// The version bytes as they first appear in `buf`.
fn version_in(buf: &[u8], offset: u64) -> u32 {
    let mut version = [0; 4];
    for (i, slot) in version.iter_mut().enumerate() {
        let first = (4 + i as u64 + RECORD as u64 - offset % RECORD as u64) % RECORD as u64;
        *slot = buf.get(first as usize).copied().unwrap_or(0);
    }
    u32::from_le_bytes(version)
}

fn compare(found: &[u8], at: u64, skip: usize, key_id: u32, version: u32) -> Result<(), Mismatch> {
    let expected = record(key_id, version, at);
    if found == &expected[skip..skip + found.len()] {
        return Ok(());
    }
    let mut whole = expected;
    whole[skip..skip + found.len()].copy_from_slice(found);
    let word = u128::from_le_bytes(whole);
    Err(Mismatch {
        offset: at,
        expected_key_id: key_id,
        expected_version: version,
        found_key_id: word as u32,
        found_version: (word >> 32) as u32,
        found_offset: (word >> 64) as u64,
    })
}

/// A record that is not what the object holds at that place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Where the record begins, in bytes from the start of the object.
    pub offset: u64,
    /// The key id asked for.
    pub expected_key_id: u32,
    /// The version found first in the same buffer.
    pub expected_version: u32,
    /// The key id in the record.
    pub found_key_id: u32,
    /// The version in the record.
    pub found_version: u32,
    /// The offset in the record.
    pub found_offset: u64,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "wrong record at byte {}: expected key {:#010x} version {}, found key {:#010x} version {} offset {}",
            self.offset,
            self.expected_key_id,
            self.expected_version,
            self.found_key_id,
            self.found_version,
            self.found_offset
        )
    }
}

impl std::error::Error for Mismatch {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_range_equals_the_same_range_of_the_whole() {
        let whole = make(100, 7, 3);
        for from in 0..100 {
            for to in from..=100 {
                let mut part = vec![0; to - from];
                fill(&mut part, from as u64, 7, 3);
                assert_eq!(part, whole[from..to], "{from}..{to}");
                if to - from >= RECORD {
                    assert_eq!(verify(&part, from as u64, 7), Ok(3), "{from}..{to}");
                } else {
                    assert!(verify(&part, from as u64, 7).is_ok(), "{from}..{to}");
                }
            }
        }
    }

    #[test]
    fn every_kind_of_wrong_byte_is_found() {
        let good = make(4096, 9, 1);
        for at in [0, 5, 17, 2048, 4095] {
            let mut bad = good.clone();
            bad[at] ^= 0x40;
            assert!(verify(&bad, 0, 9).is_err(), "flip at {at}");
        }
        assert!(verify(&good, 16, 9).is_err(), "shifted window");
        assert!(verify(&good, 0, 8).is_err(), "another object");
        let mut mixed = good.clone();
        fill(&mut mixed[1024..], 1024, 9, 2);
        let wrong = verify(&mixed, 0, 9).unwrap_err();
        assert_eq!((wrong.offset, wrong.expected_version, wrong.found_version), (1024, 1, 2));
        let mut zeros = good;
        zeros[512..].fill(0);
        assert_eq!(verify(&zeros, 0, 9).unwrap_err().offset, 512);
    }
}
