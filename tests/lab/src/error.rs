//! Errors in the shape of S3: a status, a code and an XML body.

use crate::store::Refused;
use crate::xml::escape;

#[derive(Clone, Debug)]
pub(crate) struct S3Error {
    pub(crate) status: u16,
    pub(crate) code: String,
    pub(crate) message: String,
    /// Further elements of the body.
    pub(crate) elements: Vec<(&'static str, String)>,
    pub(crate) headers: Vec<(&'static str, String)>,
}

impl S3Error {
    pub(crate) fn new(status: u16, code: &str, message: &str) -> Self {
        let (code, message) = (code.to_owned(), message.to_owned());
        Self { status, code, message, elements: Vec::new(), headers: Vec::new() }
    }

    /// With the usual code of a status.
    pub(crate) fn of(status: u16) -> Self {
        let (code, message) = match status {
            301 => ("PermanentRedirect", "The bucket must be addressed at another endpoint."),
            400 => ("BadRequest", "Bad request."),
            401 => ("Unauthorized", "Credentials are needed."),
            403 => ("AccessDenied", "Access Denied"),
            404 => ("NoSuchKey", "The specified key does not exist."),
            408 => ("RequestTimeout", "The request took too long."),
            409 => ("OperationAborted", "A conflicting operation is in progress."),
            412 => ("PreconditionFailed", "At least one of the preconditions did not hold."),
            416 => ("InvalidRange", "The requested range is not satisfiable."),
            429 => ("TooManyRequests", "Please reduce your request rate."),
            500 => ("InternalError", "We encountered an internal error. Please try again."),
            501 => ("NotImplemented", "This server does not have what was asked for."),
            502 => ("BadGateway", "Bad gateway."),
            503 => ("SlowDown", "Please reduce your request rate."),
            504 => ("GatewayTimeout", "Gateway timeout."),
            _ => ("Error", "An error."),
        };
        Self::new(status, code, message)
    }

    pub(crate) fn element(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.elements.push((name, value.into()));
        self
    }

    pub(crate) fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    pub(crate) fn body(&self, bucket: &str, key: &[u8], id: &str) -> String {
        let mut xml =
            format!("<Error><Code>{}</Code><Message>{}</Message>", escape(&self.code), escape(&self.message));
        for (name, value) in &self.elements {
            xml += &format!("<{name}>{}</{name}>", escape(value));
        }
        if !bucket.is_empty() {
            xml += &format!("<BucketName>{}</BucketName>", escape(bucket));
        }
        if !key.is_empty() {
            xml += &format!("<Key>{}</Key>", escape(&String::from_utf8_lossy(key)));
        }
        xml + &format!("<RequestId>{id}</RequestId><HostId>lab</HostId></Error>")
    }
}

impl From<Refused> for S3Error {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::NoSuchBucket => Self::new(404, "NoSuchBucket", "The specified bucket does not exist"),
            Refused::NoSuchKey => Self::of(404),
            Refused::Precondition => Self::of(412),
        }
    }
}
