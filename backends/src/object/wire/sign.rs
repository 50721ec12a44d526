//! Signing: Signature Version 4 by `object_store`, with the credentials of the moment.

use http::HeaderValue;
use http::header::ACCEPT_ENCODING;
use object_store::aws::{AwsAuthorizer, AwsCredential};
use object_store::client::HttpRequest;

use super::super::endpoint::Endpoint;
use crate::error::{Error, ErrorKind, Result};

/// Signs `request` for `endpoint`; without a credential it stays unsigned.
pub(super) fn sign(
    request: &mut HttpRequest,
    credential: Option<&AwsCredential>,
    endpoint: &Endpoint,
    requester_pays: bool,
) -> Result<()> {
    if let Some(credential) = credential {
        check_header_text(credential)?;
        // TLS protects a body already; hashing it would cost half a CPU second per GB.
        let sign_payload = request.body().is_empty() || !endpoint.is_tls();
        AwsAuthorizer::new(credential, "s3", &endpoint.region)
            .with_sign_payload(sign_payload)
            .with_request_payer(requester_pays)
            .try_authorize(request, None)
            .map_err(|e| Error::new(ErrorKind::Other, "the request cannot be signed").with_source(e))?;
    } else if requester_pays {
        request.headers_mut().insert("x-amz-request-payer", HeaderValue::from_static("requester"));
    }
    // Not under the signature: proxies may rewrite it. It forbids stored bytes to be transformed on the way.
    request.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    Ok(())
}

/// The authorizer panics on keys or tokens that are no header text.
fn check_header_text(credential: &AwsCredential) -> Result<()> {
    let parts = [Some(&credential.key_id), credential.token.as_ref()];
    if parts.into_iter().flatten().all(|text| HeaderValue::from_str(text).is_ok()) {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Unauthenticated, "the access key or token has characters that no key has"))
}
