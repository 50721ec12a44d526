//! [`FsPath`]: the name of a file or directory inside one filesystem.

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};

/// Longest component, in bytes, that a Linux directory entry can hold.
pub const NAME_MAX: usize = 255;

/// A path inside one filesystem: relative to its root, `/`-separated, made of raw bytes.
///
/// The empty path is the root. Every component is a legal Linux file name: not empty, not `.` or `..`,
/// free of `/` and NUL, at most [`NAME_MAX`] bytes. Nothing else is changed or refused: `%`, `~`, `[`, spaces,
/// control characters, composed and decomposed Unicode are kept byte for byte, so a key that is a legal path
/// round-trips from a listing to a read. Keys that no path can name cannot be built here; listings skip and count them.
///
/// Cloning is a reference count. Ordering is the plain byte order of the whole path; listings use
/// [`FsPath::cmp_listing`].
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FsPath(Arc<[u8]>);

impl FsPath {
    /// The root of a filesystem.
    pub fn root() -> Self {
        FsPath(Arc::from(&b""[..]))
    }

    /// Takes `bytes` literally as a path: no pattern, no percent-decoding, no clean-up.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for an empty component (`a//b`, a leading or trailing `/`), `.`, `..` or NUL;
    /// [`ErrorKind::NameTooLong`] for a component longer than [`NAME_MAX`].
    pub fn parse(bytes: impl AsRef<[u8]>) -> Result<Self> {
        let bytes = bytes.as_ref();
        if !bytes.is_empty() {
            bytes.split(|b| *b == b'/').try_for_each(check_name)?;
        }
        Ok(FsPath(Arc::from(bytes)))
    }

    /// Takes what a person typed: like [`FsPath::parse`], but leading, trailing and doubled `/` and `.` components
    /// are dropped first. `..` is still refused.
    ///
    /// # Errors
    /// As [`FsPath::parse`].
    pub fn parse_lenient(text: impl AsRef<[u8]>) -> Result<Self> {
        let mut out = Vec::new();
        for name in text.as_ref().split(|b| *b == b'/').filter(|n| !n.is_empty() && *n != b".") {
            check_name(name)?;
            if !out.is_empty() {
                out.push(b'/');
            }
            out.extend_from_slice(name);
        }
        Ok(FsPath(out.into()))
    }

    /// The child `name` of this directory.
    ///
    /// # Errors
    /// As [`FsPath::parse`]; a `name` that contains `/` is [`ErrorKind::InvalidInput`].
    pub fn join(&self, name: impl AsRef<[u8]>) -> Result<Self> {
        let name = name.as_ref();
        check_name(name)?;
        if self.is_root() {
            return Ok(FsPath(Arc::from(name)));
        }
        Ok(FsPath(Arc::from([&self.0, &b"/"[..], name].concat())))
    }

    /// `self` with the whole of `tail` below it.
    pub fn join_path(&self, tail: &FsPath) -> Self {
        match (self.is_root(), tail.is_root()) {
            (true, _) => tail.clone(),
            (_, true) => self.clone(),
            _ => FsPath(Arc::from([&self.0, &b"/"[..], &tail.0].concat())),
        }
    }

    /// The directory that holds this path; `None` for the root.
    pub fn parent(&self) -> Option<Self> {
        if self.is_root() {
            return None;
        }
        let end = self.0.iter().rposition(|b| *b == b'/').unwrap_or(0);
        Some(FsPath(Arc::from(&self.0[..end])))
    }

    /// The last component; empty for the root.
    pub fn name(&self) -> &[u8] {
        let start = self.0.iter().rposition(|b| *b == b'/').map_or(0, |i| i + 1);
        &self.0[start..]
    }

    /// The components from the root down; none for the root.
    pub fn components(&self) -> impl DoubleEndedIterator<Item = &[u8]> {
        self.0.split(|b| *b == b'/').filter(|c| !c.is_empty())
    }

    /// Number of components; 0 for the root.
    pub fn depth(&self) -> usize {
        if self.is_root() { 0 } else { 1 + self.0.iter().filter(|b| **b == b'/').count() }
    }

