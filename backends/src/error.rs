//! [`Error`]: the one error type of every nearfs crate.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use crate::path::FsPath;

/// Result with [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, by what the caller should do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The store said that nothing has this name. Never used for any other failure. Check the name.
    NotFound,
    /// The credentials are valid but do not allow this, or refusal cannot be told from absence. Ask for rights.
    PermissionDenied,
    /// The store did not accept the credentials (missing, wrong or expired). Renew them.
    Unauthenticated,
    /// The name is taken and the call asked for a new one. Choose another or allow overwriting.
    AlreadyExists,
    /// A directory was needed and something else has this name.
    NotADirectory,
    /// A file was needed and a directory has this name.
    IsADirectory,
    /// The directory still has entries.
    NotEmpty,
    /// The object is no longer the version this handle or condition names. Open it again.
    Stale,
    /// The object is in an archive class and must be restored by the store before it can be read.
    Archived,
    /// The arguments make no sense. Correct the call; the message says how.
    InvalidInput,
    /// A path component is longer than the system allows.
    NameTooLong,
    /// This filesystem cannot do this at all.
    Unsupported,
    /// The filesystem is mounted or opened read-only.
    ReadOnly,
    /// No space or quota is left where the data should go.
    NoSpace,
    /// The store asks to be called less often. Retried with growing pauses; seen when the retries are used up.
    Throttled,
    /// The store failed or could not be reached (5xx, reset, refused, DNS). Seen when the retries are used up.
    Unavailable,
    /// Nothing arrived within the limit for connecting, the first byte, a gap between bytes, or the whole call.
    TimedOut,
    /// The caller was killed or the operation cancelled.
    Interrupted,
    /// What arrived is provably not what was asked for (length, checksum, malformed answer). Nothing was stored.
    Corrupt,
    /// Any other failure; the source tells.
    Other,
}

/// Whether the same call may succeed when made again. Separate from the kind: layers change it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// The same call will fail again.
    Never,
    /// The same call may succeed later; not before the given time where the store named one (`Retry-After`).
    Later(Option<Duration>),
    /// It could have succeeded, but the retries are used up. Nobody below retries again.
    Exhausted,
}

