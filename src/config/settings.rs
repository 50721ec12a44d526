//! [`Settings`]: every setting with its meaning, and the table that names them.

use std::path::PathBuf;
use std::time::Duration;

use nearfs_backends::{Error, ErrorKind, Result};
use nearfs_cache::PolicyKind;

use super::cache::{parse_dirs, parse_group, parse_share, parse_size};
use super::size::Size;
use super::span::{parse_span, parse_span_or_inf};

/// How opened files are kept by the kernel (`--open`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OpenMode {
    /// The fastest that is right for the mount. The default.
    #[default]
    Auto,
    /// No round trip to open a file: the kernel keeps pages per version.
    Stateless,
    /// Every open asks the daemon.
    Plain,
    /// The kernel reads files of 1 MiB and more that are wholly in the cache on disk by itself; the others are opened
    /// as with `Plain`.
    Passthrough,
}

/// How log lines are written (`--log-format`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// One readable line each.
    #[default]
    Text,
    /// One JSON object each.
    Json,
}

/// What all sources together say, for the process or for one store. Times are spans, `None` = no end.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each field is described in SETTINGS under its own name")]
pub struct Settings {
    pub memory: Option<Size>,
    pub cache_dir: Vec<PathBuf>,
    pub cache_size: Option<Size>,
    pub cache_free: f64,
    pub cache_group: Option<u32>,
    pub cache_policy: PolicyKind,
    pub metadata_ttl: Option<Duration>,
    pub negative_ttl: Option<Duration>,
    pub deadline: Duration,
    pub prefetch: bool,
    pub hedge: bool,
    pub max_connections: usize,
    pub endpoint_url: Option<String>,
    pub region: Option<String>,
    pub profile: Option<String>,
    pub anonymous: bool,
    pub requester_pays: bool,
    pub path_style: Option<bool>,
    pub ca_bundle: Option<PathBuf>,
    pub connect_timeout: Duration,
    pub first_byte_timeout: Duration,
    pub read_gap_timeout: Duration,
    pub retries: u32,
    pub open: OpenMode,
    pub fuse_protocol: Option<(u32, u32)>,
    pub allow_other: bool,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub umask: u32,
    pub log: String,
    pub log_format: LogFormat,
    pub log_file: Option<PathBuf>,
}

/// Where a setting may stand in `nearfs.toml`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// At the top level only.
    Process,
    /// At the top level (for every store) and in a `[store."URL"]` section.
    Store,
}

/// One setting: its name in `nearfs.toml`, from which the others follow (`--metadata-ttl`, `NEARFS_METADATA_TTL`).
#[derive(Debug)]
pub struct Setting {
    /// Name in `nearfs.toml`.
    pub key: &'static str,
    /// Where it may stand.
    pub scope: Scope,
    /// The value if no source gives one; empty = unset.
    pub default: &'static str,
    /// What it does.
    pub help: &'static str,
    /// It may have several values: an array in `nearfs.toml`, separated by `:` in the environment, the option repeated.
    pub list: bool,
    /// Reads a value into its field.
    pub(super) apply: fn(&mut Settings, &str) -> Result<()>,
}

impl Setting {
    /// The environment variable.
    pub fn env(&self) -> String {
        format!("NEARFS_{}", self.key.to_ascii_uppercase())
    }

    /// The long option.
    pub fn flag(&self) -> String {
        format!("--{}", self.key.replace('_', "-"))
    }
}

macro_rules! settings {
    ($($key:ident $scope:ident $($list:ident)? $default:literal $help:literal $parse:expr;)*) => {
        /// Every setting, in the order of the manual.
        pub const SETTINGS: &[Setting] = &[$(Setting {
            key: stringify!($key),
            scope: Scope::$scope,
            default: $default,
            help: $help,
            // The word `list` stands there or nothing does.
            list: !stringify!($($list)?).is_empty(),
            apply: |settings, text| {
                settings.$key = $parse(text)?;
                Ok(())
            },
        },)*];
    };
}

