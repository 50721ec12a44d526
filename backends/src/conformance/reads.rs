//! Reads of one version: range arithmetic, the agreement of all ways to read, opening what is no file.

use std::os::unix::fs::FileExt as _;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};

use super::subject::{
    Problem, Subject, Verdict, drain, expect_bytes, expect_error, path, require, slice, stamped,
};
use crate::error::ErrorKind;
use crate::io::Buffer;
use crate::options::OpenOptions;

const BLOCK: usize = 1 << 20;

/// Sizes at which block arithmetic goes wrong.
const SIZES: [usize; 6] = [1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 3 * BLOCK + 1];

fn edges(size: u64) -> Vec<std::ops::Range<u64>> {
    let block = BLOCK as u64;
    let mut ranges = vec![0..size, 0..size + 10, 0..u64::MAX, u64::MAX - 1..u64::MAX];
    for start in [0, 1, block - 1, block, block + 1, size.saturating_sub(1), size, size + 1] {
        for len in [0, 1, 10, block, 10 * block] {
            ranges.push(start..start + len);
        }
    }
    ranges
}

pub(super) async fn ranges_are_clamped_to_the_size(s: &Subject) -> Verdict {
    s.needs_write()?;
    for size in SIZES {
        let data = stamped(1, 1, size);
        s.put("f", data.clone()).await?;
        let file = s.open("f").await?;
        require!(file.metadata().size == size as u64, "size {} instead of {size}", file.metadata().size);
        for range in edges(size as u64) {
            let found = file.read_at(range.clone()).await?;
            expect_bytes(format!("read_at {range:?} of {size}"), &found, slice(&data, range))?;
        }
        #[expect(clippy::reversed_empty_ranges, reason = "a reversed range is a range without bytes")]
        let reversed = file.read_at(5..3).await?;
        require!(reversed.is_empty(), "a reversed range gave {} bytes", reversed.len());
    }
    Ok(())
}

pub(super) async fn all_ways_of_reading_agree(s: &Subject) -> Verdict {
    s.needs_write()?;
    for size in SIZES {
        let data = stamped(2, 1, size);
        s.put("f", data.clone()).await?;
        let file = s.open("f").await?;
        for range in edges(size as u64) {
            let expected = slice(&data, range.clone());
            let found = drain(file.read_stream(range.clone())).await?;
            expect_bytes(format!("read_stream {range:?} of {size}"), &found, expected)?;
            let length = (range.end - range.start).min(size as u64 + 100) as usize;
            let (result, buf) = file.read_into(range.start, Buffer::with_capacity(length)).await;
            let added = result?;
            require!(added == buf.len(), "read_into says {added} bytes, the buffer has {}", buf.len());
            let expected = slice(&data, range.start..range.start.saturating_add(length as u64));
            expect_bytes(format!("read_into {range:?} of {size}"), &buf, expected)?;
        }
        let ranges = edges(size as u64);
        let found = file.read_ranges(&ranges).await?;
        require!(found.len() == ranges.len(), "{} results for {} ranges", found.len(), ranges.len());
        for (range, found) in ranges.into_iter().zip(found) {
            expect_bytes(format!("read_ranges {range:?} of {size}"), &found, slice(&data, range))?;
        }
    }
    Ok(())
}

pub(super) async fn read_ranges_keeps_the_order(s: &Subject) -> Verdict {
    s.needs_write()?;
    let data = stamped(3, 1, 3 * BLOCK + 1);
    s.put("f", data.clone()).await?;
    let file = s.open("f").await?;
    let none = file.read_ranges(&[]).await?;
    require!(none.is_empty(), "no ranges gave {} results", none.len());
    let far = 3 * BLOCK as u64;
    let ranges = [far..far + 9, 5..6, 0..4, 4..4, 5..6, 2..100_000, 90_000..90_001, far - 7..far, 0..0];
    let found = file.read_ranges(&ranges).await?;
    require!(found.len() == ranges.len(), "{} results for {} ranges", found.len(), ranges.len());
    for (range, found) in ranges.into_iter().zip(found) {
        expect_bytes(format!("read_ranges {range:?}"), &found, slice(&data, range))?;
    }
    Ok(())
}

pub(super) async fn read_into_appends_and_returns_the_buffer(s: &Subject) -> Verdict {
    s.needs_write()?;
    let data = stamped(4, 1, 100_001);
    s.put("f", data.clone()).await?;
    let file = s.open("f").await?;
    for (before, capacity, offset) in [
        (0, 0, 0),
        (3, 3, 10),
        (3, 10, 0),
        (7, 5_000, 4_095),
        (1, 200_000, 1),
        (5, 100, 99_990),
        (5, 100, 200_000),
    ] {
        let mut buf = Buffer::with_capacity(capacity);
        let lead = vec![0xee; before];
        buf.append(&lead);
        let (result, buf) = file.read_into(offset, buf).await;
        let expected = slice(&data, offset..offset + (capacity - before) as u64);
        require!(result? == expected.len(), "read_into at {offset} counted wrongly");
        require!(buf.capacity() == capacity, "read_into gave back another buffer");
        expect_bytes(format!("read_into at {offset}"), &buf, &[&lead, expected].concat())?;
    }
    Ok(())
}

