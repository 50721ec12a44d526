//! The requests themselves.
//!
//! Every verb goes to exactly the key it is given: the URL is made from the raw key, because a legal path may hold bytes
//! that `object_store`'s own path type rewrites or refuses (`~`, `[`, `]`, `%`, control characters). What remains its
//! work is signing ([`AwsAuthorizer`](object_store::aws::AwsAuthorizer)) and carrying requests
//! ([`HttpClient`](object_store::client::HttpClient)).

pub(crate) mod body;
pub(crate) mod list;
pub(crate) mod request;
mod sign;
pub(crate) mod xml;
