//! GetObject and HeadObject.

use std::time::{Duration, UNIX_EPOCH};

use hyper::header::{ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, LAST_MODIFIED};
use hyper::http::response::Builder;

use crate::call::{Call, Reply};
use crate::content::Content;
use crate::error::S3Error;
use crate::fault::Fault;
use crate::op::Op;
use crate::request::{Range, Request, range};
use crate::store::{Object, etag_in};

pub(crate) fn get(call: &mut Call) -> Reply {
    let object =
        call.shared.store.get(&call.request.bucket, &call.request.key).map_err(|e| call.absent(e))?;
    let reads = call.request.op == Op::GetObject;
    let mut etag = object.etag();
    match conditions(&call.request, &object, &etag) {
        412 => return Err(S3Error::of(412)),
        304 => {
            let head = call.head(304).header(ETAG, etag).header(LAST_MODIFIED, http_date(object.modified));
            return Ok(call.empty(head));
        }
        _ => {}
    }
    if reads && object.archived() {
        let message = "The operation is not valid for the object's storage class";
        return Err(
            S3Error::new(403, "InvalidObjectState", message).element("StorageClass", object.storage_class())
        );
    }
    let mut span = range(call.request.header("range"), object.size);
    for fault in &call.faults {
        match (fault, span) {
            (Fault::IgnoreRange, _) => span = Range::Whole,
            (Fault::WrongRange { shift }, Range::Part(start, end)) => {
                let len = end - start;
                let start = start.saturating_add_signed(*shift).min(object.size - len);
                span = Range::Part(start, start + len);
            }
            (Fault::WrongEtag, _) => etag = "\"00000000000000000000000000000bad\"".to_owned(),
            _ => {}
        }
    }
    let (status, start, end) = match span {
        Range::Whole => (200, 0, object.size),
        Range::Part(start, end) => (206, start, end),
        Range::Unsatisfiable => {
            let error = S3Error::of(416).element("ActualObjectSize", object.size.to_string());
            return Err(error.header("content-range", format!("bytes */{}", object.size)));
        }
    };
    let mut head = describe(call.head(status), &object, etag);
    if status == 206 {
        head = head.header(CONTENT_RANGE, format!("bytes {start}-{}/{}", end - 1, object.size));
    } else if call.request.header("x-amz-checksum-mode").is_some_and(|m| m.eq_ignore_ascii_case("enabled")) {
        for (name, value) in object.extra.iter().flat_map(|e| &e.checksums) {
            head = head.header(name, value);
        }
    }
    if reads && call.faults.contains(&Fault::EmptyBody) {
        let head = describe(call.head(200), &object, object.etag()).header(CONTENT_LENGTH, 0);
        return Ok(call.empty(head));
    }
    head = head.header(CONTENT_LENGTH, end - start);
    if !reads {
        return Ok(call.send(head, Content::from_bytes(bytes::Bytes::new()), (0, 0)));
    }
    let mut response = call.send(head, object.content.clone(), (start, end));
    response.body_mut().counter = call.counter.clone();
    Ok(response)
}

/// The headers that tell what the object is.
fn describe(mut head: Builder, object: &Object, etag: String) -> Builder {
    head = head
        .header(ETAG, etag)
        .header(LAST_MODIFIED, http_date(object.modified))
        .header(ACCEPT_RANGES, "bytes");
    let Some(extra) = &object.extra else { return head.header(CONTENT_TYPE, "binary/octet-stream") };
    if !extra.headers.iter().any(|(name, _)| name == CONTENT_TYPE) {
        head = head.header(CONTENT_TYPE, "binary/octet-stream");
    }
    for (name, value) in &extra.headers {
        head = head.header(name, value);
    }
    if object.storage_class() != "STANDARD" {
        head = head.header("x-amz-storage-class", object.storage_class());
    }
    if extra.restored {
        let until = http_date(crate::store::now_ms() + 86_400_000);
        head = head.header("x-amz-restore", format!("ongoing-request=\"false\", expiry-date=\"{until}\""));
    }
    head
}

/// 412, 304 or 200, in the order of RFC 9110 section 13.2.2.
fn conditions(request: &Request, object: &Object, etag: &str) -> u16 {
    let since = |name: &str| request.header(name).and_then(|v| httpdate::parse_http_date(v).ok());
    let modified = UNIX_EPOCH + Duration::from_secs(object.modified / 1000);
    match request.header("if-match") {
        Some(list) if !etag_in(list, etag) => return 412,
        Some(_) => {}
        None if since("if-unmodified-since").is_some_and(|t| modified > t) => return 412,
        None => {}
    }
    match request.header("if-none-match") {
        Some(list) if etag_in(list, etag) => 304,
        Some(_) => 200,
        None if since("if-modified-since").is_some_and(|t| modified <= t) => 304,
        None => 200,
    }
}

pub(crate) fn http_date(ms: u64) -> String {
    httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_millis(ms))
}
