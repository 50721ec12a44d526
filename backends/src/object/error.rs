//! What the store's refusals and the network's failures mean, by status and S3 code.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use object_store::client::{HttpError, HttpErrorKind};

use super::wire::xml;
use crate::error::{Error, ErrorKind, Retry};

/// An answer other than success, or no answer at all.
#[derive(Debug)]
pub(crate) struct Refusal {
    /// HTTP status; 0 if there was no answer.
    pub(crate) status: u16,
    /// S3 error code; empty if the answer had none (HEAD).
    pub(crate) code: String,
    /// The region the bucket is in, if the store said so.
    pub(crate) region: Option<String>,
    pub(crate) error: Error,
}

impl Refusal {
    /// Reads an error answer. `body` may be cut or no XML at all.
    pub(crate) fn new(status: StatusCode, headers: &HeaderMap, body: &Bytes) -> Self {
        let mut said = Said::default();
        // Proxies answer with HTML: what can be read is taken, the rest ignored.
        let _ = xml::walk(body, |path, text| {
            let [root, name] = path else { return Ok(()) };
            if root == "Error" {
                said.take(name, text);
            }
            Ok(())
        });
        let header = |name: &str| headers.get(name).and_then(|v| v.to_str().ok());
        let region = header("x-amz-bucket-region").map(str::to_owned).or(said.region);
        let status = status.as_u16();
        let wait = header("retry-after").and_then(|v| v.trim().parse().ok()).map(Duration::from_secs);
        let kind = kind(status, &said.code);
        let mut error =
            Error::new(kind, message(status, &said.code, &said.message)).with_context("status", status);
        if let (Some(wait), Retry::Later(_)) = (wait, error.retry()) {
            error = error.with_retry(Retry::Later(Some(wait)));
        }
        if !said.code.is_empty() {
            error = error.with_context("code", &said.code);
        }
        if let Some(id) = header("x-amz-request-id") {
            error = error.with_context("request", id);
        }
        if kind == ErrorKind::Corrupt {
            error = error.with_retry(Retry::Later(wait));
        }
        let elsewhere = region.as_deref().filter(|_| means_region(status, &said.code));
        if let Some(hint) = hint(&said.code, elsewhere, kind) {
            error = error.with_context("hint", hint);
        }
        Refusal { status, code: said.code, region, error }
    }

