//! Settings of stores and of the HTTP client: plain data with a documented default for every field.
//!
//! All of it can be read from a configuration file (unknown keys are errors) or filled in by hand. Nothing here looks
//! at the environment by itself: [`S3Config::from_env_defaults`] asks the function it is given.

mod client;
mod local;
mod retry;
mod s3;

pub use client::ClientConfig;
pub use local::LocalConfig;
pub use retry::RetryConfig;
pub use s3::{S3Config, S3Keys};

/// Durations in a person's words: `5s`, `250ms`, `1m 30s`.
pub(crate) mod human_duration {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(value: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&humantime::format_duration(*value))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        let text = String::deserialize(from)?;
        humantime::parse_duration(&text)
            .map_err(|e| D::Error::custom(format!("`{text}` is not a duration such as `5s` or `250ms`: {e}")))
    }
}

/// Paths as text, taken as a person types them.
pub(crate) mod lenient_path {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use crate::path::FsPath;

    pub(crate) fn serialize<S: Serializer>(value: &FsPath, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(value)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<FsPath, D::Error> {
        FsPath::parse_lenient(String::deserialize(from)?).map_err(D::Error::custom)
    }
}

/// `url` less the name and password that it may hold.
pub(crate) fn without_user(url: &str) -> String {
    match (url.find("://"), url.rfind('@')) {
        (Some(scheme), Some(at)) if at > scheme => format!("{}{}", &url[..scheme + 3], &url[at + 1..]),
        _ => url.to_owned(),
    }
}
