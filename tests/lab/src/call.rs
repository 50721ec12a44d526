//! One request on its way through the server, and the answers made from it.

use std::sync::Arc;

use bytes::Bytes;
use hyper::Response;
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE};
use hyper::http::response::Builder;

use crate::body::OutBody;
use crate::content::Content;
use crate::counters::{InFlight, KeyCounter};
use crate::error::S3Error;
use crate::fault::Fault;
use crate::request::{Request, Trailers};
use crate::server::{Connection, Shared};

pub(crate) type Reply = Result<Response<OutBody>, S3Error>;

/// The namespace of S3's answers.
pub(crate) const XMLNS: &str = "xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"";

#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) shared: Arc<Shared>,
    pub(crate) connection: Arc<Connection>,
    pub(crate) request: Request,
    /// The request's body, without `aws-chunked` framing.
    pub(crate) payload: Bytes,
    /// Trailers of an `aws-chunked` body.
    pub(crate) trailers: Trailers,
    pub(crate) in_flight: Option<InFlight>,
    pub(crate) counter: Option<Arc<KeyCounter>>,
    pub(crate) faults: Vec<Fault>,
    /// Number of the request in the log.
    pub(crate) seq: u64,
    /// Listing keys is refused, so that absence must not be told apart from refusal.
    pub(crate) hides_absence: bool,
}

impl Call {
    pub(crate) fn id(&self) -> String {
        format!("{:016X}", self.seq)
    }

    pub(crate) fn head(&self, status: u16) -> Builder {
        Response::builder()
            .status(status)
            .header("server", "nearfs-lab")
            .header("x-amz-request-id", self.id())
    }

    /// Finishes an answer whose body is bytes `range` of `content`.
    pub(crate) fn send(&mut self, head: Builder, content: Content, range: (u64, u64)) -> Response<OutBody> {
        let in_flight = self.in_flight.take().unwrap_or_else(|| InFlight::new(&self.shared.tally));
        let body = OutBody::new(&self.shared, &self.connection, content, range, in_flight);
        head.body(body).unwrap_or_else(|error| unreachable!("a header of the lab is not valid: {error}"))
    }

    pub(crate) fn empty(&mut self, head: Builder) -> Response<OutBody> {
        self.send(head, Content::from_bytes(Bytes::new()), (0, 0))
    }

    pub(crate) fn xml(&mut self, status: u16, xml: &str) -> Response<OutBody> {
        let head = self.head(status);
        self.xml_with(head, xml)
    }

    pub(crate) fn xml_with(&mut self, head: Builder, xml: &str) -> Response<OutBody> {
        let bytes = Bytes::from(format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{xml}"));
        let len = bytes.len() as u64;
        let head = head.header(CONTENT_TYPE, "application/xml").header(CONTENT_LENGTH, len);
        self.send(head, Content::from_bytes(bytes), (0, len))
    }

    /// An error answer; to HEAD without a body, as HTTP asks.
    pub(crate) fn error(&mut self, error: &S3Error) -> Response<OutBody> {
        let mut head = self.head(error.status);
        for (name, value) in &error.headers {
            head = head.header(*name, value);
        }
        if self.request.method == hyper::Method::HEAD {
            return self.empty(head);
        }
        let body = error.body(&self.request.bucket, &self.request.key, &self.id());
        self.xml_with(head, &body)
    }

    /// The error for a key that is not there.
    pub(crate) fn absent(&self, refused: crate::store::Refused) -> S3Error {
        match refused {
            crate::store::Refused::NoSuchKey if self.hides_absence => S3Error::of(403),
            refused => refused.into(),
        }
    }
}
