//! The command line: one command a file. Each takes what was typed (its `…Args`) and works out what it means.

mod args;
mod cache;
mod cat;
mod completions;
mod config;
mod context;
mod cp;
mod daemon;
mod diagnostics;
mod doctor;
mod du;
mod expand;
mod find;
mod head;
mod ls;
mod mount;
mod mounts;
mod output;
mod place;
mod progress;
mod stat;
mod stats;
mod telemetry;
mod unmount;

use std::process::ExitCode;
use std::time::Duration;

use args::{Cli, Command};
use context::Context;
use diagnostics::{DONE, FAILED, Failure, INTERRUPTED, MOUNT_FAILED, Outcome};
use expand::{Parsed, Refused};

/// How long a command that is done may take to put what it fetched into the cache.
const SETTLE: Duration = Duration::from_secs(10);

/// Everything between the process's start and its exit code.
pub(crate) fn main() -> ExitCode {
    let argv: Vec<_> = std::env::args_os().collect();
    let helper = argv.first().is_some_and(|name| expand::is_helper(name));
    let code = match expand::parse(argv) {
        Ok(parsed) => run(parsed),
        Err(Refused::Failure(failure)) => failure.report(),
        Err(Refused::Clap(error)) => {
            // Prints help to stdout and errors to stderr; a closed pipe is nobody's problem.
            let _ = error.print();
            if error.use_stderr() { FAILED } else { DONE }
        }
    };
    ExitCode::from(if helper && code != DONE { MOUNT_FAILED } else { code })
}

/// Connections and open local files need descriptors; the soft limit is that of old programs that cannot count.
fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        // Refused: then the limit stays, and `doctor` says so if it is low.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    }
}

fn run(parsed: Parsed) -> u8 {
    raise_open_files();
    let Parsed { cli: Cli { global, command }, fake } = parsed;
    // A mount goes into the background before any thread exists, so it is no task like the others.
    if let Command::Mount(args) = command {
        return mount::run(&global, &args, fake).unwrap_or_else(|failure| failure.report());
    }
    let prepared = context::load(&global).and_then(|config| {
        telemetry::init(&config.settings(None)?, global.verbose, None)?;
        Ok(config)
    });
    let config = match prepared {
        Ok(config) => config,
        Err(failure) => return failure.report(),
    };
    let (out, writer) = output::channel();
    let ctx = Context::new(global, config, out);
    let interrupt = ctx.interrupt.clone();
    let task = std::thread::spawn(move || {
        nearfs::blocking::wait(async move {
            // Lives on after the command: standard output may still be waiting for its reader.
            tokio::spawn(context::watch_for_interrupt(ctx.interrupt.clone()));
            Ok(dispatch(ctx, command).await)
        })
    });
    let written = writer.run();
    let outcome = match task.join() {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Err(Failure::plain("a part of nearfs panicked; this is a bug")),
    };
    if let Err(e) = written {
        return Failure::plain(format!("cannot write to standard output: {e}")).report();
    }
    if interrupt.is_cancelled() {
        return INTERRUPTED;
    }
    outcome.unwrap_or_else(|failure| failure.report())
}

async fn dispatch(ctx: Context, command: Command) -> Outcome {
    let interrupt = ctx.interrupt.clone();
    let client = ctx.client.clone();
    // Copies stop by themselves, so that nothing half-done stays.
    if let Command::Cp(args) = command {
        let outcome = cp::run(&ctx, args).await;
        drop(ctx);
        tokio::select! {
            () = client.flush(SETTLE) => {}
            () = interrupt.cancelled() => {}
        }
        return outcome;
    }
    let work = async move {
        let outcome = match command {
            Command::Mount(_) | Command::Cp(_) => {
                Err(Failure::plain("not a command of this place; this is a bug"))
            }
            Command::Unmount(args) => unmount::run(&ctx, args).await,
            Command::Mounts(args) => mounts::run(&ctx, args).await,
            Command::Stats(args) => stats::run(&ctx, args).await,
            Command::Ls(args) => ls::run(&ctx, args).await,
            Command::Stat(args) => stat::run(&ctx, args).await,
            Command::Cat(args) => cat::run(&ctx, args).await,
            Command::Head(args) => head::run(&ctx, args).await,
            Command::Find(args) => find::run(&ctx, args).await,
            Command::Du(args) => du::run(&ctx, args).await,
            Command::Cache(args) => cache::run(&ctx, args).await,
            Command::Config(args) => config::run(&ctx, args).await,
            Command::Doctor(args) => doctor::run(&ctx, args).await,
            Command::Completions(args) => completions::run(&ctx, args).await,
        };
        // Who reads standard output has all of it by now and shall not wait for the disk.
        drop(ctx);
        client.flush(SETTLE).await;
        outcome
    };
    tokio::select! {
        outcome = work => outcome,
        () = interrupt.cancelled() => Err(Failure::Silent(INTERRUPTED)),
    }
}
