//! Work on our runtime that stops when nobody wants it any more.

use tokio::task::JoinHandle;

use super::wire::request::Wire;
use crate::error::{Error, ErrorKind, Result};

/// A running task. Dropping it stops the task.
#[derive(Debug)]
pub(crate) struct Task<T>(JoinHandle<T>);

impl<T: Send + 'static> Task<T> {
    pub(crate) fn spawn(wire: &Wire, work: impl Future<Output = T> + Send + 'static) -> Self {
        Task(wire.spawner.spawn(work))
    }

    /// Waits for the end of the task.
    pub(crate) async fn join(&mut self) -> Result<T> {
        (&mut self.0).await.map_err(|e| {
            Error::new(ErrorKind::Interrupted, "the runtime shut down or the task panicked").with_source(e)
        })
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
