//! Errors and names, there and back.

use std::sync::Arc;
use std::time::SystemTime;

use object_store::path::Path;
use object_store::{ObjectMeta, UpdateVersion};

use crate::error::{Error, ErrorKind, Result, Retry};
use crate::metadata::{Metadata, Version};
use crate::path::FsPath;

/// The name that `object_store` uses for us in its messages.
pub(super) const NAME: &str = "nearfs";

/// An error of an object store as one of ours.
///
/// Many of its failures arrive as `Generic` with nothing to tell a broken connection from a broken request; they are
/// taken for the former, as a wrong guess then costs some retries and not a training run.
pub(super) fn from_store(e: object_store::Error, operation: &'static str, path: &FsPath) -> Error {
    use object_store::Error as E;
    // What passed through both bridges comes back as it was.
    if let Some(own) = own(&e) {
        return own.with_path(path);
    }
    let kind = match &e {
        E::NotFound { .. } => ErrorKind::NotFound,
        E::InvalidPath { .. } => ErrorKind::InvalidInput,
        E::AlreadyExists { .. } => ErrorKind::AlreadyExists,
        E::Precondition { .. } | E::NotModified { .. } => ErrorKind::Stale,
        E::NotSupported { .. } | E::NotImplemented { .. } => ErrorKind::Unsupported,
        E::PermissionDenied { .. } => ErrorKind::PermissionDenied,
        E::Unauthenticated { .. } => ErrorKind::Unauthenticated,
        E::JoinError { .. } => ErrorKind::Interrupted,
        E::UnknownConfigurationKey { .. } => ErrorKind::InvalidInput,
        E::Generic { source, .. } => generic(&**source),
        _ => ErrorKind::Other,
    };
    let message = match kind {
        ErrorKind::NotFound => "no such file or directory",
        ErrorKind::AlreadyExists => "the name is taken",
        ErrorKind::Stale => "the object is no longer the version that was asked for",
        ErrorKind::Unsupported => "the object store cannot do this",
        _ => "the object store failed",
    };
    Error::new(kind, message).during(operation).at(path).with_source(e)
}

fn own(e: &object_store::Error) -> Option<Error> {
    let source = std::error::Error::source(e)?;
    source.downcast_ref::<Error>().map(Error::duplicate)
}

