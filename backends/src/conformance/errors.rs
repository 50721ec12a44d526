//! Errors say what failed on what, and whether trying again makes sense.

use super::subject::{Problem, Subject, Verdict, expect_error, path, require};
use crate::error::{Error, ErrorKind, Result, Retry};
use crate::options::{CopyOptions, CreateOptions};

fn check_named<T>(what: &str, name: &str, result: Result<T>) -> std::result::Result<Error, Problem> {
    let Err(e) = result else { return Err(Problem::Failed(format!("{what} succeeded"))) };
    require!(e.operation().is_some(), "{what}: the error names no operation: {e:?}");
    require!(e.path().is_some_and(|p| p.contains(name)), "{what}: the error does not name {name}: {e:?}");
    require!(!e.message().is_empty(), "{what}: the error has no message");
    Ok(e)
}

pub(super) async fn errors_name_operation_and_path(s: &Subject) -> Verdict {
    check_named("stat", "missing", s.stat("missing").await)?;
    check_named("open", "missing", s.open("missing").await)?;
    check_named("list", "missing", s.entries("missing", false).await)?;
    s.needs_write()?;
    s.put("d/f", "x").await?;
    check_named("open of a directory", "d", s.open("d").await)?;
    check_named("list of a file", "d/f", s.entries("d/f", false).await)?;
    let (missing, to) = (path("missing"), path("to"));
    check_named("rename", "missing", s.fs.rename(&missing, &to, CopyOptions::default()).await)?;
    check_named("copy", "missing", s.fs.copy(&missing, &to, CopyOptions::default()).await)?;
    check_named("remove_dir", "missing", s.fs.remove_dir(&missing).await)?;
    check_named("create over a directory", "d", s.put("d", "x").await)?;
    Ok(())
}

pub(super) async fn absence_is_final(s: &Subject) -> Verdict {
    for result in [s.stat("missing").await.map(drop), s.open("missing").await.map(drop)] {
        let e = check_named("a missing name", "missing", result)?;
        require!(e.kind() == ErrorKind::NotFound, "{:?}: {e:#}", e.kind());
        require!(e.retry() == Retry::Never, "absence asks to be tried again: {e:?}");
    }
    Ok(())
}

pub(super) async fn writes_are_refused_where_not_possible(s: &Subject) -> Verdict {
    if s.fs.capabilities().write {
        return Err(Problem::NotApplicable("the filesystem can write".into()));
    }
    let kinds = [ErrorKind::ReadOnly, ErrorKind::Unsupported];
    let (a, b) = (path("a"), path("b"));
    let created = async { s.fs.create(&a, CreateOptions::default()).await?.finish().await };
    expect_error("create", created.await, &kinds)?;
    expect_error("delete", s.delete("a").await, &kinds)?;
    expect_error("rename", s.fs.rename(&a, &b, CopyOptions::default()).await, &kinds)?;
    expect_error("copy", s.fs.copy(&a, &b, CopyOptions::default()).await, &kinds)?;
    expect_error("create_dir", s.fs.create_dir(&a).await, &kinds)?;
    expect_error("remove_dir", s.fs.remove_dir(&a).await, &kinds)
}
