//! A running mount: until a signal, or until somebody unmounts it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use nearfs::mount::{MountSession, UnmountOptions};

use crate::cli::diagnostics::{DONE, Failure, INTERRUPTED, Outcome};

enum Event {
    Signal(&'static str),
    /// The mount is gone, in order or with an error.
    Ended(nearfs::Result<bool>),
    /// An ordered stop is done.
    Stopped(nearfs::Result<()>),
}

/// How long a signal waits for a mount that is just being made before it ends the process.
const GRACE: Duration = Duration::from_secs(3);

/// Signals that ask for the end, heard from when this is made: one that comes while the mount is being made ends it in
/// order once it is there.
pub(super) struct Signals {
    tx: Sender<Event>,
    rx: Receiver<Event>,
    mounted: Arc<AtomicBool>,
}

impl Signals {
    /// Hears SIGTERM, SIGINT and SIGHUP from now on.
    pub(super) fn watch() -> Outcome<Self> {
        let (tx, rx) = mpsc::channel();
        let mounted = Arc::new(AtomicBool::new(false));
        watch_signals(tx.clone(), mounted.clone())?;
        Ok(Signals { tx, rx, mounted })
    }
}

/// Waits for the end: an ordered stop at the first signal, at once at the second. After an end in order `settle` is
/// called.
pub(super) fn until_stopped(session: MountSession, signals: Signals, settle: impl FnOnce()) -> Outcome {
    let session = Arc::new(session);
    let Signals { tx, rx, mounted } = signals;
    mounted.store(true, Ordering::Release);
    spawn("nearfs-watch", {
        let (session, tx) = (session.clone(), tx.clone());
        move || drop(tx.send(Event::Ended(session.join(None))))
    })?;
    let mut stopping = false;
    loop {
        match rx.recv() {
            Ok(Event::Ended(result)) => {
                settle();
                result?;
                return Ok(DONE);
            }
            Ok(Event::Stopped(result)) => {
                settle();
                result?;
                return Ok(DONE);
            }
            Ok(Event::Signal(name)) if !stopping => {
                stopping = true;
                tracing::info!(signal = name, "stopping");
                let (session, tx) = (session.clone(), tx.clone());
                spawn("nearfs-stop", move || {
                    let stopped = session.unmount(UnmountOptions::default()).map(drop);
                    drop(tx.send(Event::Stopped(stopped)));
                })?;
            }
            Ok(Event::Signal(name)) => {
                tracing::warn!(signal = name, "stopping at once");
                session.unmount(UnmountOptions { force: true, ..Default::default() })?;
                return Ok(DONE);
            }
            Err(_) => return Err(Failure::plain("the mount's threads are gone; this is a bug")),
        }
    }
}

/// Takes the mount down in order.
pub(super) fn stop(session: &MountSession) -> Outcome<()> {
    session.unmount(UnmountOptions::default())?;
    Ok(())
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Outcome<()> {
    let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(work);
    spawned.map(drop).map_err(|e| Failure::plain(format!("cannot start a thread: {e}")))
}

fn watch_signals(tx: Sender<Event>, mounted: Arc<AtomicBool>) -> Outcome<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let spawner = nearfs::spawner()?;
    // Registered before this returns: no signal falls between.
    let _runtime = spawner.handle().enter();
    let failed = |e: std::io::Error| Failure::plain(format!("cannot watch for signals: {e}"));
    let mut term = signal(SignalKind::terminate()).map_err(failed)?;
    let mut int = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut hup = signal(SignalKind::hangup()).map_err(failed)?;
    spawner.spawn(async move {
        loop {
            let name = tokio::select! {
                _ = term.recv() => "SIGTERM",
                _ = int.recv() => "SIGINT",
                _ = hup.recv() => "SIGHUP",
            };
            if tx.send(Event::Signal(name)).is_err() {
                return;
            }
            if !mounted.load(Ordering::Acquire) {
                tokio::time::sleep(GRACE).await;
                if !mounted.load(Ordering::Acquire) {
                    // It waits for a store, and nothing is there to be taken down.
                    std::process::exit(INTERRUPTED.into());
                }
            }
            // Two deliveries of one keypress (to a group and to the process) are one wish.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    Ok(())
}
