//! PutObject and RestoreObject, and what uploads of every kind share.

use bytes::Bytes;
use hyper::header::{ETAG, HeaderName, HeaderValue};
use md5::{Digest, Md5};

use crate::call::{Call, Reply};
use crate::content::Content;
use crate::error::S3Error;
use crate::request::Request;
use crate::store::{Condition, Extra, Object};

/// Headers kept with the object besides `x-amz-meta-*`.
const KEPT: [&str; 5] =
    ["content-type", "content-language", "content-disposition", "cache-control", "expires"];

pub(crate) fn put(call: &mut Call) -> Reply {
    let checksums = checksums(call)?;
    let extra = Extra { checksums, ..extra(&call.request) };
    let etag = md5_etag(std::slice::from_ref(&call.payload));
    let (content, size) = Content::from_pieces([call.payload.clone()]);
    let object = Object::data(content, size, etag, extra);
    let stored =
        call.shared.store.put(&call.request.bucket, &call.request.key, object, &condition(&call.request))?;
    let mut head = call.head(200).header(ETAG, stored.etag());
    for (name, value) in stored.extra.iter().flat_map(|e| &e.checksums) {
        head = head.header(name, value);
    }
    Ok(call.empty(head))
}

/// `POST ?restore`: an archived object can be read from now on.
pub(crate) fn restore(call: &mut Call) -> Reply {
    let object = call.shared.store.get(&call.request.bucket, &call.request.key)?;
    if !matches!(object.storage_class(), "GLACIER" | "DEEP_ARCHIVE") {
        let message = "Restore is not allowed for the object's current storage class";
        return Err(
            S3Error::new(403, "InvalidObjectState", message).element("StorageClass", object.storage_class())
        );
    }
    let status = if object.restored() { 200 } else { 202 };
    call.shared.store.amend(&call.request.bucket, &call.request.key, |o| {
        if let Some(extra) = &mut o.extra {
            extra.restored = true;
        }
    })?;
    let head = call.head(status);
    Ok(call.empty(head))
}

/// An object of these bytes, with nothing else to it.
pub(crate) fn plain(bytes: Bytes) -> Object {
    let etag = md5_etag(std::slice::from_ref(&bytes));
    let (content, size) = Content::from_pieces([bytes]);
    Object::data(content, size, etag, Extra::default())
}

/// The quoted MD5 of all pieces in turn.
pub(crate) fn md5_etag(pieces: &[Bytes]) -> String {
    format!("\"{}\"", hex(&md5(pieces)))
}

pub(crate) fn md5(pieces: &[Bytes]) -> [u8; 16] {
    let mut hash = Md5::new();
    for piece in pieces {
        hash.update(piece);
    }
    hash.finalize().into()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

pub(crate) fn condition(request: &Request) -> Condition {
    let header = |name| request.header(name).map(str::to_owned);
    Condition { if_match: header("if-match"), if_none_match: header("if-none-match") }
}

/// What an upload's headers say about the object.
pub(crate) fn extra(request: &Request) -> Extra {
    let mut headers: Vec<(HeaderName, HeaderValue)> = Vec::new();
    for (name, value) in &request.headers {
        if KEPT.contains(&name.as_str()) || name.as_str().starts_with("x-amz-meta-") {
            headers.push((name.clone(), value.clone()));
        }
    }
    // The framing of an upload is not part of the object.
    let encoding: Vec<&str> = request
        .header("content-encoding")
        .unwrap_or("")
        .split(',')
        .map(str::trim)
        .filter(|e| !e.is_empty() && *e != "aws-chunked")
        .collect();
    if let Ok(value) = HeaderValue::from_str(&encoding.join(", "))
        && !encoding.is_empty()
    {
        headers.push((hyper::header::CONTENT_ENCODING, value));
    }
    let storage_class = request.header("x-amz-storage-class").filter(|c| *c != "STANDARD").map(str::to_owned);
    Extra { headers, checksums: Vec::new(), storage_class, restored: false }
}

/// The `x-amz-checksum-*` headers and trailers of an upload. CRC32C, SHA-256 and `Content-MD5` are checked
/// against the payload, the others are taken on trust.
pub(crate) fn checksums(call: &Call) -> Result<Vec<(HeaderName, HeaderValue)>, S3Error> {
    let bad = || S3Error::new(400, "BadDigest", "The checksum you specified did not match what we received.");
    if call
        .request
        .header("content-md5")
        .is_some_and(|sum| sum != base64(&md5(std::slice::from_ref(&call.payload))))
    {
        return Err(bad());
    }
    let headers = call.request.headers.iter().map(|(n, v)| (n.as_str(), v.to_str().unwrap_or("")));
    let trailers = call.trailers.iter().map(|(n, v)| (n.as_str(), v.as_str()));
    let mut kept = Vec::new();
    for (name, value) in headers.chain(trailers) {
        let Some(algorithm) = name.strip_prefix("x-amz-checksum-") else { continue };
        let computed = match algorithm {
            "crc32c" => base64(&crc32c::crc32c(&call.payload).to_be_bytes()),
            "sha256" => base64(&sha2::Sha256::digest(&call.payload)),
            "crc32" | "crc64nvme" | "sha1" => value.to_owned(),
            _ => continue,
        };
        if computed != value {
            return Err(bad());
        }
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::from_str(value)) {
            kept.push((name, value));
        }
    }
    Ok(kept)
}

pub(crate) fn base64(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}
