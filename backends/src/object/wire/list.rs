//! One page of a listing: asked for, read, and checked.

use std::sync::Arc;
use std::time::SystemTime;

use http::{HeaderName, Method};
use percent_encoding::percent_decode;

use super::super::error::Refusal;
use super::request::{Request, Wire};
use super::xml::{malformed, walk};
use crate::error::Result;
use crate::metadata::{Metadata, Version};

/// A thousand keys of a kilobyte, each byte percent-encoded, with everything around them.
const PAGE_LIMIT: usize = 8 * 1024 * 1024;

/// Stores show a few empty pages where many keys were deleted; nobody shows this many.
const EMPTY_LIMIT: u32 = 1000;

/// Which keys a listing covers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Query {
    /// Keys that begin so.
    pub(crate) prefix: String,
    /// Keys with a further `/` are rolled up into prefixes.
    pub(crate) one_level: bool,
    /// Keys after this one.
    pub(crate) start_after: Option<String>,
    /// At most so many on a page; none = the store's own limit (1000).
    pub(crate) page_size: Option<u16>,
}

/// What a page says, in key order.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Page {
    pub(crate) items: Vec<Item>,
    /// Token of the next page; none = this was the last.
    pub(crate) next: Option<String>,
}

/// One line of a page.
#[derive(Debug, PartialEq)]
pub(crate) struct Item {
    /// The whole key; of a prefix with its final `/`.
    pub(crate) key: Vec<u8>,
    /// None for a rolled-up prefix.
    pub(crate) metadata: Option<Metadata>,
}

impl Wire {
    /// The page that `token` (none = the first) leads to.
    pub(crate) async fn list(self: &Arc<Self>, query: &Query, token: Option<&str>) -> Result<Page, Refusal> {
        let mut request = Request::new(Method::GET, "")
            .query("encoding-type", "url")
            .query("list-type", "2")
            .query("prefix", &query.prefix);
        if query.one_level {
            request = request.query("delimiter", "/");
        }
        if let Some(size) = query.page_size {
            request = request.query("max-keys", size.to_string());
        }
        match (token, &query.start_after) {
            (Some(token), _) => request = request.query("continuation-token", token),
            (None, Some(key)) => request = request.query("start-after", key),
            (None, None) => {}
        }
        if !self.endpoint().is_custom() {
            // Without it a restored object looks as archived as the others of its class. Amazon's alone: others may
            // refuse what they do not know, and `open` looks again before it believes that an object is archived.
            let name = HeaderName::from_static("x-amz-optional-object-attributes");
            request = request.header(name, "RestoreStatus")?;
        }
        let (_, body) = self.send_and_collect(request, PAGE_LIMIT).await?;
        let page = parse(&body)?;
        if page.next.is_some() && page.next.as_deref() == token {
            return Err(malformed("repeats its continuation token").into());
        }
        Ok(page)
    }

    /// The first line of a listing. Empty pages that promise more are legal: they are passed over.
    pub(crate) async fn first(self: &Arc<Self>, query: &Query) -> Result<Option<Item>, Refusal> {
        let mut token = None;
        for empty in 0.. {
            check_progress(empty)?;
            let page = self.list(query, token.as_deref()).await?;
            if let Some(item) = page.items.into_iter().next() {
                return Ok(Some(item));
            }
            token = page.next;
            if token.is_none() {
                break;
            }
        }
        Ok(None)
    }

    /// Whether any key begins with `prefix`.
    pub(crate) async fn any_with_prefix(self: &Arc<Self>, prefix: &str) -> Result<bool, Refusal> {
        let query = Query { prefix: prefix.to_owned(), page_size: Some(1), ..Query::default() };
        Ok(self.first(&query).await?.is_some())
    }
}

/// Ends a listing that only ever promises more, after `empty` pages in a row with nothing in them.
///
/// # Errors
/// `Corrupt`.
pub(crate) fn check_progress(empty: u32) -> Result<()> {
    if empty < EMPTY_LIMIT { Ok(()) } else { Err(malformed("promises more and more and never gives any")) }
}

/// Reads a page.
///
/// # Errors
/// `Corrupt` (worth another try) if it is cut, not a listing, lacks a size, or promises more without saying how.
pub(crate) fn parse(document: &[u8]) -> Result<Page> {
    let mut reader = Reading::default();
    walk(document, |path, text| reader.leave(path, text))?;
    reader.finish()
}

#[derive(Default)]
struct Reading {
    seen: bool,
    keys: Vec<Raw>,
    prefixes: Vec<String>,
    current: Raw,
    truncated: bool,
    token: Option<String>,
    encoded: bool,
}

#[derive(Default)]
struct Raw {
    key: Option<String>,
    size: Option<u64>,
    etag: Option<String>,
    modified: Option<SystemTime>,
    class: String,
    restoring: Option<bool>,
    expiry: bool,
}

