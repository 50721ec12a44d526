//! Where requests go: URL of a key, byte for byte.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};

use crate::config::{S3Config, without_user};
use crate::error::{Error, ErrorKind, Result};

/// Everything but the unreserved characters of RFC 3986 is encoded, as Signature Version 4 asks.
const VALUE: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// The same for paths, whose `/` stay.
const PATH: &AsciiSet = &VALUE.remove(b'/');

/// The region requests are signed for and the URL that they go to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub(crate) region: String,
    /// URL up to and with the `/` before the key.
    root: String,
    custom: bool,
}

impl Endpoint {
    pub(crate) fn new(config: &S3Config, region: &str) -> Result<Self> {
        let bucket = &config.bucket;
        let path_style = config.uses_path_style();
        let Some(given) = &config.endpoint else {
            let suffix = if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" };
            let root = match path_style {
                true => format!("https://s3.{region}.{suffix}/{bucket}/"),
                false => format!("https://{bucket}.s3.{region}.{suffix}/"),
            };
            return Ok(Endpoint { region: region.to_owned(), root, custom: false });
        };
        let refuse = |what: &str| {
            Error::new(ErrorKind::InvalidInput, format!("the endpoint `{}` {what}", without_user(given)))
                .with_context("hint", "an endpoint looks like `https://host:port`")
        };
        let (scheme, rest) =
            given.split_once("://").ok_or_else(|| refuse("has no `http://` or `https://`"))?;
        if !matches!(scheme, "http" | "https") {
            return Err(refuse("is neither `http://` nor `https://`"));
        }
        let rest = rest.trim_end_matches('/');
        if rest.is_empty() || rest.contains(['?', '#', '@']) {
            return Err(refuse("is not a host with an optional port and path"));
        }
        let root = match path_style {
            true => format!("{scheme}://{rest}/{bucket}/"),
            false => format!("{scheme}://{bucket}.{rest}/"),
        };
        // Checked here once, so that building a request never fails on it.
        root.parse::<http::Uri>().map_err(|e| refuse("is not a URL").with_source(e))?;
        Ok(Endpoint { region: region.to_owned(), root, custom: true })
    }

    /// The URL of `key` (the bucket itself if it is empty) with these query parameters.
    pub(crate) fn url(&self, key: &str, query: &[(&str, &str)]) -> String {
        let mut url = String::with_capacity(self.root.len() + key.len() + 16);
        url.push_str(&self.root);
        url.extend(percent_encode(key.as_bytes(), PATH));
        for (i, (name, value)) in query.iter().enumerate() {
            url.push(if i == 0 { '?' } else { '&' });
            url.push_str(name);
            // A parameter without a value is sent as `name=`: what the signature is computed over.
            url.push('=');
            url.extend(percent_encode(value.as_bytes(), VALUE));
        }
        url
    }

    /// `bucket/key` for the header that names the source of a copy.
    pub(crate) fn copy_source(bucket: &str, key: &str) -> String {
        format!("{}/{}", percent_encode(bucket.as_bytes(), VALUE), percent_encode(key.as_bytes(), PATH))
    }

    /// True if the URL was given, not derived from the region.
    pub(crate) fn is_custom(&self) -> bool {
        self.custom
    }

    pub(crate) fn is_tls(&self) -> bool {
        self.root.starts_with("https://")
    }

    /// The store's URL for people: scheme and host.
    pub(crate) fn display(&self) -> String {
        let end = self.root.find("://").map_or(0, |i| i + 3);
        let host = self.root[end..].find('/').map_or(self.root.len(), |i| end + i);
        self.root[..host].to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn custom(url: &str) -> S3Config {
        S3Config { endpoint: Some(url.to_owned()), ..S3Config::new("b") }
    }

    #[test]
    fn keys_are_encoded_byte_for_byte() {
        let e = Endpoint::new(&custom("http://h:1/"), "us-east-1").unwrap();
        assert_eq!(e.url("a b+%2F~[x]/é\n", &[]), "http://h:1/b/a%20b%2B%252F~%5Bx%5D/%C3%A9%0A");
        assert_eq!(
            e.url("", &[("list-type", "2"), ("prefix", "a/+ ")]),
            "http://h:1/b/?list-type=2&prefix=a%2F%2B%20"
        );
        assert_eq!(e.url("k", &[("uploads", "")]), "http://h:1/b/k?uploads=");
        assert_eq!(Endpoint::copy_source("b", "a b/c+"), "b/a%20b/c%2B");
    }

    #[test]
    fn hosts_follow_style_and_region() {
        let url = |c: &S3Config, r: &str| Endpoint::new(c, r).unwrap().url("k", &[]);
        assert_eq!(url(&S3Config::new("b"), "eu-west-1"), "https://b.s3.eu-west-1.amazonaws.com/k");
        assert_eq!(url(&S3Config::new("b"), "cn-north-1"), "https://b.s3.cn-north-1.amazonaws.com.cn/k");
        assert_eq!(url(&S3Config::new("a.b"), "eu-west-1"), "https://s3.eu-west-1.amazonaws.com/a.b/k");
        assert_eq!(url(&custom("https://h/base"), "r"), "https://h/base/b/k");
        let virtual_host = S3Config { path_style: Some(false), ..custom("https://h:9") };
        assert_eq!(url(&virtual_host, "r"), "https://b.h:9/k");
        assert_eq!(Endpoint::new(&virtual_host, "r").unwrap().display(), "https://b.h:9");
    }

    #[test]
    fn endpoints_that_are_not_urls_are_refused_without_passwords() {
        for bad in ["host:9000", "ftp://h", "https://", "http://h?x", "http://a b"] {
            assert_eq!(
                Endpoint::new(&custom(bad), "r").unwrap_err().kind(),
                ErrorKind::InvalidInput,
                "{bad}"
            );
        }
        let e = Endpoint::new(&custom("http://user:secret@h"), "r").unwrap_err();
        assert!(!e.to_string().contains("secret"), "{e}");
    }
}
