//! Multipart uploads.

use std::collections::BTreeMap;

use bytes::Bytes;
use hyper::header::{ETAG, HeaderName, HeaderValue};

use crate::call::{Call, Reply, XMLNS};
use crate::content::Content;
use crate::error::S3Error;
use crate::ops::copy::{result, source};
use crate::ops::put::{checksums, condition, extra, hex, md5};
use crate::request::{Range, encode, range};
use crate::store::{Extra, Object, now_ms};
use crate::xml::{escape, iso, rows};

/// S3's own limits.
const MAX_PART: u32 = 10_000;
/// Uploads kept at once; the service has no limit, a test that leaks them should see one.
const MAX_UPLOADS: usize = 100_000;

/// Uploads that are neither complete nor aborted.
#[derive(Debug, Default)]
pub(crate) struct Uploads {
    open: BTreeMap<String, Upload>,
    last: u64,
}

#[derive(Debug)]
struct Upload {
    bucket: String,
    key: Vec<u8>,
    extra: Extra,
    initiated: u64,
    parts: BTreeMap<u32, Part>,
}

#[derive(Clone, Debug)]
struct Part {
    pieces: Vec<Bytes>,
    size: u64,
    md5: [u8; 16],
    modified: u64,
}

impl Part {
    fn new(pieces: Vec<Bytes>) -> Self {
        let size = pieces.iter().map(|p| p.len() as u64).sum();
        Self { size, md5: md5(&pieces), modified: now_ms(), pieces }
    }

    fn etag(&self) -> String {
        format!("\"{}\"", hex(&self.md5))
    }
}

impl Uploads {
    fn of(&mut self, call: &Call) -> Result<&mut Upload, S3Error> {
        let id = call.request.text("uploadId").unwrap_or("");
        let ours = |u: &&mut Upload| u.bucket == call.request.bucket && u.key == call.request.key;
        self.open.get_mut(id).filter(ours).ok_or_else(no_such_upload)
    }
}

fn no_such_upload() -> S3Error {
    S3Error::new(404, "NoSuchUpload", "The specified multipart upload does not exist.")
}

fn name(call: &Call) -> String {
    format!(
        "<Bucket>{}</Bucket><Key>{}</Key>",
        escape(&call.request.bucket),
        escape(&String::from_utf8_lossy(&call.request.key))
    )
}

pub(crate) fn create(call: &mut Call) -> Reply {
    let id = {
        let mut uploads = call.shared.uploads.lock();
        if uploads.open.len() >= MAX_UPLOADS {
            return Err(S3Error::of(503));
        }
        uploads.last += 1;
        let id = format!("upload-{:08}-{:016x}", uploads.last, call.shared.rng.next());
        let (bucket, key) = (call.request.bucket.clone(), call.request.key.clone());
        let upload =
            Upload { bucket, key, extra: extra(&call.request), initiated: now_ms(), parts: BTreeMap::new() };
        uploads.open.insert(id.clone(), upload);
        id
    };
    let name = name(call);
    let xml = format!(
        "<InitiateMultipartUploadResult {XMLNS}>{name}<UploadId>{id}</UploadId></InitiateMultipartUploadResult>"
    );
    Ok(call.xml(200, &xml))
}

fn number(call: &Call) -> Result<u32, S3Error> {
    let number =
        call.request.text("partNumber").and_then(|n| n.parse().ok()).filter(|n| (1..=MAX_PART).contains(n));
    let message = "Part number must be an integer between 1 and 10000, inclusive";
    number.ok_or_else(|| S3Error::new(400, "InvalidArgument", message))
}

pub(crate) fn part(call: &mut Call) -> Reply {
    let number = number(call)?;
    let checksums = checksums(call)?;
    let part = Part::new(vec![call.payload.clone()]);
    let etag = part.etag();
    call.shared.uploads.lock().of(call)?.parts.insert(number, part);
    let mut head = call.head(200).header(ETAG, etag);
    for (name, value) in checksums {
        head = head.header(name, value);
    }
    Ok(call.empty(head))
}

