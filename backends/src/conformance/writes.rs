//! Writes: nothing before `finish`, everything after it, conditions, and what an abandoned writer leaves (nothing).

use bytes::Bytes;
use futures::{StreamExt, stream};

use super::subject::{Problem, Subject, Verdict, expect_bytes, expect_error, path, require, stamped};
use crate::error::{Error, ErrorKind, Result};
use crate::metadata::{Metadata, Version};
use crate::options::{Condition, CreateOptions};

/// Large enough that a store with parts has sent some of it before `finish`.
fn body(s: &Subject, version: u32) -> Bytes {
    stamped(1, version, s.options.large)
}

async fn check_untouched(s: &Subject, when: &str, old: Option<&[u8]>) -> Verdict {
    match old {
        Some(old) => {
            expect_bytes(when, &s.get("d/f").await?, old)?;
            let names = s.names("d", true).await?;
            require!(names == ["d/f"], "{when}: the directory has {names:?}");
        }
        None => {
            expect_error(when, s.stat("d/f").await, &[ErrorKind::NotFound])?;
            expect_error(when, s.open("d/f").await, &[ErrorKind::NotFound])?;
            let files = s.entries("", true).await?.into_iter().filter(|e| e.metadata.is_file()).count();
            require!(files == 0, "{when}: {files} files are listed");
        }
    }
    Ok(())
}

pub(super) async fn nothing_is_visible_before_finish(s: &Subject) -> Verdict {
    s.needs_write()?;
    for old in [None, Some(&b"old"[..])] {
        if let Some(old) = old {
            s.put("d/f", old).await?;
        }
        let data = body(s, 1);
        let mut writer = s.fs.create(&path("d/f"), CreateOptions::default()).await?;
        check_untouched(s, "after create", old).await?;
        for chunk in [data.slice(..10), data.slice(10..)] {
            writer.write(chunk).await?;
            check_untouched(s, "after write", old).await?;
        }
        let made = writer.finish().await?;
        require!(made.is_file() && made.size == data.len() as u64, "finish reported {made:?}");
        let stat = s.stat("d/f").await?;
        require!(stat.size == made.size && stat.version == made.version, "finish {made:?}, stat {stat:?}");
        expect_bytes("after finish", &s.get("d/f").await?, &data)?;
        let names = s.names("", true).await?;
        require!(names == ["d/", "d/f"], "the subtree has {names:?}");
        s.delete("d/f").await?;
    }
    Ok(())
}

pub(super) async fn an_aborted_file_leaves_nothing(s: &Subject) -> Verdict {
    s.needs_write()?;
    for old in [None, Some(&b"old"[..])] {
        if let Some(old) = old {
            s.put("d/f", old).await?;
        }
        for size in [0, 10, s.options.large] {
            let mut writer = s.fs.create(&path("d/f"), CreateOptions::default()).await?;
            writer.write(stamped(2, 1, size)).await?;
            writer.abort().await?;
            check_untouched(s, "after abort", old).await?;
        }
    }
    Ok(())
}

pub(super) async fn a_dropped_writer_leaves_nothing(s: &Subject) -> Verdict {
    s.needs_write()?;
    for old in [None, Some(&b"old"[..])] {
        if let Some(old) = old {
            s.put("d/f", old).await?;
        }
        for size in [0, 10, s.options.large] {
            let mut writer = s.fs.create(&path("d/f"), CreateOptions::default()).await?;
            writer.write(stamped(3, 1, size)).await?;
            drop(writer);
            check_untouched(s, "after drop", old).await?;
        }
    }
    Ok(())
}

pub(super) async fn large_files_arrive_whole(s: &Subject) -> Verdict {
    s.needs_write()?;
    let data = body(s, 4);
    for (chunk, hint) in [(data.len(), None), (1 << 20, Some(data.len() as u64)), (777_777, Some(1))] {
        let options = CreateOptions { size_hint: hint, ..Default::default() };
        let mut writer = s.fs.create(&path("large"), options).await?;
        let mut rest = data.clone();
        while !rest.is_empty() {
            writer.write(rest.split_to(chunk.min(rest.len()))).await?;
        }
        let made = writer.finish().await?;
        require!(made.size == data.len() as u64, "finish reported {} bytes", made.size);
        expect_bytes(format!("written in chunks of {chunk}"), &s.get("large").await?, &data)?;
    }
    Ok(())
}

pub(super) async fn small_and_empty_chunks_add_up(s: &Subject) -> Verdict {
    s.needs_write()?;
    let data = stamped(5, 1, 5_003);
    let options = CreateOptions {
        content_type: Some("application/x-test".into()),
        size_hint: Some(1),
        ..Default::default()
    };
    let mut writer = s.fs.create(&path("f"), options).await?;
    writer.write(Bytes::new()).await?;
    for chunk in data.chunks(97) {
        writer.write(Bytes::copy_from_slice(chunk)).await?;
        writer.write(Bytes::new()).await?;
    }
    writer.finish().await?;
    expect_bytes("many small chunks", &s.get("f").await?, &data)?;
    let writer = s.fs.create(&path("none"), CreateOptions::default()).await?;
    require!(writer.finish().await?.size == 0, "a file without writes has bytes");
    expect_bytes("a file without writes", &s.get("none").await?, b"")
}

