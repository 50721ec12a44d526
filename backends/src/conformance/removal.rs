//! `delete`: idempotent, in bulk, one result for each path.

use std::collections::HashMap;

use futures::{StreamExt, TryStreamExt, stream};

use super::subject::{Problem, Subject, Verdict, expect_bytes, expect_error, path, require};
use crate::error::ErrorKind;

pub(super) async fn deleting_is_idempotent(s: &Subject) -> Verdict {
    s.needs_write()?;
    s.put("d/f", "x").await?;
    s.put("d/g", "y").await?;
    s.delete("d/f").await?;
    expect_error("stat after delete", s.stat("d/f").await, &[ErrorKind::NotFound])?;
    let names = s.names("d", false).await?;
    require!(names == ["d/g"], "the directory has {names:?}");
    s.delete("d/f").await?;
    s.delete("never").await?;
    s.delete("never/there").await?;
    s.put("d/f", "again").await?;
    expect_bytes("written again", &s.get("d/f").await?, b"again")
}

pub(super) async fn every_path_gets_its_result(s: &Subject) -> Verdict {
    s.needs_write()?;
    let none: Vec<_> = s.fs.delete(stream::empty().boxed()).collect().await;
    require!(none.is_empty(), "no paths gave {} results", none.len());
    let bulk = s.options.bulk;
    stream::iter((0..bulk).step_by(2).map(Ok))
        .try_for_each_concurrent(s.options.tasks, |i| async move {
            s.put(format!("bulk/{i}"), "").await.map(drop)
        })
        .await?;
    s.put("bulk/keep", "x").await?;
    // Every second one is missing: still a success.
    let paths: Vec<_> = (0..bulk).map(|i| path(format!("bulk/{i}"))).collect();
    let mut seen = HashMap::new();
    let mut results = s.fs.delete(stream::iter(paths.clone()).boxed());
    while let Some((path, result)) = results.next().await {
        result.map_err(|e| Problem::Failed(format!("{path}: {e:#}")))?;
        *seen.entry(path).or_insert(0) += 1;
    }
    require!(seen.len() == bulk, "{} of {bulk} paths got a result", seen.len());
    require!(seen.values().all(|n| *n == 1), "a path got two results");
    require!(paths.iter().all(|p| seen.contains_key(p)), "a result names a path that was not asked for");
    let names = s.names("bulk", false).await?;
    require!(names == ["bulk/keep"], "left over: {} entries", names.len());
    Ok(())
}

pub(super) async fn a_directory_is_not_deleted_as_a_file(s: &Subject) -> Verdict {
    s.needs_write()?;
    s.put("d/f", "x").await?;
    // A store without directories knows nothing of the name: a missing file.
    if let Err(e) = s.delete("d").await {
        require!(e.kind() == ErrorKind::IsADirectory, "delete of a directory: {:?}: {e:#}", e.kind());
    }
    expect_bytes("the file in the directory", &s.get("d/f").await?, b"x")?;
    if let Err(e) = s.delete("").await {
        require!(e.kind() == ErrorKind::IsADirectory, "delete of the root: {:?}: {e:#}", e.kind());
    }
    require!(s.stat("").await?.is_dir(), "the root is gone");
    Ok(())
}

pub(super) async fn the_last_file_of_a_directory(s: &Subject) -> Verdict {
    s.needs_write()?;
    s.put("d/f", "x").await?;
    s.delete("d/f").await?;
    // Whether the directory stays is the store's affair; stat and listings must say the same.
    match s.stat("d").await {
        Ok(found) => {
            require!(found.is_dir(), "an emptied directory became a file");
            require!(s.names("d", true).await?.is_empty(), "an emptied directory lists something");
            let names = s.names("", false).await?;
            require!(names == ["d/"], "stat finds the directory, the listing has {names:?}");
        }
        Err(e) => {
            expect_error("stat", Err::<(), _>(e), &[ErrorKind::NotFound])?;
            expect_error("list", s.names("d", false).await, &[ErrorKind::NotFound])?;
            let names = s.names("", false).await?;
            require!(names.is_empty(), "stat finds no directory, the listing has {names:?}");
        }
    }
    Ok(())
}
