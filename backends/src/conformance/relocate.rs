//! `rename` and `copy`: the whole file or nothing, and never less than one copy.

use super::subject::{Subject, Verdict, expect_bytes, expect_error, path, require, stamped};
use crate::error::{ErrorKind, Result};
use crate::options::CopyOptions;

const NO_REPLACE: CopyOptions = CopyOptions { no_replace: true };

async fn rename(s: &Subject, from: &str, to: &str, options: CopyOptions) -> Result<()> {
    s.fs.rename(&path(from), &path(to), options).await
}

async fn copy(s: &Subject, from: &str, to: &str, options: CopyOptions) -> Result<()> {
    s.fs.copy(&path(from), &path(to), options).await
}

pub(super) async fn rename_moves_the_whole_file(s: &Subject) -> Verdict {
    s.needs_write()?;
    for size in [0, 1, (1 << 20) + 1] {
        let data = stamped(1, 1, size);
        s.put("d/from", data.clone()).await?;
        s.put("d/to", "replaced").await?;
        rename(s, "d/from", "d/to", CopyOptions::default()).await?;
        expect_bytes("the target", &s.get("d/to").await?, &data)?;
        expect_error("the source", s.stat("d/from").await, &[ErrorKind::NotFound])?;
        let names = s.names("d", false).await?;
        require!(names == ["d/to"], "the directory has {names:?}");
        rename(s, "d/to", "d/fresh", NO_REPLACE).await?;
        expect_bytes("a fresh target", &s.get("d/fresh").await?, &data)?;
        s.delete("d/fresh").await?;
    }
    Ok(())
}

pub(super) async fn copy_leaves_the_source(s: &Subject) -> Verdict {
    s.needs_write()?;
    for size in [0, 1, (1 << 20) + 1] {
        let data = stamped(2, 1, size);
        let source = s.put("d/from", data.clone()).await?;
        s.put("d/to", "replaced").await?;
        copy(s, "d/from", "d/to", CopyOptions::default()).await?;
        expect_bytes("the target", &s.get("d/to").await?, &data)?;
        expect_bytes("the source", &s.get("d/from").await?, &data)?;
        require!(s.stat("d/from").await?.version == source.version, "copying changed the source's version");
        copy(s, "d/from", "d/fresh", NO_REPLACE).await?;
        expect_bytes("a fresh target", &s.get("d/fresh").await?, &data)?;
        s.delete("d/fresh").await?;
    }
    Ok(())
}

pub(super) async fn no_replace_keeps_the_target(s: &Subject) -> Verdict {
    s.needs_write()?;
    s.put("from", "source").await?;
    s.put("to", "target").await?;
    expect_error("rename", rename(s, "from", "to", NO_REPLACE).await, &[ErrorKind::AlreadyExists])?;
    expect_error("copy", copy(s, "from", "to", NO_REPLACE).await, &[ErrorKind::AlreadyExists])?;
    expect_bytes("the source", &s.get("from").await?, b"source")?;
    expect_bytes("the target", &s.get("to").await?, b"target")
}

pub(super) async fn a_missing_source_changes_nothing(s: &Subject) -> Verdict {
    s.needs_write()?;
    s.put("to", "target").await?;
    for options in [CopyOptions::default(), NO_REPLACE] {
        for to in ["to", "fresh"] {
            // With `no_replace` the store may look at the target first.
            let mut kinds = vec![ErrorKind::NotFound];
            if options.no_replace && to == "to" {
                kinds.push(ErrorKind::AlreadyExists);
            }
            expect_error("rename", rename(s, "missing", to, options.clone()).await, &kinds)?;
            expect_error("copy", copy(s, "missing", to, options.clone()).await, &kinds)?;
        }
    }
    expect_bytes("the target", &s.get("to").await?, b"target")?;
    expect_error("a fresh target", s.stat("fresh").await, &[ErrorKind::NotFound])
}

pub(super) async fn renaming_to_itself_loses_nothing(s: &Subject) -> Verdict {
    s.needs_write()?;
    s.put("f", "precious").await?;
    // Success or refusal: both are fine, as long as the file stays.
    let renamed = rename(s, "f", "f", CopyOptions::default()).await;
    expect_bytes("after a rename to itself", &s.get("f").await?, b"precious")?;
    let copied = copy(s, "f", "f", CopyOptions::default()).await;
    expect_bytes("after a copy to itself", &s.get("f").await?, b"precious")?;
    for result in [renamed, copied] {
        if let Err(e) = result {
            let kinds = [ErrorKind::InvalidInput, ErrorKind::AlreadyExists, ErrorKind::Unsupported];
            expect_error("onto itself", Err::<(), _>(e), &kinds)?;
        }
    }
    expect_error(
        "with no_replace",
        copy(s, "f", "f", NO_REPLACE).await,
        &[ErrorKind::AlreadyExists, ErrorKind::InvalidInput],
    )?;
    expect_bytes("after a refused copy", &s.get("f").await?, b"precious")
}

pub(super) async fn directories_and_rename(s: &Subject) -> Verdict {
    s.needs_write()?;
    s.put("d/f", "x").await?;
    s.put("e/g", "y").await?;
    s.put("file", "z").await?;
    let is_dir = [ErrorKind::IsADirectory];
    expect_error("copy of a directory", copy(s, "d", "copied", CopyOptions::default()).await, &is_dir)?;
    expect_error("copy onto a directory", copy(s, "file", "e", CopyOptions::default()).await, &is_dir)?;
    expect_error("rename onto a directory", rename(s, "file", "e", CopyOptions::default()).await, &is_dir)?;
    expect_bytes("the file", &s.get("file").await?, b"z")?;
    expect_bytes("in the target directory", &s.get("e/g").await?, b"y")?;
    match rename(s, "d", "moved", CopyOptions::default()).await {
        Ok(()) => {
            expect_bytes("in the moved directory", &s.get("moved/f").await?, b"x")?;
            expect_error("the old name", s.stat("d").await, &[ErrorKind::NotFound])
        }
        Err(e) => {
            expect_error("rename of a directory", Err::<(), _>(e), &is_dir)?;
            expect_bytes("in the directory", &s.get("d/f").await?, b"x")?;
            expect_error("the new name", s.stat("moved").await, &[ErrorKind::NotFound])
        }
    }
}