/// Kind of a failure that only its chain of causes describes.
fn generic(first: &(dyn std::error::Error + 'static)) -> ErrorKind {
    let mut cause = Some(first);
    while let Some(e) = cause {
        if let Some(io) = e.downcast_ref::<std::io::Error>()
            && let Some(errno) = io.raw_os_error()
        {
            // A local disk under the store: its errno says it all.
            return ErrorKind::from_errno(errno);
        }
        cause = e.source();
    }
    ErrorKind::Unavailable
}

/// One of our errors as an error of an object store.
pub(super) fn to_store(e: Error, path: &Path) -> object_store::Error {
    use object_store::Error as E;
    let (path, source) =
        (path.to_string(), |e: Error| -> Box<dyn std::error::Error + Send + Sync> { Box::new(e) });
    match e.kind() {
        // Objects in the way of directories and the reverse: for a store of keys there is nothing of that name.
        ErrorKind::NotFound | ErrorKind::IsADirectory => E::NotFound { path, source: source(e) },
        ErrorKind::AlreadyExists => E::AlreadyExists { path, source: source(e) },
        ErrorKind::Stale => E::Precondition { path, source: source(e) },
        ErrorKind::PermissionDenied | ErrorKind::ReadOnly | ErrorKind::Archived => {
            E::PermissionDenied { path, source: source(e) }
        }
        ErrorKind::Unauthenticated => E::Unauthenticated { path, source: source(e) },
        ErrorKind::Unsupported => E::NotSupported { source: source(e) },
        _ => E::Generic { store: NAME, source: source(e) },
    }
}

/// Our path for an object's; `None` if no path can name it.
pub(super) fn path_of(location: &Path) -> Option<FsPath> {
    FsPath::parse(location.as_ref()).ok()
}

/// An object's path for ours.
///
/// # Errors
/// `InvalidInput` for bytes that the crate's paths cannot hold: control characters and invalid UTF-8.
pub(super) fn location_of(path: &FsPath, operation: &'static str) -> Result<Path> {
    let text = str::from_utf8(path.as_bytes()).map_err(|e| {
        Error::new(ErrorKind::InvalidInput, "an object store cannot hold a name that is not valid UTF-8")
            .with_source(e)
    });
    text.and_then(|text| {
        Path::parse(text).map_err(|e| {
            Error::new(ErrorKind::InvalidInput, "an object store cannot hold this name").with_source(e)
        })
    })
    .map_err(|e| e.during(operation).at(path))
}

/// The identity of an object: its strong ETag without quotes, so that the spellings of lists and headers are equal.
pub(super) fn version_of(meta: &ObjectMeta) -> Version {
    match meta.e_tag.as_deref() {
        Some(weak) if weak.starts_with("W/") => Version::Unknown,
        Some(tag) => Version::Tag(Arc::from(tag.trim_matches('"'))),
        None => Version::Unknown,
    }
}

/// Metadata of an object.
pub(super) fn metadata_of(meta: &ObjectMeta) -> Metadata {
    let modified = Some(SystemTime::from(meta.last_modified));
    Metadata { modified, ..Metadata::file(meta.size, version_of(meta)) }
}

/// The version as an ETag, in quotes as HTTP has them; the kind of version is part of it, so that none can be taken
/// for another.
pub(super) fn tag_of(version: &Version) -> Option<String> {
    match version {
        Version::Tag(tag) => Some(format!("\"{tag}\"")),
        Version::Generation(n) => Some(format!("\"generation-{n}\"")),
        Version::Local { .. } => Some(format!("\"local-{version}\"")),
        Version::Unknown => None,
    }
}

/// The description of a file as an object.
pub(super) fn object_of(location: Path, metadata: &Metadata) -> ObjectMeta {
    ObjectMeta {
        location,
        // The epoch for "not known": the type has no other word for it.
        last_modified: metadata.modified.unwrap_or(SystemTime::UNIX_EPOCH).into(),
        size: metadata.size,
        e_tag: tag_of(&metadata.version),
        version: None,
    }
}

/// Whether `version` is the one that a conditional put names.
pub(super) fn is_version(version: &Version, wanted: &UpdateVersion) -> bool {
    let tag = tag_of(version);
    tag.is_some() && tag == wanted.e_tag
}

/// A transfer that stopped before its end: worth trying again.
pub(super) fn cut_short(missing: u64, path: &FsPath) -> Error {
    Error::new(ErrorKind::Corrupt, format!("the body ended {missing} bytes early"))
        .with_retry(Retry::Later(None))
        .during("read")
        .at(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_keep_their_meaning_there_and_back() {
        use ErrorKind::*;
        let path = FsPath::parse("a/b").unwrap();
        let location = Path::parse("a/b").unwrap();
        for kind in [
            NotFound,
            AlreadyExists,
            Stale,
            PermissionDenied,
            Unauthenticated,
            Unsupported,
            Unavailable,
            Throttled,
            TimedOut,
            Corrupt,
            NoSpace,
            IsADirectory,
            Archived,
            ReadOnly,
        ] {
            let there = to_store(Error::new(kind, "x").with_retry(Retry::Exhausted), &location);
            let back = from_store(there, "read", &path);
            assert_eq!((back.kind(), back.retry()), (kind, Retry::Exhausted));
        }
        let foreign = object_store::Error::Generic { store: "S3", source: "connection reset".into() };
        assert!(from_store(foreign, "read", &path).is_retryable());
        let full = object_store::Error::Generic {
            store: "LocalFileSystem",
            source: Box::new(std::io::Error::from_raw_os_error(libc::ENOSPC)),
        };
        assert_eq!(from_store(full, "write", &path).kind(), NoSpace);
    }

    #[test]
    fn names_that_the_other_side_cannot_hold_are_refused_and_never_changed() {
        for name in ["a b", "%2F", "[x]~*", "e\u{301}", "\u{1f642}"] {
            let path = FsPath::parse(name).unwrap();
            let location = location_of(&path, "stat").unwrap();
            assert_eq!((location.as_ref(), path_of(&location)), (name, Some(path)));
        }
        for name in [&b"nl\n"[..], b"\xff", b"\x7f"] {
            let e = location_of(&FsPath::parse(name).unwrap(), "stat").unwrap_err();
            assert_eq!(e.kind(), ErrorKind::InvalidInput);
        }
        assert_eq!(path_of(&Path::parse("x".repeat(256)).unwrap()), None);
    }

    #[test]
    fn versions_are_normalised_and_kinds_of_versions_stay_apart() {
        let meta = |tag: &str| ObjectMeta {
            location: Path::default(),
            last_modified: SystemTime::UNIX_EPOCH.into(),
            size: 1,
            e_tag: Some(tag.into()),
            version: None,
        };
        assert_eq!(version_of(&meta("\"abc\"")), version_of(&meta("abc")));
        assert_eq!(version_of(&meta("W/\"abc\"")), Version::Unknown);
        assert_ne!(tag_of(&Version::Generation(7)), tag_of(&Version::Tag("7".into())));
    }
}
