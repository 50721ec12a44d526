//! [`StoreUrl`]: what a person types to name a store, taken literally.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, ErrorKind, Result};
use crate::path::FsPath;

/// A store and a place in it: `s3://bucket/prefix`, `file:///data`, a plain path, `memory:///`.
///
/// Everything after the scheme is literal: no patterns, no query strings, and no percent-decoding, with one
/// exception: `file://` URLs are percent-decoded, because every program that writes them encodes. A text without
/// `scheme://` is a path of the local filesystem. Whether a scheme is known is for the
/// [`Registry`](crate::Registry) to say.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct StoreUrl {
    scheme: String,
    authority: String,
    /// For local files the path as the system takes it; for others what follows the authority, without its `/`.
    path: Vec<u8>,
}

impl StoreUrl {
    /// Reads `text` as described at [`StoreUrl`].
    ///
    /// # Errors
    /// `InvalidInput` for an empty text, credentials in the URL (`user:secret@`), a store without its `//`, a
    /// `file://` URL with another host or a broken `%` sequence, and NUL.
    pub fn parse(text: impl AsRef<[u8]>) -> Result<Self> {
        let text = text.as_ref();
        if text.is_empty() {
            return Err(invalid("a store is named by a URL or a path; this one is empty"));
        }
        if text.contains(&0) {
            return Err(invalid("a URL or path cannot contain NUL"));
        }
        match split_scheme(text) {
            Some((scheme, rest)) => Self::with_scheme(scheme, rest),
            None => {
                check_missing_slashes(text)?;
                Ok(Self::local(Path::new(OsStr::from_bytes(text))))
            }
        }
    }

    /// A path of the local filesystem, absolute or relative to the working directory.
    pub fn local(path: &Path) -> Self {
        StoreUrl {
            scheme: "file".into(),
            authority: String::new(),
            path: path.as_os_str().as_bytes().to_vec(),
        }
    }

    fn with_scheme(scheme: String, rest: &[u8]) -> Result<Self> {
        let slash = rest.iter().position(|b| *b == b'/').unwrap_or(rest.len());
        let (authority, path) = rest.split_at(slash);
        // Secret keys may contain `/`, so a key pair can also end up split over authority and path. Bucket names
        // contain no colon; access points are named by an ARN.
        let s3_pair =
            scheme.starts_with("s3") && authority.contains(&b':') && !authority.starts_with(b"arn:");
        if authority.contains(&b'@') || s3_pair {
            // The text is not repeated: it would put the secret into logs.
            return Err(invalid("a URL must not carry a user name, key or password").with_context(
                "hint",
                "give credentials by environment, profile or configuration and write scheme://bucket/prefix",
            ));
        }
        let Ok(authority) = str::from_utf8(authority) else {
            return Err(invalid("the part after :// is not valid UTF-8"));
        };
        let authority = authority.to_owned();
        if scheme != "file" {
            let path = path.strip_prefix(b"/").unwrap_or(path).to_vec();
            return Ok(StoreUrl { scheme, authority, path });
        }
        if !(authority.is_empty() || authority == "localhost") {
            return Err(invalid(format!("file://{authority}/… names another host"))
                .with_context("hint", format!("three slashes name a local path: file:///{authority}/…")));
        }
        let path = percent_decode(path)?;
        if path.contains(&0) {
            return Err(invalid("a URL or path cannot contain NUL"));
        }
        Ok(StoreUrl {
            scheme,
            authority: String::new(),
            path: if path.is_empty() { b"/".to_vec() } else { path },
        })
    }

    /// The scheme in lower case; `file` for plain paths.
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// The bucket, or the name of a memory store; empty for local files.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// The literal bytes after the authority, without the leading `/`; for local files the whole path.
    pub fn raw_path(&self) -> &[u8] {
        &self.path
    }

    /// The place below the root of the store (of the whole disk for an absolute local path). Doubled and trailing
    /// `/` and `.` components are dropped, as a shell user expects.
    ///
    /// # Errors
    /// As [`FsPath::parse_lenient`]: `..` or a component no file name can hold.
    pub fn path(&self) -> Result<FsPath> {
        FsPath::parse_lenient(&self.path)
    }

    /// The path of a local file or directory; `None` for other schemes.
    pub fn local_path(&self) -> Option<PathBuf> {
        (self.scheme == "file").then(|| PathBuf::from(OsStr::from_bytes(&self.path)))
    }

    /// True if it ends in `/` or names a root: what it names is meant as a directory.
    pub fn names_directory(&self) -> bool {
        self.path.is_empty() || self.path.ends_with(b"/")
    }

    /// The same store, from its root: the whole bucket, the whole memory store, `/`.
    pub fn root(&self) -> Self {
        let path = if self.scheme == "file" { b"/".to_vec() } else { Vec::new() };
        StoreUrl { scheme: self.scheme.clone(), authority: self.authority.clone(), path }
    }
}

