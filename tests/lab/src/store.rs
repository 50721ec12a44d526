//! Buckets and objects, kept exactly by the bytes of their keys.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use hyper::header::{HeaderName, HeaderValue};
use parking_lot::RwLock;

use crate::content::Content;
use crate::rng::mix;

/// Deleted keys whose last version is remembered, so that a new object gets a new version.
const MAX_RETIRED: usize = 1 << 20;

/// One object: immutable; a new version is a new object.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    pub(crate) size: u64,
    /// Milliseconds since the epoch.
    pub(crate) modified: u64,
    /// Counts the versions of the key, from 1; also in the stamps of synthetic content.
    pub(crate) version: u32,
    pub(crate) content: Content,
    /// With quotes; none for synthetic content, whose ETag is computed.
    etag: Option<Box<str>>,
    pub(crate) extra: Option<Box<Extra>>,
}

/// What most objects do not have.
#[derive(Clone, Debug, Default)]
pub(crate) struct Extra {
    /// Sent back as they came: `content-type`, `x-amz-meta-*` and so on.
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    /// `x-amz-checksum-*`, sent back when asked for.
    pub(crate) checksums: Vec<(HeaderName, HeaderValue)>,
    pub(crate) storage_class: Option<String>,
    /// An archived object that can be read.
    pub(crate) restored: bool,
}

impl Object {
    pub(crate) fn data(content: Content, size: u64, etag: String, extra: Extra) -> Self {
        let plain = extra.headers.is_empty() && extra.checksums.is_empty() && extra.storage_class.is_none();
        let extra = (!plain).then(|| Box::new(extra));
        Self { size, modified: now_ms(), version: 0, content, etag: Some(etag.into()), extra }
    }

    pub(crate) fn synthetic(key_id: u32, size: u64) -> Self {
        let content = Content::Synthetic { key_id, version: 0 };
        Self { size, modified: now_ms(), version: 0, content, etag: None, extra: None }
    }

    /// With quotes.
    pub(crate) fn etag(&self) -> String {
        match (&self.etag, &self.content) {
            (Some(etag), _) => etag.to_string(),
            (None, Content::Synthetic { key_id, version }) => {
                let a = mix(u64::from(*key_id) << 32 | u64::from(*version));
                format!("\"{a:016x}{:016x}\"", mix(a ^ self.size))
            }
            (None, Content::Data(_)) => unreachable!("data always has an ETag"),
        }
    }

    pub(crate) fn set_etag(&mut self, etag: &str) {
        self.etag = Some(etag.into());
    }

    pub(crate) fn storage_class(&self) -> &str {
        self.extra.as_ref().and_then(|e| e.storage_class.as_deref()).unwrap_or("STANDARD")
    }

    pub(crate) fn restored(&self) -> bool {
        self.extra.as_ref().is_some_and(|e| e.restored)
    }

    /// Archived and not restored: can be seen, not read.
    pub(crate) fn archived(&self) -> bool {
        matches!(self.storage_class(), "GLACIER" | "DEEP_ARCHIVE") && !self.restored()
    }
}

/// A condition on what a key holds now.
#[derive(Clone, Debug, Default)]
pub(crate) struct Condition {
    pub(crate) if_match: Option<String>,
    pub(crate) if_none_match: Option<String>,
}

/// Why something was not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    NoSuchBucket,
    NoSuchKey,
    Precondition,
}

impl Condition {
    fn check(&self, current: Option<&Object>) -> Result<(), Refused> {
        if let Some(list) = &self.if_match {
            match current {
                None => return Err(Refused::NoSuchKey),
                Some(o) if !etag_in(list, &o.etag()) => return Err(Refused::Precondition),
                Some(_) => {}
            }
        }
        match (&self.if_none_match, current) {
            (Some(list), Some(o)) if etag_in(list, &o.etag()) => Err(Refused::Precondition),
            _ => Ok(()),
        }
    }
}

/// Whether an ETag is in a header's list; `*` is any.
pub(crate) fn etag_in(list: &str, etag: &str) -> bool {
    let bare = etag.trim_matches('"');
    list.split(',').map(str::trim).any(|e| e == "*" || e.trim_matches('"') == bare)
}

