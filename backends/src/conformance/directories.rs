//! `create_dir` and `remove_dir`.

use super::subject::{Problem, Subject, Verdict, expect_bytes, expect_error, path, require};
use crate::error::ErrorKind;

pub(super) async fn an_empty_directory_is_kept(s: &Subject) -> Verdict {
    s.needs_empty_dirs()?;
    s.fs.create_dir(&path("d")).await?;
    s.fs.create_dir(&path("deep/er/e")).await?;
    for dir in ["d", "deep", "deep/er", "deep/er/e"] {
        let found = s.stat(dir).await?;
        require!(found.is_dir() && found.size == 0, "{dir}: {found:?}");
        expect_error(format!("open {dir}"), s.open(dir).await, &[ErrorKind::IsADirectory])?;
    }
    require!(s.names("d", true).await?.is_empty(), "a new directory is not empty");
    let names = s.names("", true).await?;
    require!(names == ["d/", "deep/", "deep/er/", "deep/er/e/"], "the subtree has {names:?}");
    let names = s.names("", false).await?;
    require!(names == ["d/", "deep/"], "the root has {names:?}");
    s.put("d/f", "x").await?;
    let names = s.names("d", false).await?;
    require!(names == ["d/f"], "the directory has {names:?}");
    s.delete("d/f").await?;
    require!(s.stat("d").await?.is_dir(), "the directory went with its last file");
    Ok(())
}

pub(super) async fn create_dir_refuses_what_exists(s: &Subject) -> Verdict {
    s.needs_empty_dirs()?;
    s.put("implicit/f", "x").await?;
    s.put("f", "y").await?;
    s.fs.create_dir(&path("made")).await?;
    for name in ["implicit", "f", "made", ""] {
        let result = s.fs.create_dir(&path(name)).await;
        expect_error(format!("create_dir {name:?}"), result, &[ErrorKind::AlreadyExists])?;
    }
    expect_bytes("the file", &s.get("f").await?, b"y")
}

pub(super) async fn remove_dir_removes_only_empty_ones(s: &Subject) -> Verdict {
    s.needs_write()?;
    s.put("full/f", "x").await?;
    s.put("f", "y").await?;
    let full = s.fs.remove_dir(&path("full")).await;
    if let Err(e) = &full
        && e.kind() == ErrorKind::Unsupported
    {
        return Err(Problem::NotApplicable("the filesystem cannot remove directories".into()));
    }
    expect_error("a full directory", full, &[ErrorKind::NotEmpty])?;
    expect_bytes("the file in it", &s.get("full/f").await?, b"x")?;
    expect_error("a file", s.fs.remove_dir(&path("f")).await, &[ErrorKind::NotADirectory])?;
    expect_bytes("the file", &s.get("f").await?, b"y")?;
    expect_error("a missing one", s.fs.remove_dir(&path("missing")).await, &[ErrorKind::NotFound])?;
    require!(s.fs.remove_dir(&path("")).await.is_err(), "the root was removed");
    require!(s.stat("").await?.is_dir(), "the root is gone");
    if s.fs.capabilities().empty_dirs {
        s.fs.create_dir(&path("made/inner")).await?;
        expect_error("with a directory in it", s.fs.remove_dir(&path("made")).await, &[ErrorKind::NotEmpty])?;
        s.fs.remove_dir(&path("made/inner")).await?;
        s.fs.remove_dir(&path("made")).await?;
        expect_error("stat afterwards", s.stat("made").await, &[ErrorKind::NotFound])?;
        let names = s.names("", false).await?;
        require!(names == ["f", "full/"], "the root has {names:?}");
    }
    Ok(())
}
