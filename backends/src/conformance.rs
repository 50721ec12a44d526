//! The public conformance suite: every rule of [`FileSystem`] and [`File`](crate::File), checked on your filesystem.
//!
//! ```
//! # use std::sync::Arc;
//! # use nearfs_backends::conformance::{self, Options};
//! # use nearfs_backends::{FileSystem, MemoryFileSystem};
//! # async fn test() {
//! let make = || async { Arc::new(MemoryFileSystem::new()) as Arc<dyn FileSystem> };
//! let report = conformance::run(make, Options::default()).await;
//! println!("{report}");
//! report.assert_passed();
//! # }
//! ```
//!
//! Every check gets its own filesystem and runs to its end or to its first broken rule; one failure never hides
//! another check. A check that does not apply to a filesystem (by its [`Capabilities`]) is reported as such, with the
//! reason, and counted: nothing is skipped in silence.

mod directories;
mod errors;
mod listing;
mod names;
mod pinning;
mod reads;
mod relocate;
mod removal;
mod stress;
mod subject;
mod writes;

use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::LocalBoxFuture;

use crate::capability::Capabilities;
use crate::fs::FileSystem;
use subject::{Problem, Subject, Verdict};

/// How hard the suite tries, and what the store behind a filesystem cannot hold.
#[derive(Debug, Clone)]
pub struct Options {
    /// Files of the largest listing. More than the page of the store, so that paging is seen. Default: 1 200.
    pub many: usize,
    /// Files deleted in one call. More than one bulk request of the store. Default: 1 500.
    pub bulk: usize,
    /// Bytes of the largest file written. More than two parts of the store's upload. Default: 20 MiB.
    pub large: usize,
    /// Tasks that work side by side. Default: 32.
    pub tasks: usize,
    /// Longest time one check may take before it counts as hanging. Default: 120 s.
    pub check_limit: Duration,
    /// Names (single components) that the store is known to refuse; the check of names then demands an orderly
    /// refusal of exactly these. Names with control characters or invalid UTF-8 may always be refused. Default: none.
    pub refused_names: Vec<Vec<u8>>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            many: 1_200,
            bulk: 1_500,
            large: 20 << 20,
            tasks: 32,
            check_limit: Duration::from_secs(120),
            refused_names: Vec::new(),
        }
    }
}

/// How one check ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Every rule held.
    Passed,
    /// The filesystem cannot do what the check is about; the text says why.
    NotApplicable(String),
    /// A rule was broken, or the check hung or panicked; the text says which and how.
    Failed(String),
}

/// The result of every check, in the order they ran.
#[derive(Debug, Clone)]
pub struct Report {
    /// What was checked.
    pub filesystem: String,
    /// Its capabilities.
    pub capabilities: Capabilities,
    /// Name, outcome and duration of each check.
    pub checks: Vec<(&'static str, Outcome, Duration)>,
}

impl Report {
    /// Number of checks that passed.
    pub fn passed(&self) -> usize {
        self.checks.iter().filter(|(_, o, _)| *o == Outcome::Passed).count()
    }

    /// The checks that did not apply, with the reason.
    pub fn not_applicable(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.checks.iter().filter_map(|(name, outcome, _)| match outcome {
            Outcome::NotApplicable(reason) => Some((*name, reason.as_str())),
            _ => None,
        })
    }

    /// The checks that failed, with what went wrong.
    pub fn failures(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.checks.iter().filter_map(|(name, outcome, _)| match outcome {
            Outcome::Failed(what) => Some((*name, what.as_str())),
            _ => None,
        })
    }

    /// # Panics
    /// With the whole report, if a check failed.
    pub fn assert_passed(&self) {
        assert!(self.failures().next().is_none(), "{self}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "conformance of {}", self.filesystem)?;
        for (name, outcome, took) in &self.checks {
            match outcome {
                Outcome::Passed => writeln!(f, "  ok    {name} ({} ms)", took.as_millis())?,
                Outcome::NotApplicable(reason) => writeln!(f, "  n/a   {name}: {reason}")?,
                Outcome::Failed(what) => writeln!(f, "  FAIL  {name}: {what}")?,
            }
        }
        let (failed, not_applicable) = (self.failures().count(), self.not_applicable().count());
        write!(f, "{} passed, {failed} failed, {not_applicable} not applicable", self.passed())
    }
}

type Check = for<'a> fn(&'a Subject) -> LocalBoxFuture<'a, Verdict>;

macro_rules! checks {
    ($($module:ident :: { $($name:ident),* $(,)? }),* $(,)?) => {
        &[$($((
            concat!(stringify!($module), "::", stringify!($name)),
            {
                fn check(s: &Subject) -> LocalBoxFuture<'_, Verdict> {
                    Box::pin($module::$name(s))
                }
                check as Check
            },
        )),*),*]
    };
}