#[derive(Debug, Default)]
pub(crate) struct Bucket {
    pub(crate) objects: BTreeMap<Vec<u8>, Arc<Object>>,
    retired: HashMap<Vec<u8>, u32>,
}

impl Bucket {
    fn insert(&mut self, key: &[u8], mut object: Object) -> Arc<Object> {
        let last =
            self.objects.get(key).map(|o| o.version).or_else(|| self.retired.get(key).copied()).unwrap_or(0);
        object.version = last + 1;
        if let Content::Synthetic { version, .. } = &mut object.content
            && *version == 0
        {
            *version = object.version;
        }
        let object = Arc::new(object);
        self.objects.insert(key.to_owned(), object.clone());
        object
    }

    fn remove(&mut self, key: &[u8]) -> bool {
        let Some(old) = self.objects.remove(key) else { return false };
        if self.retired.len() >= MAX_RETIRED {
            self.retired.clear();
        }
        self.retired.insert(key.to_owned(), old.version);
        true
    }
}

#[derive(Debug, Default)]
pub(crate) struct Store {
    pub(crate) buckets: RwLock<BTreeMap<String, Bucket>>,
}

impl Store {
    /// False when it was there already.
    pub(crate) fn create_bucket(&self, bucket: &str) -> bool {
        let mut buckets = self.buckets.write();
        let new = !buckets.contains_key(bucket);
        buckets.entry(bucket.to_owned()).or_default();
        new
    }

    pub(crate) fn has_bucket(&self, bucket: &str) -> bool {
        self.buckets.read().contains_key(bucket)
    }

    pub(crate) fn get(&self, bucket: &str, key: &[u8]) -> Result<Arc<Object>, Refused> {
        let buckets = self.buckets.read();
        let bucket = buckets.get(bucket).ok_or(Refused::NoSuchBucket)?;
        bucket.objects.get(key).cloned().ok_or(Refused::NoSuchKey)
    }

    pub(crate) fn put(
        &self,
        bucket: &str,
        key: &[u8],
        object: Object,
        condition: &Condition,
    ) -> Result<Arc<Object>, Refused> {
        let mut buckets = self.buckets.write();
        let bucket = buckets.get_mut(bucket).ok_or(Refused::NoSuchBucket)?;
        condition.check(bucket.objects.get(key).map(|o| &**o))?;
        Ok(bucket.insert(key, object))
    }

    /// Puts without a condition, in a bucket made if need be; the new version.
    pub(crate) fn insert(&self, bucket: &str, key: &[u8], object: Object) -> u32 {
        let mut buckets = self.buckets.write();
        buckets.entry(bucket.to_owned()).or_default().insert(key, object).version
    }

    /// Synthetic files, see [`crate::Lab::tree`]; their keys.
    pub(crate) fn tree(
        &self,
        bucket: &str,
        prefix: &str,
        dirs: usize,
        files_per_dir: usize,
        size: u64,
    ) -> Vec<String> {
        let keys = crate::lab::tree_keys(prefix, dirs, files_per_dir);
        let mut buckets = self.buckets.write();
        let bucket = buckets.entry(bucket.to_owned()).or_default();
        for key in &keys {
            bucket.insert(key.as_bytes(), Object::synthetic(crate::stamp::key_id(key), size));
        }
        keys
    }

    /// Changes an object in place (same version, same ETag).
    pub(crate) fn amend(
        &self,
        bucket: &str,
        key: &[u8],
        change: impl FnOnce(&mut Object),
    ) -> Result<(), Refused> {
        let mut buckets = self.buckets.write();
        let bucket = buckets.get_mut(bucket).ok_or(Refused::NoSuchBucket)?;
        let slot = bucket.objects.get_mut(key).ok_or(Refused::NoSuchKey)?;
        change(Arc::make_mut(slot));
        Ok(())
    }

    /// Whether there was such an object.
    pub(crate) fn delete(&self, bucket: &str, key: &[u8], condition: &Condition) -> Result<bool, Refused> {
        let mut buckets = self.buckets.write();
        let bucket = buckets.get_mut(bucket).ok_or(Refused::NoSuchBucket)?;
        condition.check(bucket.objects.get(key).map(|o| &**o))?;
        Ok(bucket.remove(key))
    }
}

/// Milliseconds since the epoch.
pub(crate) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
}
