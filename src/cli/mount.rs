//! `nearfs mount`: a store as a directory.

mod plan;
mod serve;

use std::ffi::OsString;

use clap::Args;

use super::args::Global;
use super::context;
use super::daemon::{self, Parent, Report};
use super::diagnostics::{DONE, Failure, Outcome, note};
use super::telemetry;
use plan::Plan;

/// Show a store, or several, as a directory
///
/// The mount is read-only. The command comes back when the directory answers, says who can read it, and leaves the
/// mount running in the background. A dead mount on the directory is taken over, a live one is refused.
#[derive(Debug, Args)]
pub(crate) struct MountArgs {
    /// The store and the directory; with --map or a single operand the directory alone
    #[arg(required = true, num_args = 1..=2, value_names = ["URL", "DIR"])]
    pub(crate) operands: Vec<OsString>,
    /// Show URL as the directory NAME below DIR; may be repeated
    #[arg(long, value_name = "NAME=URL")]
    pub(crate) map: Vec<OsString>,
    /// Stay in the foreground, and log to standard error
    #[arg(long)]
    pub(crate) foreground: bool,
    /// Allow no writing (always so in this version)
    #[arg(long)]
    pub(crate) read_only: bool,
    /// Not available in this version
    #[arg(long, hide = true)]
    pub(crate) read_write: bool,
    /// Longest time any one call may take
    #[arg(long, value_name = "SPAN")]
    pub(crate) deadline: Option<String>,
    /// How long attributes and directory entries are believed: a span, `0` or `inf`
    #[arg(long, value_name = "SPAN")]
    pub(crate) metadata_ttl: Option<String>,
    /// How long absence is believed
    #[arg(long, value_name = "SPAN")]
    pub(crate) negative_ttl: Option<String>,
    /// Reading ahead: auto or off
    #[arg(long, value_name = "MODE")]
    pub(crate) prefetch: Option<String>,
    /// How the kernel opens files and keeps them: auto, stateless, plain or passthrough
    #[arg(long, value_name = "MODE")]
    pub(crate) open: Option<String>,
    /// Newest version of the FUSE protocol to use, as `7.34`
    #[arg(long, value_name = "VERSION")]
    pub(crate) fuse_protocol: Option<String>,
    /// Let other users read the mount
    #[arg(long)]
    pub(crate) allow_other: bool,
    /// Owner shown for every file
    #[arg(long, value_name = "N")]
    pub(crate) uid: Option<String>,
    /// Group shown for every file
    #[arg(long, value_name = "N")]
    pub(crate) gid: Option<String>,
    /// Permission bits taken away, octal
    #[arg(long, value_name = "MASK")]
    pub(crate) umask: Option<String>,
    /// Refuse to execute files
    #[arg(long, hide = true)]
    pub(crate) noexec: bool,
    /// Options as mount(8) writes them: every long option, with `_` or `-`, separated by commas
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub(crate) options: Vec<OsString>,
}

impl MountArgs {
    /// The settings given, as (key, value, spelling).
    fn settings(&self) -> Vec<(&'static str, String, &'static str)> {
        let text = [
            ("deadline", &self.deadline, "--deadline"),
            ("metadata_ttl", &self.metadata_ttl, "--metadata-ttl"),
            ("negative_ttl", &self.negative_ttl, "--negative-ttl"),
            ("prefetch", &self.prefetch, "--prefetch"),
            ("open", &self.open, "--open"),
            ("fuse_protocol", &self.fuse_protocol, "--fuse-protocol"),
            ("uid", &self.uid, "--uid"),
            ("gid", &self.gid, "--gid"),
            ("umask", &self.umask, "--umask"),
        ];
        let switch = self.allow_other.then(|| ("allow_other", "true".to_owned(), "--allow-other"));
        text.into_iter()
            .filter_map(|(key, value, flag)| Some((key, value.clone()?, flag)))
            .chain(switch)
            .collect()
    }
}

/// Mounts, in the background unless told otherwise. `fake`: only checks what was typed.
pub(crate) fn run(global: &Global, args: &MountArgs, fake: bool) -> Outcome {
    let mut config = context::load(global)?;
    for (key, value, spelling) in args.settings() {
        config.set(key, value, spelling)?;
    }
    let parent = Parent::of(config.environment())?;
    let plan = match Plan::of(args, config) {
        Ok(plan) => plan,
        // The one who waits has worked out the same plan before, but files may have changed in between.
        Err(failure) => return tell(parent, failure),
    };
    if fake {
        return Ok(DONE);
    }
    if let Some(parent) = parent {
        return in_background(global, plan, parent);
    }
    if !args.foreground {
        return match daemon::start()? {
            Report::Ready { line, notes } => {
                if !global.quiet {
                    note(line);
                    notes.iter().for_each(note);
                }
                Ok(DONE)
            }
            Report::Failed { message, hint } => Err(Failure::Message { message, hint }),
        };
    }
    telemetry::init(&plan.settings, global.verbose, None)?;
    let signals = serve::Signals::watch()?;
    let session = plan.start()?;
    if !global.quiet {
        note(plan.ready_line(&session));
    }
    serve::until_stopped(session, signals, || plan.settle())
}

/// The child's part.
fn in_background(global: &Global, plan: Plan, parent: Parent) -> Outcome {
    let started = || {
        parent.detach()?;
        let (log, path) = plan.log_file()?;
        daemon::redirect(&log)?;
        telemetry::init(&plan.settings, global.verbose, Some(log))?;
        let signals = serve::Signals::watch()?;
        Ok((plan.start()?, signals, path))
    };
    let (session, signals, log) = match started() {
        Ok(started) => started,
        Err(failure) => return tell(Some(parent), failure),
    };
    // Nothing of where the command was given is held from now on.
    if let Err(e) = std::env::set_current_dir("/") {
        tracing::warn!(error = %e, "cannot leave the working directory");
    }
    let line = plan.ready_line(&session);
    tracing::info!("{line}");
    let notes = vec![format!("log lines go to {}", log.display())];
    if !parent.tell(&Report::Ready { line, notes }) {
        // Whoever asked for the mount is gone (Ctrl-C): it is not wanted any more.
        tracing::warn!("the process that asked for the mount has gone: unmounting");
        serve::stop(&session)?;
        return Ok(DONE);
    }
    serve::until_stopped(session, signals, || plan.settle())
}

/// Hands `failure` to whoever prints it.
fn tell(parent: Option<Parent>, failure: Failure) -> Outcome {
    match (parent, failure) {
        (Some(parent), Failure::Message { message, hint }) => {
            let failed = Report::Failed { message, hint };
            parent.tell(&failed);
            Err(Failure::Silent(super::diagnostics::FAILED))
        }
        (_, failure) => Err(failure),
    }
}
