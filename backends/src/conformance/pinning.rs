//! One open file is one version: old bytes or `Stale`, never new ones and never a mixture.

use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;

use super::subject::{Problem, Subject, Verdict, expect_bytes, expect_error, path, require, slice, stamped};
use crate::error::{ErrorKind, Result};
use crate::file::File;
use crate::io::Buffer;
use crate::options::OpenOptions;

const SIZE: usize = (2 << 20) + 11;

/// A read of a pinned file gave the old bytes (`false`) or `Stale` (`true`); everything else is a failure.
fn old_or_stale(what: &str, result: Result<Bytes>, old: &[u8]) -> std::result::Result<bool, Problem> {
    match result {
        Ok(found) => expect_bytes(what, &found, old).map(|()| false),
        Err(e) if e.kind() == ErrorKind::Stale => Ok(true),
        Err(e) => Err(Problem::Failed(format!("{what}: {:?}, expected old bytes or Stale: {e:#}", e.kind()))),
    }
}

/// Every kind of read on `file`, whose version is gone.
async fn check_pinned(file: &Arc<dyn File>, old: &[u8]) -> Verdict {
    let mut stale = false;
    for round in 0..2 {
        for range in
            [0..100, 1 << 20..(1 << 20) + 5_000, 0..old.len() as u64, old.len() as u64 - 1..old.len() as u64]
        {
            let expected = slice(old, range.clone());
            let what = format!("round {round}, {range:?}");
            let mut now = vec![old_or_stale(&what, file.read_at(range.clone()).await, expected)?];
            let streamed = super::subject::drain(file.read_stream(range.clone())).await;
            now.push(old_or_stale(&what, streamed, expected)?);
            let ranges = file.read_ranges(std::slice::from_ref(&range)).await;
            now.push(old_or_stale(&what, ranges.map(|r| r.concat().into()), expected)?);
            let mut buf = Buffer::with_capacity(expected.len() + 4);
            buf.append(b"lead");
            let (result, buf) = file.read_into(range.start, buf).await;
            match result {
                Ok(_) => expect_bytes(&what, &buf[4..], expected)?,
                Err(_) => expect_bytes("the buffer after an error", &buf, b"lead")?,
            }
            now.push(old_or_stale(&what, result.map(|_| Bytes::copy_from_slice(&buf[4..])), expected)?);
            for is_stale in now {
                require!(is_stale || !stale, "{what}: bytes again after the file had been stale");
                stale |= is_stale;
            }
        }
    }
    require!(file.metadata().size == old.len() as u64, "the metadata of the pinned version changed");
    Ok(())
}

pub(super) async fn a_replaced_file_is_old_or_stale(s: &Subject) -> Verdict {
    s.needs_write()?;
    for (version, size) in [(2, SIZE), (3, SIZE * 2), (4, 10), (5, 0)] {
        let old = stamped(1, 1, SIZE);
        s.put("f", old.clone()).await?;
        let touched = s.open("f").await?;
        expect_bytes("before", &touched.read_at(0..50).await?, &old[..50])?;
        let untouched = s.open("f").await?;
        let new = stamped(1, version, size);
        s.put("f", new.clone()).await?;
        check_pinned(&touched, &old).await?;
        check_pinned(&untouched, &old).await?;
        expect_bytes("a new open", &s.get("f").await?, &new)?;
    }
    Ok(())
}

pub(super) async fn a_deleted_file_is_old_or_stale(s: &Subject) -> Verdict {
    s.needs_write()?;
    let old = stamped(2, 1, SIZE);
    s.put("d/f", old.clone()).await?;
    let file = s.open("d/f").await?;
    s.delete("d/f").await?;
    check_pinned(&file, &old).await?;
    expect_error("a new open", s.open("d/f").await, &[ErrorKind::NotFound])
}

pub(super) async fn a_stream_never_mixes_versions(s: &Subject) -> Verdict {
    s.needs_write()?;
    let old = stamped(3, 1, 8 << 20);
    s.put("f", old.clone()).await?;
    let file = s.open("f").await?;
    let mut stream = file.read_stream(0..u64::MAX);
    let mut found = match stream.next().await {
        Some(first) => first?.to_vec(),
        None => Vec::new(),
    };
    s.put("f", stamped(3, 2, 8 << 20)).await?;
    while let Some(chunk) = stream.next().await {
        match chunk {
            Ok(bytes) => found.extend_from_slice(&bytes),
            Err(e) => {
                require!(e.kind() == ErrorKind::Stale, "the stream ended with {:?}: {e:#}", e.kind());
                return expect_bytes("what came before", &found, &old[..found.len().min(old.len())]);
            }
        }
    }
    expect_bytes("the whole stream", &found, &old)
}

pub(super) async fn an_old_version_is_never_served_as_the_new(s: &Subject) -> Verdict {
    s.needs_write()?;
    let old = stamped(4, 1, SIZE);
    let metadata = s.put("f", old.clone()).await?;
    if !metadata.version.is_known() {
        return Err(Problem::NotApplicable("the filesystem knows no versions".into()));
    }
    for gone in [false, true] {
        if gone {
            s.delete("f").await?;
        } else {
            s.put("f", stamped(4, 2, SIZE)).await?;
        }
        let options = OpenOptions { metadata: Some(metadata.clone()) };
        match s.fs.open(&path("f"), options).await {
            Ok(file) => check_pinned(&file, &old).await?,
            Err(e) => expect_error("open", Err::<(), _>(e), &[ErrorKind::Stale, ErrorKind::NotFound])?,
        }
    }
    Ok(())
}

pub(super) async fn versions_tell_contents_apart(s: &Subject) -> Verdict {
    s.needs_write()?;
    let first = s.put("f", stamped(5, 1, 1_000)).await?;
    let again = s.stat("f").await?;
    require!(first.version == again.version, "finish says {}, stat {}", first.version, again.version);
    require!(s.stat("f").await?.version == again.version, "the version of an unchanged file changed");
    let second = s.put("f", stamped(5, 2, 1_000)).await?;
    if !second.version.is_known() {
        return Err(Problem::NotApplicable("the filesystem knows no versions".into()));
    }
    require!(first.version != second.version, "two contents share the version {}", first.version);
    require!(s.stat("f").await?.version == second.version, "stat does not see the new version");
    Ok(())
}
