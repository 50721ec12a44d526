//! A request as S3 sees it: bucket, key, query and operation, taken from the request line as it was sent.

use bytes::{Bytes, BytesMut};
use hyper::header::HeaderMap;
use hyper::http::request::Parts;
use hyper::{Method, Uri};

use crate::op::Op;

#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) headers: HeaderMap,
    pub(crate) op: Op,
    pub(crate) bucket: String,
    /// Percent-decoded bytes; empty for operations on buckets.
    pub(crate) key: Vec<u8>,
    /// Decoded pairs in the order sent.
    pub(crate) query: Vec<(String, Vec<u8>)>,
}

impl Request {
    pub(crate) fn new(parts: Parts) -> Self {
        let path = parts.uri.path();
        let path = path.strip_prefix('/').unwrap_or(path);
        let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
        let bucket = String::from_utf8_lossy(&decode(bucket, false)).into_owned();
        let key = decode(key, false);
        let query: Vec<(String, Vec<u8>)> = parts
            .uri
            .query()
            .unwrap_or("")
            .split('&')
            .filter(|pair| !pair.is_empty())
            .map(|pair| {
                let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                (String::from_utf8_lossy(&decode(name, true)).into_owned(), decode(value, true))
            })
            .collect();
        let has = |name: &str| query.iter().any(|(n, _)| n == name);
        let v2 = query.iter().any(|(n, v)| n == "list-type" && v == b"2");
        let copies = parts.headers.contains_key("x-amz-copy-source");
        let op = Op::of(&parts.method, !bucket.is_empty(), !key.is_empty(), has, v2, copies);
        Self { method: parts.method, uri: parts.uri, headers: parts.headers, op, bucket, key, query }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|v| v.to_str().ok())
    }

    pub(crate) fn param(&self, name: &str) -> Option<&[u8]> {
        self.query.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_slice())
    }

    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.param(name).and_then(|v| std::str::from_utf8(v).ok())
    }

    /// What rules and counters take for the key: of a listing, its prefix.
    pub(crate) fn subject(&self) -> &[u8] {
        if self.op.is_list() { self.param("prefix").unwrap_or(b"") } else { &self.key }
    }

    pub(crate) fn is_signed(&self) -> bool {
        self.headers.contains_key("authorization") || self.param("X-Amz-Signature").is_some()
    }

    /// The region in the credential scope of the signature.
    pub(crate) fn signed_region(&self) -> Option<&str> {
        let scope = match self.header("authorization") {
            Some(header) => header.split_once("Credential=")?.1.split([',', ' ']).next()?,
            None => self.text("X-Amz-Credential")?,
        };
        scope.split('/').nth_back(2)
    }

    pub(crate) fn is_aws_chunked(&self) -> bool {
        self.header("x-amz-content-sha256").is_some_and(|v| v.starts_with("STREAMING-"))
            || self
                .header("content-encoding")
                .is_some_and(|v| v.split(',').any(|e| e.trim() == "aws-chunked"))
    }
}

/// Percent-decoded bytes; a `%` without two hexadecimal digits stands for itself.
pub(crate) fn decode(text: &str, plus: bool) -> Vec<u8> {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let hex = |at: usize| bytes.get(at).and_then(|c| (*c as char).to_digit(16));
        match (bytes[i], hex(i + 1), hex(i + 2)) {
            (b'%', Some(high), Some(low)) => {
                out.push((high * 16 + low) as u8);
                i += 3;
                continue;
            }
            (b'+', ..) if plus => out.push(b' '),
            (byte, ..) => out.push(byte),
        }
        i += 1;
    }
    out
}

/// Percent-encodes all but the unreserved characters and, if asked, the slash.
pub(crate) fn encode(bytes: &[u8], keep_slash: bool) -> String {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let mut out = String::with_capacity(bytes.len());
    for byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(byte) || (keep_slash && *byte == b'/') {
            out.push(*byte as char);
        } else {
            out.push('%');
            out.push(HEX[usize::from(byte >> 4)] as char);
            out.push(HEX[usize::from(byte & 15)] as char);
        }
    }
    out
}

/// A `Range` header against an object's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Range {
    /// No range, several, or one that S3 ignores.
    Whole,
    /// First byte and the byte after the last.
    Part(u64, u64),
    Unsatisfiable,
}

