//! [`RetryLayer`]: makes failed calls again, where that is safe, and slows down when the store says so.

mod file;
mod gate;
mod list;
mod patience;

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::{self, BoxStream};

use crate::capability::Capabilities;
use crate::config::RetryConfig;
use crate::error::{Error, ErrorKind, Result};
use crate::file::{File, FileWriter};
use crate::fs::{EntryStream, FileSystem, Identity};
use crate::metadata::Metadata;
use crate::options::{CopyOptions, CreateOptions, ListOptions, OpenOptions};
use crate::path::FsPath;
use file::RetryFile;
use gate::Gate;
use patience::Patience;

/// Paths that one round of deletions takes at a time: what S3 deletes in one request.
const DELETE_BATCH: usize = 1_000;

/// Rounds of deletions under way at once.
const DELETE_ROUNDS: usize = 4;

/// Makes calls again that failed in a way that may pass ([`Error::is_retryable`]).
///
/// Pauses grow and are random; attempts and time are bounded by a [`RetryConfig`], and both bounds start anew
/// whenever bytes or entries arrive. What still fails afterwards carries [`Retry::Exhausted`](crate::Retry).
///
/// | call | made again after |
/// |---|---|
/// | `stat`, `list`, `open`, all reads | every retryable failure; streams go on after their last item |
/// | `create` | every retryable failure: nothing is visible before `finish` |
/// | `write`, `finish`, `abort` | never here: what was sent is with the writer underneath, which retries its own requests |
/// | `delete` | every retryable failure, path by path: deleting twice is deleting once |
/// | `copy` | every retryable failure; with `no_replace` only after `Throttled`, as a lost success would look like `AlreadyExists` |
/// | `rename` | `Throttled` only, as a lost success would look like `NotFound`; with `no_replace` also only where it is one step |
/// | `create_dir`, `remove_dir` | `Throttled` only, for the same reasons |
///
/// `Throttled` answers slow down all calls of this filesystem together, unless that turns out not to make them rarer:
/// see the gate in this module's source.
///
/// Place: above the limits and below whatever measures what callers get. One in a stack: two multiply.
#[derive(Debug, Clone)]
pub struct RetryLayer {
    inner: Arc<dyn FileSystem>,
    shared: Arc<Shared>,
}

/// What a filesystem, its files and its streams have in common.
#[derive(Debug)]
struct Shared {
    config: RetryConfig,
    gate: Gate,
}

impl RetryLayer {
    /// `inner` with retries.
    ///
    /// # Errors
    /// `InvalidInput` if the settings contradict one another.
    pub fn new(inner: Arc<dyn FileSystem>, config: RetryConfig) -> Result<Self> {
        config.check()?;
        Ok(RetryLayer { inner, shared: Arc::new(Shared { config, gate: Gate::new() }) })
    }

    /// True while calls are slowed down because the store asked for it.
    pub fn is_throttled(&self) -> bool {
        self.shared.gate.is_closed()
    }
}

/// Which failures of a call may be answered by making it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Safety {
    /// Twice is once.
    Idempotent,
    /// Only if the store surely did nothing.
    OnlyRefused,
    /// Not even then: part of the call may have been done.
    Never,
}

impl Safety {
    fn allows(self, e: &Error) -> bool {
        match self {
            Safety::Idempotent => true,
            Safety::OnlyRefused => e.kind() == ErrorKind::Throttled,
            Safety::Never => false,
        }
    }
}

