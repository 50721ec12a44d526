//! Names are bytes: what is a legal path round-trips through create, list, stat and read, and nothing is altered.

use super::subject::{Problem, Subject, Verdict, expect_bytes, path, require};
use crate::error::ErrorKind;
use crate::metadata::FileKind;

/// Legal names that tools have mangled: patterns, encodings, whitespace, look-alikes.
const ODD: &[&[u8]] = &[
    b" ",
    b" lead and trail ",
    b"%",
    b"%2F",
    b"%zz",
    b"100%25",
    b"a+b",
    b"a&b=c;d",
    b"a?b#c",
    b"run[1].tar",
    b"run1.tar",
    b"a*b",
    b"w?z",
    b"p{2}q",
    b"(x)^$.bin",
    b"back\\slash",
    b"~",
    b"~tilde",
    b"-dash",
    b"--",
    b".hidden",
    b"..x",
    b"x..",
    b"...",
    b"a:b",
    b"s3:",
    b"q'uo\"te`",
    b"<xml>&amp;",
    b"|pipe|",
    b"@at,comma",
    "e\u{301}".as_bytes(),
    "\u{e9}".as_bytes(),
    "\u{1f642}".as_bytes(),
    "\u{65e5}\u{672c}\u{8a9e}".as_bytes(),
    "\u{a0}nbsp".as_bytes(),
    b"UPPER",
    b"upper",
    &[b'x'; 255],
];

/// Legal Linux names that a store of UTF-8 or XML text may have no room for.
const REFUSABLE: &[&[u8]] = &[b"nl\nx", b"tab\tx", b"cr\rx", b"\x01", b"del\x7f", b"\xff\xfe", b"half\xc3"];

pub(super) async fn odd_names_round_trip(s: &Subject) -> Verdict {
    round_trip(s, |name| [b"odd/", name].concat(), b"odd").await
}

pub(super) async fn odd_directory_names_round_trip(s: &Subject) -> Verdict {
    round_trip(s, |name| [name, b"/in"].concat(), b"").await
}

async fn round_trip(s: &Subject, full: impl Fn(&[u8]) -> Vec<u8>, dir: &[u8]) -> Verdict {
    s.needs_write()?;
    let mut kept = Vec::new();
    for name in ODD.iter().chain(REFUSABLE) {
        let refused = s.options.refused_names.iter().any(|r| r == name);
        let result = s.put(full(name), name.to_vec()).await;
        match result {
            Ok(_) => {
                require!(!refused, "{:?} was accepted, expected a refusal", path(name));
                kept.push(*name);
            }
            Err(e) => {
                let orderly = matches!(
                    e.kind(),
                    ErrorKind::InvalidInput | ErrorKind::Unsupported | ErrorKind::NameTooLong
                );
                let allowed = refused || REFUSABLE.contains(name);
                require!(allowed && orderly, "create {:?}: {:?}: {e:#}", path(name), e.kind());
            }
        }
    }
    let listed = s.entries(dir, false).await?;
    let mut names: Vec<_> = listed.iter().map(|e| e.path.name().to_vec()).collect();
    names.sort();
    let mut expected: Vec<_> = kept.iter().map(|n| n.to_vec()).collect();
    expected.sort();
    require!(
        names == expected,
        "the listing has {:?}, written were {:?}",
        names.iter().map(path).collect::<Vec<_>>(),
        expected.iter().map(path).collect::<Vec<_>>()
    );
    for entry in listed {
        let name = entry.path.name().to_vec();
        let file = path(full(&name));
        let found = s.fs.stat(&entry.path).await?;
        require!(found.kind == entry.metadata.kind, "{file:?}: stat and listing differ in kind");
        expect_bytes(format!("{file:?}"), &s.get(file.as_bytes()).await?, &name)?;
    }
    for entry in s.entries("", true).await?.iter().filter(|e| e.metadata.is_file()) {
        s.get(entry.path.as_bytes()).await.map_err(|e| {
            Problem::Failed(format!("{:?} is listed in the subtree and cannot be read: {e:#}", entry.path))
        })?;
    }
    Ok(())
}

pub(super) async fn names_that_differ_stay_apart(s: &Subject) -> Verdict {
    s.needs_write()?;
    let names: [&[u8]; 8] =
        ["e\u{301}".as_bytes(), "\u{e9}".as_bytes(), b"Case", b"case", b"a b", b"a+b", b"a%20b", b"a%2520b"];
    for (i, name) in names.iter().enumerate() {
        s.put(name, vec![i as u8; i + 1]).await?;
    }
    for (i, name) in names.iter().enumerate() {
        expect_bytes(format!("{:?}", path(name)), &s.get(name).await?, &vec![i as u8; i + 1])?;
    }
    s.delete(names[0]).await?;
    require!(s.stat(names[1]).await.is_ok(), "deleting a decomposed name took the composed one along");
    Ok(())
}

pub(super) async fn long_paths_work_or_are_refused(s: &Subject) -> Verdict {
    s.needs_write()?;
    for components in [3, 8, 40] {
        // Each below a directory of its own: a file cannot also be a directory everywhere.
        let name = format!("n{components}/{}", vec!["d".repeat(100); components].join("/"));
        match s.put(&name, "long").await {
            Ok(_) => expect_bytes(format!("path of {} bytes", name.len()), &s.get(&name).await?, b"long")?,
            Err(e) => {
                let orderly = matches!(e.kind(), ErrorKind::NameTooLong | ErrorKind::InvalidInput);
                require!(orderly && components > 3, "path of {} bytes: {:?}: {e:#}", name.len(), e.kind());
            }
        }
    }
    Ok(())
}

pub(super) async fn directory_wins_over_a_file_of_its_name(s: &Subject) -> Verdict {
    s.needs_write()?;
    s.put("out", "loser").await?;
    s.put("out-a", "a").await?;
    s.put("outer/y", "y").await?;
    match s.put("out/x", "winner").await {
        // A filesystem with real directories has no such names.
        Err(e) if e.kind() == ErrorKind::NotADirectory => {
            expect_bytes("the file that was in the way", &s.get("out").await?, b"loser")?;
            return Err(Problem::NotApplicable("a name is either a file or a directory here".into()));
        }
        other => other?,
    };
    require!(s.stat("out").await?.kind == FileKind::Dir, "stat says that the name is a file");
    for _ in 0..3 {
        let names = s.names("", false).await?;
        require!(names == ["out-a", "out/", "outer/"], "the listing has {names:?}");
    }
    let names = s.names("", true).await?;
    require!(names == ["out-a", "out/", "out/x", "outer/", "outer/y"], "the subtree has {names:?}");
    super::subject::expect_error("open", s.open("out").await, &[ErrorKind::IsADirectory])?;
    expect_bytes("the file below", &s.get("out/x").await?, b"winner")?;
    s.delete("out/x").await?;
    expect_bytes("the file, visible again", &s.get("out").await?, b"loser")
}
