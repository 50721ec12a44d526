//! ListObjects and ListObjectsV2.

use std::fmt::Write as _;

use crate::call::{Call, Reply, XMLNS};
use crate::error::S3Error;
use crate::fault::Fault;
use crate::listing::{Entry, Page, page};
use crate::op::Op;
use crate::request::{decode, encode};
use crate::store::Refused;
use crate::xml::{escape, iso};

pub(crate) fn list(call: &mut Call) -> Reply {
    let request = &call.request;
    let v2 = request.op == Op::ListObjectsV2;
    let url = match request.text("encoding-type") {
        None => false,
        Some("url") => true,
        Some(_) => {
            return Err(S3Error::new(400, "InvalidArgument", "Invalid Encoding Method specified in Request"));
        }
    };
    let mut max = match request.text("max-keys") {
        None | Some("") => 1000,
        Some(text) => text
            .parse::<usize>()
            .map_err(|_| {
                S3Error::new(
                    400,
                    "InvalidArgument",
                    "Provided max-keys not an integer or within integer range",
                )
            })?
            .min(1000),
    };
    let asked = max;
    for fault in &call.faults {
        if let Fault::ListPageSize { keys } = fault {
            max = max.min((*keys).max(1));
        }
    }
    let (prefix, delimiter) =
        (request.param("prefix").unwrap_or(b""), request.param("delimiter").unwrap_or(b""));
    let token = request.text("continuation-token").filter(|_| v2);
    let start = request.param(if v2 { "start-after" } else { "marker" }).unwrap_or(b"");
    let after = match token {
        Some(token) => from_token(token).ok_or_else(|| {
            S3Error::new(400, "InvalidArgument", "The continuation token provided is incorrect")
        })?,
        None => start.to_vec(),
    };
    let found = {
        let buckets = call.shared.store.buckets.read();
        let bucket = buckets.get(&request.bucket).ok_or(Refused::NoSuchBucket)?;
        page(&bucket.objects, prefix, delimiter, &after, max)
    };
    let found = if call.faults.contains(&Fault::ListEmptyPage) && !found.entries.is_empty() {
        Page { entries: Vec::new(), truncated: true }
    } else {
        found
    };
    let name = |bytes: &[u8]| if url { form_encode(bytes) } else { escape(&String::from_utf8_lossy(bytes)) };
    let mut xml = format!(
        "<ListBucketResult {XMLNS}><Name>{}</Name><Prefix>{}</Prefix><MaxKeys>{asked}</MaxKeys><IsTruncated>{}</IsTruncated>",
        escape(&request.bucket),
        name(prefix),
        found.truncated
    );
    if !delimiter.is_empty() {
        xml += &format!("<Delimiter>{}</Delimiter>", name(delimiter));
    }
    if url {
        xml += "<EncodingType>url</EncodingType>";
    }
    if v2 {
        xml += &format!("<KeyCount>{}</KeyCount>", found.entries.len());
        if !start.is_empty() {
            xml += &format!("<StartAfter>{}</StartAfter>", name(start));
        }
        if let Some(token) = token {
            xml += &format!("<ContinuationToken>{}</ContinuationToken>", escape(token));
        }
    } else {
        xml += &format!("<Marker>{}</Marker>", name(start));
    }
    if found.truncated && !call.faults.contains(&Fault::ListDropMarker) {
        let last = found.entries.last().map_or(after.as_slice(), Entry::name);
        if v2 {
            let repeat = call.faults.contains(&Fault::ListRepeatToken).then_some(token).flatten();
            let mut next = repeat.map_or_else(|| to_token(last), str::to_owned);
            if repeat.is_none() && token == Some(next.as_str()) {
                // A page with nothing in it leads to the same place, by another token.
                next.replace_range(..1, "2");
            }
            xml += &format!("<NextContinuationToken>{}</NextContinuationToken>", escape(&next));
        } else if call.faults.contains(&Fault::ListRepeatToken) && !start.is_empty() {
            xml += &format!("<NextMarker>{}</NextMarker>", name(start));
        } else if !delimiter.is_empty() || found.entries.is_empty() {
            // Without a delimiter the last key is the marker, and the service sends none.
            xml += &format!("<NextMarker>{}</NextMarker>", name(last));
        }
    }
    let owner = if !v2 || request.text("fetch-owner") == Some("true") {
        "<Owner><ID>lab</ID><DisplayName>lab</DisplayName></Owner>"
    } else {
        ""
    };
    for entry in &found.entries {
        // Writing to a string cannot fail.
        let _ = match entry {
            Entry::Key(key, object) => write!(
                xml,
                "<Contents><Key>{}</Key><LastModified>{}</LastModified><ETag>{}</ETag><Size>{}</Size>{owner}<StorageClass>{}</StorageClass></Contents>",
                name(key),
                iso(object.modified),
                escape(&object.etag()),
                object.size,
                escape(object.storage_class())
            ),
            Entry::Prefix(prefix) => {
                write!(xml, "<CommonPrefixes><Prefix>{}</Prefix></CommonPrefixes>", name(prefix))
            }
        };
    }
    Ok(call.xml(200, &(xml + "</ListBucketResult>")))
}

/// The encoding of `encoding-type=url`: as a form, a space as `+`, slashes and asterisks left alone.
fn form_encode(bytes: &[u8]) -> String {
    encode(bytes, true).replace("%20", "+").replace("%2A", "*")
}

/// An opaque token for "after this key".
fn to_token(after: &[u8]) -> String {
    format!("1!{}", encode(after, false))
}

fn from_token(token: &str) -> Option<Vec<u8>> {
    let after = token.strip_prefix("1!").or_else(|| token.strip_prefix("2!"))?;
    Some(decode(after, false))
}
