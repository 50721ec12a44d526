//! What goes wrong, when, and what was called.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::error::{Error, ErrorKind, Result, Retry};
use crate::path::FsPath;

/// The calls that faults match and counters count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// `stat`.
    Stat,
    /// `list`: one call for each stream that is polled.
    List,
    /// `open`.
    Open,
    /// Every read of a file: one call for each `read_at`, `read_ranges`, `read_into` and polled `read_stream`.
    Read,
    /// `create`.
    Create,
    /// `write` of a writer.
    Write,
    /// `finish` of a writer.
    Finish,
    /// `delete`: one call for each path.
    Delete,
    /// `rename`, by its source.
    Rename,
    /// `copy`, by its source.
    Copy,
    /// `create_dir`.
    CreateDir,
    /// `remove_dir`.
    RemoveDir,
}

impl Operation {
    /// All of them.
    pub const ALL: [Operation; 12] = [
        Operation::Stat,
        Operation::List,
        Operation::Open,
        Operation::Read,
        Operation::Create,
        Operation::Write,
        Operation::Finish,
        Operation::Delete,
        Operation::Rename,
        Operation::Copy,
        Operation::CreateDir,
        Operation::RemoveDir,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Operation::Stat => "stat",
            Operation::List => "list",
            Operation::Open => "open",
            Operation::Read => "read",
            Operation::Create => "create",
            Operation::Write => "write",
            Operation::Finish => "finish",
            Operation::Delete => "delete",
            Operation::Rename => "rename",
            Operation::Copy => "copy",
            Operation::CreateDir => "create_dir",
            Operation::RemoveDir => "remove_dir",
        }
    }
}

/// What a [`Fault`] does to a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FaultAction {
    /// Fails without reaching the store.
    Fail(ErrorKind),
    /// Fails as throttled, without reaching the store, with the store's wish for a pause.
    Throttle(Option<Duration>),
    /// Reaches the store, takes effect, and then fails: the answer was lost.
    LoseAnswer(ErrorKind),
    /// Waits, then goes on.
    Delay(Duration),
    /// Waits before every item of a stream (once for other calls): a slow link that keeps moving.
    Drip(Duration),
    /// Delivers so many bytes (entries of a listing), then nothing until [`heal`](super::FaultLayer::heal). Calls
    /// that answer in one piece just wait.
    Stall(u64),
    /// Delivers so many bytes (entries of a listing), then fails. Calls that answer in one piece just fail.
    Cut(u64, ErrorKind),
    /// Delivers so many bytes (entries of a listing), then ends as if complete: a store that breaks the rules. Calls
    /// that answer in one piece give that much.
    Short(u64),
    /// Reads: changes the byte at this offset of the file.
    Flip(u64),
}

/// A fault: which calls it meets, and what it does to them.
#[derive(Debug, Clone)]
pub struct Fault {
    operation: Operation,
    path: Option<FsPath>,
    skip: u64,
    times: u64,
    action: FaultAction,
}

impl Fault {
    /// `action` on every call of `operation`.
    pub fn on(operation: Operation, action: FaultAction) -> Self {
        Fault { operation, path: None, skip: 0, times: u64::MAX, action }
    }

    /// Only calls on `path` or below it.
    pub fn at(mut self, path: &FsPath) -> Self {
        self.path = Some(path.clone());
        self
    }

    /// Lets the first `n` matching calls pass.
    pub fn after(mut self, n: u64) -> Self {
        self.skip = n;
        self
    }

    /// Only `n` times.
    pub fn times(mut self, n: u64) -> Self {
        self.times = n;
        self
    }
}

/// The faults and counters that a layer and its files share.
#[derive(Debug, Default)]
pub(super) struct Plan {
    faults: Mutex<Vec<Fault>>,
    calls: Mutex<HashMap<(Operation, FsPath), u64>>,
    healed: Notify,
}

impl Plan {
    pub(super) fn inject(&self, fault: Fault) {
        self.faults.lock().push(fault);
    }

    pub(super) fn heal(&self) {
        self.faults.lock().clear();
        self.healed.notify_waiters();
    }

    pub(super) fn calls(&self, operation: Operation, path: Option<&FsPath>) -> u64 {
        let calls = self.calls.lock();
        match path {
            Some(path) => calls.get(&(operation, path.clone())).copied().unwrap_or(0),
            None => calls.iter().filter(|((o, _), _)| *o == operation).map(|(_, n)| n).sum(),
        }
    }

    pub(super) fn reset_calls(&self) {
        self.calls.lock().clear();
    }

    /// Counts a call and says what happens to it.
    pub(super) fn meet(&self, operation: Operation, path: &FsPath) -> Option<FaultAction> {
        *self.calls.lock().entry((operation, path.clone())).or_default() += 1;
        let mut faults = self.faults.lock();
        for fault in faults.iter_mut() {
            let here = fault.path.as_ref().is_none_or(|p| path.strip_prefix(p).is_some());
            if fault.operation != operation || !here || fault.times == 0 {
                continue;
            }
            if fault.skip > 0 {
                fault.skip -= 1;
                continue;
            }
            fault.times -= 1;
            return Some(fault.action.clone());
        }
        None
    }

    /// Waits for [`Plan::heal`].
    pub(super) async fn stall(self: Arc<Self>) {
        self.healed.notified().await;
    }

    /// Carries out a fault on a call that answers in one piece.
    pub(super) async fn call<T>(
        self: Arc<Self>,
        operation: Operation,
        path: &FsPath,
        call: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        match self.meet(operation, path) {
            None | Some(FaultAction::Short(_) | FaultAction::Flip(_)) => call.await,
            Some(FaultAction::Delay(pause) | FaultAction::Drip(pause)) => {
                tokio::time::sleep(pause).await;
                call.await
            }
            Some(FaultAction::Stall(_)) => {
                self.stall().await;
                call.await
            }
            Some(FaultAction::LoseAnswer(kind)) => {
                call.await?;
                Err(broken(kind, operation, path))
            }
            Some(FaultAction::Fail(kind) | FaultAction::Cut(_, kind)) => Err(broken(kind, operation, path)),
            Some(FaultAction::Throttle(pause)) => Err(throttled(pause, operation, path)),
        }
    }
}

pub(super) fn broken(kind: ErrorKind, operation: Operation, path: &FsPath) -> Error {
    Error::new(kind, "an injected fault").during(operation.name()).at(path)
}

pub(super) fn throttled(pause: Option<Duration>, operation: Operation, path: &FsPath) -> Error {
    broken(ErrorKind::Throttled, operation, path).with_retry(Retry::Later(pause))
}
