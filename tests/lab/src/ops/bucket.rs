//! Operations on buckets.

use crate::call::{Call, Reply, XMLNS};
use crate::error::S3Error;
use crate::xml::{escape, iso};

pub(crate) fn list(call: &mut Call) -> Reply {
    let names: String = call
        .shared
        .store
        .buckets
        .read()
        .keys()
        .map(|name| {
            format!("<Bucket><Name>{}</Name><CreationDate>{}</CreationDate></Bucket>", escape(name), iso(0))
        })
        .collect();
    let owner = "<Owner><ID>lab</ID><DisplayName>lab</DisplayName></Owner>";
    Ok(call.xml(
        200,
        &format!(
            "<ListAllMyBucketsResult {XMLNS}>{owner}<Buckets>{names}</Buckets></ListAllMyBucketsResult>"
        ),
    ))
}

pub(crate) fn head(call: &mut Call) -> Reply {
    let head = call.head(200).header("x-amz-bucket-region", call.shared.region.clone());
    Ok(call.empty(head))
}

pub(crate) fn create(call: &mut Call) -> Reply {
    if !call.shared.store.create_bucket(&call.request.bucket) {
        let message = "Your previous request to create the named bucket succeeded and you already own it.";
        return Err(S3Error::new(409, "BucketAlreadyOwnedByYou", message));
    }
    let head = call.head(200).header("location", format!("/{}", call.request.bucket));
    Ok(call.empty(head))
}

pub(crate) fn delete(call: &mut Call) -> Reply {
    {
        let mut buckets = call.shared.store.buckets.write();
        if buckets.get(&call.request.bucket).is_some_and(|b| !b.objects.is_empty()) {
            return Err(S3Error::new(409, "BucketNotEmpty", "The bucket you tried to delete is not empty"));
        }
        buckets.remove(&call.request.bucket);
    }
    let head = call.head(204);
    Ok(call.empty(head))
}

pub(crate) fn location(call: &mut Call) -> Reply {
    let region = call.shared.region.clone();
    // S3 gives no text for its first region.
    let region = if region == "us-east-1" { String::new() } else { escape(&region) };
    Ok(call.xml(200, &format!("<LocationConstraint {XMLNS}>{region}</LocationConstraint>")))
}
