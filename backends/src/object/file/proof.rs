//! [`Proof`]: what a store says the bytes of a whole object add up to, and the bytes themselves, as they come.

use aws_lc_rs::digest;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use crc_fast::CrcAlgorithm;
use http::HeaderMap;

/// The checksums of S3 (API reference, "Checking object integrity"), the cheapest to compute first. The values are
/// base64 of the big-endian number.
const ALGORITHMS: [(&str, &str, Algorithm); 5] = [
    ("x-amz-checksum-crc64nvme", "CRC-64/NVME", Algorithm::Crc(CrcAlgorithm::Crc64Nvme, 8)),
    ("x-amz-checksum-crc32c", "CRC-32C", Algorithm::Crc(CrcAlgorithm::Crc32Iscsi, 4)),
    ("x-amz-checksum-crc32", "CRC-32", Algorithm::Crc(CrcAlgorithm::Crc32IsoHdlc, 4)),
    ("x-amz-checksum-sha1", "SHA-1", Algorithm::Sha(&digest::SHA1_FOR_LEGACY_USE_ONLY)),
    ("x-amz-checksum-sha256", "SHA-256", Algorithm::Sha(&digest::SHA256)),
];

#[derive(Clone, Copy)]
enum Algorithm {
    /// With the bytes of its value.
    Crc(CrcAlgorithm, usize),
    Sha(&'static digest::Algorithm),
}

impl Algorithm {
    fn len(self) -> usize {
        match self {
            Algorithm::Crc(_, len) => len,
            Algorithm::Sha(algorithm) => algorithm.output_len(),
        }
    }

    fn start(self) -> Hasher {
        match self {
            Algorithm::Crc(algorithm, _) => Hasher::Crc(Box::new(crc_fast::Digest::new(algorithm))),
            Algorithm::Sha(algorithm) => Hasher::Sha(Box::new(digest::Context::new(algorithm))),
        }
    }
}

enum Hasher {
    Crc(Box<crc_fast::Digest>),
    Sha(Box<digest::Context>),
}

/// A checksum of a whole object that the store keeps, and the same over the bytes that came so far, from the first one
/// on.
pub(super) struct Proof {
    algorithm: &'static str,
    promised: Vec<u8>,
    hasher: Hasher,
}

impl Proof {
    /// What the headers of an answer with the whole object promise. `None` where nothing can be held against the bytes
    /// alone: no checksum, one of the parts' checksums (`…-3`, `COMPOSITE`), or one that is no such value. Stores that do
    /// not tell the two kinds apart are believed for objects that were not uploaded in parts.
    pub(super) fn promised(headers: &HeaderMap) -> Option<Proof> {
        let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok()).map(str::trim);
        match text("x-amz-checksum-type") {
            Some(kind) if kind.eq_ignore_ascii_case("full_object") => {}
            None if !text("etag").is_some_and(|etag| etag.contains('-')) => {}
            _ => return None,
        }
        ALGORITHMS.into_iter().find_map(|(header, name, algorithm)| {
            let promised = BASE64.decode(text(header)?).ok()?;
            (promised.len() == algorithm.len()).then(|| Proof {
                algorithm: name,
                promised,
                hasher: algorithm.start(),
            })
        })
    }

    /// Takes the next bytes in.
    pub(super) fn update(&mut self, bytes: &[u8]) {
        match &mut self.hasher {
            Hasher::Crc(crc) => crc.update(bytes),
            Hasher::Sha(sha) => sha.update(bytes),
        }
    }

    /// Whether all the bytes, which have been taken in, are those that the store has.
    ///
    /// # Errors
    /// What does not match.
    pub(super) fn verify(self) -> Result<(), Mismatch> {
        let found = match self.hasher {
            Hasher::Crc(crc) => {
                let number = crc.finalize().to_be_bytes();
                number[number.len() - self.promised.len()..].to_vec()
            }
            Hasher::Sha(sha) => sha.finish().as_ref().to_vec(),
        };
        if found == self.promised {
            return Ok(());
        }
        let (promised, found) = (BASE64.encode(&self.promised), BASE64.encode(&found));
        Err(Mismatch { algorithm: self.algorithm, promised, found })
    }
}

/// A checksum that is another than the store said, both in base64.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mismatch {
    pub(super) algorithm: &'static str,
    pub(super) promised: String,
    pub(super) found: String,
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    /// The sums of "123456789": the CRCs from the catalogue of parametrised CRC algorithms (reveng), the others by
    /// coreutils.
    const SUMS: [(&str, &str); 5] = [
        ("x-amz-checksum-crc64nvme", "rosUhgp5mIg="),
        ("x-amz-checksum-crc32c", "4waSgw=="),
        ("x-amz-checksum-crc32", "y/Q5Jg=="),
        ("x-amz-checksum-sha1", "98O8HYCOBHMq32eZZczDTKeuNEE="),
        ("x-amz-checksum-sha256", "FeKw08M4keuw8e9gnsQZQgwg4yDOlMZfvIwzEkSOsiU="),
    ];

    fn headers(of: &[(&'static str, &'static str)]) -> HeaderMap {
        of.iter().map(|(n, v)| (n.parse().unwrap(), HeaderValue::from_static(v))).collect()
    }

    #[test]
    fn each_checksum_is_computed_in_pieces_and_told_from_another() {
        for sum in SUMS {
            let headers = headers(&[sum]);
            let mut right = Proof::promised(&headers).unwrap();
            [&b"1234"[..], b"", b"56789"].into_iter().for_each(|piece| right.update(piece));
            assert_eq!(right.verify(), Ok(()), "{sum:?}");

            let mut wrong = Proof::promised(&headers).unwrap();
            wrong.update(b"123456788");
            assert_eq!(wrong.verify().unwrap_err().promised, sum.1);
        }
    }

    #[test]
    fn what_cannot_be_held_against_the_bytes_is_left_alone() {
        for unusable in [
            &[][..],
            &[("x-amz-checksum-crc32c", "4waSgw==-3")],
            &[("x-amz-checksum-crc32c", "4waSgw=="), ("x-amz-checksum-type", "COMPOSITE")],
            &[("x-amz-checksum-crc32c", "4waSgw=="), ("etag", "\"0123456789abcdef-3\"")],
            &[("x-amz-checksum-crc32c", "e3069283")],
            &[("x-amz-checksum-crc32c", "rosUhgp5mIg=")],
            &[("x-amz-checksum-md5", "4waSgw==")],
        ] {
            assert!(Proof::promised(&headers(unusable)).is_none(), "{unusable:?}");
        }
        let full = [SUMS[1], ("x-amz-checksum-type", "FULL_OBJECT"), ("etag", "\"0123456789abcdef-3\"")];
        assert!(Proof::promised(&headers(&full)).is_some());
    }

    #[test]
    fn of_several_checksums_the_cheapest_is_taken() {
        let proof = Proof::promised(&headers(&[SUMS[4], SUMS[2], SUMS[0]])).unwrap();
        assert_eq!(proof.algorithm, "CRC-64/NVME");
    }
}