pub(crate) fn range(header: Option<&str>, size: u64) -> Range {
    let Some((first, last)) = header.and_then(|h| h.strip_prefix("bytes=")).and_then(|h| h.split_once('-'))
    else {
        return Range::Whole;
    };
    match (first.trim().parse::<u64>(), last.trim().parse::<u64>()) {
        (Ok(a), Ok(b)) if b < a => Range::Whole,
        (Ok(a), _) if a >= size => Range::Unsatisfiable,
        (Ok(a), Ok(b)) => Range::Part(a, size.min(b.saturating_add(1))),
        (Ok(a), Err(_)) if last.trim().is_empty() => Range::Part(a, size),
        (Err(_), Ok(n)) if first.trim().is_empty() => {
            if n == 0 || size == 0 {
                Range::Unsatisfiable
            } else {
                Range::Part(size.saturating_sub(n), size)
            }
        }
        _ => Range::Whole,
    }
}

/// Names in lower case, and values.
pub(crate) type Trailers = Vec<(String, String)>;

/// The payload of an `aws-chunked` body, and its trailers.
///
/// Chunk signatures are not checked.
pub(crate) fn dechunk(mut body: Bytes) -> Result<(Bytes, Trailers), &'static str> {
    let mut out = BytesMut::new();
    loop {
        let line = take_line(&mut body).ok_or("a chunk header is missing")?;
        let line = std::str::from_utf8(&line).map_err(|_| "a chunk header is not text")?;
        let size = line.split(';').next().unwrap_or("").trim();
        let size = usize::from_str_radix(size, 16).map_err(|_| "a chunk size is not hexadecimal")?;
        if size == 0 {
            break;
        }
        if body.len() < size + 2 || &body[size..size + 2] != b"\r\n" {
            return Err("a chunk is cut short");
        }
        out.extend_from_slice(&body.split_to(size));
        body = body.slice(2..);
    }
    let mut trailers = Vec::new();
    while let Some(line) = take_line(&mut body) {
        if let Some((name, value)) = String::from_utf8_lossy(&line).split_once(':') {
            trailers.push((name.trim().to_ascii_lowercase(), value.trim().to_owned()));
        }
    }
    Ok((out.freeze(), trailers))
}

fn take_line(body: &mut Bytes) -> Option<Bytes> {
    let end = body.windows(2).position(|w| w == b"\r\n")?;
    let line = body.split_to(end);
    *body = body.slice(2..);
    Some(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_follow_the_rules_of_http() {
        use Range::{Part, Unsatisfiable, Whole};
        for (header, size, want) in [
            ("bytes=0-0", 10, Part(0, 1)),
            ("bytes=2-", 10, Part(2, 10)),
            ("bytes=2-99", 10, Part(2, 10)),
            ("bytes=2-18446744073709551615", 10, Part(2, 10)),
            ("bytes=-3", 10, Part(7, 10)),
            ("bytes=-99", 10, Part(0, 10)),
            ("bytes=-0", 10, Unsatisfiable),
            ("bytes=10-", 10, Unsatisfiable),
            ("bytes=0-0", 0, Unsatisfiable),
            ("bytes=-1", 0, Unsatisfiable),
            ("bytes=3-2", 10, Whole),
            ("bytes=a-b", 10, Whole),
            ("bytes=0-1,3-4", 10, Whole),
            ("lines=0-1", 10, Whole),
        ] {
            assert_eq!(range(Some(header), size), want, "{header} of {size}");
        }
        assert_eq!(range(None, 10), Whole);
    }

    #[test]
    fn chunked_uploads_are_joined_and_their_trailers_kept() {
        let body = Bytes::from_static(
            b"3;chunk-signature=ab\r\nabc\r\n2\r\nde\r\n0\r\nx-amz-checksum-crc32c:AAAA\r\n\r\n",
        );
        let (data, trailers) = dechunk(body).unwrap();
        assert_eq!(&data[..], b"abcde");
        assert_eq!(trailers, [("x-amz-checksum-crc32c".to_owned(), "AAAA".to_owned())]);
        assert!(dechunk(Bytes::from_static(b"3\r\nab")).is_err());
        assert!(dechunk(Bytes::from_static(b"zz\r\nab\r\n")).is_err());
    }

    #[test]
    fn any_bytes_survive_encoding() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(decode(&encode(&all, true), false), all);
        assert_eq!(decode(&encode(&all, false), true), all);
        assert_eq!(decode("%4a%zz%", false), b"J%zz%");
    }
}
