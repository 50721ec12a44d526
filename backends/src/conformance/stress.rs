//! Many tasks at once, and calls that are dropped half-way.

use std::future::Future;
use std::task::Poll;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, pin_mut, stream};

use super::subject::{Problem, Subject, Verdict, drain, expect_bytes, path, require, stamped};
use crate::io::Buffer;
use crate::options::{CopyOptions, CreateOptions, ListOptions, OpenOptions};

pub(super) async fn identity_and_capabilities_are_stable(s: &Subject) -> Verdict {
    let (identity, capabilities) = (s.fs.identity(), s.fs.capabilities());
    require!(!identity.url.is_empty(), "the identity has no URL");
    if capabilities.write {
        s.put("f", "x").await?;
    }
    require!(s.fs.identity() == identity, "the identity changed");
    require!(s.fs.capabilities() == capabilities, "the capabilities changed");
    Ok(())
}

/// Spawned, so that a filesystem that is not really `Send` in use, or holds a lock while it waits, is found.
pub(super) async fn many_tasks_side_by_side(s: &Subject) -> Verdict {
    s.needs_write()?;
    s.put("shared", stamped(0, 0, 300_000)).await?;
    let tasks: Vec<_> = (0..s.options.tasks as u32)
        .map(|task| {
            let own = Subject::new(s.fs.clone(), s.options.clone());
            tokio::spawn(async move { one_task(&own, task).await })
        })
        .collect();
    for task in tasks {
        task.await.map_err(|e| Problem::Failed(format!("a task ended badly: {e}")))??;
    }
    let names = s.names("", true).await?;
    require!(names.iter().filter(|n| !n.ends_with('/')).eq(["shared"]), "left over: {names:?}");
    Ok(())
}

async fn one_task(s: &Subject, task: u32) -> Verdict {
    let (one, two) = (format!("t{task}/one"), format!("t{task}/two"));
    for version in 0..3 {
        let data = stamped(task, version, 20_000 + task as usize);
        s.put(&one, data.clone()).await?;
        expect_bytes(&one, &s.get(&one).await?, &data)?;
        expect_bytes("the shared file", &s.get("shared").await?, &stamped(0, 0, 300_000))?;
        s.fs.rename(&path(&one), &path(&two), CopyOptions::default()).await?;
        let names = s.names(format!("t{task}"), false).await?;
        require!(names == [two.as_str()], "task {task} lists {names:?}");
        expect_bytes(&two, &s.get(&two).await?, &data)?;
        s.delete(&two).await?;
    }
    Ok(())
}

/// Polls `call` at most `polls` times, with pauses in which other tasks run, then drops it.
async fn cancel_after<F: Future>(polls: usize, call: F) {
    pin_mut!(call);
    for _ in 0..polls {
        let done = std::future::poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx).is_ready())).await;
        if done {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_micros(300)).await;
    }
}

pub(super) async fn cancelled_calls_leave_order(s: &Subject) -> Verdict {
    s.needs_write()?;
    let data = stamped(1, 1, (1 << 20) + 5);
    let large = stamped(9, 9, s.options.large);
    s.put("d/keep", data.clone()).await?;
    let (keep, victim, other) = (path("d/keep"), path("v/victim"), path("v/other"));
    for polls in [0, 1, 2, 3, 5, 9, 20] {
        s.put("v/victim", "old").await?;
        let file = s.fs.open(&keep, OpenOptions::default()).await?;
        cancel_after(polls, s.fs.stat(&keep)).await;
        cancel_after(polls, s.fs.open(&keep, OpenOptions::default())).await;
        cancel_after(polls, s.fs.list(&path(""), ListOptions::default()).collect::<Vec<_>>()).await;
        cancel_after(polls, file.read_at(0..u64::MAX)).await;
        cancel_after(polls, file.read_ranges(&[0..10, 500_000..600_000])).await;
        cancel_after(polls, file.read_into(0, Buffer::with_capacity(1 << 20))).await;
        cancel_after(polls, drain(file.read_stream(0..u64::MAX))).await;
        cancel_after(polls, s.put("v/victim", large.clone())).await;
        let found = s.get("v/victim").await?;
        require!(
            found == Bytes::from_static(b"old") || found == large,
            "a cancelled write left {} bytes, neither the old file nor the new one",
            found.len()
        );
        cancel_after(polls, s.fs.copy(&keep, &other, CopyOptions::default())).await;
        if let Ok(found) = s.get("v/other").await {
            expect_bytes("the target of a cancelled copy", &found, &data)?;
        }
        let before = s.get("v/victim").await?;
        cancel_after(polls, s.fs.rename(&victim, &other, CopyOptions::default())).await;
        let copies = stream::iter(["v/victim", "v/other"])
            .then(|name| async move { s.get(name).await.ok() })
            .filter(|found| std::future::ready(found.as_ref() == Some(&before)))
            .count()
            .await;
        require!(copies > 0, "a cancelled rename lost the file");
        cancel_after(polls, s.fs.create(&other, CreateOptions::default())).await;
        cancel_after(polls, s.delete("v/other")).await;
        cancel_after(polls, s.delete("v/victim")).await;
        expect_bytes("the open file", &file.read_at(0..u64::MAX).await?, &data)?;
        s.delete("v/other").await?;
        s.delete("v/victim").await?;
    }
    expect_bytes("the file nobody touched", &s.get("d/keep").await?, &data)?;
    let files: Vec<_> =
        s.fs.list(&path(""), ListOptions { recursive: true, start_after: None }).try_collect().await?;
    let files: Vec<_> = files.iter().filter(|e| e.metadata.is_file()).map(|e| e.path.to_string()).collect();
    require!(files == ["d/keep"], "left over: {files:?}");
    Ok(())
}