settings! {
    memory Process "" "memory for cached data over all files, in bytes or percent of RAM (or of the cgroup's limit); unset: the smaller of 2 GiB and a quarter of that limit" parse_some;
    cache_dir Process list "" "directory of the cache on disk, best on a local disk; several (one for each disk) share the objects; unset: `/var/cache/nearfs` for root, else `$XDG_CACHE_HOME/nearfs` (`~/.cache`)" parse_dirs;
    cache_size Process "" "most disk space for cached data, in bytes or percent of the filesystem; `0` keeps nothing on disk; unset: the limit that the directory has, for a new one half of the filesystem" parse_size;
    cache_free Process "5%" "share of the filesystem that the cache leaves free whatever its limit" parse_share;
    cache_group Process "" "group, by name or number, whose members share the directory and trust one another; unset: this user alone" parse_group;
    cache_policy Process "epochs" "what goes first when the disk space is used up: `epochs` keeps as much as it can of data read over and over, `lru` what was read last, `tiny-lfu` what is read most often, `score` weighs size, frequency and age" str::parse;
    metadata_ttl Store "60s" "how long attributes and directory entries are believed; `0` asks every time, `inf` never again" parse_span_or_inf;
    negative_ttl Store "2s" "how long absence is believed" parse_span_or_inf;
    deadline Store "60s" "longest time any one call may take before it fails" parse_deadline;
    prefetch Store "auto" "reading ahead of streams and fetching neighbours of small files: `auto` or `off`" parse_auto;
    hedge Store "auto" "a second request for a read that is far slower than others of its size, at most 3 % of all: `auto` or `off`" parse_auto;
    max_connections Store "128" "most data requests in flight for one store; how many are used follows measurement" parse_connections;
    endpoint_url Store "" "address of the store's API instead of the provider's own" parse_endpoint;
    region Store "" "region of the bucket; unset: from the environment or the profile, else found by asking" parse_text;
    profile Store "" "profile of the shared AWS configuration files" parse_text;
    anonymous Store "false" "send requests without credentials, for public buckets" parse_bool;
    requester_pays Store "false" "agree to pay for requests to requester-pays buckets" parse_bool;
    path_style Store "" "address buckets as `endpoint/bucket` instead of `bucket.endpoint`; unset: for custom endpoints" parse_some_bool;
    ca_bundle Store "" "PEM file of certificate authorities to trust besides the system's" parse_path;
    connect_timeout Store "5s" "longest time to connect" parse_nonzero;
    first_byte_timeout Store "15s" "longest time from a request to the first byte of its answer" parse_nonzero;
    read_gap_timeout Store "15s" "longest gap between two pieces of an answer; there is no limit on a whole transfer" parse_nonzero;
    retries Store "8" "how often a failed request is made again, within the deadline" parse_number;
    open Process "auto" "how the kernel opens files and keeps them: `auto`, `stateless`, `plain` or `passthrough`" parse_open;
    fuse_protocol Process "" "newest version of the FUSE protocol that is used, as `7.34`, for trying what an older kernel would do; unset: all that the kernel has" parse_protocol;
    allow_other Process "false" "let other users read the mount" parse_bool;
    uid Process "" "owner shown for every file; unset: who mounts" parse_some;
    gid Process "" "group shown for every file; unset: that of who mounts" parse_some;
    umask Process "0" "permission bits, octal, that are taken away from files and directories (555, where the store has none); 0 shows files as 444" parse_umask;
    log Process "warn" "which log lines are written: `error`, `warn`, `info`, `debug`, `trace`, or a filter such as `nearfs_cache=debug`" parse_string;
    log_format Process "text" "how log lines are written: `text` or `json`" parse_log_format;
    log_file Process "" "file that log lines are appended to; unset: standard error, for a mount in the background a file of its own" parse_path;
}

/// The setting named `key`.
pub fn setting(key: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|s| s.key == key)
}

/// The name nearest to `name` among `known`, if it is near enough to be a slip.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let scored = known.into_iter().map(|k| (strsim::damerau_levenshtein(name, k), k));
    scored.min_by_key(|(d, _)| *d).filter(|(d, k)| *d <= 1 + k.len().max(name.len()) / 3).map(|(_, k)| k)
}

impl Settings {
    /// All fields empty; [`Config`](super::Config) then applies every setting, defaults included.
    pub(super) fn blank() -> Self {
        Settings {
            memory: None,
            cache_dir: Vec::new(),
            cache_size: None,
            cache_free: 0.0,
            cache_group: None,
            cache_policy: PolicyKind::default(),
            metadata_ttl: None,
            negative_ttl: None,
            deadline: Duration::ZERO,
            prefetch: false,
            hedge: false,
            max_connections: 0,
            endpoint_url: None,
            region: None,
            profile: None,
            anonymous: false,
            requester_pays: false,
            path_style: None,
            ca_bundle: None,
            connect_timeout: Duration::ZERO,
            first_byte_timeout: Duration::ZERO,
            read_gap_timeout: Duration::ZERO,
            retries: 0,
            open: OpenMode::Auto,
            fuse_protocol: None,
            allow_other: false,
            uid: None,
            gid: None,
            umask: 0,
            log: String::new(),
            log_format: LogFormat::Text,
            log_file: None,
        }
    }
}