impl Reading {
    fn leave(&mut self, path: &[String], text: &str) -> Result<()> {
        let mut names = path.iter().map(String::as_str);
        if names.next() != Some("ListBucketResult") {
            return Ok(());
        }
        match (names.next(), names.next(), names.next()) {
            (None, ..) => self.seen = true,
            (Some("IsTruncated"), None, _) => self.truncated = text.trim() == "true",
            (Some("NextContinuationToken"), None, _) if !text.is_empty() => {
                self.token = Some(text.to_owned())
            }
            (Some("EncodingType"), None, _) => self.encoded = text.trim() == "url",
            (Some("CommonPrefixes"), Some("Prefix"), _) => self.prefixes.push(text.to_owned()),
            (Some("Contents"), None, _) => self.keys.push(std::mem::take(&mut self.current)),
            (Some("Contents"), Some(field), None) => self.field(field, text)?,
            (Some("Contents"), Some("RestoreStatus"), Some("IsRestoreInProgress")) => {
                self.current.restoring = Some(text.trim() == "true");
            }
            (Some("Contents"), Some("RestoreStatus"), Some("RestoreExpiryDate")) => {
                self.current.expiry = true
            }
            _ => {}
        }
        Ok(())
    }

    fn field(&mut self, name: &str, text: &str) -> Result<()> {
        let raw = &mut self.current;
        match name {
            "Key" => raw.key = Some(text.to_owned()),
            "Size" => {
                raw.size = Some(text.trim().parse().map_err(|_| malformed("has a size that is no number"))?)
            }
            "ETag" => raw.etag = Some(text.trim().to_owned()),
            "LastModified" => raw.modified = iso_time(text.trim()),
            "StorageClass" => text.trim().clone_into(&mut raw.class),
            _ => {}
        }
        Ok(())
    }

    fn finish(self) -> Result<Page> {
        if !self.seen {
            return Err(malformed("is no listing"));
        }
        if self.truncated && self.token.is_none() {
            return Err(malformed("is a listing with more to come but no token to ask for it"));
        }
        let encoded = self.encoded;
        let keys = self.keys.into_iter().map(|raw| {
            let key = raw.key.as_deref().ok_or_else(|| malformed("has an entry without a key"))?;
            let size = raw.size.ok_or_else(|| malformed("has an entry without a size"))?;
            let mut metadata = Metadata::file(size, version(raw.etag.as_deref()));
            metadata.modified = raw.modified;
            let restored = raw.restoring == Some(false) && raw.expiry;
            metadata.archived = is_archive(&raw.class) && !restored;
            Ok(Item { key: decode(key, encoded), metadata: Some(metadata) })
        });
        let keys: Vec<Item> = keys.collect::<Result<_>>()?;
        let prefixes =
            self.prefixes.iter().map(|p| Item { key: decode(p, encoded), metadata: None }).collect();
        Ok(Page { items: merge(keys, prefixes), next: self.token.filter(|_| self.truncated) })
    }
}

/// Two runs in key order as one. A run that is out of order stays so: whoever reads the listing finds it.
fn merge(keys: Vec<Item>, prefixes: Vec<Item>) -> Vec<Item> {
    if prefixes.is_empty() {
        return keys;
    }
    let mut out = Vec::with_capacity(keys.len() + prefixes.len());
    let mut prefixes = prefixes.into_iter().peekable();
    for key in keys {
        while let Some(prefix) = prefixes.next_if(|p| p.key <= key.key) {
            out.push(prefix);
        }
        out.push(key);
    }
    out.extend(prefixes);
    out
}

/// The encoding of `encoding-type=url` is that of forms: a space is `+`, a plus is `%2B`.
fn decode(text: &str, encoded: bool) -> Vec<u8> {
    if !encoded {
        return text.as_bytes().to_vec();
    }
    let spaced: Vec<u8> = text.bytes().map(|b| if b == b'+' { b' ' } else { b }).collect();
    percent_decode(&spaced).collect()
}

/// A strong ETag without its quotes. The one place where the spellings of lists and headers become equal.
pub(crate) fn version(etag: Option<&str>) -> Version {
    let Some(etag) = etag.map(str::trim).filter(|e| !e.starts_with("W/")) else { return Version::Unknown };
    let bare = etag.strip_prefix('"').and_then(|e| e.strip_suffix('"')).unwrap_or(etag);
    let legal = !bare.is_empty() && bare.bytes().all(|b| (0x21..0x7f).contains(&b) && b != b'"');
    if legal { Version::Tag(bare.into()) } else { Version::Unknown }
}

/// Storage classes whose objects must be restored before they can be read (`GLACIER_IR` need not).
pub(crate) fn is_archive(class: &str) -> bool {
    matches!(class, "GLACIER" | "DEEP_ARCHIVE")
}

/// Whole seconds: headers know no fractions, and a time must not depend on which request told it.
fn iso_time(text: &str) -> Option<SystemTime> {
    let time = chrono::DateTime::parse_from_rfc3339(text).ok()?;
    seconds(time.timestamp())
}

/// The time of an HTTP header.
pub(crate) fn http_time(text: &str) -> Option<SystemTime> {
    seconds(chrono::DateTime::parse_from_rfc2822(text).ok()?.timestamp())
}

fn seconds(since_1970: i64) -> Option<SystemTime> {
    let offset = std::time::Duration::from_secs(since_1970.unsigned_abs());
    match since_1970 < 0 {
        true => SystemTime::UNIX_EPOCH.checked_sub(offset),
        false => SystemTime::UNIX_EPOCH.checked_add(offset),
    }
}

#[cfg(test)]
mod tests;
