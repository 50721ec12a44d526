//! Moving the bytes of one file.

use futures::StreamExt;
use nearfs::{
    ByteStream, CopyOptions, CreateOptions, Error, ErrorKind, FileSystem, FileWriter, FsPath, Metadata,
    OpenOptions, Result,
};
use tokio::io::AsyncReadExt;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::plan::{Copy, Work};
use super::{LARGE, LARGE_PLACES};
use crate::cli::context::Context;
use crate::cli::diagnostics::Outcome;
use crate::cli::place::Place;
use crate::cli::progress::Progress;

/// Read from standard input at a time.
const CHUNK: usize = 1 << 20;

/// Copies one file or makes one directory; `true` for a file.
pub(super) async fn one(
    ctx: &Context,
    copy: &Copy,
    work: &Work,
    progress: &Progress,
    places: &Semaphore,
) -> Result<bool> {
    let large = matches!(work, Work::File { metadata, .. } if metadata.size > LARGE);
    // Never closed, so there is always a place to come.
    let _place = places.acquire_many(if large { LARGE_PLACES } else { 1 }).await;
    if ctx.interrupt.is_cancelled() {
        return Err(stopped());
    }
    let target = &*copy.target.fs;
    match work {
        Work::Dir { to } => {
            if target.capabilities().empty_dirs {
                make_dir(target, to).await?;
            }
            Ok(false)
        }
        Work::File { from, metadata, to } => {
            progress.expect(metadata.size);
            let result = file(ctx, copy, from, metadata, to, progress).await;
            let result = match result {
                // Replaced between listing and reading: the new version is as good, whole.
                Err(e) if e.kind() == ErrorKind::Stale => {
                    let metadata = copy.source.fs.stat(from).await?;
                    file(ctx, copy, from, &metadata, to, progress).await
                }
                result => result,
            };
            result.map(|()| {
                progress.files(1);
                true
            })
        }
    }
}

async fn file(
    ctx: &Context,
    copy: &Copy,
    from: &FsPath,
    metadata: &Metadata,
    to: &FsPath,
    progress: &Progress,
) -> Result<()> {
    let (source, target) = (&copy.source.fs, &copy.target.fs);
    if source.identity() == target.identity() && target.capabilities().server_side_copy {
        tokio::select! {
            done = target.copy(from, to, CopyOptions::default()) => done?,
            () = ctx.interrupt.cancelled() => return Err(stopped()),
        }
        progress.bytes(metadata.size);
        return Ok(());
    }
    let open = source.open(from, OpenOptions { metadata: Some(metadata.clone()) });
    let create = target.create(to, CreateOptions { size_hint: Some(metadata.size), ..Default::default() });
    let file = open.await?;
    let writer = create.await?;
    fill(&ctx.interrupt, writer, file.read_stream(0..metadata.size), progress).await
}

/// Standard input as a new file.
pub(super) async fn from_stdin(ctx: &Context, target: &Place, progress: &Progress) -> Result<()> {
    let writer = target.fs.create(&target.path, CreateOptions::default()).await?;
    let chunks = futures::stream::unfold(tokio::io::stdin(), |mut stdin| async {
        let mut chunk = bytes::BytesMut::with_capacity(CHUNK);
        // Full chunks, so that the parts of an upload do not depend on the pipe's.
        while chunk.len() < CHUNK {
            match (&mut stdin).take((CHUNK - chunk.len()) as u64).read_buf(&mut chunk).await {
                Ok(0) => break,
                Ok(_) => {}
                Err(e) => return Some((Err(Error::from(e).during("read standard input")), stdin)),
            }
        }
        (!chunk.is_empty()).then(|| (Ok(chunk.freeze()), stdin))
    });
    fill(&ctx.interrupt, writer, chunks.boxed(), progress).await
}

/// A file on standard output.
pub(super) async fn to_stdout(ctx: &Context, source: &Place, progress: &Progress) -> Outcome<Result<()>> {
    let opened = async {
        if source.directory {
            source.stat().await?;
        }
        source.fs.open(&source.path, OpenOptions::default()).await
    };
    let file = match opened.await {
        Ok(file) => file,
        Err(error) => return Ok(Err(error)),
    };
    let size = file.metadata().size;
    progress.expect(size);
    let mut stream = file.read_stream(0..size);
    loop {
        let chunk = tokio::select! {
            chunk = stream.next() => chunk,
            () = ctx.interrupt.cancelled() => return Ok(Err(stopped())),
        };
        match chunk {
            None => return Ok(Ok(())),
            Some(Err(error)) => return Ok(Err(error)),
            Some(Ok(chunk)) => {
                progress.bytes(chunk.len() as u64);
                ctx.out.bytes(chunk).await?;
            }
        }
    }
}

/// Writes `stream` out; whatever fails or stops it, nothing half-done stays.
async fn fill(
    interrupt: &CancellationToken,
    mut writer: Box<dyn FileWriter>,
    mut stream: ByteStream,
    progress: &Progress,
) -> Result<()> {
    let moved = async {
        while let Some(chunk) = stream.next().await {
            let chunk = chunk?;
            let n = chunk.len() as u64;
            writer.write(chunk).await?;
            progress.bytes(n);
        }
        Ok(())
    };
    let moved = tokio::select! {
        moved = moved => moved,
        () = interrupt.cancelled() => Err(stopped()),
    };
    match moved {
        // Short and atomic: not given up half-way.
        Ok(()) => writer.finish().await.map(drop),
        Err(error) => {
            // The failure of the copy is the one to report.
            let _ = writer.abort().await;
            Err(error)
        }
    }
}

async fn make_dir(target: &dyn FileSystem, path: &FsPath) -> Result<()> {
    if path.is_root() {
        return Ok(());
    }
    match target.create_dir(path).await {
        Err(e) if e.kind() == ErrorKind::AlreadyExists => match target.stat(path).await? {
            found if found.is_dir() => Ok(()),
            _ => Err(Error::new(ErrorKind::NotADirectory, "a file has the name of a directory to be made")
                .at(path)),
        },
        other => other,
    }
}

fn stopped() -> Error {
    Error::new(ErrorKind::Interrupted, "stopped")
}
