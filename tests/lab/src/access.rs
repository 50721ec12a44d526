//! Who may do what: access keys, signature checks (AWS Signature Version 4) and rights.

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use hyper::header::HeaderMap;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::S3Error;
use crate::op::Op;
use crate::ops::put::hex;
use crate::request::{Request, encode};

/// How far a request's clock may be off, in seconds: S3's own limit.
const SKEW: u64 = 15 * 60;

/// Whether requests must be signed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Auth {
    /// Anything goes; signatures are not looked at. The rights and the expiry of a known key hold all the same.
    #[default]
    Open,
    /// Requests must carry a right signature of a known key.
    Required,
}

/// What is forbidden. Nothing by default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rights {
    /// Operations that are refused. Where listing is, an absent key is refused too instead of being absent.
    pub deny: Vec<Op>,
    /// Keys with one of these prefixes cannot be read (GetObject and HeadObject).
    pub deny_read: Vec<String>,
}

impl Rights {
    /// Everything but listing.
    #[must_use]
    pub fn no_list() -> Self {
        Self { deny: vec![Op::ListObjects, Op::ListObjectsV2], deny_read: Vec::new() }
    }

    fn allow(&self, request: &Request) -> bool {
        let hidden = |prefix: &String| request.key.starts_with(prefix.as_bytes());
        let reads = matches!(request.op, Op::GetObject | Op::HeadObject);
        !(self.deny.contains(&request.op) || reads && self.deny_read.iter().any(hidden))
    }

    fn hides_absence(&self) -> bool {
        self.deny.iter().any(|op| op.is_list())
    }
}

/// A key that requests may be signed with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AccessKey {
    /// The access key id.
    pub id: String,
    /// The secret access key.
    pub secret: String,
    /// The session token that must go with it. Default: none.
    #[serde(default)]
    pub session_token: Option<String>,
    /// Every request with it is answered `ExpiredToken`. Default: false.
    #[serde(default)]
    pub expired: bool,
    /// What it may not do. Default: everything is allowed.
    #[serde(default)]
    pub rights: Rights,
}

impl AccessKey {
    /// A key with all rights.
    #[must_use]
    pub fn new(id: impl Into<String>, secret: impl Into<String>) -> Self {
        let (id, secret) = (id.into(), secret.into());
        Self { id, secret, session_token: None, expired: false, rights: Rights::default() }
    }

    /// With a session token.
    #[must_use]
    pub fn session_token(mut self, token: impl Into<String>) -> Self {
        self.session_token = Some(token.into());
        self
    }

    /// With fewer rights.
    #[must_use]
    pub fn rights(mut self, rights: Rights) -> Self {
        self.rights = rights;
        self
    }
}

/// The table of keys and what holds without one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Access {
    /// Whether requests must be signed.
    pub auth: Auth,
    /// The known keys.
    pub keys: Vec<AccessKey>,
    /// What a request without a known key may not do when `auth` is open.
    pub anonymous: Rights,
}

/// What a request's signature says.
struct Signed<'a> {
    id: &'a str,
    /// Date, region, service, `aws4_request`.
    scope: Vec<&'a str>,
    signed_headers: &'a str,
    signature: &'a str,
    /// `YYYYMMDDTHHMMSSZ`.
    date: &'a str,
    token: Option<&'a str>,
    /// Seconds, of a presigned URL.
    expires: Option<u64>,
    payload_hash: &'a str,
}

impl Access {
    /// Whether absence is hidden from this request; or why it is refused.
    pub(crate) fn check(&self, request: &Request, payload: &Bytes, region: &str) -> Result<bool, S3Error> {
        let signed = parse(request);
        let key = signed.as_ref().ok().and_then(|s| self.keys.iter().find(|k| k.id == s.id));
        let rights = match (self.auth, key) {
            (_, Some(key)) => {
                if key.expired {
                    return Err(S3Error::new(400, "ExpiredToken", "The provided token has expired."));
                }
                if let (Auth::Required, Ok(signed)) = (self.auth, &signed) {
                    verify(request, payload, region, key, signed)?;
                }
                &key.rights
            }
            (Auth::Open, None) => &self.anonymous,
            (Auth::Required, None) => {
                let message = "The AWS Access Key Id you provided does not exist in our records.";
                return Err(signed.err().unwrap_or_else(|| S3Error::new(403, "InvalidAccessKeyId", message)));
            }
        };
        if rights.allow(request) { Ok(rights.hides_absence()) } else { Err(S3Error::of(403)) }
    }
}