    /// The same as a plain error inside a success (CopyObject and CompleteMultipartUpload do that).
    pub(crate) fn inside_success(headers: &HeaderMap, body: &Bytes) -> Option<Self> {
        let mut root = String::new();
        let mut code = String::new();
        let _ = xml::walk(body, |path, text| {
            root.clone_from(&path[0]);
            if let [_, name] = path
                && name == "Code"
            {
                code = text.to_owned();
            }
            Ok(())
        });
        // The status that this code comes with elsewhere decides what it means.
        let status = match code.as_str() {
            _ if root != "Error" => return None,
            "PreconditionFailed" => StatusCode::PRECONDITION_FAILED,
            "ConditionalRequestConflict" => StatusCode::CONFLICT,
            "NoSuchKey" | "NoSuchUpload" => StatusCode::NOT_FOUND,
            "AccessDenied" => StatusCode::FORBIDDEN,
            "SlowDown" => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Some(Refusal::new(status, headers, body))
    }

    /// True if another set of credentials may be accepted.
    pub(crate) fn wants_fresh_credentials(&self) -> bool {
        matches!(
            self.code.as_str(),
            "ExpiredToken" | "ExpiredTokenException" | "TokenRefreshRequired" | "RequestExpired"
        )
    }

    /// True if a HEAD refused like this tells nothing about why.
    pub(crate) fn is_mute(&self) -> bool {
        self.code.is_empty() && matches!(self.status, 301 | 307 | 400 | 401 | 403)
    }

    /// True if the store will not say whether the key exists.
    pub(crate) fn is_refused(&self) -> bool {
        self.error.kind() == ErrorKind::PermissionDenied
    }

    /// True if the key, but not the bucket, is absent.
    pub(crate) fn is_absent(&self) -> bool {
        self.status == 404 && self.code != "NoSuchBucket"
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Refusal { status: 0, code: String::new(), region: None, error }
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        refusal.error
    }
}

#[derive(Default)]
struct Said {
    code: String,
    message: String,
    region: Option<String>,
}

impl Said {
    fn take(&mut self, name: &str, text: &str) {
        match name {
            "Code" => self.code = limited(text),
            "Message" => self.message = limited(text),
            "Region" if !text.is_empty() => self.region = Some(limited(text)),
            _ => {}
        }
    }
}

fn limited(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(300).collect()
}

/// True if the refusal is about the region, rather than one that only mentions it.
fn means_region(status: u16, code: &str) -> bool {
    matches!(status, 301 | 307)
        || matches!(
            code,
            "AuthorizationHeaderMalformed" | "PermanentRedirect" | "IllegalLocationConstraintException"
        )
}

fn kind(status: u16, code: &str) -> ErrorKind {
    match code {
        "NoSuchKey" | "NoSuchBucket" | "NoSuchUpload" | "NoSuchVersion" => return ErrorKind::NotFound,
        "InvalidAccessKeyId"
        | "SignatureDoesNotMatch"
        | "ExpiredToken"
        | "ExpiredTokenException"
        | "InvalidToken"
        | "TokenRefreshRequired"
        | "RequestExpired"
        | "RequestTimeTooSkewed"
        | "MissingSecurityHeader" => {
            return ErrorKind::Unauthenticated;
        }
        "InvalidObjectState" => return ErrorKind::Archived,
        "KeyTooLongError" => return ErrorKind::NameTooLong,
        "SlowDown" | "ThrottlingException" | "Throttling" | "TooManyRequests" | "RequestLimitExceeded" => {
            return ErrorKind::Throttled;
        }
        "NotImplemented" | "MethodNotAllowed" => return ErrorKind::Unsupported,
        "RequestTimeout" | "InternalError" | "ServiceUnavailable" => return ErrorKind::Unavailable,
        "BadDigest" | "IncompleteBody" | "XAmzContentSHA256Mismatch" => return ErrorKind::Corrupt,
        "QuotaExceeded" | "XMinioStorageFull" => return ErrorKind::NoSpace,
        _ => {}
    }
    match status {
        307 => ErrorKind::Unavailable,
        401 => ErrorKind::Unauthenticated,
        403 => ErrorKind::PermissionDenied,
        404 => ErrorKind::NotFound,
        405 | 501 => ErrorKind::Unsupported,
        408 | 500 | 502 | 503 | 504 => ErrorKind::Unavailable,
        409 | 412 => ErrorKind::Stale,
        429 => ErrorKind::Throttled,
        507 => ErrorKind::NoSpace,
        300..=400 => ErrorKind::InvalidInput,
        505.. => ErrorKind::Unavailable,
        _ => ErrorKind::Other,
    }
}

fn message(status: u16, code: &str, said: &str) -> String {
    let what = match (status, code) {
        (_, "NoSuchBucket") => "the bucket does not exist",
        (_, "NoSuchKey") => "no such file or directory",
        (_, "InvalidObjectState") => "the object is archived and must be restored first",
        (_, "InvalidAccessKeyId") => "the store does not know the access key",
        (_, "SignatureDoesNotMatch") => "the store does not accept the signature: the secret key is wrong",
        (_, "ExpiredToken" | "ExpiredTokenException" | "TokenRefreshRequired") => {
            "the credentials have expired"
        }
        (_, "RequestTimeTooSkewed") => "this machine's clock differs too much from the store's",
        (301 | 307, _) => "the store sends us elsewhere",
        (401, _) => "the store did not accept the credentials",
        (403, _) => "the store refused access",
        (404, _) => "no such file or directory",
        (409 | 412, _) => "the object is not the version asked for",
        (429, _) | (_, "SlowDown") => "the store asks for fewer requests",
        (500..=599, _) => "the store failed",
        _ => "the store refused the request",
    };
    if said.is_empty() { what.to_owned() } else { format!("{what} (it says: {said})") }
}

fn hint(code: &str, region: Option<&str>, kind: ErrorKind) -> Option<String> {
    match (code, region, kind) {
        ("NoSuchBucket", ..) => Some("check the bucket's name and the endpoint".to_owned()),
        (_, Some(region), ErrorKind::InvalidInput) => {
            Some(format!("the bucket is in region `{region}`: use that region"))
        }
        ("RequestTimeTooSkewed", ..) => Some("set the clock".to_owned()),
        (_, _, ErrorKind::Unauthenticated) => Some("renew the credentials, or log in again".to_owned()),
        (_, _, ErrorKind::Archived) => Some("restore it at the store, then open it again".to_owned()),
        _ => None,
    }
}

/// A failure below HTTP: connecting, sending, receiving.
pub(crate) fn transport(error: HttpError) -> Error {
    let (kind, text) = match error.kind() {
        HttpErrorKind::Timeout => (ErrorKind::TimedOut, "the store did not answer in time"),
        HttpErrorKind::Connect => (ErrorKind::Unavailable, "the store cannot be reached"),
        _ => (ErrorKind::Unavailable, "the connection to the store broke"),
    };
    Error::new(kind, text).with_source(WithoutUrl(Box::new(error)))
}

/// The chain of a client's error as one text: its sources say the same thing twice and may name whole URLs.
struct WithoutUrl(Box<HttpError>);

impl fmt::Display for WithoutUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut last: &dyn std::error::Error = &*self.0;
        while let Some(source) = last.source() {
            last = source;
        }
        write!(f, "{last}")
    }
}

