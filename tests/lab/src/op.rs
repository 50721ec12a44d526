//! The S3 operations the server knows, and how a request tells which one it is.

use std::fmt;

use hyper::Method;
use serde::{Deserialize, Serialize};

/// An S3 operation, named as in the S3 API reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Op {
    /// `GET /`
    ListBuckets,
    /// `HEAD /bucket`
    HeadBucket,
    /// `PUT /bucket`
    CreateBucket,
    /// `DELETE /bucket`
    DeleteBucket,
    /// `GET /bucket?location`
    GetBucketLocation,
    /// `GET /bucket` (version 1 of the listing)
    ListObjects,
    /// `GET /bucket?list-type=2`
    ListObjectsV2,
    /// `GET /bucket?uploads`
    ListMultipartUploads,
    /// `GET /bucket/key`
    GetObject,
    /// `HEAD /bucket/key`
    HeadObject,
    /// `PUT /bucket/key`
    PutObject,
    /// `PUT /bucket/key` with `x-amz-copy-source`
    CopyObject,
    /// `DELETE /bucket/key`
    DeleteObject,
    /// `POST /bucket?delete`
    DeleteObjects,
    /// `POST /bucket/key?restore`
    RestoreObject,
    /// `POST /bucket/key?uploads`
    CreateMultipartUpload,
    /// `PUT /bucket/key?partNumber=N&uploadId=ID`
    UploadPart,
    /// The same with `x-amz-copy-source`
    UploadPartCopy,
    /// `POST /bucket/key?uploadId=ID`
    CompleteMultipartUpload,
    /// `DELETE /bucket/key?uploadId=ID`
    AbortMultipartUpload,
    /// `GET /bucket/key?uploadId=ID`
    ListParts,
    /// Anything else; answered 501.
    Unsupported,
}

/// Sub-resources that the server does not have; without this list they would be taken for plain reads.
const UNSUPPORTED: [&str; 14] = [
    "acl",
    "tagging",
    "versioning",
    "versions",
    "policy",
    "object-lock",
    "attributes",
    "lifecycle",
    "cors",
    "encryption",
    "torrent",
    "select",
    "legal-hold",
    "retention",
];
/// Ways to read a part of an object's history or make that the server does not have.
const ONLY_CURRENT: [&str; 2] = ["versionId", "partNumber"];

impl Op {
    /// Which operation a request asks for. `has` tells whether a query parameter is there, `copies` whether
    /// `x-amz-copy-source` is.
    pub(crate) fn of(
        method: &Method,
        bucket: bool,
        key: bool,
        has: impl Fn(&str) -> bool,
        v2: bool,
        copies: bool,
    ) -> Self {
        let reads = matches!(*method, Method::GET | Method::HEAD | Method::DELETE) && !has("uploadId");
        if UNSUPPORTED.iter().any(|name| has(name)) || (reads && ONLY_CURRENT.iter().any(|name| has(name))) {
            return Self::Unsupported;
        }
        match (method, bucket, key) {
            (&Method::GET, false, _) => Self::ListBuckets,
            (&Method::GET, true, false) if has("location") => Self::GetBucketLocation,
            (&Method::GET, true, false) if has("uploads") => Self::ListMultipartUploads,
            (&Method::GET, true, false) if v2 => Self::ListObjectsV2,
            (&Method::GET, true, false) => Self::ListObjects,
            (&Method::GET, true, true) if has("uploadId") => Self::ListParts,
            (&Method::GET, true, true) => Self::GetObject,
            (&Method::HEAD, true, false) => Self::HeadBucket,
            (&Method::HEAD, true, true) => Self::HeadObject,
            (&Method::PUT, true, false) => Self::CreateBucket,
            (&Method::PUT, true, true) if has("partNumber") && copies => Self::UploadPartCopy,
            (&Method::PUT, true, true) if has("partNumber") => Self::UploadPart,
            (&Method::PUT, true, true) if copies => Self::CopyObject,
            (&Method::PUT, true, true) => Self::PutObject,
            (&Method::DELETE, true, false) => Self::DeleteBucket,
            (&Method::DELETE, true, true) if has("uploadId") => Self::AbortMultipartUpload,
            (&Method::DELETE, true, true) => Self::DeleteObject,
            (&Method::POST, true, false) if has("delete") => Self::DeleteObjects,
            (&Method::POST, true, true) if has("restore") => Self::RestoreObject,
            (&Method::POST, true, true) if has("uploads") => Self::CreateMultipartUpload,
            (&Method::POST, true, true) if has("uploadId") => Self::CompleteMultipartUpload,
            _ => Self::Unsupported,
        }
    }

    /// Every operation, in the order of declaration.
    pub(crate) const ALL: [Self; 22] = [
        Self::ListBuckets,
        Self::HeadBucket,
        Self::CreateBucket,
        Self::DeleteBucket,
        Self::GetBucketLocation,
        Self::ListObjects,
        Self::ListObjectsV2,
        Self::ListMultipartUploads,
        Self::GetObject,
        Self::HeadObject,
        Self::PutObject,
        Self::CopyObject,
        Self::DeleteObject,
        Self::DeleteObjects,
        Self::RestoreObject,
        Self::CreateMultipartUpload,
        Self::UploadPart,
        Self::UploadPartCopy,
        Self::CompleteMultipartUpload,
        Self::AbortMultipartUpload,
        Self::ListParts,
        Self::Unsupported,
    ];

    /// The two listings of objects.
    #[must_use]
    pub fn is_list(self) -> bool {
        matches!(self, Self::ListObjects | Self::ListObjectsV2)
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_operations_stand_at_their_own_place() {
        for (i, op) in Op::ALL.iter().enumerate() {
            assert_eq!(*op as usize, i, "{op}");
        }
        assert_eq!(Op::ALL.len(), Op::Unsupported as usize + 1);
    }
}
