//! The one tokio runtime on which all input and output of this process happens.

use std::sync::OnceLock;

use nearfs_backends::{Error, ErrorKind, Result, Spawner};
use tokio::runtime::{Builder, Runtime};

/// Most threads that run tasks; more do not help what waits for a network.
const MAX_WORKERS: usize = 8;
/// Most threads that wait inside system calls (local files, DNS). Work beyond that queues.
const MAX_BLOCKING: usize = 64;

static RUNTIME: OnceLock<std::result::Result<Runtime, String>> = OnceLock::new();

/// The runtime, made on first use: `min(cores, 8)` threads named `nearfs-io`, at least two, and up to 64 more for
/// blocking calls. It lives until the process ends.
///
/// # Errors
/// `Other` if the system gives no threads or descriptors.
pub(crate) fn runtime() -> Result<&'static Runtime> {
    let made = RUNTIME.get_or_init(|| {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        Builder::new_multi_thread()
            // Two at least: one that copies bytes must not hold up timers and cancellation.
            .worker_threads(cores.clamp(2, MAX_WORKERS))
            .max_blocking_threads(MAX_BLOCKING)
            .thread_name("nearfs-io")
            .enable_all()
            .build()
            .map_err(|e| e.to_string())
    });
    made.as_ref().map_err(|e| {
        Error::new(ErrorKind::Other, format!("the runtime could not be started: {e}"))
            .with_context("hint", "check the limits of open files and of threads (`ulimit -n -u`)")
    })
}

/// The runtime on which all work of nearfs happens, made on first use: for what takes a [`Spawner`], such as
/// [`Mount::start`](crate::mount::Mount::start).
///
/// # Errors
/// `Other` if the system gives no threads or descriptors.
pub fn spawner() -> Result<Spawner> {
    Ok(Spawner::new(runtime()?.handle().clone()))
}