/// Takes a signature apart, in the header or in the query.
fn parse(request: &Request) -> Result<Signed<'_>, S3Error> {
    let malformed =
        || S3Error::new(400, "AuthorizationHeaderMalformed", "The authorization header is malformed.");
    let (credential, signed_headers, signature, date, token, expires, payload_hash);
    if let Some(header) = request.header("authorization") {
        let fields = header
            .strip_prefix("AWS4-HMAC-SHA256 ")
            .ok_or_else(|| S3Error::new(400, "InvalidRequest", "Please use AWS4-HMAC-SHA256."))?;
        let field = |name: &str| {
            let mut parts = fields.split(',').map(str::trim);
            parts.find_map(|p| p.strip_prefix(name)?.strip_prefix('=')).ok_or_else(malformed)
        };
        (credential, signed_headers, signature) =
            (field("Credential")?, field("SignedHeaders")?, field("Signature")?);
        date = request.header("x-amz-date").ok_or_else(malformed)?;
        token = request.header("x-amz-security-token");
        expires = None;
        payload_hash = request.header("x-amz-content-sha256").ok_or_else(|| {
            S3Error::new(
                400,
                "InvalidRequest",
                "Missing required header for this request: x-amz-content-sha256",
            )
        })?;
    } else if request.param("X-Amz-Signature").is_some() {
        let param = |name| request.text(name).ok_or_else(malformed);
        (credential, signed_headers) = (param("X-Amz-Credential")?, param("X-Amz-SignedHeaders")?);
        (signature, date) = (param("X-Amz-Signature")?, param("X-Amz-Date")?);
        token = request.text("X-Amz-Security-Token");
        expires = Some(param("X-Amz-Expires")?.parse().map_err(|_| malformed())?);
        payload_hash = request.header("x-amz-content-sha256").unwrap_or("UNSIGNED-PAYLOAD");
    } else {
        return Err(S3Error::of(403));
    }
    let mut scope: Vec<&str> = credential.rsplitn(5, '/').collect();
    scope.reverse();
    if scope.len() != 5 {
        return Err(malformed());
    }
    let id = scope.remove(0);
    Ok(Signed { id, scope, signed_headers, signature, date, token, expires, payload_hash })
}

fn verify(
    request: &Request,
    payload: &Bytes,
    region: &str,
    key: &AccessKey,
    signed: &Signed<'_>,
) -> Result<(), S3Error> {
    match (&key.session_token, signed.token) {
        (None, _) => {}
        (Some(want), Some(got)) if want == got => {}
        (Some(_), Some(_)) => {
            return Err(S3Error::new(
                400,
                "InvalidToken",
                "The provided token is malformed or otherwise invalid.",
            ));
        }
        (Some(_), None) => {
            let message = "The AWS Access Key Id you provided does not exist in our records.";
            return Err(S3Error::new(403, "InvalidAccessKeyId", message));
        }
    }
    if signed.scope[1] != region {
        let message = format!(
            "The authorization header is malformed; the region '{}' is wrong; expecting '{region}'",
            signed.scope[1]
        );
        return Err(S3Error::new(400, "AuthorizationHeaderMalformed", &message).element("Region", region));
    }
    let at = seconds(signed.date)
        .ok_or_else(|| S3Error::new(403, "AccessDenied", "The date of the request is not valid."))?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    match signed.expires {
        Some(expires) if now > at + expires => {
            return Err(S3Error::new(403, "AccessDenied", "Request has expired"));
        }
        None if now.abs_diff(at) > SKEW => {
            let message = "The difference between the request time and the current time is too large.";
            return Err(S3Error::new(403, "RequestTimeTooSkewed", message));
        }
        _ => {}
    }
    if signature(request, key, signed) != signed.signature {
        let message = "The request signature we calculated does not match the signature you provided.";
        return Err(S3Error::new(403, "SignatureDoesNotMatch", message));
    }
    let plain_hash = signed.payload_hash.len() == 64 && !request.is_aws_chunked();
    if plain_hash && hex(&Sha256::digest(payload)) != signed.payload_hash {
        let message = "The provided 'x-amz-content-sha256' header does not match what was computed.";
        return Err(S3Error::new(400, "XAmzContentSHA256Mismatch", message));
    }
    Ok(())
}

/// The signature the request should have, in hexadecimal.
fn signature(request: &Request, key: &AccessKey, signed: &Signed<'_>) -> String {
    let mut query: Vec<String> = request
        .query
        .iter()
        .filter(|(name, _)| name != "X-Amz-Signature")
        .map(|(name, value)| format!("{}={}", encode(name.as_bytes(), false), encode(value, false)))
        .collect();
    query.sort();
    let path = encode(&crate::request::decode(request.uri.path(), false), true);
    let headers: String = signed
        .signed_headers
        .split(';')
        .map(|name| format!("{name}:{}\n", header_value(&request.headers, name)))
        .collect();
    let canonical = format!(
        "{}\n{path}\n{}\n{headers}\n{}\n{}",
        request.method,
        query.join("&"),
        signed.signed_headers,
        signed.payload_hash
    );
    let to_sign = format!(
        "AWS4-HMAC-SHA256\n{}\n{}\n{}",
        signed.date,
        signed.scope.join("/"),
        hex(&Sha256::digest(canonical))
    );
    let mut derived = format!("AWS4{}", key.secret).into_bytes();
    for part in &signed.scope {
        derived = hmac(&derived, part.as_bytes());
    }
    hex(&hmac(&derived, to_sign.as_bytes()))
}

