//! [`Origin`]: where the value of a setting came from.

use std::fmt;
use std::path::PathBuf;

/// Where a value came from, strongest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// An option on the command line, or a setter of the builder.
    Flag(String),
    /// An environment variable.
    Env(String),
    /// A `[store."URL"]` section of a file.
    Section(PathBuf, String),
    /// The top level of a file.
    File(PathBuf),
    /// Nobody said anything.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Flag(name) => write!(f, "option {name}"),
            Origin::Env(name) => write!(f, "environment {name}"),
            Origin::Section(path, url) => write!(f, "{} [store.\"{url}\"]", path.display()),
            Origin::File(path) => write!(f, "{}", path.display()),
            Origin::Default => f.write_str("default"),
        }
    }
}

/// One setting with the value that is in force, for `config show`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Name in `nearfs.toml`.
    pub key: &'static str,
    /// The value as text; empty = unset. Of several values it is the form of the environment.
    pub value: String,
    /// The values, of a setting that may have several and has one at least.
    pub list: Option<Vec<String>>,
    /// Where it came from.
    pub origin: Origin,
}
