//! DeleteObject and DeleteObjects.

use crate::call::{Call, Reply, XMLNS};
use crate::error::S3Error;
use crate::store::{Condition, Refused};
use crate::xml::{escape, is_true, rows};

/// S3's own limit on one request.
const MAX_KEYS: usize = 1000;

pub(crate) fn one(call: &mut Call) -> Reply {
    let request = &call.request;
    let condition =
        Condition { if_match: request.header("if-match").map(str::to_owned), if_none_match: None };
    match call.shared.store.delete(&request.bucket, &request.key, &condition) {
        // What is not there is as good as deleted, unless a version of it was asked for.
        Ok(_) => {}
        Err(error) => return Err(error.into()),
    }
    let head = call.head(204);
    Ok(call.empty(head))
}

pub(crate) fn many(call: &mut Call) -> Reply {
    let malformed = |_| S3Error::new(400, "MalformedXML", "The XML you provided was not well-formed");
    let objects = rows(&call.payload, "Object", &["Key", "ETag"]).map_err(malformed)?;
    if objects.is_empty() || objects.len() > MAX_KEYS {
        return Err(malformed(String::new()));
    }
    let quiet = is_true(&call.payload, "Quiet");
    let mut xml = format!("<DeleteResult {XMLNS}>");
    for mut object in objects {
        let if_match = object.pop().flatten();
        let Some(key) = object.pop().flatten() else { return Err(malformed(String::new())) };
        let condition = Condition { if_match, if_none_match: None };
        match call.shared.store.delete(&call.request.bucket, key.as_bytes(), &condition) {
            Ok(_) if quiet => {}
            Ok(_) => xml += &format!("<Deleted><Key>{}</Key></Deleted>", escape(&key)),
            Err(Refused::NoSuchBucket) => return Err(Refused::NoSuchBucket.into()),
            Err(refused) => {
                let error = S3Error::from(refused);
                xml += &format!(
                    "<Error><Key>{}</Key><Code>{}</Code><Message>{}</Message></Error>",
                    escape(&key),
                    error.code,
                    error.message
                );
            }
        }
    }
    Ok(call.xml(200, &(xml + "</DeleteResult>")))
}