pub(super) fn bad(text: &str, expected: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, format!("expected {expected}, found `{text}`"))
}

fn parse_bool(text: &str) -> Result<bool> {
    match text.trim() {
        "true" | "yes" | "on" | "1" => Ok(true),
        "false" | "no" | "off" | "0" => Ok(false),
        other => Err(bad(other, "`true` or `false`")),
    }
}

fn parse_some_bool(text: &str) -> Result<Option<bool>> {
    parse_bool(text).map(Some)
}

/// A value whose type explains itself in its own error, or a plain number.
fn parse_some<T: ParseSetting>(text: &str) -> Result<Option<T>> {
    T::parse_setting(text.trim()).map(Some)
}

trait ParseSetting: Sized {
    fn parse_setting(text: &str) -> Result<Self>;
}

impl ParseSetting for Size {
    fn parse_setting(text: &str) -> Result<Self> {
        match text.parse()? {
            Size::Bytes(0) => Err(bad(text, "more than 0 bytes")),
            size => Ok(size),
        }
    }
}

impl ParseSetting for u32 {
    fn parse_setting(text: &str) -> Result<Self> {
        text.parse().map_err(|_| bad(text, "a number from 0 to 4294967295"))
    }
}

fn parse_number(text: &str) -> Result<u32> {
    u32::parse_setting(text.trim())
}

fn parse_connections(text: &str) -> Result<usize> {
    match text.trim().parse() {
        Ok(n) if (1..=1024).contains(&n) => Ok(n),
        _ => Err(bad(text, "a number from 1 to 1024")),
    }
}

fn parse_deadline(text: &str) -> Result<Duration> {
    let span = parse_span(text)?;
    if span < Duration::from_secs(1) {
        return Err(bad(text, "a time span of at least 1s"));
    }
    Ok(span)
}

fn parse_nonzero(text: &str) -> Result<Duration> {
    let span = parse_span(text)?;
    if span.is_zero() { Err(bad(text, "a time span above 0")) } else { Ok(span) }
}

fn parse_auto(text: &str) -> Result<bool> {
    match text.trim() {
        "auto" | "on" | "true" => Ok(true),
        "off" | "false" => Ok(false),
        other => Err(bad(other, "`auto` or `off`")),
    }
}

fn parse_open(text: &str) -> Result<OpenMode> {
    match text.trim() {
        "auto" => Ok(OpenMode::Auto),
        "stateless" => Ok(OpenMode::Stateless),
        "plain" => Ok(OpenMode::Plain),
        "passthrough" => Ok(OpenMode::Passthrough),
        other => Err(bad(other, "`auto`, `stateless`, `plain` or `passthrough`")),
    }
}

fn parse_protocol(text: &str) -> Result<Option<(u32, u32)>> {
    let version = text.trim().split_once('.');
    match version.map(|(major, minor)| (major.parse(), minor.parse())) {
        // Older ones do not exist on any kernel that can mount.
        Some((Ok(7), Ok(minor))) if minor >= 23 => Ok(Some((7, minor))),
        _ => Err(bad(text, "a version from `7.23` on")),
    }
}

fn parse_umask(text: &str) -> Result<u32> {
    u32::from_str_radix(text.trim().trim_start_matches("0o"), 8)
        .ok()
        .filter(|m| *m <= 0o777)
        .ok_or_else(|| bad(text, "an octal number up to 777"))
}

fn parse_log_format(text: &str) -> Result<LogFormat> {
    match text.trim() {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        other => Err(bad(other, "`text` or `json`")),
    }
}

fn parse_string(text: &str) -> Result<String> {
    Ok(text.to_owned())
}

fn parse_text(text: &str) -> Result<Option<String>> {
    if text.trim().is_empty() {
        return Err(bad(text, "a name that is not empty"));
    }
    Ok(Some(text.trim().to_owned()))
}

fn parse_path(text: &str) -> Result<Option<PathBuf>> {
    if text.is_empty() {
        return Err(bad(text, "a path that is not empty"));
    }
    Ok(Some(PathBuf::from(text)))
}

fn parse_endpoint(text: &str) -> Result<Option<String>> {
    let text = text.trim();
    match url::Url::parse(text) {
        Ok(u) if matches!(u.scheme(), "http" | "https") && u.has_host() => {
            Ok(Some(text.trim_end_matches('/').to_owned()))
        }
        _ => Err(bad(text, "an address like `https://host:port`")),
    }
}