async fn put_if(s: &Subject, name: &str, data: &[u8], condition: Condition) -> Result<Metadata> {
    let options = CreateOptions { condition, ..Default::default() };
    s.put_with(&path(name), Bytes::copy_from_slice(data), options).await
}

pub(super) async fn condition_absent(s: &Subject) -> Verdict {
    s.needs_write()?;
    put_if(s, "f", b"first", Condition::Absent).await?;
    let again = put_if(s, "f", b"second", Condition::Absent).await;
    expect_error("creating what exists", again, &[ErrorKind::AlreadyExists])?;
    expect_bytes("the first file", &s.get("f").await?, b"first")?;
    // The name appears after `create`: `finish` must notice where the store enforces conditions.
    let options = CreateOptions { condition: Condition::Absent, ..Default::default() };
    let mut late = s.fs.create(&path("g"), options).await?;
    late.write("late".into()).await?;
    s.put("g", "early").await?;
    if s.fs.capabilities().conditional_write {
        expect_error("finish", late.finish().await, &[ErrorKind::AlreadyExists])?;
        expect_bytes("the early file", &s.get("g").await?, b"early")?;
    }
    Ok(())
}

pub(super) async fn condition_version(s: &Subject) -> Verdict {
    s.needs_write()?;
    let first = s.put("f", "one").await?.version;
    if !first.is_known() {
        return Err(Problem::NotApplicable("the filesystem knows no versions".into()));
    }
    let second = match put_if(s, "f", b"two", Condition::Version(first.clone())).await {
        Err(e) if e.kind() == ErrorKind::Unsupported && !s.fs.capabilities().conditional_write => {
            return Err(Problem::NotApplicable("conditions on a version are not supported".into()));
        }
        other => other?.version,
    };
    expect_bytes("the condition held", &s.get("f").await?, b"two")?;
    let stale = put_if(s, "f", b"three", Condition::Version(first.clone())).await;
    expect_error("an old version as condition", stale, &[ErrorKind::Stale])?;
    expect_bytes("the condition failed", &s.get("f").await?, b"two")?;
    s.delete("f").await?;
    let gone = put_if(s, "f", b"four", Condition::Version(second)).await;
    expect_error("the version of a deleted file as condition", gone, &[ErrorKind::Stale])?;
    expect_error("the file stays away", s.stat("f").await, &[ErrorKind::NotFound])?;
    let unknown = put_if(s, "f", b"five", Condition::Version(Version::Unknown)).await;
    let kinds = [ErrorKind::Stale, ErrorKind::InvalidInput, ErrorKind::Unsupported];
    expect_error("an unknown version as condition", unknown, &kinds)
}

pub(super) async fn only_one_of_many_creators_wins(s: &Subject) -> Verdict {
    s.needs_write()?;
    if !s.fs.capabilities().conditional_write {
        return Err(Problem::NotApplicable("conditions are not enforced by the store".into()));
    }
    let attempts = stream::iter(0..s.options.tasks).map(|i| async move {
        (i, put_if(s, "f", format!("writer {i}").as_bytes(), Condition::Absent).await)
    });
    let results: Vec<_> = attempts.buffer_unordered(s.options.tasks).collect().await;
    let winners: Vec<_> = results.iter().filter(|(_, r)| r.is_ok()).map(|(i, _)| *i).collect();
    require!(winners.len() == 1, "{} writers say that they created the file", winners.len());
    for (i, result) in results.into_iter().filter(|(_, r)| r.is_err()) {
        expect_error(format!("writer {i}"), result, &[ErrorKind::AlreadyExists])?;
    }
    expect_bytes("the winner's file", &s.get("f").await?, format!("writer {}", winners[0]).as_bytes())
}

pub(super) async fn the_last_of_two_writers_wins(s: &Subject) -> Verdict {
    s.needs_write()?;
    let mut one = s.fs.create(&path("f"), CreateOptions::default()).await?;
    let mut two = s.fs.create(&path("f"), CreateOptions::default()).await?;
    one.write("one, ".into()).await?;
    two.write("two, ".into()).await?;
    one.write("whole".into()).await?;
    two.write("whole".into()).await?;
    two.finish().await?;
    expect_bytes("after the first finish", &s.get("f").await?, b"two, whole")?;
    one.finish().await?;
    expect_bytes("after the second finish", &s.get("f").await?, b"one, whole")
}

pub(super) async fn creating_where_a_directory_is(s: &Subject) -> Verdict {
    s.needs_write()?;
    s.put("d/f", "x").await?;
    for name in ["d", ""] {
        let result: Result<Metadata, Error> = s.put(name, "y").await;
        expect_error(format!("create {name:?}"), result, &[ErrorKind::IsADirectory])?;
    }
    expect_bytes("the file in the directory", &s.get("d/f").await?, b"x")
}
