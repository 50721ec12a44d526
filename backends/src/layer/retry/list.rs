//! Listings that go on after a failure where they stopped.

use std::sync::Arc;

use futures::stream::{self, StreamExt};

use super::Shared;
use super::gate::Pass;
use super::patience::Patience;
use crate::error::{Error, ErrorKind};
use crate::fs::{EntryStream, FileSystem};
use crate::options::ListOptions;
use crate::path::FsPath;

/// The listing of `dir`, begun anew after the last entry that came whenever it fails in a way that may pass.
///
/// Every filesystem carries out `start_after`, those without `Capabilities::list_resume` by skipping; entries are
/// compared once more here, so that none can come twice. An entry that comes out of order ends the listing: after it
/// "the last entry" would mean nothing.
pub(super) fn resumed(
    inner: Arc<dyn FileSystem>,
    shared: Arc<Shared>,
    dir: FsPath,
    options: ListOptions,
) -> EntryStream {
    let state = Resumed { last: options.start_after, running: None };
    stream::unfold(Some(state), move |state| {
        let (inner, shared, dir) = (inner.clone(), shared.clone(), dir.clone());
        async move {
            let mut state = state?;
            // New for every entry: each is progress.
            let mut patience = Patience::new(&shared.config, "list", &dir);
            loop {
                let (listing, pass) = match &mut state.running {
                    Some(running) => running,
                    None => {
                        let pass = match shared.gate.pass(&patience).await {
                            Ok(pass) => pass,
                            Err(e) => return Some((Err(e), None)),
                        };
                        let start_after = state.last.clone();
                        let listing =
                            inner.list(&dir, ListOptions { recursive: options.recursive, start_after });
                        state.running.insert((listing, Some(pass)))
                    }
                };
                let item = listing.next().await;
                let first = pass.take();
                match item {
                    Some(Ok(entry)) => {
                        first.inspect(|pass| shared.gate.succeeded(*pass));
                        if state.last.as_ref().is_some_and(|last| entry.path.cmp_listing(last).is_le()) {
                            let e = Error::new(ErrorKind::Corrupt, "an entry came out of order or twice");
                            return Some((Err(e.during("list").at(&entry.path)), None));
                        }
                        state.last = Some(entry.path.clone());
                        return Some((Ok(entry), Some(state)));
                    }
                    Some(Err(e)) => {
                        shared.gate.failed(first.unwrap_or_else(Pass::now), &e);
                        state.running = None;
                        if let Err(e) = patience.pause(e).await {
                            return Some((Err(e), None));
                        }
                    }
                    None => {
                        first.inspect(|pass| shared.gate.succeeded(*pass));
                        return None;
                    }
                }
            }
        }
    })
    .boxed()
}

struct Resumed {
    last: Option<FsPath>,
    /// The listing under way; with its pass until its first item has come.
    running: Option<(EntryStream, Option<Pass>)>,
}