/// `scheme` and what follows `://`, if the text has the form of a URL.
fn split_scheme(text: &[u8]) -> Option<(String, &[u8])> {
    let end = text.windows(3).position(|w| w == b"://")?;
    let (scheme, rest) = (&text[..end], &text[end + 3..]);
    let legal = scheme.first().is_some_and(u8::is_ascii_alphabetic)
        && scheme.iter().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(b));
    let scheme = legal.then(|| str::from_utf8(scheme).ok())??;
    Some((scheme.to_ascii_lowercase(), rest))
}

/// `s3:bucket` is no path anybody means.
fn check_missing_slashes(text: &[u8]) -> Result<()> {
    for scheme in ["s3", "s3a", "memory", "file"] {
        let rest =
            text.get(scheme.len()..).filter(|_| text[..scheme.len()].eq_ignore_ascii_case(scheme.as_bytes()));
        if rest.is_some_and(|rest| rest.starts_with(b":")) {
            return Err(invalid(format!("`{scheme}:` is not followed by `//`")).with_context(
                "hint",
                format!("write {scheme}://… for a store, ./{scheme}:… for a local file of that name"),
            ));
        }
    }
    Ok(())
}

fn percent_decode(path: &[u8]) -> Result<Vec<u8>> {
    let broken =
        path.iter().enumerate().filter(|(_, b)| **b == b'%').any(|(i, _)| {
            !path.get(i + 1..i + 3).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
        });
    if broken {
        return Err(invalid("a % in a file:// URL is not followed by two hexadecimal digits")
            .with_context("hint", "write %25 for a percent sign, or give the plain path"));
    }
    Ok(percent_encoding::percent_decode(path).collect())
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidInput, message)
}

impl std::str::FromStr for StoreUrl {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        StoreUrl::parse(text)
    }
}

/// The URL (a plain path for local files) with control characters and invalid UTF-8 escaped. Never holds secrets.
impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.scheme != "file" {
            write!(f, "{}://{}/", self.scheme, self.authority)?;
        }
        for chunk in self.path.utf8_chunks() {
            for c in chunk.valid().chars() {
                if c.is_control() { write!(f, "{}", c.escape_default())? } else { write!(f, "{c}")? }
            }
            for b in chunk.invalid() {
                write!(f, "\\x{b:02x}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> StoreUrl {
        StoreUrl::parse(text).unwrap()
    }

    #[test]
    fn store_urls_are_literal() {
        let url = parse("S3://my-bucket/a b/%2F+[x]*?v=1#f");
        assert_eq!((url.scheme(), url.authority()), ("s3", "my-bucket"));
        assert_eq!(url.path().unwrap().as_bytes(), b"a b/%2F+[x]*?v=1#f");
        assert_eq!(url.to_string(), "s3://my-bucket/a b/%2F+[x]*?v=1#f");
        assert_eq!(url.root(), parse("s3://my-bucket"));
        assert!(parse("s3://b").names_directory() && parse("s3://b/p/").names_directory());
        assert!(!parse("s3://b/p").names_directory());
        assert_eq!(StoreUrl::parse(b"s3://b/\xff").unwrap().raw_path(), b"\xff");
        assert!(parse("s3://b/a/../c").path().is_err());
    }

    #[test]
    fn local_files_come_as_paths_or_as_encoded_urls() {
        for (text, path) in [
            ("/data/x%20y", "/data/x%20y"),
            ("data[1].tar", "data[1].tar"),
            ("../up", "../up"),
            ("./s3:odd", "./s3:odd"),
            ("a:b", "a:b"),
            ("file:///data/x%20y%25", "/data/x y%"),
            ("file://localhost/d", "/d"),
            ("file://", "/"),
        ] {
            let url = parse(text);
            assert_eq!((url.scheme(), url.local_path().unwrap()), ("file", PathBuf::from(path)), "{text}");
        }
        assert_eq!(parse("memory://name/x").local_path(), None);
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_a_hint_and_without_the_secret() {
        for bad in [
            "",
            "file://host/p",
            "file:///%zz",
            "file:///%0",
            "file:///%00",
            "s3:bucket/x",
            "memory:x",
            "a\0",
        ] {
            assert_eq!(StoreUrl::parse(bad).unwrap_err().kind(), ErrorKind::InvalidInput, "{bad:?}");
        }
        for secret in ["s3://KEY:hunter2@bucket/x", "s3a://KEY:hunter2/z@bucket/x", "own://hunter2@host/"] {
            let e = StoreUrl::parse(secret).unwrap_err();
            assert!(e.context("hint").is_some());
            assert!(!format!("{e:?}{e}").contains("hunter2"));
        }
        assert!(StoreUrl::parse("s3://arn:aws:s3:eu-west-1:123456789012:accesspoint/x").is_ok());
    }
}