const CHECKS: &[(&str, Check)] = checks![
    names::{
        odd_names_round_trip, odd_directory_names_round_trip, names_that_differ_stay_apart,
        long_paths_work_or_are_refused, directory_wins_over_a_file_of_its_name,
    },
    listing::{
        the_root_exists_and_starts_empty, one_level_in_order_each_name_once, subtree_in_order_directories_first,
        start_after_gives_exactly_the_rest, listing_what_is_missing_or_a_file, stat_listing_and_open_agree,
        stat_tells_kinds_and_absence, directories_that_exist_only_as_prefixes, many_entries_come_exactly_once,
        a_dropped_listing_disturbs_nobody,
    },
    reads::{
        ranges_are_clamped_to_the_size, all_ways_of_reading_agree, read_ranges_keeps_the_order,
        read_into_appends_and_returns_the_buffer, an_empty_file_has_no_bytes, opening_what_is_no_file,
        opening_with_known_metadata, descriptors_hold_the_same_bytes, many_readers_of_one_file,
    },
    pinning::{
        a_replaced_file_is_old_or_stale, a_deleted_file_is_old_or_stale, a_stream_never_mixes_versions,
        an_old_version_is_never_served_as_the_new, versions_tell_contents_apart,
    },
    writes::{
        nothing_is_visible_before_finish, an_aborted_file_leaves_nothing, a_dropped_writer_leaves_nothing,
        large_files_arrive_whole, small_and_empty_chunks_add_up, condition_absent, condition_version,
        only_one_of_many_creators_wins, the_last_of_two_writers_wins, creating_where_a_directory_is,
    },
    removal::{
        deleting_is_idempotent, every_path_gets_its_result, a_directory_is_not_deleted_as_a_file,
        the_last_file_of_a_directory,
    },
    relocate::{
        rename_moves_the_whole_file, copy_leaves_the_source, no_replace_keeps_the_target,
        a_missing_source_changes_nothing, renaming_to_itself_loses_nothing, directories_and_rename,
    },
    directories::{
        an_empty_directory_is_kept, create_dir_refuses_what_exists, remove_dir_removes_only_empty_ones,
    },
    errors::{errors_name_operation_and_path, absence_is_final, writes_are_refused_where_not_possible},
    stress::{identity_and_capabilities_are_stable, many_tasks_side_by_side, cancelled_calls_leave_order},
];

/// Runs every check, each on a filesystem of its own that `make` gives, which must be empty.
///
/// Must run inside a tokio runtime with timers. Never fails by itself: look at the [`Report`].
pub async fn run<M, F>(make: M, options: Options) -> Report
where
    M: Fn() -> F,
    F: Future<Output = Arc<dyn FileSystem>>,
{
    run_named(make, options, |_| true).await
}

/// Like [`run`], only the checks whose name (`module::check`) `select` accepts: for finding a fault.
pub async fn run_named<M, F>(make: M, options: Options, select: impl Fn(&str) -> bool) -> Report
where
    M: Fn() -> F,
    F: Future<Output = Arc<dyn FileSystem>>,
{
    let mut report =
        Report { filesystem: String::new(), capabilities: Capabilities::default(), checks: Vec::new() };
    for (name, check) in CHECKS.iter().filter(|(name, _)| select(name)) {
        let filesystem = make().await;
        if report.checks.is_empty() {
            report.filesystem = format!("{} ({filesystem:?})", filesystem.identity());
            report.capabilities = filesystem.capabilities();
        }
        let subject = Subject::new(filesystem, options.clone());
        let started = Instant::now();
        let guarded = AssertUnwindSafe(check(&subject)).catch_unwind();
        let outcome = match tokio::time::timeout(options.check_limit, guarded).await {
            Ok(Ok(Ok(()))) => Outcome::Passed,
            Ok(Ok(Err(Problem::NotApplicable(reason)))) => Outcome::NotApplicable(reason),
            Ok(Ok(Err(Problem::Failed(what)))) => Outcome::Failed(what),
            Ok(Err(panic)) => Outcome::Failed(format!("panicked: {}", panic_text(&*panic))),
            Err(_) => Outcome::Failed(format!("still running after {:?}", options.check_limit)),
        };
        report.checks.push((name, outcome, started.elapsed()));
    }
    report
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