impl fmt::Debug for WithoutUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for WithoutUrl {}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(status: u16, headers: &[(&'static str, &'static str)], body: &'static str) -> Refusal {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, http::HeaderValue::from_static(value));
        }
        Refusal::new(StatusCode::from_u16(status).unwrap(), &map, &Bytes::from_static(body.as_bytes()))
    }

    #[test]
    fn each_status_and_code_has_its_kind() {
        use ErrorKind::*;
        for (status, code, kind, retry) in [
            (404, "NoSuchKey", NotFound, false),
            (404, "NoSuchBucket", NotFound, false),
            (404, "", NotFound, false),
            (403, "AccessDenied", PermissionDenied, false),
            (403, "InvalidAccessKeyId", Unauthenticated, false),
            (403, "SignatureDoesNotMatch", Unauthenticated, false),
            (400, "ExpiredToken", Unauthenticated, false),
            (401, "", Unauthenticated, false),
            (403, "InvalidObjectState", Archived, false),
            (503, "SlowDown", Throttled, true),
            (429, "", Throttled, true),
            (500, "InternalError", Unavailable, true),
            (502, "", Unavailable, true),
            (503, "", Unavailable, true),
            (504, "", Unavailable, true),
            (412, "PreconditionFailed", Stale, false),
            (409, "ConditionalRequestConflict", Stale, false),
            (400, "KeyTooLongError", NameTooLong, false),
            (501, "NotImplemented", Unsupported, false),
            (400, "BadDigest", Corrupt, true),
            (301, "PermanentRedirect", InvalidInput, false),
            (418, "", Other, false),
        ] {
            let body = format!("<Error><Code>{code}</Code><Message>m</Message></Error>").leak();
            let r = refusal(status, &[], if code.is_empty() { "" } else { body });
            assert_eq!((r.error.kind(), r.error.is_retryable()), (kind, retry), "{status} {code}");
        }
    }

    #[test]
    fn hints_request_ids_and_waits_are_kept() {
        let r = refusal(
            503,
            &[("retry-after", "7"), ("x-amz-request-id", "R1")],
            "<Error><Code>SlowDown</Code><Message>Please reduce</Message></Error>",
        );
        assert_eq!(r.error.retry(), Retry::Later(Some(Duration::from_secs(7))));
        assert_eq!(r.error.context("request"), Some("R1"));

        let region = "<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-west-1</Region></Error>";
        let r = refusal(400, &[], region);
        assert_eq!((r.region.as_deref(), r.error.kind()), (Some("eu-west-1"), ErrorKind::InvalidInput));
        assert!(r.error.context("hint").unwrap().contains("eu-west-1"));
    }

    #[test]
    fn pages_of_proxies_are_not_believed() {
        let r = refusal(502, &[], "<html><body>Bad gateway<br></body>");
        assert_eq!((r.error.kind(), r.code.as_str()), (ErrorKind::Unavailable, ""));
        assert!(
            Refusal::inside_success(&HeaderMap::new(), &Bytes::from_static(b"<CopyObjectResult/>")).is_none()
        );
        let inside = Bytes::from_static(b"<Error><Code>InternalError</Code></Error>");
        assert!(Refusal::inside_success(&HeaderMap::new(), &inside).unwrap().error.is_retryable());
    }
}
