//! Listings as streams: each piece of a [`Walk`] is one call of a thread.

use std::sync::Arc;

use futures::StreamExt;

use super::walk::Walk;
use super::{Inner, is_hidden};
use crate::error::{Error, Result};
use crate::fs::EntryStream;
use crate::metadata::DirEntry;
use crate::options::ListOptions;
use crate::path::FsPath;

pub(super) fn list(fs: Arc<Inner>, dir: FsPath, options: ListOptions) -> EntryStream {
    if is_hidden(&dir) {
        let error = Error::not_found(&dir).during("list");
        return futures::stream::iter([Err(error)]).boxed();
    }
    let first = Some(Walk::new(dir.clone(), options));
    let batches = futures::stream::unfold(first, move |walk| {
        let (fs, dir) = (fs.clone(), dir.clone());
        async move {
            let walk = walk.filter(|w| !w.is_over())?;
            Some(next(fs, &dir, walk).await)
        }
    });
    batches.flat_map(futures::stream::iter).boxed()
}

async fn next(fs: Arc<Inner>, dir: &FsPath, mut walk: Walk) -> (Vec<Result<DirEntry>>, Option<Walk>) {
    let own = fs.clone();
    let done = fs.engine.pool().run("list", move |beat| {
        own.order.settle();
        let batch = walk.next_batch(&own.root, beat);
        Ok((batch, walk))
    });
    match done.await {
        Ok((batch, walk)) => {
            let batch = batch.into_iter().map(|item| item.map_err(|e| e.during("list"))).collect();
            (batch, Some(walk))
        }
        Err(e) => (vec![Err(e.at(dir))], None),
    }
}
