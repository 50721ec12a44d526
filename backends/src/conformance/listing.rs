//! Listings: order, uniqueness, completeness, resumption, and their agreement with `stat` and `open`.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt, stream};

use super::subject::{Subject, Verdict, expect_bytes, expect_error, label, path, require};
use crate::error::ErrorKind;
use crate::metadata::FileKind;
use crate::options::ListOptions;
use crate::path::FsPath;

/// Files whose keys interleave with the directories: `-`, `.` and `!` sort before `/`, digits and letters after.
const TREE: &[&str] = &[
    "a!/x",
    "a-b",
    "a.b/c",
    "a/x",
    "a/y/z",
    "a0",
    "ab/c",
    "b",
    "b-dir/deep/er/f",
    "c/1",
    "c/10",
    "c/2",
    "z",
];

async fn plant(s: &Subject) -> Verdict {
    s.needs_write()?;
    for (i, name) in TREE.iter().enumerate() {
        s.put(name, vec![b'x'; i]).await?;
    }
    Ok(())
}

/// Every path of [`TREE`] with its directories, in listing order.
fn model() -> Vec<FsPath> {
    let mut all = BTreeSet::new();
    for name in TREE {
        let mut at = Some(path(name));
        while let Some(p) = at.filter(|p| !p.is_root()) {
            at = p.parent();
            all.insert(p);
        }
    }
    let mut all: Vec<_> = all.into_iter().collect();
    all.sort_by(FsPath::cmp_listing);
    all
}

fn model_below(dir: &FsPath, recursive: bool) -> Vec<FsPath> {
    let inside = |p: &FsPath| p != dir && p.strip_prefix(dir).is_some_and(|t| recursive || t.depth() == 1);
    model().into_iter().filter(inside).collect()
}

pub(super) async fn the_root_exists_and_starts_empty(s: &Subject) -> Verdict {
    let root = s.stat("").await?;
    require!(root.kind == FileKind::Dir, "the root is not a directory");
    require!(root.size == 0, "the root has a size");
    if s.fs.capabilities().write {
        let names = s.names("", true).await?;
        require!(names.is_empty(), "a new filesystem holds {names:?}");
    }
    Ok(())
}

pub(super) async fn one_level_in_order_each_name_once(s: &Subject) -> Verdict {
    plant(s).await?;
    for dir in ["", "a", "a/y", "b-dir", "c"] {
        let found: Vec<_> = s.entries(dir, false).await?.into_iter().map(|e| e.path).collect();
        let expected = model_below(&path(dir), false);
        require!(found == expected, "listing of {dir:?} gave {found:?}, expected {expected:?}");
    }
    Ok(())
}

pub(super) async fn subtree_in_order_directories_first(s: &Subject) -> Verdict {
    plant(s).await?;
    for dir in ["", "a", "b-dir"] {
        let entries = s.entries(dir, true).await?;
        let found: Vec<_> = entries.iter().map(|e| e.path.clone()).collect();
        let expected = model_below(&path(dir), true);
        require!(found == expected, "subtree of {dir:?} gave {found:?}, expected {expected:?}");
        for e in &entries {
            let file = TREE.contains(&e.path.to_string().as_str());
            require!(e.metadata.is_file() == file, "{} has the wrong kind", label(e));
        }
    }
    Ok(())
}

pub(super) async fn start_after_gives_exactly_the_rest(s: &Subject) -> Verdict {
    plant(s).await?;
    let mut marks = model();
    marks.extend(
        ["0", "a", "a/", "a/x/0", "a/zz", "a1", "b-dir/deep", "bb", "c/11", "zz"]
            .map(|m| path(m.trim_end_matches('/'))),
    );
    for recursive in [false, true] {
        for dir in ["", "a", "c"].map(path) {
            for mark in &marks {
                let options = ListOptions { recursive, start_after: Some(mark.clone()) };
                let found: Vec<_> = s.fs.list(&dir, options).map_ok(|e| e.path).try_collect().await?;
                let mut expected = model_below(&dir, recursive);
                expected.retain(|p| p.cmp_listing(mark).is_gt());
                require!(
                    found == expected,
                    "listing of {dir:?} (recursive: {recursive}) after {mark:?} gave {found:?}, expected {expected:?}"
                );
            }
        }
    }
    Ok(())
}

pub(super) async fn listing_what_is_missing_or_a_file(s: &Subject) -> Verdict {
    let missing = s.fs.list(&path("missing"), ListOptions::default());
    let items: Vec<_> = missing.take(3).collect().await;
    require!(items.len() == 1, "listing a missing directory gave {} items, expected one error", items.len());
    for item in items {
        expect_error("listing a missing directory", item, &[ErrorKind::NotFound])?;
    }
    s.needs_write()?;
    s.put("f", "x").await?;
    for recursive in [false, true] {
        expect_error("listing a file", s.entries("f", recursive).await, &[ErrorKind::NotADirectory])?;
        expect_error("listing below a file", s.entries("f/g", recursive).await, &[ErrorKind::NotFound])?;
        expect_error("listing a missing name", s.entries("ff", recursive).await, &[ErrorKind::NotFound])?;
    }
    Ok(())
}

