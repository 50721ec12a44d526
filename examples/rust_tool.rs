//! A small tool over any store, through one trait: the same code for `s3://`, local paths and memory.
//!
//! ```sh
//! cargo run --example rust_tool -- list s3://bucket/prefix
//! cargo run --example rust_tool -- stat s3://bucket/prefix/file
//! cargo run --example rust_tool -- read s3://bucket/prefix/file 0 16
//! cargo run --example rust_tool -- copy s3://bucket/prefix ./here
//! ```

use futures::StreamExt;
use nearfs::{Client, Error, ErrorKind, FileSystemExt, FsPath, Result, StoreUrl, TreeCopyOptions};

const USAGE: &str = "usage: rust_tool list URL | stat URL | read URL START END | copy URL TARGET";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    print!("{}", run(&Client::from_env()?, &words).await?);
    Ok(())
}

/// Does what `words` say and gives what is to be printed.
pub async fn run(client: &Client, words: &[&str]) -> Result<String> {
    match *words {
        ["list", url] => list(client, url).await,
        ["stat", url] => stat(client, url).await,
        ["read", url, start, end] => read(client, url, number(start)?, number(end)?).await,
        ["copy", url, target] => copy(client, url, target).await,
        _ => Err(Error::new(ErrorKind::InvalidInput, USAGE)),
    }
}

/// Everything below `url`, as it arrives: a listing is a stream, however long it is.
async fn list(client: &Client, url: &str) -> Result<String> {
    let fs = client.filesystem(url).await?;
    let mut entries = fs.walk(&FsPath::root());
    let mut out = String::new();
    while let Some(entry) = entries.next().await {
        let entry = entry?;
        let slash = if entry.metadata.is_dir() { "/" } else { "" };
        out += &format!("{:>12} {}{slash}\n", entry.metadata.size, entry.path);
    }
    Ok(out)
}

/// `locate` names a place that may be a file or a directory.
async fn stat(client: &Client, url: &str) -> Result<String> {
    let (fs, path) = client.locate(&StoreUrl::parse(url)?).await?;
    let found = fs.stat(&path).await?;
    Ok(format!("{:?} of {} bytes, version {}\n", found.kind, found.size, found.version))
}

/// An open file is pinned to one version: every range comes from the same bytes, or fails.
async fn read(client: &Client, url: &str, start: u64, end: u64) -> Result<String> {
    let file = client.open_file(url).await?;
    let bytes = file.read_at(start..end).await?;
    Ok(format!("{}\n", bytes.escape_ascii()))
}

/// Any store to any other; files appear whole.
async fn copy(client: &Client, url: &str, target: &str) -> Result<String> {
    let (from, source) = client.locate(&StoreUrl::parse(url)?).await?;
    let (to, place) = client.locate(&StoreUrl::parse(target)?).await?;
    let done = from.copy_tree(&source, &*to, &place, TreeCopyOptions::default()).await?;
    Ok(format!("{} files, {} bytes\n", done.files, done.bytes))
}

fn number(text: &str) -> Result<u64> {
    text.parse()
        .map_err(|_| Error::new(ErrorKind::InvalidInput, format!("expected a number, found `{text}`")))
}
