//! What a copy means: which source goes where.

use std::ffi::OsStr;

use futures::StreamExt;
use futures::stream::BoxStream;
use nearfs::{Error, ErrorKind, FileSystemExt, FsPath, Metadata, Result};

use super::{CpArgs, Tally, single};
use crate::cli::context::Context;
use crate::cli::diagnostics::{Failure, Outcome};
use crate::cli::place::Place;

/// The meaning of the operands.
#[derive(Debug)]
pub(super) enum Plan {
    FromStdin(Place),
    ToStdout(Place),
    Copies(Vec<Copy>),
}

/// One source and the name it gets.
#[derive(Debug, Clone)]
pub(super) struct Copy {
    pub(super) source: Place,
    metadata: Metadata,
    pub(super) target: Place,
    /// Where the source itself goes in the target's store.
    to: FsPath,
}

/// One file or directory to copy.
#[derive(Debug)]
pub(super) struct Job {
    /// The source, for messages.
    pub(super) name: Vec<u8>,
    pub(super) work: Work,
}

#[derive(Debug)]
pub(super) enum Work {
    File { from: FsPath, metadata: Metadata, to: FsPath },
    Dir { to: FsPath },
}

impl Plan {
    /// Works out what the operands mean; sources that cannot be copied are reported and left out.
    pub(super) async fn of(ctx: &Context, args: &CpArgs, tally: &mut Tally) -> Outcome<Self> {
        let (target, sources) = match args.operands.split_last() {
            Some((target, sources)) if !sources.is_empty() => (target, sources),
            _ => return Err(Failure::plain("`cp` needs a source and a target")),
        };
        let pipes = sources.iter().filter(|s| *s == "-").count() + usize::from(target == "-");
        if pipes > 0 && (sources.len() > 1 || pipes > 1) {
            return Err(Failure::plain("`-` stands alone: one source, one target, one of them `-`"));
        }
        let open = async |operand: &OsStr| {
            let place = Place::open(ctx, operand).await;
            place.map_err(|e| Failure::about(crate::cli::place::shown(operand), &e))
        };
        if target == "-" {
            return Ok(Plan::ToStdout(open(&sources[0]).await?));
        }
        let target = open(target).await?;
        let found = match target.fs.stat(&target.path).await {
            Ok(metadata) => Some(metadata),
            Err(e) if e.kind() == ErrorKind::NotFound => None,
            // A store that lets us write but not look: what was typed decides.
            Err(e) if e.kind() == ErrorKind::PermissionDenied => None,
            Err(e) => return Err(Failure::about(target.shown(), &e)),
        };
        let exists = found.as_ref().is_some_and(Metadata::is_dir);
        if target.directory && found.is_some_and(|m| m.is_file()) {
            return Err(Failure::plain(format!("{}: expected a directory, found a file", target.shown())));
        }
        if pipes > 0 {
            if exists || target.directory {
                return Err(Failure::new(
                    format!("{}: standard input has no name to keep in a directory", target.shown()),
                    "name the file to write",
                ));
            }
            return Ok(Plan::FromStdin(target));
        }
        if sources.len() > 1 && !exists && !target.directory {
            return Err(Failure::new(
                format!("{}: several sources need a directory as target", target.shown()),
                "end the target in `/`",
            ));
        }
        let mut copies = Vec::new();
        for operand in sources {
            match Copy::of(ctx, operand, &target, exists, sources.len() > 1, args.recursive).await {
                Ok(copy) => copies.push(copy),
                Err(error) => tally.fail(ctx, operand.as_encoded_bytes(), &error),
            }
        }
        Ok(Plan::Copies(copies))
    }
}

impl Copy {
    async fn of(
        ctx: &Context,
        operand: &OsStr,
        target: &Place,
        exists: bool,
        several: bool,
        recursive: bool,
    ) -> Result<Self> {
        let source = Place::open(ctx, operand).await?;
        let metadata = source.stat().await?;
        if metadata.is_dir() && !recursive {
            return Err(Error::new(ErrorKind::IsADirectory, "is a directory")
                .with_context("hint", "copy directories with `-r`"));
        }
        let keeps_name = match metadata.is_dir() {
            false => exists || target.directory,
            // `dir/.` and a whole store have no name to keep: what is in them goes into the target.
            true => (exists || several) && !source.typed.ends_with(b"/.") && !source.path.is_root(),
        };
        let to = if keeps_name { target.path.join(source.path.name())? } else { target.path.clone() };
        if to.is_root() && metadata.is_file() {
            return Err(Error::new(
                ErrorKind::IsADirectory,
                "the target is a whole store, not a name for a file",
            ));
        }
        if source.fs.identity() == target.fs.identity() {
            let inside = to.strip_prefix(&source.path);
            if inside.as_ref().is_some_and(|tail| metadata.is_dir() || tail.is_root()) {
                let message = if to == source.path {
                    "source and target are the same"
                } else {
                    "the target lies inside the source"
                };
                return Err(Error::new(ErrorKind::InvalidInput, message));
            }
        }
        Ok(Copy { source, metadata, target: target.clone(), to })
    }