impl Shared {
    async fn call<T, F: Future<Output = Result<T>>>(
        &self,
        operation: &'static str,
        path: &FsPath,
        safety: Safety,
        mut attempt: impl FnMut() -> F,
    ) -> Result<T> {
        let mut patience = Patience::new(&self.config, operation, path);
        loop {
            let pass = self.gate.pass(&patience).await?;
            match attempt().await {
                Ok(done) => {
                    self.gate.succeeded(pass);
                    return Ok(done);
                }
                Err(e) => {
                    self.gate.failed(pass, &e);
                    if !safety.allows(&e) {
                        return Err(e);
                    }
                    patience.pause(e).await?;
                }
            }
        }
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl FileSystem for RetryLayer {
    fn identity(&self) -> Identity {
        self.inner.identity()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn stat(&self, path: &FsPath) -> Result<Metadata> {
        self.shared.call("stat", path, Safety::Idempotent, || self.inner.stat(path)).await
    }

    fn list(&self, dir: &FsPath, options: ListOptions) -> EntryStream {
        list::resumed(self.inner.clone(), self.shared.clone(), dir.clone(), options)
    }

    async fn open(&self, path: &FsPath, options: OpenOptions) -> Result<Arc<dyn File>> {
        let attempt = || self.inner.open(path, options.clone());
        let file = self.shared.call("open", path, Safety::Idempotent, attempt).await?;
        Ok(Arc::new(RetryFile { file, shared: self.shared.clone() }))
    }

    async fn create(&self, path: &FsPath, options: CreateOptions) -> Result<Box<dyn FileWriter>> {
        let attempt = || self.inner.create(path, options.clone());
        self.shared.call("create", path, Safety::Idempotent, attempt).await
    }

    fn delete(&self, paths: BoxStream<'static, FsPath>) -> BoxStream<'static, (FsPath, Result<()>)> {
        let (inner, shared) = (self.inner.clone(), self.shared.clone());
        paths
            .ready_chunks(DELETE_BATCH)
            .map(move |batch| delete_batch(inner.clone(), shared.clone(), batch))
            .buffer_unordered(DELETE_ROUNDS)
            .flat_map(stream::iter)
            .boxed()
    }

    async fn rename(&self, from: &FsPath, to: &FsPath, options: CopyOptions) -> Result<()> {
        let whole = !options.no_replace || self.inner.capabilities().atomic_rename;
        let safety = if whole { Safety::OnlyRefused } else { Safety::Never };
        let attempt = || self.inner.rename(from, to, options.clone());
        self.shared.call("rename", from, safety, attempt).await
    }

    async fn copy(&self, from: &FsPath, to: &FsPath, options: CopyOptions) -> Result<()> {
        let safety = if options.no_replace { Safety::OnlyRefused } else { Safety::Idempotent };
        let attempt = || self.inner.copy(from, to, options.clone());
        self.shared.call("copy", from, safety, attempt).await
    }

    async fn create_dir(&self, path: &FsPath) -> Result<()> {
        self.shared.call("create_dir", path, Safety::OnlyRefused, || self.inner.create_dir(path)).await
    }

    async fn remove_dir(&self, path: &FsPath) -> Result<()> {
        self.shared.call("remove_dir", path, Safety::OnlyRefused, || self.inner.remove_dir(path)).await
    }
}

/// Deletes a batch, and again what failed in a way that may pass.
async fn delete_batch(
    inner: Arc<dyn FileSystem>,
    shared: Arc<Shared>,
    mut batch: Vec<FsPath>,
) -> Vec<(FsPath, Result<()>)> {
    let mut done = Vec::with_capacity(batch.len());
    let first = batch.first().cloned().unwrap_or_else(FsPath::root);
    let mut patience = Patience::new(&shared.config, "delete", &first);
    loop {
        let pass = match shared.gate.pass(&patience).await {
            Ok(pass) => pass,
            Err(e) => {
                done.extend(batch.into_iter().map(|path| {
                    let e = e.duplicate().with_path(&path);
                    (path, Err(e))
                }));
                return done;
            }
        };
        // Paths may be given twice: each time is a result of its own.
        let mut waiting: HashMap<FsPath, usize> = HashMap::new();
        batch.iter().for_each(|p| *waiting.entry(p.clone()).or_default() += 1);
        let mut again = Vec::new();
        let mut results = inner.delete(stream::iter(std::mem::take(&mut batch)).boxed());
        while let Some((path, result)) = results.next().await {
            if let Some(n) = waiting.get_mut(&path) {
                *n = n.saturating_sub(1);
            }
            match result {
                Err(e) if e.is_retryable() => again.push((path, e)),
                result => {
                    patience.progress();
                    done.push((path, result));
                }
            }
        }
        for (path, n) in waiting {
            for _ in 0..n {
                let e = Error::new(ErrorKind::Corrupt, "no result came for this path");
                done.push((path.clone(), Err(e.during("delete").at(&path))));
            }
        }
        // Throttling first: it is what the gate must hear of.
        let worst = again.iter().position(|(_, e)| e.kind() == ErrorKind::Throttled).unwrap_or(0);
        let Some((_, worst)) = again.get(worst) else {
            shared.gate.succeeded(pass);
            return done;
        };
        shared.gate.failed(pass, worst);
        match patience.pause(worst.duplicate()).await {
            Ok(()) => batch.extend(again.into_iter().map(|(path, _)| path)),
            Err(_) => {
                done.extend(again.into_iter().map(|(path, e)| (path, Err(patience.exhausted(e)))));
                return done;
            }
        }
    }
}

#[cfg(test)]
mod tests;
