//! The one table between [`ErrorKind`] and errno, used by the mount and by Python.

use crate::error::{Error, ErrorKind, Retry};

impl ErrorKind {
    /// The errno a system call reports for this kind.
    pub fn errno(self) -> i32 {
        match self {
            ErrorKind::NotFound => libc::ENOENT,
            ErrorKind::PermissionDenied | ErrorKind::Unauthenticated => libc::EACCES,
            ErrorKind::AlreadyExists => libc::EEXIST,
            ErrorKind::NotADirectory => libc::ENOTDIR,
            ErrorKind::IsADirectory => libc::EISDIR,
            ErrorKind::NotEmpty => libc::ENOTEMPTY,
            // ESTALE, not EIO: programs that know network filesystems open again on it.
            ErrorKind::Stale => libc::ESTALE,
            // The object exists and may not be read now; the log line says that it is archived.
            ErrorKind::Archived => libc::EACCES,
            ErrorKind::InvalidInput => libc::EINVAL,
            ErrorKind::NameTooLong => libc::ENAMETOOLONG,
            ErrorKind::Unsupported => libc::EOPNOTSUPP,
            ErrorKind::ReadOnly => libc::EROFS,
            ErrorKind::NoSpace => libc::ENOSPC,
            // EIO, not EAGAIN or EBUSY: programs take those for a request to spin.
            ErrorKind::Throttled | ErrorKind::Unavailable => libc::EIO,
            ErrorKind::TimedOut => libc::ETIMEDOUT,
            ErrorKind::Interrupted => libc::EINTR,
            ErrorKind::Corrupt | ErrorKind::Other => libc::EIO,
        }
    }

    /// The kind of an errno from a local system call; what the table does not know is [`ErrorKind::Other`].
    pub fn from_errno(errno: i32) -> Self {
        match errno {
            libc::ENOENT => ErrorKind::NotFound,
            libc::EACCES | libc::EPERM => ErrorKind::PermissionDenied,
            libc::EEXIST => ErrorKind::AlreadyExists,
            libc::ENOTDIR => ErrorKind::NotADirectory,
            libc::EISDIR => ErrorKind::IsADirectory,
            libc::ENOTEMPTY => ErrorKind::NotEmpty,
            libc::ESTALE => ErrorKind::Stale,
            libc::EINVAL => ErrorKind::InvalidInput,
            libc::ENAMETOOLONG => ErrorKind::NameTooLong,
            libc::EOPNOTSUPP | libc::ENOSYS | libc::EXDEV => ErrorKind::Unsupported,
            libc::EROFS => ErrorKind::ReadOnly,
            libc::ENOSPC | libc::EDQUOT | libc::EFBIG => ErrorKind::NoSpace,
            libc::ETIMEDOUT => ErrorKind::TimedOut,
            libc::EINTR => ErrorKind::Interrupted,
            _ => ErrorKind::Other,
        }
    }
}

/// A failed local call. Retry is [`Retry::Never`]: a local disk that fails once is not asked again behind the
/// caller's back.
impl From<std::io::Error> for Error {
    fn from(e: std::io::Error) -> Self {
        use std::io::ErrorKind as Io;
        // What was made from a nearfs error travels back unchanged.
        let e = match e.downcast::<Error>() {
            Ok(inner) => return inner,
            Err(e) => e,
        };
        let kind = match (e.raw_os_error(), e.kind()) {
            (Some(errno), _) => ErrorKind::from_errno(errno),
            (None, Io::NotFound) => ErrorKind::NotFound,
            (None, Io::PermissionDenied) => ErrorKind::PermissionDenied,
            (None, Io::AlreadyExists) => ErrorKind::AlreadyExists,
            (None, Io::InvalidInput) => ErrorKind::InvalidInput,
            (None, Io::TimedOut) => ErrorKind::TimedOut,
            (None, Io::UnexpectedEof | Io::InvalidData) => ErrorKind::Corrupt,
            (None, Io::Unsupported) => ErrorKind::Unsupported,
            _ => ErrorKind::Other,
        };
        Error::new(kind, e.to_string()).with_retry(Retry::Never).with_source(e)
    }
}

/// Keeps the error as the inner value; `raw_os_error` is lost, `kind` follows the table.
impl From<Error> for std::io::Error {
    fn from(e: Error) -> Self {
        use std::io::ErrorKind as Io;
        let kind = match e.kind() {
            // `Interrupted` would make `read_exact` and friends spin on a cancelled operation.
            ErrorKind::Interrupted => Io::Other,
            kind => std::io::Error::from_raw_os_error(kind.errno()).kind(),
        };
        std::io::Error::new(kind, e)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errno_round_trips_for_every_kind_that_has_its_own() {
        use ErrorKind::*;
        for kind in [
            NotFound,
            PermissionDenied,
            AlreadyExists,
            NotADirectory,
            IsADirectory,
            NotEmpty,
            Stale,
            InvalidInput,
            NameTooLong,
            Unsupported,
            ReadOnly,
            NoSpace,
            TimedOut,
            Interrupted,
        ] {
            assert_eq!(ErrorKind::from_errno(kind.errno()), kind);
        }
        assert_eq!(Unavailable.errno(), libc::EIO);
        assert_eq!(Archived.errno(), libc::EACCES);
    }

    #[test]
    fn io_error_keeps_the_nearfs_error_inside() {
        let io = std::io::Error::from(Error::new(ErrorKind::Stale, "changed"));
        assert_eq!(Error::from(io).kind(), ErrorKind::Stale);
        let io = std::io::Error::from_raw_os_error(libc::ENOSPC);
        assert_eq!(Error::from(io).kind(), ErrorKind::NoSpace);
        assert_eq!(
            std::io::Error::from(Error::new(ErrorKind::NotFound, "x")).kind(),
            std::io::ErrorKind::NotFound
        );
    }
}
