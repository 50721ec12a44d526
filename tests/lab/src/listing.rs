//! One page of a listing, straight from the ordered map of keys.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::sync::Arc;

use crate::store::Object;

/// What a listing shows, in the order of its bytes.
#[derive(Debug)]
pub(crate) enum Entry {
    Key(Vec<u8>, Arc<Object>),
    /// A common prefix, with the delimiter at its end.
    Prefix(Vec<u8>),
}

impl Entry {
    pub(crate) fn name(&self) -> &[u8] {
        match self {
            Self::Key(name, _) | Self::Prefix(name) => name,
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Page {
    pub(crate) entries: Vec<Entry>,
    /// More entries follow the last one.
    pub(crate) truncated: bool,
}

/// The entries greater than `after`, at most `max`. A common prefix counts as one entry and covers all keys
/// that begin with it, so it is passed over when `after` is that prefix or one of those keys.
pub(crate) fn page(
    objects: &BTreeMap<Vec<u8>, Arc<Object>>,
    prefix: &[u8],
    delimiter: &[u8],
    after: &[u8],
    max: usize,
) -> Page {
    let mut page = Page::default();
    if max == 0 {
        return page;
    }
    let mut from = if after.is_empty() || after < prefix {
        Included(prefix.to_vec())
    } else {
        match common_prefix(after, prefix, delimiter).map(past) {
            Some(Some(next)) => Included(next),
            Some(None) => return page,
            None => Excluded(after.to_vec()),
        }
    };
    while let Some((key, object)) = objects.range((from.clone(), Unbounded)).next() {
        if !key.starts_with(prefix) {
            break;
        }
        // Walk on from here with one iterator until a common prefix makes it jump.
        let mut jump = None;
        for (key, object) in
            std::iter::once((key, object)).chain(objects.range((Excluded(key.clone()), Unbounded)))
        {
            if !key.starts_with(prefix) {
                return page;
            }
            if page.entries.len() == max {
                page.truncated = true;
                return page;
            }
            if let Some(common) = common_prefix(key, prefix, delimiter) {
                page.entries.push(Entry::Prefix(common.to_vec()));
                jump = Some(past(common));
                break;
            }
            page.entries.push(Entry::Key(key.clone(), object.clone()));
        }
        match jump {
            Some(Some(next)) => from = Included(next),
            Some(None) | None => break,
        }
    }
    page
}

/// The part of `key` up to and with the first delimiter after `prefix`.
fn common_prefix<'a>(key: &'a [u8], prefix: &[u8], delimiter: &[u8]) -> Option<&'a [u8]> {
    if delimiter.is_empty() || !key.starts_with(prefix) {
        return None;
    }
    let at = key[prefix.len()..].windows(delimiter.len()).position(|w| w == delimiter)?;
    Some(&key[..prefix.len() + at + delimiter.len()])
}

/// The smallest key greater than every key that begins with `prefix`; none if there is none.
fn past(prefix: &[u8]) -> Option<Vec<u8>> {
    let end = prefix.iter().rposition(|b| *b != 0xff)?;
    let mut next = prefix[..=end].to_vec();
    next[end] += 1;
    Some(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(page: &Page) -> Vec<&str> {
        page.entries.iter().map(|e| std::str::from_utf8(e.name()).unwrap()).collect()
    }

    #[test]
    fn pages_of_any_size_join_to_the_whole() {
        let keys = [
            "a",
            "a-b",
            "a/",
            "a/b",
            "a/b/c",
            "a//d",
            "b/",
            "b/x",
            "b0",
            "c",
            "\u{10ffff}/x",
            "\u{10ffff}/y",
            "~",
        ];
        let objects: BTreeMap<_, _> =
            keys.iter().map(|k| (k.as_bytes().to_vec(), Arc::new(Object::synthetic(1, 1)))).collect();
        for (prefix, delimiter) in [("", ""), ("", "/"), ("a", "/"), ("a/", "/"), ("", "b"), ("x", "/")] {
            let whole = page(&objects, prefix.as_bytes(), delimiter.as_bytes(), b"", 1000);
            assert!(!whole.truncated);
            for max in 1..keys.len() + 2 {
                let (mut all, mut after) = (Vec::new(), Vec::new());
                loop {
                    let part = page(&objects, prefix.as_bytes(), delimiter.as_bytes(), &after, max);
                    assert!(part.entries.len() <= max);
                    all.extend(names(&part).iter().map(ToString::to_string));
                    let Some(last) = part.entries.last() else { break };
                    after = last.name().to_vec();
                    if !part.truncated {
                        break;
                    }
                }
                assert_eq!(all, names(&whole), "prefix {prefix:?} delimiter {delimiter:?} max {max}");
            }
        }
        let root = page(&objects, b"", b"/", b"", 1000);
        assert_eq!(names(&root), ["a", "a-b", "a/", "b/", "b0", "c", "~", "\u{10ffff}/"]);
    }
}
