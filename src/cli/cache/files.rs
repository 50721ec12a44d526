//! The files that operands mean, with their versions as the store has them now.

use std::ffi::OsStr;

use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use nearfs::{DirEntry, ErrorKind, FileSystemExt, Result};

use super::super::context::Context;
use super::super::place::Place;

/// The place that `operand` names, and every file at or below it.
///
/// # Errors
/// Those of opening the store; as items those of looking.
pub(super) async fn at(
    ctx: &Context,
    operand: &OsStr,
) -> Result<(Place, BoxStream<'static, Result<DirEntry>>)> {
    let place = Place::open(ctx, operand).await?;
    let entries = place.fs.walk(&place.path);
    let single = place.clone();
    // Where a directory was expected, a file may be.
    let files = entries.or_else(move |error| {
        let place = single.clone();
        async move {
            if error.kind() != ErrorKind::NotADirectory || place.directory {
                return Err(error);
            }
            Ok(DirEntry { path: place.path.clone(), metadata: place.stat().await? })
        }
    });
    Ok((place, files.try_filter(|entry| std::future::ready(entry.metadata.is_file())).boxed()))
}
