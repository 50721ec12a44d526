//! [`Key`]: the name of one object version in a cache directory.

use std::fmt;

use nearfs_backends::{FsPath, Identity, Version};
use sha2::{Digest, Sha256};

/// SHA-256 over everything that decides which bytes an object has: store, path, version and size; for a part of a
/// huge object its place as well. As hex it is the name of the data file.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Key([u8; 32]);

impl Key {
    /// The key of `path` at `version` with `size` bytes in the store `identity`; `None` for an unknown version,
    /// whose bytes must not be kept.
    pub(crate) fn new(identity: &Identity, path: &FsPath, version: &Version, size: u64) -> Option<Key> {
        let mut hash = Sha256::new();
        hash.update(b"nearfs object 1\0");
        field(&mut hash, identity.endpoint.as_bytes());
        // One object has one key, whichever directory above it is the root of the filesystem that it is read through.
        let url = identity.url.trim_end_matches('/').as_bytes();
        if url.contains(&b'\\') {
            // Bytes that a URL cannot show are escaped in it, so it may look like the path of another object.
            field(&mut hash, url);
            field(&mut hash, path.as_bytes());
        } else {
            field(&mut hash, &[url, path.as_bytes()].join(&b'/'));
        }
        // The kind is part of it: a tag may look like a generation.
        match version {
            Version::Tag(tag) => {
                field(&mut hash, b"tag");
                field(&mut hash, tag.as_bytes());
            }
            Version::Generation(n) => {
                field(&mut hash, b"generation");
                field(&mut hash, &n.to_le_bytes());
            }
            Version::Local { ino, size, mtime_ns } => {
                field(&mut hash, b"local");
                field(&mut hash, &ino.to_le_bytes());
                field(&mut hash, &size.to_le_bytes());
                field(&mut hash, &mtime_ns.to_le_bytes());
            }
            // Unknown, and kinds that this code does not know to tell apart.
            _ => return None,
        }
        hash.update(size.to_le_bytes());
        Some(Key(hash.finalize().into()))
    }

    /// The key of part `number` of this object, cut into parts of `part_size` bytes.
    pub(crate) fn part(&self, part_size: u64, number: u64) -> Key {
        let mut hash = Sha256::new();
        hash.update(b"nearfs part 1\0");
        hash.update(self.0);
        hash.update(part_size.to_le_bytes());
        hash.update(number.to_le_bytes());
        Key(hash.finalize().into())
    }

    /// 64 lower-case hex digits: the name of the data file. [`Key::bucket`] is their first two.
    pub(crate) fn name(&self) -> String {
        use fmt::Write;
        let mut name = String::with_capacity(66);
        for byte in self.0 {
            write!(name, "{byte:02x}").expect("a string takes all that is written");
        }
        name
    }

    /// The name of the state file of a large object.
    pub(crate) fn state_name(&self) -> String {
        self.name() + ".s"
    }

    /// Number of the directory below `objects` that its files are in.
    pub(crate) fn bucket(&self) -> u8 {
        self.0[0]
    }

    /// The key whose data file has this name.
    pub(crate) fn parse(name: &[u8]) -> Option<Key> {
        let digits: &[u8; 64] = name.try_into().ok()?;
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(Key(bytes))
    }

    /// The bytes, as the state file stores them.
    pub(crate) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The words of the index.
    pub(super) fn words(&self) -> [u64; 4] {
        std::array::from_fn(|i| {
            u64::from_le_bytes(self.0[i * 8..][..8].try_into().expect("a word has eight bytes"))
        })
    }

    pub(super) fn from_words(words: [u64; 4]) -> Key {
        let mut bytes = [0; 32];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(words) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        Key(bytes)
    }
}

/// Adds a field of variable length so that no two sequences of fields look alike.
fn field(hash: &mut Sha256, bytes: &[u8]) {
    hash.update((bytes.len() as u64).to_le_bytes());
    hash.update(bytes);
}

