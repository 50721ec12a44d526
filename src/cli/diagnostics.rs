//! What people are told when something goes wrong: one line, then `hint: …`.

use std::fmt::Display;
use std::io::Write;

use nearfs::{Error, ErrorKind};

/// Exit code: everything was done.
pub(crate) const DONE: u8 = 0;
/// Exit code: some of it was done.
pub(crate) const PARTIAL: u8 = 1;
/// Exit code: wrong use, or nothing was done.
pub(crate) const FAILED: u8 = 2;
/// Exit code of a mount helper that failed, as mount(8) expects it.
pub(crate) const MOUNT_FAILED: u8 = 32;
/// Exit code: ended by Ctrl-C.
pub(crate) const INTERRUPTED: u8 = 130;

/// Why a command ends early.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Something went wrong; printed once, at the end.
    Message {
        /// Lower case, names the thing.
        message: String,
        /// What to do about it.
        hint: Option<String>,
    },
    /// Whoever reads our output has gone: a success.
    BrokenPipe,
    /// Everything has been printed already.
    Silent(u8),
}

impl Failure {
    /// A failure with a hint.
    pub(crate) fn new(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Failure::Message { message: message.into(), hint: Some(hint.into()) }
    }

    /// A failure without one.
    pub(crate) fn plain(message: impl Into<String>) -> Self {
        Failure::Message { message: message.into(), hint: None }
    }

    /// `error`, said of `what` (a URL, a file).
    pub(crate) fn about(what: impl Display, error: &Error) -> Self {
        Failure::Message { message: format!("{what}: {}", describe(error)), hint: hint(error) }
    }

    /// Prints it and gives the exit code.
    pub(crate) fn report(&self) -> u8 {
        match self {
            Failure::Message { message, hint } => {
                complain(message, hint.as_deref());
                FAILED
            }
            Failure::BrokenPipe => DONE,
            Failure::Silent(code) => *code,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Message { message: format!("{error:#}"), hint: hint(&error) }
    }
}

/// Result of a command: its exit code, or why it ended early.
pub(crate) type Outcome<T = u8> = Result<T, Failure>;

/// The whole error chain without the path, which the caller names better.
pub(crate) fn describe(error: &Error) -> String {
    let chain = format!("{error:#}");
    match (error.operation(), error.path()) {
        (Some(op), Some(path)) => {
            chain.strip_prefix(&format!("{op} `{path}`: ")).unwrap_or(&chain).to_owned()
        }
        (None, Some(path)) => chain.strip_prefix(&format!("`{path}`: ")).unwrap_or(&chain).to_owned(),
        (Some(op), None) => chain.strip_prefix(&format!("{op} : ")).unwrap_or(&chain).to_owned(),
        (None, None) => chain,
    }
}

/// The error's own hint, or what usually helps with its kind.
pub(crate) fn hint(error: &Error) -> Option<String> {
    if let Some(hint) = error.context("hint") {
        return Some(hint.to_owned());
    }
    let text = match error.kind() {
        ErrorKind::Unauthenticated => {
            "check the credentials: `nearfs doctor URL` says which are used and where they come from"
        }
        ErrorKind::PermissionDenied => {
            "the credentials are valid but do not allow this: ask for the right to list and read"
        }
        ErrorKind::Archived => "restore the object in the store first",
        ErrorKind::TimedOut | ErrorKind::Unavailable => "`nearfs doctor URL` checks the connection",
        ErrorKind::Throttled => "the store limits the rate of requests: try later or lower `max_connections`",
        _ => return None,
    };
    Some(text.to_owned())
}

/// Prints `error: …` and `hint: …` on standard error.
pub(crate) fn complain(message: &str, hint: Option<&str>) {
    let mut text = format!("error: {message}\n");
    if let Some(hint) = hint {
        text.push_str(&format!("hint: {hint}\n"));
    }
    note_raw(&text);
}

/// Prints a line on standard error.
pub(crate) fn note(line: impl Display) {
    note_raw(&format!("{line}\n"));
}

/// One write, so that lines of several processes do not mix. A closed standard error is nobody's problem.
fn note_raw(text: &str) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}