fn header_value(headers: &HeaderMap, name: &str) -> String {
    let values = headers.get_all(name).iter().map(|value| {
        let text = String::from_utf8_lossy(value.as_bytes());
        text.split_ascii_whitespace().collect::<Vec<_>>().join(" ")
    });
    values.collect::<Vec<_>>().join(",")
}

fn hmac(key: &[u8], data: &[u8]) -> Vec<u8> {
    let mut mac =
        Hmac::<Sha256>::new_from_slice(key).unwrap_or_else(|_| unreachable!("HMAC takes keys of any length"));
    mac.update(data);
    mac.finalize().into_bytes().to_vec()
}

/// Seconds since the epoch of `YYYYMMDDTHHMMSSZ`; the date by Howard Hinnant's `days_from_civil`.
fn seconds(date: &str) -> Option<u64> {
    if date.len() != 16 || !date.is_ascii() || &date[8..9] != "T" || !date.ends_with('Z') {
        return None;
    }
    let number = |from: usize, to: usize| date[from..to].parse::<u64>().ok();
    let (year, month, day) = (number(0, 4)?, number(4, 6)?, number(6, 8)?);
    let (hour, minute, second) = (number(9, 11)?, number(11, 13)?, number(13, 15)?);
    if !(1..=12).contains(&month) {
        return None;
    }
    let year = if month <= 2 { year.checked_sub(1)? } else { year };
    let (era, year_of_era) = (year / 400, year % 400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day.checked_sub(1)?;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    let days = (era * 146_097 + day_of_era).checked_sub(719_468)?;
    Some(days * 86_400 + hour * 3600 + minute * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: &str, target: &str, headers: &[(&str, &str)]) -> Request {
        let mut builder = hyper::Request::builder().method(method).uri(target);
        for (name, value) in headers {
            builder = builder.header(*name, *value);
        }
        Request::new(builder.body(()).unwrap().into_parts().0)
    }

    /// The worked examples of "Signature Calculations for the Authorization Header" in the S3 API reference.
    #[test]
    fn signatures_equal_the_published_examples() {
        let key = AccessKey::new("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY");
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        let scope = "AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request";
        for (target, signed_headers, extra, signature_text) in [
            (
                "/test.txt",
                "host;range;x-amz-content-sha256;x-amz-date",
                Some(("range", "bytes=0-9")),
                "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
            ),
            (
                "/?max-keys=2&prefix=J",
                "host;x-amz-content-sha256;x-amz-date",
                None,
                "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
            ),
        ] {
            let authorization = format!(
                "AWS4-HMAC-SHA256 Credential={scope},SignedHeaders={signed_headers},Signature={signature_text}"
            );
            let mut headers = vec![
                ("host", "examplebucket.s3.amazonaws.com"),
                ("x-amz-content-sha256", empty),
                ("x-amz-date", "20130524T000000Z"),
                ("authorization", &authorization),
            ];
            headers.extend(extra);
            let request = request("GET", target, &headers);
            let signed = parse(&request).unwrap_or_else(|e| panic!("{e:?}"));
            assert_eq!(signature(&request, &key, &signed), signature_text);
        }
    }

    /// The worked example of "Authenticating Requests: Using Query Parameters".
    #[test]
    fn presigned_signatures_equal_the_published_example() {
        let key = AccessKey::new("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY");
        let target = "/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2F\
                      us-east-1%2Fs3%2Faws4_request&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&\
                      X-Amz-SignedHeaders=host&\
                      X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404";
        let request = request("GET", target, &[("host", "examplebucket.s3.amazonaws.com")]);
        let signed = parse(&request).unwrap_or_else(|e| panic!("{e:?}"));
        assert_eq!(signature(&request, &key, &signed), signed.signature);
    }

    #[test]
    fn dates_are_read() {
        assert_eq!(seconds("19700101T000000Z"), Some(0));
        assert_eq!(seconds("20130524T000000Z"), Some(1_369_353_600));
        assert_eq!(seconds("20000229T115959Z"), Some(951_825_599));
        for bad in ["", "20130524", "20130524T0000000", "2013-05-24T000Z0", "20130024T000000Z"] {
            assert_eq!(seconds(bad), None, "{bad}");
        }
    }
}