/// Lower case only: a name has one spelling.
fn digit(c: u8) -> Option<u8> {
    match c {
        b'0'..=b'9' => Some(c - b'0'),
        b'a'..=b'f' => Some(c - b'a' + 10),
        _ => None,
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name()[..16])
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    fn key(endpoint: &str, url: &str, path: &str, version: Version, size: u64) -> Key {
        let identity = Identity { url: url.into(), endpoint: endpoint.into() };
        Key::new(&identity, &FsPath::parse(path).unwrap(), &version, size).unwrap()
    }

    #[test]
    fn whatever_decides_the_bytes_changes_the_key() {
        let tag = |t: &str| Version::Tag(t.into());
        let keys = [
            key("e", "s3://b", "a/b", tag("1"), 5),
            key("f", "s3://b", "a/b", tag("1"), 5),
            key("e", "s3://c", "a/b", tag("1"), 5),
            key("es", "3://b", "a/b", tag("1"), 5),
            key("e", "s3://b", "a/c", tag("1"), 5),
            key("e", "s3://b", "a/b", tag("2"), 5),
            key("e", "s3://b", "a/b", tag("1"), 6),
            key("e", "s3://b", "a/b", Version::Generation(1), 5),
            key("e", "s3://b", "a/b", Version::Generation(2), 5),
            key("e", "s3://b", "a/b", Version::Local { ino: 1, size: 5, mtime_ns: 1 }, 5),
            key("e", "s3://b", "a/b", Version::Local { ino: 1, size: 5, mtime_ns: -1 }, 5),
            key("e", "s3://b", "a/b", tag("1"), 5).part(1 << 20, 0),
            key("e", "s3://b", "a/b", tag("1"), 5).part(1 << 20, 1),
            key("e", "s3://b", "a/b", tag("1"), 5).part(1 << 21, 0),
        ];
        let distinct: std::collections::HashSet<_> = keys.iter().collect();
        assert_eq!(distinct.len(), keys.len());
        let unknown = Key::new(
            &Identity { url: String::new(), endpoint: String::new() },
            &FsPath::root(),
            &Version::Unknown,
            0,
        );
        assert_eq!(unknown, None);
    }

    #[test]
    fn the_root_of_a_filesystem_does_not_change_the_key() {
        let tag = || Version::Tag("1".into());
        let whole = key("e", "s3://b", "train/a/x", tag(), 5);
        assert_eq!(key("e", "s3://b/train", "a/x", tag(), 5), whole);
        assert_eq!(key("e", "s3://b/train/a/", "x", tag(), 5), whole);
        assert_ne!(key("e", "s3://b/trai", "n/a/x", tag(), 5), whole);
        // `\\xff` in a URL is one byte, in a path it is four.
        assert_ne!(key("e", "s3://b/\\xff", "x", tag(), 5), key("e", "s3://b", "\\xff/x", tag(), 5));
    }

    /// The format on disk: a key of today must be found by a program of tomorrow.
    #[test]
    fn keys_do_not_change_between_versions_of_the_program() {
        let key = key("https://s3", "s3://bucket", "dir/file", Version::Tag("tag".into()), 1000);
        assert_eq!(key.name(), "6006130e24bf0eff57331bb7b78b67d76edf7beb082d9fca9ac5dff692939b98");
    }

    #[test]
    fn names_and_words_lead_back_to_the_key() {
        let key = key("e", "u", "p", Version::Generation(7), 1);
        assert_eq!(Key::parse(key.name().as_bytes()), Some(key));
        assert_eq!(Key::from_words(key.words()), key);
        assert_eq!(key.name()[..2], format!("{:02x}", key.bucket()));
        for bad in [&key.name()[1..], &key.name().to_uppercase(), &key.state_name(), "", ".."] {
            assert_eq!(Key::parse(bad.as_bytes()), None, "{bad}");
        }
    }
}
