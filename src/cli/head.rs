//! `nearfs head`: the first lines or bytes of files.

use clap::Args;
use futures::StreamExt;
use nearfs::config::Size;
use nearfs::{ByteStream, Bytes, Result};

use super::args::Urls;
use super::context::Context;
use super::diagnostics::{DONE, FAILED, Failure, Outcome, PARTIAL};

/// How much is fetched first when lines are asked for; most heads lie within, and it costs one request.
const FIRST: u64 = 64 << 10;
/// How much is fetched at a time at most, for those who want very many lines.
const LARGEST: u64 = 16 << 20;

/// Write the first lines (or bytes) of files to standard output
#[derive(Debug, Args)]
pub(crate) struct HeadArgs {
    #[command(flatten)]
    urls: Urls,
    /// Lines to print
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10, conflicts_with = "bytes")]
    lines: u64,
    /// Bytes to print instead of lines, as `100` or `4KiB`
    #[arg(short = 'c', long, value_name = "SIZE")]
    bytes: Option<String>,
}

/// How much is wanted.
#[derive(Debug, Clone, Copy)]
enum Amount {
    Lines(u64),
    Bytes(u64),
}

pub(crate) async fn run(ctx: &Context, args: HeadArgs) -> Outcome {
    let amount = match &args.bytes {
        None => Amount::Lines(args.lines),
        Some(text) => match text.parse::<Size>()? {
            Size::Bytes(n) => Amount::Bytes(n),
            Size::Percent(_) => {
                return Err(Failure::plain("`--bytes` takes a number of bytes, not a percentage"));
            }
        },
    };
    let several = args.urls.urls.len() > 1;
    let mut failed = 0;
    for (i, operand) in args.urls.urls.iter().enumerate() {
        if several {
            let mut heading = if i > 0 { b"\n==> ".to_vec() } else { b"==> ".to_vec() };
            heading.extend(ctx.out.name(operand.as_encoded_bytes()));
            heading.extend_from_slice(b" <==");
            ctx.out.line(heading).await?;
        }
        if let Err(error) = print(ctx, operand, amount).await? {
            ctx.report(super::place::shown(operand), &error);
            failed += 1;
        }
    }
    Ok(if failed == 0 {
        DONE
    } else if failed < args.urls.urls.len() {
        PARTIAL
    } else {
        FAILED
    })
}

async fn print(ctx: &Context, operand: &std::ffi::OsStr, amount: Amount) -> Outcome<Result<()>> {
    let file = match super::cat::open(ctx, operand).await {
        Ok(file) => file,
        Err(error) => return Ok(Err(error)),
    };
    let size = file.metadata().size;
    match amount {
        Amount::Bytes(n) => pass(ctx, file.read_stream(0..size.min(n)), u64::MAX).await.map(|r| r.map(drop)),
        Amount::Lines(n) => {
            let (mut start, mut window, mut left) = (0, FIRST, n);
            while left > 0 && start < size {
                let end = size.min(start + window);
                left = match pass(ctx, file.read_stream(start..end), left).await? {
                    Ok(left) => left,
                    Err(error) => return Ok(Err(error)),
                };
                (start, window) = (end, (window * 4).min(LARGEST));
            }
            Ok(Ok(()))
        }
    }
}

/// Prints up to `lines` lines of `stream`; gives the number still missing.
async fn pass(ctx: &Context, mut stream: ByteStream, lines: u64) -> Outcome<Result<u64>> {
    let mut left = lines;
    while left > 0 {
        let chunk: Bytes = match stream.next().await {
            None => break,
            Some(Ok(chunk)) => chunk,
            Some(Err(error)) => return Ok(Err(error)),
        };
        let end = end_of_line(&chunk, &mut left);
        ctx.out.bytes(chunk.slice(..end)).await?;
    }
    Ok(Ok(left))
}

/// Where the `left`th line of `chunk` ends; takes the lines found off `left`.
fn end_of_line(chunk: &[u8], left: &mut u64) -> usize {
    for (i, _) in chunk.iter().enumerate().filter(|(_, b)| **b == b'\n') {
        *left -= 1;
        if *left == 0 {
            return i + 1;
        }
    }
    chunk.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_across_chunks() {
        let mut left = 3;
        assert_eq!(end_of_line(b"a\nb", &mut left), 3);
        assert_eq!(end_of_line(b"\n\nc", &mut left), 2);
        assert_eq!(left, 0);
    }
}
