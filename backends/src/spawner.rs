//! [`Spawner`]: the runtime that work runs on, handed down and never made below the root crate.

use std::future::Future;

use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use crate::error::{Error, ErrorKind, Result};

/// A handle of the one tokio runtime on which all input and output of this process happens.
#[derive(Debug, Clone)]
pub struct Spawner(Handle);

impl Spawner {
    /// Work runs on `handle`'s runtime, which must have timers and network drivers enabled.
    pub fn new(handle: Handle) -> Self {
        Spawner(handle)
    }

    /// The runtime of the calling task.
    ///
    /// # Errors
    /// `InvalidInput` outside of a tokio runtime.
    pub fn current() -> Result<Self> {
        Handle::try_current().map(Spawner).map_err(|e| {
            Error::new(ErrorKind::InvalidInput, "no tokio runtime is running here").with_source(e)
        })
    }

    /// The runtime's handle.
    pub fn handle(&self) -> &Handle {
        &self.0
    }

    /// Starts `task` and lets it run to its end, whoever is still interested.
    pub fn spawn<F>(&self, task: F) -> tokio::task::JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.0.spawn(task)
    }

    /// Runs `task` on this runtime, whatever runtime (or none) polls the returned future.
    ///
    /// # Cancellation
    /// Dropping the returned future aborts the task.
    pub async fn run<F, T>(&self, task: F) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send + 'static,
        T: Send + 'static,
    {
        let handle = self.0.spawn(task);
        let _abort = AbortOnDrop(handle.abort_handle());
        handle.await.unwrap_or_else(|e| {
            Err(Error::new(ErrorKind::Interrupted, "the runtime shut down or the task panicked")
                .with_source(e))
        })
    }
}

struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
