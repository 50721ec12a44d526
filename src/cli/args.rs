//! What can be typed: the grammar of the command line. What it means is worked out by each command.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand};
use nearfs::config::Config;

use super::{
    cache, cat, completions, config, cp, doctor, du, find, head, ls, mount, mounts, stat, stats, unmount,
};

/// Object storage as one filesystem, read at local-disk speed.
///
/// URLs are taken literally: s3://bucket/path, file:///path or a plain path, memory:///name.
#[derive(Debug, Parser)]
#[command(
    name = "nearfs",
    bin_name = "nearfs",
    version,
    args_override_self = true,
    subcommand_required = true,
    arg_required_else_help = true,
    disable_help_subcommand = false,
    after_help = "Two bare operands mean mount: `nearfs s3://bucket/prefix /data -o allow_other`.\n\
                  Exit codes: 0 done, 1 done in part, 2 wrong use or failed, 130 on Ctrl-C."
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Options before or after the verb.
#[derive(Debug, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// Read this configuration file and no other
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Memory for cached data, as `2GiB` or `25%`
    #[arg(long, global = true, value_name = "SIZE")]
    pub(crate) memory: Option<String>,
    /// Directory of the cache on disk; may be repeated, one for each disk
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) cache_dir: Vec<String>,
    /// Most disk space for cached data, as `20GiB` or `80%`; 0 keeps nothing on disk
    #[arg(long, global = true, value_name = "SIZE")]
    pub(crate) cache_size: Option<String>,
    /// Share of the filesystem that the cache leaves free, as `5%`
    #[arg(long, global = true, value_name = "SHARE")]
    pub(crate) cache_free: Option<String>,
    /// Group whose members share the cache directory
    #[arg(long, global = true, value_name = "GROUP")]
    pub(crate) cache_group: Option<String>,
    /// What goes first when the disk space is used up: epochs, lru, tiny-lfu or score
    #[arg(long, global = true, value_name = "POLICY")]
    pub(crate) cache_policy: Option<String>,
    /// Profile of the shared AWS configuration files
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) profile: Option<String>,
    /// Address of the store's API
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) endpoint_url: Option<String>,
    /// Region of the bucket
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) region: Option<String>,
    /// Send requests without credentials
    #[arg(long, global = true, visible_alias = "no-sign-request")]
    pub(crate) anonymous: bool,
    /// Agree to pay for requests to requester-pays buckets
    #[arg(long, global = true)]
    pub(crate) requester_pays: bool,
    /// Address buckets as `endpoint/bucket`
    #[arg(long, global = true)]
    pub(crate) path_style: bool,
    /// PEM file of certificate authorities to trust besides the system's
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) ca_bundle: Option<String>,
    /// Log lines to write: error, warn, info, debug, trace, or a filter such as `nearfs_cache=debug`
    #[arg(long, global = true, value_name = "FILTER")]
    pub(crate) log: Option<String>,
    /// How log lines are written: text or json
    #[arg(long, global = true, value_name = "FORMAT")]
    pub(crate) log_format: Option<String>,
    /// Append log lines to this file
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) log_file: Option<String>,
    /// Print data as JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Print no progress and no notes
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    /// Log more; twice for everything
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,
}

impl Global {
    /// Puts the settings given into `config`.
    pub(crate) fn apply(&self, config: &mut Config) -> nearfs::Result<()> {
        if !self.cache_dir.is_empty() {
            config.set_list("cache_dir", &self.cache_dir, "--cache-dir")?;
        }
        self.settings().into_iter().try_for_each(|(key, value, spelling)| config.set(key, value, spelling))
    }

    /// The settings with one value, as (key, value, spelling).
    fn settings(&self) -> Vec<(&'static str, String, &'static str)> {
        let text = [
            ("memory", &self.memory, "--memory"),
            ("cache_size", &self.cache_size, "--cache-size"),
            ("cache_free", &self.cache_free, "--cache-free"),
            ("cache_group", &self.cache_group, "--cache-group"),
            ("cache_policy", &self.cache_policy, "--cache-policy"),
            ("profile", &self.profile, "--profile"),
            ("endpoint_url", &self.endpoint_url, "--endpoint-url"),
            ("region", &self.region, "--region"),
            ("ca_bundle", &self.ca_bundle, "--ca-bundle"),
            ("log", &self.log, "--log"),
            ("log_format", &self.log_format, "--log-format"),
            ("log_file", &self.log_file, "--log-file"),
        ];
        let switches = [
            ("anonymous", self.anonymous, "--anonymous"),
            ("requester_pays", self.requester_pays, "--requester-pays"),
            ("path_style", self.path_style, "--path-style"),
        ];
        let text = text.into_iter().filter_map(|(key, value, flag)| Some((key, value.clone()?, flag)));
        let switches =
            switches.into_iter().filter(|s| s.1).map(|(key, _, flag)| (key, "true".to_owned(), flag));
        text.chain(switches).collect()
    }
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Mount(Box<mount::MountArgs>),
    #[command(visible_alias = "umount")]
    Unmount(unmount::UnmountArgs),
    Mounts(mounts::MountsArgs),
    Stats(stats::StatsArgs),
    Ls(ls::LsArgs),
    Stat(stat::StatArgs),
    Cat(cat::CatArgs),
    Head(head::HeadArgs),
    Cp(cp::CpArgs),
    Find(find::FindArgs),
    Du(du::DuArgs),
    Cache(cache::CacheArgs),
    Config(config::ConfigArgs),
    Doctor(doctor::DoctorArgs),
    Completions(completions::CompletionsArgs),
}

/// Operands that name places in stores.
#[derive(Debug, Args)]
pub(crate) struct Urls {
    /// Places, as URLs or local paths
    #[arg(required = true, value_name = "URL")]
    pub(crate) urls: Vec<OsString>,
}
