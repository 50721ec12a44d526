//! [`FaultLayer`]: a filesystem that fails, stalls, cuts and lies on command. For tests.

mod file;
mod plan;

use std::sync::Arc;

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;

use crate::capability::Capabilities;
use crate::error::Result;
use crate::file::{File, FileWriter};
use crate::fs::{EntryStream, FileSystem, Identity};
use crate::metadata::Metadata;
use crate::options::{CopyOptions, CreateOptions, ListOptions, OpenOptions};
use crate::path::FsPath;
use file::{FaultFile, FaultWriter, spoil_entries};
use plan::Plan;

pub use plan::{Fault, FaultAction, Operation};

/// Passes calls on and carries out the [`Fault`]s it was given; counts every call.
///
/// It is compiled always, so that tests of other crates can use it, and belongs into tests alone.
///
/// Place: directly above the store, for which it stands.
#[derive(Debug, Clone)]
pub struct FaultLayer {
    inner: Arc<dyn FileSystem>,
    plan: Arc<Plan>,
}

impl FaultLayer {
    /// `inner`, without faults at first.
    pub fn new(inner: Arc<dyn FileSystem>) -> Self {
        FaultLayer { inner, plan: Arc::default() }
    }

    /// Adds a fault. Of several that match a call, the one added first is carried out.
    pub fn inject(&self, fault: Fault) {
        self.plan.inject(fault);
    }

    /// Forgets all faults and lets everything that is stalled go on.
    pub fn heal(&self) {
        self.plan.heal();
    }

    /// Calls of `operation` so far, on any path.
    pub fn calls(&self, operation: Operation) -> u64 {
        self.plan.calls(operation, None)
    }

    /// Calls of `operation` on `path` so far.
    pub fn calls_on(&self, operation: Operation, path: &FsPath) -> u64 {
        self.plan.calls(operation, Some(path))
    }

    /// Calls of every operation so far.
    pub fn total_calls(&self) -> u64 {
        Operation::ALL.iter().map(|o| self.calls(*o)).sum()
    }

    /// Sets all counters to 0.
    pub fn reset_calls(&self) {
        self.plan.reset_calls();
    }

    async fn call<T>(
        &self,
        operation: Operation,
        path: &FsPath,
        call: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        self.plan.clone().call(operation, path, call).await
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl FileSystem for FaultLayer {
    fn identity(&self) -> Identity {
        self.inner.identity()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn stat(&self, path: &FsPath) -> Result<Metadata> {
        self.call(Operation::Stat, path, self.inner.stat(path)).await
    }

    fn list(&self, dir: &FsPath, options: ListOptions) -> EntryStream {
        spoil_entries(self.plan.clone(), dir.clone(), self.inner.list(dir, options))
    }

    async fn open(&self, path: &FsPath, options: OpenOptions) -> Result<Arc<dyn File>> {
        let file = self.call(Operation::Open, path, self.inner.open(path, options)).await?;
        Ok(Arc::new(FaultFile { file, plan: self.plan.clone() }))
    }

    async fn create(&self, path: &FsPath, options: CreateOptions) -> Result<Box<dyn FileWriter>> {
        let writer = self.call(Operation::Create, path, self.inner.create(path, options)).await?;
        Ok(Box::new(FaultWriter { writer, path: path.clone(), plan: self.plan.clone() }))
    }

    fn delete(&self, paths: BoxStream<'static, FsPath>) -> BoxStream<'static, (FsPath, Result<()>)> {
        let (inner, plan) = (self.inner.clone(), self.plan.clone());
        // One by one, so that every path is a call of its own.
        paths
            .then(move |path| {
                let (inner, plan) = (inner.clone(), plan.clone());
                async move {
                    let one = futures::stream::iter([path.clone()]).boxed();
                    let deleted =
                        async { inner.delete(one).next().await.map_or(Ok(()), |(_, result)| result) };
                    let result = plan.call(Operation::Delete, &path, deleted).await;
                    (path, result)
                }
            })
            .boxed()
    }

    async fn rename(&self, from: &FsPath, to: &FsPath, options: CopyOptions) -> Result<()> {
        self.call(Operation::Rename, from, self.inner.rename(from, to, options)).await
    }

    async fn copy(&self, from: &FsPath, to: &FsPath, options: CopyOptions) -> Result<()> {
        self.call(Operation::Copy, from, self.inner.copy(from, to, options)).await
    }

    async fn create_dir(&self, path: &FsPath) -> Result<()> {
        self.call(Operation::CreateDir, path, self.inner.create_dir(path)).await
    }

    async fn remove_dir(&self, path: &FsPath) -> Result<()> {
        self.call(Operation::RemoveDir, path, self.inner.remove_dir(path)).await
    }
}
