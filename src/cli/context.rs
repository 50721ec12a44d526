//! What every command works with: settings, stores, standard output, and the wish to stop.

use nearfs::config::{Config, Environment};
use nearfs::{Client, Error};
use tokio_util::sync::CancellationToken;

use super::args::Global;
use super::diagnostics::{INTERRUPTED, Outcome, complain, describe, hint};
use super::output::Output;

/// Shared by all parts of a command.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) client: Client,
    pub(crate) out: Output,
    pub(crate) json: bool,
    pub(crate) quiet: bool,
    /// Cancelled by Ctrl-C and SIGTERM.
    pub(crate) interrupt: CancellationToken,
}

impl Context {
    pub(crate) fn new(global: Global, config: Config, out: Output) -> Self {
        Context {
            client: Client::with_config(config),
            out,
            json: global.json,
            quiet: global.quiet,
            interrupt: CancellationToken::new(),
        }
    }

    /// Reports a failure that the rest of the work survives.
    pub(crate) fn report(&self, what: impl std::fmt::Display, error: &Error) {
        complain(&format!("{what}: {}", describe(error)), hint(error).as_deref());
    }
}

/// Environment, files and options.
pub(crate) fn load(global: &Global) -> Outcome<Config> {
    let mut config = Config::load(global.config.as_deref(), Environment::of_process())?;
    global.apply(&mut config)?;
    Ok(config)
}

/// The first signal asks to stop, the second one ends the process at once.
pub(crate) async fn watch_for_interrupt(interrupt: CancellationToken) {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut int), Ok(mut term)) = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        return;
    };
    let mut next = async || {
        tokio::select! {
            _ = int.recv() => {}
            _ = term.recv() => {}
        }
    };
    next().await;
    interrupt.cancel();
    tokio::select! {
        () = next() => {}
        // Standard output may be a pipe that nobody empties: the main thread then never comes back.
        () = tokio::time::sleep(std::time::Duration::from_secs(5)) => {}
    }
    std::process::exit(INTERRUPTED.into());
}