pub(super) async fn stat_listing_and_open_agree(s: &Subject) -> Verdict {
    plant(s).await?;
    for entry in s.entries("", true).await? {
        let stat = s.fs.stat(&entry.path).await?;
        let listed = &entry.metadata;
        let name = label(&entry);
        require!(stat.kind == listed.kind && stat.size == listed.size, "{name}: {stat:?} against {listed:?}");
        if stat.is_dir() {
            require!(!listed.version.is_known() && listed.size == 0, "{name}: a directory has {listed:?}");
            continue;
        }
        require!(stat.version == listed.version, "{name}: stat and listing name different versions");
        let file = s.open(entry.path.as_bytes()).await?;
        require!(file.metadata().version == stat.version, "{name}: stat and open name different versions");
        require!(file.metadata().size == stat.size, "{name}: stat and open name different sizes");
        require!(file.path() == &entry.path, "{name}: the open file says its path is {:?}", file.path());
        if let (Some(a), Some(b)) = (stat.modified, listed.modified) {
            // One of the two sources may have whole seconds only.
            let apart = a.duration_since(b).or_else(|_| b.duration_since(a)).unwrap_or_default();
            require!(apart < Duration::from_secs(1), "{name}: times of stat and listing are {apart:?} apart");
        }
    }
    Ok(())
}

pub(super) async fn stat_tells_kinds_and_absence(s: &Subject) -> Verdict {
    plant(s).await?;
    for (name, size) in [("b", 7), ("a-b", 1), ("a/x", 3)] {
        let found = s.stat(name).await?;
        require!(found.is_file() && found.size == size, "{name}: {found:?}");
    }
    for name in ["a", "a/y", "b-dir", "b-dir/deep/er", "ab"] {
        require!(s.stat(name).await?.is_dir(), "{name} is not a directory");
    }
    // Prefixes and neighbours of what exists, and names below files.
    for name in ["b-di", "b-", "c/1/x", "b/x", "b/x/y", "c/3", "A", "a-", "missing/deep/er", "a-b-"] {
        expect_error(format!("stat {name:?}"), s.stat(name).await, &[ErrorKind::NotFound])?;
        expect_error(format!("open {name:?}"), s.open(name).await, &[ErrorKind::NotFound])?;
    }
    Ok(())
}

pub(super) async fn directories_that_exist_only_as_prefixes(s: &Subject) -> Verdict {
    s.needs_write()?;
    s.put("a/b/c/d.bin", "deep").await?;
    expect_bytes("the first call, by full path", &s.get("a/b/c/d.bin").await?, b"deep")?;
    for (dir, inside) in [("", "a/"), ("a", "a/b/"), ("a/b", "a/b/c/"), ("a/b/c", "a/b/c/d.bin")] {
        require!(s.stat(dir).await?.is_dir(), "{dir:?} is not a directory");
        let names = s.names(dir, false).await?;
        require!(names == [inside], "{dir:?} lists {names:?}");
    }
    Ok(())
}

pub(super) async fn many_entries_come_exactly_once(s: &Subject) -> Verdict {
    s.needs_write()?;
    let many = s.options.many;
    // Every fourth name is a directory, so that entries and prefixes alternate across pages.
    let names: Vec<_> = (0..many)
        .map(|i| if i % 4 == 3 { format!("many/d{i:05}/f") } else { format!("many/d{i:05}") })
        .collect();
    stream::iter(names.iter().map(Ok))
        .try_for_each_concurrent(s.options.tasks, |name| async move { s.put(name, "").await.map(drop) })
        .await?;
    let expected: Vec<_> =
        (0..many).map(|i| format!("many/d{i:05}{}", if i % 4 == 3 { "/" } else { "" })).collect();
    let found = s.names("many", false).await?;
    require!(
        found == expected,
        "{} entries instead of {many}; first difference at {:?}",
        found.len(),
        found.iter().zip(&expected).find(|(a, b)| a != b)
    );
    let subtree = s.entries("many", true).await?;
    let files: BTreeSet<_> = subtree.iter().filter(|e| e.metadata.is_file()).map(|e| &e.path).collect();
    require!(files.len() == many, "the subtree has {} different files instead of {many}", files.len());
    require!(subtree.len() == many + many / 4, "the subtree has {} entries", subtree.len());
    Ok(())
}

pub(super) async fn a_dropped_listing_disturbs_nobody(s: &Subject) -> Verdict {
    plant(s).await?;
    let expected = s.names("", true).await?;
    for n in 0..expected.len() {
        let mut listing = s.fs.list(&FsPath::root(), ListOptions { recursive: true, start_after: None });
        for _ in 0..n {
            listing.next().await;
        }
        drop(listing);
        let (one, two) = futures::join!(s.names("", true), s.names("", true));
        require!(one? == expected && two? == expected, "a listing after a dropped one differs");
    }
    Ok(())
}