pub(super) async fn an_empty_file_has_no_bytes(s: &Subject) -> Verdict {
    s.needs_write()?;
    let made = s.put("empty", "").await?;
    require!(made.size == 0 && made.is_file(), "finish reported {made:?}");
    let stat = s.stat("empty").await?;
    require!(stat.size == 0 && stat.is_file(), "stat reported {stat:?}");
    let file = s.open("empty").await?;
    for range in [0..0, 0..1, 0..u64::MAX, 5..10] {
        require!(file.read_at(range.clone()).await?.is_empty(), "read_at {range:?} gave bytes");
        require!(
            drain(file.read_stream(range.clone())).await?.is_empty(),
            "read_stream {range:?} gave bytes"
        );
    }
    let (result, buf) = file.read_into(0, Buffer::with_capacity(10)).await;
    require!(result? == 0 && buf.is_empty(), "read_into gave bytes");
    let ranges = file.read_ranges(&[0..1, 0..0]).await?;
    require!(ranges == [Bytes::new(), Bytes::new()], "read_ranges gave {ranges:?}");
    let names = s.names("", false).await?;
    require!(names == ["empty"], "the listing has {names:?}");
    Ok(())
}

pub(super) async fn opening_what_is_no_file(s: &Subject) -> Verdict {
    expect_error("open of the root", s.open("").await, &[ErrorKind::IsADirectory])?;
    expect_error("open of a missing file", s.open("missing").await, &[ErrorKind::NotFound])?;
    expect_error("stat of a missing file", s.stat("missing").await, &[ErrorKind::NotFound])?;
    s.needs_write()?;
    s.put("d/f", "x").await?;
    expect_error("open of a directory", s.open("d").await, &[ErrorKind::IsADirectory])?;
    expect_error("open below a file", s.open("d/f/g").await, &[ErrorKind::NotFound])
}

pub(super) async fn opening_with_known_metadata(s: &Subject) -> Verdict {
    s.needs_write()?;
    let data = stamped(5, 1, BLOCK + 5);
    let made = s.put("d/f", data.clone()).await?;
    let listed = s.entries("d", false).await?.remove(0).metadata;
    let stat = s.stat("d/f").await?;
    for metadata in [made, listed, stat] {
        let options = OpenOptions { metadata: Some(metadata.clone()) };
        let file = s.fs.open(&path("d/f"), options).await?;
        require!(file.metadata().version == metadata.version, "another version was opened");
        require!(file.metadata().size == metadata.size, "another size was opened");
        expect_bytes("opened with metadata", &file.read_at(0..u64::MAX).await?, &data)?;
    }
    Ok(())
}

pub(super) async fn descriptors_hold_the_same_bytes(s: &Subject) -> Verdict {
    s.needs_write()?;
    let data = stamped(6, 1, BLOCK + 77);
    s.put("f", data.clone()).await?;
    let file = s.open("f").await?;
    let Some(fd) = file.as_fd() else {
        return Err(Problem::NotApplicable("the file has no descriptor".into()));
    };
    require!(s.fs.capabilities().local_fd, "a descriptor without the capability `local_fd`");
    let owned =
        fd.try_clone_to_owned().map_err(|e| Problem::Failed(format!("the descriptor is dead: {e}")))?;
    let local = std::fs::File::from(owned);
    let mut found = vec![0; data.len() + 10];
    let mut filled = 0;
    while let n @ 1.. = local
        .read_at(&mut found[filled..], filled as u64)
        .map_err(|e| Problem::Failed(format!("the descriptor cannot be read: {e}")))?
    {
        filled += n;
    }
    expect_bytes("the descriptor", &found[..filled], &data)
}

pub(super) async fn many_readers_of_one_file(s: &Subject) -> Verdict {
    s.needs_write()?;
    let data = stamped(7, 1, 3 * BLOCK + 1);
    s.put("f", data.clone()).await?;
    let file = s.open("f").await?;
    let (file, data) = (&file, &data);
    stream::iter((0..s.options.tasks as u64).map(Ok::<_, Problem>))
        .try_for_each_concurrent(None, |task| async move {
            for step in 0..8 {
                // Scattered without randomness, so that a failure comes again.
                let start = (task * 104_729 + step * 1_299_709) % data.len() as u64;
                let range = start..start + 1 + (task * 7_919 + step * 65_537) % (BLOCK as u64);
                let found = if step % 2 == 0 {
                    file.read_at(range.clone()).await?
                } else {
                    file.read_stream(range.clone()).try_collect::<Vec<_>>().await?.concat().into()
                };
                expect_bytes(format!("task {task} read {range:?}"), &found, slice(data, range))?;
            }
            Ok(())
        })
        .await?;
    let mut dropped = file.read_stream(0..u64::MAX);
    dropped.next().await;
    drop(dropped);
    expect_bytes("after a dropped stream", &file.read_at(0..u64::MAX).await?, data)
}