/// The error of every nearfs call: pointer-sized, with a [kind](Error::kind), [retryability](Error::retry), the
/// operation and path it happened on, context lines, and the source.
///
/// `Display` is one line without the source; `{:#}` and [`Error::chain`] add the chain.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    retry: Retry,
    message: String,
    operation: Option<&'static str>,
    path: Option<String>,
    context: Vec<(&'static str, String)>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error of `kind` with a lower-case `message` that names what was expected and found.
    ///
    /// Retry starts as [`Retry::Later`] for `Throttled`, `Unavailable` and `TimedOut`, else [`Retry::Never`].
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let retry = match kind {
            ErrorKind::Throttled | ErrorKind::Unavailable | ErrorKind::TimedOut => Retry::Later(None),
            _ => Retry::Never,
        };
        Error(Box::new(Inner {
            kind,
            retry,
            message: message.into(),
            operation: None,
            path: None,
            context: Vec::new(),
            source: None,
        }))
    }

    /// [`ErrorKind::NotFound`] for `path`.
    pub fn not_found(path: &FsPath) -> Self {
        Error::new(ErrorKind::NotFound, "no such file or directory").at(path)
    }

    /// [`ErrorKind::Unsupported`]: `what` is not possible on this filesystem.
    pub fn unsupported(what: impl Into<String>) -> Self {
        Error::new(ErrorKind::Unsupported, what)
    }

    /// Adds the failure underneath.
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// Sets whether the call may be made again.
    pub fn with_retry(mut self, retry: Retry) -> Self {
        self.0.retry = retry;
        self
    }

    /// Adds the operation (`"stat"`, `"read"`, …); the innermost one stays.
    pub fn during(mut self, operation: &'static str) -> Self {
        self.0.operation.get_or_insert(operation);
        self
    }

    /// Adds the path; the innermost one stays.
    pub fn at(mut self, path: &FsPath) -> Self {
        self.0.path.get_or_insert_with(|| path.to_string());
        self
    }

    /// Replaces the path, for wrappers that show their caller another root.
    pub fn with_path(mut self, path: &FsPath) -> Self {
        self.0.path = Some(path.to_string());
        self
    }

    /// Adds a named detail (`"status"`, `"hint"`, …). Never put secrets, signatures or query strings here.
    pub fn with_context(mut self, key: &'static str, value: impl fmt::Display) -> Self {
        self.0.context.push((key, value.to_string()));
        self
    }

    /// What went wrong.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Whether the same call may succeed later.
    pub fn retry(&self) -> Retry {
        self.0.retry
    }

    /// True if [`Error::retry`] is [`Retry::Later`].
    pub fn is_retryable(&self) -> bool {
        matches!(self.0.retry, Retry::Later(_))
    }

    /// The bare message, without operation, path or context.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The operation that failed, if known.
    pub fn operation(&self) -> Option<&'static str> {
        self.0.operation
    }

    /// The path it failed on, as text, if known.
    pub fn path(&self) -> Option<&str> {
        self.0.path.as_deref()
    }

    /// The value of a context entry.
    pub fn context(&self, key: &str) -> Option<&str> {
        self.0.context.iter().find(|(k, _)| *k == key).map(|(_, v)| v.as_str())
    }

    /// The whole chain as one line: this error, then each source after `: `.
    pub fn chain(&self) -> String {
        let mut out = self.to_string();
        let mut source = self.source();
        while let Some(s) = source {
            let text = s.to_string();
            // Many sources repeat their own source in their text.
            if !out.ends_with(&text) {
                out.push_str(": ");
                out.push_str(&text);
            }
            source = s.source();
        }
        out
    }

    /// A copy for another waiter of the same failed work: all but the source, which becomes text.
    pub fn duplicate(&self) -> Self {
        let inner = &self.0;
        let source = self.source().map(|_| self.chain());
        Error(Box::new(Inner {
            kind: inner.kind,
            retry: inner.retry,
            message: source.unwrap_or_else(|| inner.message.clone()),
            operation: inner.operation,
            path: inner.path.clone(),
            context: inner.context.clone(),
            source: None,
        }))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() {
            return f.write_str(&self.chain());
        }
        if let Some(operation) = self.0.operation {
            write!(f, "{operation} ")?;
        }
        if let Some(path) = &self.0.path {
            write!(f, "`{path}`")?;
        }
        if self.0.operation.is_some() || self.0.path.is_some() {
            f.write_str(": ")?;
        }
        f.write_str(&self.0.message)?;
        for (i, (key, value)) in self.0.context.iter().filter(|(k, _)| *k != "hint").enumerate() {
            write!(f, "{}{key} {value}", if i == 0 { " (" } else { ", " })?;
        }
        if self.0.context.iter().any(|(k, _)| *k != "hint") {
            f.write_str(")")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.0.kind)
            .field("retry", &self.0.retry)
            .field("message", &self.0.message)
            .field("operation", &self.0.operation)
            .field("path", &self.0.path)
            .field("context", &self.0.context)
            .field("source", &self.0.source)
            .finish()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|s| s as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_is_pointer_sized_and_reads_as_one_line() {
        assert_eq!(size_of::<Error>(), size_of::<usize>());
        let e = Error::new(ErrorKind::Unavailable, "the store failed")
            .during("read")
            .at(&FsPath::parse("a/b").unwrap())
            .with_context("status", 503)
            .with_context("hint", "try later")
            .with_source(std::io::Error::other("reset"));
        assert_eq!(e.to_string(), "read `a/b`: the store failed (status 503)");
        assert_eq!(format!("{e:#}"), "read `a/b`: the store failed (status 503): reset");
        assert!(e.is_retryable());
        assert_eq!(e.duplicate().kind(), ErrorKind::Unavailable);
    }
}
