//! An operand that names a place in a store, and how its entries are named back.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use nearfs::{FileSystem, FsPath, Metadata, Result, StoreUrl};

use super::context::Context;
use super::output::escaped;

/// A place in a store.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// As typed.
    pub(crate) typed: Vec<u8>,
    /// The whole store.
    pub(crate) fs: Arc<dyn FileSystem>,
    /// The place in it.
    pub(crate) path: FsPath,
    /// It ended in `/`, `/.` or names a root: only a directory can be meant.
    pub(crate) directory: bool,
}

impl Place {
    /// Opens the store that `operand` names; makes no request for the place itself.
    pub(crate) async fn open(ctx: &Context, operand: &OsStr) -> Result<Self> {
        let typed = operand.as_bytes().to_vec();
        let url = StoreUrl::parse(&typed)?;
        let directory = url.names_directory() || typed.ends_with(b"/.") || typed == b"." || typed == b"..";
        let (fs, path) = ctx.client.locate(&url).await?;
        Ok(Place { typed, fs, path, directory })
    }

    /// What is there.
    ///
    /// # Errors
    /// `NotADirectory` if only a directory could be meant and a file is there; those of `stat`.
    pub(crate) async fn stat(&self) -> Result<Metadata> {
        let metadata = self.fs.stat(&self.path).await?;
        if self.directory && metadata.is_file() {
            return Err(nearfs::Error::new(nearfs::ErrorKind::NotADirectory, "a file, expected a directory"));
        }
        Ok(metadata)
    }

    /// The name of `entry`, somewhere below this place, in the way this place was typed.
    pub(crate) fn name_of(&self, entry: &FsPath) -> Vec<u8> {
        let tail = entry.strip_prefix(&self.path).unwrap_or_else(|| entry.clone());
        let mut name = self.typed.clone();
        if tail.is_root() {
            return name;
        }
        if !name.ends_with(b"/") {
            name.push(b'/');
        }
        name.extend_from_slice(tail.as_bytes());
        name
    }

    /// As typed, safe to print in a message.
    pub(crate) fn shown(&self) -> String {
        shown(OsStr::from_bytes(&self.typed))
    }
}

/// An operand in a message: control characters escaped, and `***` for what stands before an `@` where a host or bucket
/// should be, since that may be a secret.
pub(crate) fn shown(operand: impl AsRef<OsStr>) -> String {
    let text = escaped(operand.as_ref().as_bytes());
    let Some((scheme, rest)) = text.split_once("://") else { return text };
    let end = rest.find('/').unwrap_or(rest.len());
    match rest[..end].rfind('@') {
        Some(at) => format!("{scheme}://***{}", &rest[at..]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_a_secret_is_never_printed() {
        assert_eq!(shown("s3://key:secret@bucket/x@y"), "s3://***@bucket/x@y");
        assert_eq!(shown("s3://bucket/x@y\n"), "s3://bucket/x@y\\n");
        assert_eq!(shown("/local/a@b"), "/local/a@b");
    }
}
