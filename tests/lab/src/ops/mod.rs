//! The S3 operations, one family a file.

pub(crate) mod bucket;
pub(crate) mod copy;
pub(crate) mod delete;
pub(crate) mod get;
pub(crate) mod list;
pub(crate) mod multipart;
pub(crate) mod put;

use crate::call::{Call, Reply};
use crate::error::S3Error;
use crate::op::Op;
use crate::store::Refused;

/// Answers a request that no fault has answered.
pub(crate) fn answer(call: &mut Call) -> Reply {
    let request = &call.request;
    if !matches!(request.op, Op::ListBuckets | Op::CreateBucket)
        && !call.shared.store.has_bucket(&request.bucket)
    {
        return Err(Refused::NoSuchBucket.into());
    }
    if std::str::from_utf8(&request.key).is_err() {
        return Err(S3Error::new(400, "InvalidURI", "Couldn't parse the specified URI."));
    }
    if request.key.len() > 1024 {
        return Err(S3Error::new(400, "KeyTooLongError", "Your key is too long"));
    }
    match request.op {
        Op::ListBuckets => bucket::list(call),
        Op::HeadBucket => bucket::head(call),
        Op::CreateBucket => bucket::create(call),
        Op::DeleteBucket => bucket::delete(call),
        Op::GetBucketLocation => bucket::location(call),
        Op::ListObjects | Op::ListObjectsV2 => list::list(call),
        Op::GetObject | Op::HeadObject => get::get(call),
        Op::PutObject => put::put(call),
        Op::CopyObject => copy::copy(call),
        Op::DeleteObject => delete::one(call),
        Op::DeleteObjects => delete::many(call),
        Op::RestoreObject => put::restore(call),
        Op::CreateMultipartUpload => multipart::create(call),
        Op::UploadPart => multipart::part(call),
        Op::UploadPartCopy => multipart::part_copy(call),
        Op::CompleteMultipartUpload => multipart::complete(call),
        Op::AbortMultipartUpload => multipart::abort(call),
        Op::ListParts => multipart::list_parts(call),
        Op::ListMultipartUploads => multipart::list_uploads(call),
        Op::Unsupported => Err(S3Error::of(501)),
    }
}