    /// What remains of this path below `dir`; `None` if it is not `dir` itself or below it.
    pub fn strip_prefix(&self, dir: &FsPath) -> Option<FsPath> {
        if dir.is_root() {
            return Some(self.clone());
        }
        let rest = self.0.strip_prefix(&*dir.0)?;
        match rest {
            [] => Some(FsPath::root()),
            [b'/', tail @ ..] => Some(FsPath(Arc::from(tail))),
            _ => None,
        }
    }

    /// True for the root.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The raw bytes, without a leading or trailing `/`.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The order of every listing: each component is compared as if it ended in `/`.
    ///
    /// A directory then precedes what is below it, its subtree is contiguous, and a file `a` takes the place where a
    /// directory `a/` would stand: the order in which a store that lists keys can tell that both exist.
    pub fn cmp_listing(&self, other: &FsPath) -> std::cmp::Ordering {
        let a = self.0.iter().chain(b"/");
        a.cmp(other.0.iter().chain(b"/"))
    }
}

fn check_name(name: &[u8]) -> Result<()> {
    let problem = match name {
        b"" => "a path component is empty",
        b"." | b".." => "a path component is `.` or `..`",
        n if n.contains(&0) => "a path component contains NUL",
        n if n.contains(&b'/') => "a path component contains `/`",
        n if n.len() > NAME_MAX => {
            return Err(Error::new(ErrorKind::NameTooLong, "a path component is longer than 255 bytes"));
        }
        _ => return Ok(()),
    };
    Err(Error::new(ErrorKind::InvalidInput, problem))
}

/// Invalid UTF-8 and control characters are shown escaped (`\xff`, `\n`); everything else as it is.
impl fmt::Display for FsPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
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

impl fmt::Debug for FsPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_keeps_every_legal_byte_and_refuses_what_no_path_can_name() {
        for good in
            [&b"a"[..], b"a/b", b"a b+%2F~[x]*", b"\xff\xfe/ok", b"nl\n/tab\t", "é/e\u{301}/🙂".as_bytes()]
        {
            assert_eq!(FsPath::parse(good).unwrap().as_bytes(), good);
        }
        for bad in [&b"/"[..], b"/a", b"a/", b"a//b", b".", b"a/../b", b"a/./b", b"a\0b"] {
            assert_eq!(FsPath::parse(bad).unwrap_err().kind(), ErrorKind::InvalidInput, "{bad:?}");
        }
        assert_eq!(FsPath::parse([b'x'; 256]).unwrap_err().kind(), ErrorKind::NameTooLong);
        assert!(FsPath::parse([b'x'; 255]).is_ok());
        assert!(FsPath::parse("").unwrap().is_root());
    }

    #[test]
    fn lenient_parse_cleans_what_people_type() {
        assert_eq!(FsPath::parse_lenient("//a/./b//").unwrap().as_bytes(), b"a/b");
        assert!(FsPath::parse_lenient("a/../b").is_err());
    }

    #[test]
    fn parent_name_and_prefixes() {
        let p = FsPath::parse("a/b/c").unwrap();
        assert_eq!((p.name(), p.depth()), (&b"c"[..], 3));
        assert_eq!(p.parent().unwrap().as_bytes(), b"a/b");
        assert!(FsPath::parse("a").unwrap().parent().unwrap().is_root());
        assert!(FsPath::root().parent().is_none());
        assert_eq!(p.strip_prefix(&FsPath::parse("a").unwrap()).unwrap().as_bytes(), b"b/c");
        assert!(p.strip_prefix(&FsPath::parse("a/b/c/d").unwrap()).is_none());
        assert!(FsPath::parse("ab").unwrap().strip_prefix(&FsPath::parse("a").unwrap()).is_none());
        assert_eq!(FsPath::parse("a").unwrap().join("b").unwrap().as_bytes(), b"a/b");
        assert!(FsPath::root().join("a/b").is_err());
    }

    #[test]
    fn listing_order_puts_a_file_where_its_directory_would_stand() {
        let mut v: Vec<_> =
            ["out", "out-a", "out.b", "out/x", "outer", "ou"].map(|s| FsPath::parse(s).unwrap()).into();
        v.sort_by(FsPath::cmp_listing);
        let v: Vec<_> = v.iter().map(|p| p.to_string()).collect();
        assert_eq!(v, ["ou", "out-a", "out.b", "out", "out/x", "outer"]);
    }
}