pub(crate) fn part_copy(call: &mut Call) -> Reply {
    let number = number(call)?;
    call.shared.uploads.lock().of(call)?;
    let (_, _, object) = source(call)?;
    let (start, end) = match call.request.header("x-amz-copy-source-range") {
        None => (0, object.size),
        Some(header) => match range(Some(header), object.size) {
            // Unlike a read, a copy refuses what reaches beyond the source.
            Range::Part(start, end) if header.ends_with(&format!("-{}", end - 1)) => (start, end),
            _ => {
                let message = "The x-amz-copy-source-range value must be of the form bytes=first-last, within the source";
                return Err(S3Error::new(400, "InvalidArgument", message));
            }
        },
    };
    let part = Part::new(object.content.pieces(start, end));
    let (etag, modified) = (part.etag(), part.modified);
    call.shared.uploads.lock().of(call)?.parts.insert(number, part);
    Ok(call.xml(200, &result("CopyPartResult", &etag, modified)))
}

pub(crate) fn complete(call: &mut Call) -> Reply {
    let malformed = |_| S3Error::new(400, "MalformedXML", "The XML you provided was not well-formed");
    let named = rows(&call.payload, "Part", &["PartNumber", "ETag"]).map_err(malformed)?;
    if named.is_empty() {
        return Err(malformed(String::new()));
    }
    let (parts, extra) = {
        let mut uploads = call.shared.uploads.lock();
        let upload = uploads.of(call)?;
        (chosen(&upload.parts, &named, call.shared.min_part)?, upload.extra.clone())
    };
    let sums: Vec<u8> = parts.iter().flat_map(|p| p.md5).collect();
    let etag = format!("\"{}-{}\"", hex(&md5(&[Bytes::from(sums)])), parts.len());
    let (content, size) = Content::from_pieces(parts.into_iter().flat_map(|p| p.pieces));
    let extra = Extra { checksums: given_checksums(call), ..extra };
    let object = Object::data(content, size, etag, extra);
    // Refused conditions leave the upload open, as on the service.
    let stored =
        call.shared.store.put(&call.request.bucket, &call.request.key, object, &condition(&call.request))?;
    call.shared.uploads.lock().open.remove(call.request.text("uploadId").unwrap_or(""));
    let location = format!("/{}/{}", call.request.bucket, encode(&call.request.key, true));
    let xml = format!(
        "<CompleteMultipartUploadResult {XMLNS}><Location>{}</Location>{}<ETag>{}</ETag></CompleteMultipartUploadResult>",
        escape(&location),
        name(call),
        escape(&stored.etag())
    );
    Ok(call.xml(200, &xml))
}

/// The uploaded parts that a completion names, in its order.
fn chosen(
    parts: &BTreeMap<u32, Part>,
    named: &[Vec<Option<String>>],
    min: u64,
) -> Result<Vec<Part>, S3Error> {
    let invalid =
        || S3Error::new(400, "InvalidPart", "One or more of the specified parts could not be found.");
    let mut out = Vec::with_capacity(named.len());
    let mut last = 0;
    for row in named {
        let number: u32 = row[0].as_deref().and_then(|n| n.trim().parse().ok()).ok_or_else(invalid)?;
        if number <= last {
            let message = "The list of parts was not in ascending order.";
            return Err(S3Error::new(400, "InvalidPartOrder", message));
        }
        last = number;
        let part = parts.get(&number).ok_or_else(invalid)?;
        let etag = row[1].as_deref().unwrap_or("").trim();
        if etag.trim_matches('"') != part.etag().trim_matches('"') {
            return Err(invalid());
        }
        out.push(part.clone());
    }
    if out.iter().rev().skip(1).any(|part| part.size < min) {
        let message = "Your proposed upload is smaller than the minimum allowed size";
        return Err(S3Error::new(400, "EntityTooSmall", message));
    }
    Ok(out)
}

/// Checksums of the whole object, kept as they are given at completion.
fn given_checksums(call: &Call) -> Vec<(HeaderName, HeaderValue)> {
    let known = ["crc32", "crc32c", "crc64nvme", "sha1", "sha256"];
    let is_checksum = |name: &HeaderName| {
        name.as_str().strip_prefix("x-amz-checksum-").is_some_and(|algorithm| known.contains(&algorithm))
    };
    call.request.headers.iter().filter(|(n, _)| is_checksum(n)).map(|(n, v)| (n.clone(), v.clone())).collect()
}