    /// Everything to copy, in listing order; ends after an error of the listing.
    pub(super) fn jobs(&self) -> BoxStream<'static, Result<Job>> {
        if self.metadata.is_file() {
            let (from, to) = (self.source.path.clone(), self.to.clone());
            let work = Work::File { from, metadata: self.metadata.clone(), to };
            return single(Ok(Job { name: self.source.typed.clone(), work }));
        }
        let copy = self.clone();
        let itself = Job { name: self.source.typed.clone(), work: Work::Dir { to: self.to.clone() } };
        let below = self.source.fs.walk(&self.source.path).map(move |entry| {
            let entry = entry?;
            let tail = entry.path.strip_prefix(&copy.source.path).ok_or_else(|| {
                Error::new(ErrorKind::Corrupt, "the listing left its directory").at(&entry.path)
            })?;
            let to = copy.to.join_path(&tail);
            let name = copy.source.name_of(&entry.path);
            let work = match entry.metadata.is_dir() {
                true => Work::Dir { to },
                false => Work::File { from: entry.path, metadata: entry.metadata, to },
            };
            Ok(Job { name, work })
        });
        let jobs = single(Ok(itself)).chain(below).boxed();
        if self.target.fs.capabilities().remote { without_full_directories(jobs) } else { jobs }
    }
}

/// Leaves out directories that something follows in: on an object store they exist by what is in them, and a marker
/// for each would be a request and a key too many.
fn without_full_directories(jobs: BoxStream<'static, Result<Job>>) -> BoxStream<'static, Result<Job>> {
    let state = (jobs, None::<Job>);
    let next = |(mut jobs, mut held): (BoxStream<'static, Result<Job>>, Option<Job>)| async move {
        loop {
            let Some(item) = jobs.next().await else {
                return held.take().map(|job| (Ok(job), (jobs, None)));
            };
            let job = match item {
                Ok(job) => job,
                // The listing ends here; what it held back may or may not be empty.
                Err(error) => return Some((Err(error), (jobs, None))),
            };
            let inside =
                held.as_ref().is_some_and(|dir| job.work.target().strip_prefix(dir.work.target()).is_some());
            let empty = held.take().filter(|_| !inside);
            match (empty, matches!(job.work, Work::Dir { .. })) {
                (Some(dir), true) => return Some((Ok(dir), (jobs, Some(job)))),
                (Some(dir), false) => {
                    let both = futures::stream::iter([Ok(job)]).chain(jobs).boxed();
                    return Some((Ok(dir), (both, None)));
                }
                (None, true) => held = Some(job),
                (None, false) => return Some((Ok(job), (jobs, None))),
            }
        }
    };
    futures::stream::unfold(state, next).boxed()
}

impl Work {
    fn target(&self) -> &FsPath {
        match self {
            Work::File { to, .. } | Work::Dir { to } => to,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_empty_directories_are_made_on_object_stores() {
        let path = |p: &str| FsPath::parse(p).unwrap();
        let job = |p: &str, dir: bool| {
            let to = path(p);
            let file = || Metadata::file(1, nearfs::Version::Unknown);
            let work =
                if dir { Work::Dir { to } } else { Work::File { from: path(p), metadata: file(), to } };
            Ok(Job { name: p.into(), work })
        };
        let listed =
            [("t", true), ("t/a", true), ("t/a/f", false), ("t/b", true), ("t/c", true), ("t/g", false)]
                .into_iter()
                .chain([("t/h", true), ("t/h/i", true)]);
        let jobs = futures::stream::iter(listed.map(|(p, dir)| job(p, dir)).collect::<Vec<_>>()).boxed();
        let kept: Vec<_> = without_full_directories(jobs)
            .map(|j| String::from_utf8(j.unwrap().name).unwrap())
            .collect()
            .await;
        assert_eq!(kept, ["t/a/f", "t/b", "t/c", "t/g", "t/h/i"]);
    }
}
