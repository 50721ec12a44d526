//! CopyObject, and the source that copies of every kind name.

use std::sync::Arc;

use crate::call::{Call, Reply, XMLNS};
use crate::error::S3Error;
use crate::ops::put::{condition, extra, md5_etag};
use crate::request::decode;
use crate::store::{Object, etag_in};
use crate::xml::{escape, iso};

pub(crate) fn copy(call: &mut Call) -> Reply {
    let (bucket, key, source) = source(call)?;
    let request = &call.request;
    let replace =
        request.header("x-amz-metadata-directive").is_some_and(|d| d.eq_ignore_ascii_case("REPLACE"));
    let class = request.header("x-amz-storage-class").map(str::to_owned);
    if bucket == request.bucket && key == request.key && !replace && class.is_none() {
        let message = "This copy request is illegal because it is trying to copy an object to itself without \
                       changing the object's metadata, storage class, website redirect location or encryption \
                       attributes.";
        return Err(S3Error::new(400, "InvalidRequest", message));
    }
    let mut kept =
        if replace { extra(request) } else { source.extra.as_deref().cloned().unwrap_or_default() };
    kept.storage_class = class.filter(|c| c != "STANDARD");
    kept.restored = false;
    if replace && let Some(old) = &source.extra {
        kept.checksums.clone_from(&old.checksums);
    }
    // A copy is one whole object: the ETag of a multipart upload does not go with it.
    let etag = source.etag();
    let etag = if etag.contains('-') { md5_etag(&source.content.pieces(0, source.size)) } else { etag };
    let object = Object::data(source.content.clone(), source.size, etag, kept);
    let stored = call.shared.store.put(&request.bucket, &request.key, object, &condition(request))?;
    Ok(call.xml(200, &result("CopyObjectResult", &stored.etag(), stored.modified)))
}

/// The answer to a copy.
pub(crate) fn result(element: &str, etag: &str, modified: u64) -> String {
    format!(
        "<{element} {XMLNS}><LastModified>{}</LastModified><ETag>{}</ETag></{element}>",
        iso(modified),
        escape(etag)
    )
}

/// What `x-amz-copy-source` names, if its conditions hold and it can be read.
pub(crate) fn source(call: &Call) -> Result<(String, Vec<u8>, Arc<Object>), S3Error> {
    let request = &call.request;
    let named = request.header("x-amz-copy-source").unwrap_or("");
    let (named, version) = named.split_once("?versionId=").unwrap_or((named, "null"));
    if version != "null" {
        return Err(S3Error::of(501));
    }
    let named = decode(named, false);
    let named = named.strip_prefix(b"/").unwrap_or(&named);
    let invalid =
        || S3Error::new(400, "InvalidArgument", "Copy Source must mention the source bucket and key");
    let slash = named.iter().position(|b| *b == b'/').ok_or_else(invalid)?;
    let bucket = String::from_utf8_lossy(&named[..slash]).into_owned();
    let key = named[slash + 1..].to_vec();
    if key.is_empty() {
        return Err(invalid());
    }
    let object = call.shared.store.get(&bucket, &key)?;
    let etag = object.etag();
    let fails = request.header("x-amz-copy-source-if-match").is_some_and(|list| !etag_in(list, &etag))
        || request.header("x-amz-copy-source-if-none-match").is_some_and(|list| etag_in(list, &etag));
    if fails {
        return Err(S3Error::of(412));
    }
    if object.archived() {
        let message = "The operation is not valid for the object's storage class";
        return Err(S3Error::new(403, "InvalidObjectState", message));
    }
    Ok((bucket, key, object))
}