pub(crate) fn abort(call: &mut Call) -> Reply {
    {
        let mut uploads = call.shared.uploads.lock();
        uploads.of(call)?;
        uploads.open.remove(call.request.text("uploadId").unwrap_or(""));
    }
    let head = call.head(204);
    Ok(call.empty(head))
}

pub(crate) fn list_parts(call: &mut Call) -> Reply {
    let max = call.request.text("max-parts").and_then(|n| n.parse().ok()).unwrap_or(1000).min(1000);
    let after: u32 = call.request.text("part-number-marker").and_then(|n| n.parse().ok()).unwrap_or(0);
    let id = escape(call.request.text("uploadId").unwrap_or(""));
    let (mut shown, mut last, mut truncated) = (String::new(), after, false);
    {
        let mut uploads = call.shared.uploads.lock();
        for (i, (number, part)) in uploads.of(call)?.parts.range(after.saturating_add(1)..).enumerate() {
            if i == max {
                truncated = true;
                break;
            }
            last = *number;
            shown += &format!(
                "<Part><PartNumber>{number}</PartNumber><LastModified>{}</LastModified><ETag>{}</ETag><Size>{}</Size></Part>",
                iso(part.modified),
                escape(&part.etag()),
                part.size
            );
        }
    }
    let xml = format!(
        "<ListPartsResult {XMLNS}>{}<UploadId>{id}</UploadId><PartNumberMarker>{after}</PartNumberMarker>\
         <NextPartNumberMarker>{last}</NextPartNumberMarker><MaxParts>{max}</MaxParts>\
         <IsTruncated>{truncated}</IsTruncated>{shown}</ListPartsResult>",
        name(call)
    );
    Ok(call.xml(200, &xml))
}

pub(crate) fn list_uploads(call: &mut Call) -> Reply {
    let request = &call.request;
    let max = request.text("max-uploads").and_then(|n| n.parse().ok()).unwrap_or(1000).min(1000);
    let prefix = request.param("prefix").unwrap_or(b"");
    let key_marker = request.param("key-marker").unwrap_or(b"");
    let id_marker = request.text("upload-id-marker").unwrap_or("");
    let url = request.text("encoding-type") == Some("url");
    let show = |key: &[u8]| if url { encode(key, true) } else { escape(&String::from_utf8_lossy(key)) };
    let mut list: Vec<(Vec<u8>, String, u64)> = {
        let uploads = call.shared.uploads.lock();
        let ours =
            uploads.open.iter().filter(|(_, u)| u.bucket == request.bucket && u.key.starts_with(prefix));
        ours.map(|(id, u)| (u.key.clone(), id.clone(), u.initiated)).collect()
    };
    list.sort();
    list.retain(|(key, id, _)| {
        key.as_slice() > key_marker || (key == key_marker && !id_marker.is_empty() && id.as_str() > id_marker)
    });
    let truncated = list.len() > max;
    list.truncate(max);
    let mut xml = format!(
        "<ListMultipartUploadsResult {XMLNS}><Bucket>{}</Bucket><KeyMarker>{}</KeyMarker><UploadIdMarker>{}</UploadIdMarker>\
         <Prefix>{}</Prefix><MaxUploads>{max}</MaxUploads><IsTruncated>{truncated}</IsTruncated>",
        escape(&request.bucket),
        show(key_marker),
        escape(id_marker),
        show(prefix)
    );
    if let Some((key, id, _)) = list.last().filter(|_| truncated) {
        xml += &format!(
            "<NextKeyMarker>{}</NextKeyMarker><NextUploadIdMarker>{id}</NextUploadIdMarker>",
            show(key)
        );
    }
    for (key, id, initiated) in &list {
        xml += &format!(
            "<Upload><Key>{}</Key><UploadId>{id}</UploadId><Initiated>{}</Initiated></Upload>",
            show(key),
            iso(*initiated)
        );
    }
    Ok(call.xml(200, &(xml + "</ListMultipartUploadsResult>")))
}
