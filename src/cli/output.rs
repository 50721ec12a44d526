//! Data on standard output: written by the main thread, so that a reader who is slow never holds up the runtime.

use std::fs::File;
use std::io::{ErrorKind, IsTerminal, Write};
use std::os::fd::AsFd;
use std::time::SystemTime;

use nearfs::{Bytes, FileKind, Metadata};
use serde::Serialize;
use tokio::sync::mpsc;

use super::diagnostics::{Failure, Outcome};

/// Pieces that wait to be written; of large files they have up to some megabytes each.
const QUEUE: usize = 8;
/// Bytes of lines that are gathered before they are written.
const GATHER: usize = 64 << 10;

/// The way to standard output.
#[derive(Debug, Clone)]
pub(crate) struct Output {
    queue: mpsc::Sender<Bytes>,
    terminal: bool,
}

/// The other end, kept by the main thread.
pub(crate) struct Writer(mpsc::Receiver<Bytes>);

/// Both ends.
pub(crate) fn channel() -> (Output, Writer) {
    let (queue, rx) = mpsc::channel(QUEUE);
    (Output { queue, terminal: std::io::stdout().is_terminal() }, Writer(rx))
}

impl Writer {
    /// Writes until every [`Output`] is gone, then closes standard output, so that its reader sees the end however long
    /// the process goes on.
    ///
    /// # Errors
    /// The failure of the first write that fails; a broken pipe is none, it only ends the writing.
    pub(crate) fn run(self) -> std::io::Result<()> {
        let written = self.write();
        // The number stays taken: what is opened later must not become standard output.
        if let Ok(nowhere) = File::options().write(true).open("/dev/null") {
            let _ = rustix::stdio::dup2_stdout(&nowhere);
        }
        written
    }

    fn write(mut self) -> std::io::Result<()> {
        // Straight to the descriptor: std's own buffer would look for lines in gigabytes of data.
        let mut stdout = File::from(std::io::stdout().as_fd().try_clone_to_owned()?);
        let mut gathered: Vec<u8> = Vec::new();
        while let Some(piece) = self.0.blocking_recv() {
            let result = if piece.len() >= GATHER {
                stdout.write_all(&gathered).and_then(|()| {
                    gathered.clear();
                    stdout.write_all(&piece)
                })
            } else {
                gathered.extend_from_slice(&piece);
                if gathered.len() < GATHER && !self.0.is_empty() {
                    continue;
                }
                let result = stdout.write_all(&gathered);
                gathered.clear();
                result
            };
            match result {
                Ok(()) => {}
                Err(e) if e.kind() == ErrorKind::BrokenPipe => return Ok(()),
                Err(e) => return Err(e),
            }
        }
        let last = stdout.write_all(&gathered);
        last.or_else(|e| if e.kind() == ErrorKind::BrokenPipe { Ok(()) } else { Err(e) })
    }
}

impl Output {
    /// True if a person is reading.
    pub(crate) fn terminal(&self) -> bool {
        self.terminal
    }

    /// Hands over `data`; waits while too much is queued.
    ///
    /// # Errors
    /// `BrokenPipe` if nobody reads any more.
    pub(crate) async fn bytes(&self, data: Bytes) -> Outcome<()> {
        self.queue.send(data).await.map_err(|_| Failure::BrokenPipe)
    }

    /// One line.
    ///
    /// # Errors
    /// As [`Output::bytes`].
    pub(crate) async fn line(&self, line: impl Into<Vec<u8>>) -> Outcome<()> {
        let mut line = line.into();
        line.push(b'\n');
        self.bytes(line.into()).await
    }

    /// One line of JSON.
    ///
    /// # Errors
    /// As [`Output::bytes`].
    pub(crate) async fn json(&self, value: &impl Serialize) -> Outcome<()> {
        let text =
            serde_json::to_vec(value).map_err(|e| Failure::plain(format!("cannot write json: {e}")))?;
        self.line(text).await
    }

    /// A name as it should be printed: raw into pipes, control characters and invalid UTF-8 escaped on terminals.
    pub(crate) fn name(&self, name: &[u8]) -> Vec<u8> {
        if self.terminal { escaped(name).into_bytes() } else { name.to_vec() }
    }
}

/// `name` with control characters and invalid UTF-8 escaped.
pub(crate) fn escaped(name: &[u8]) -> String {
    let mut out = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() { out.extend(c.escape_default()) } else { out.push(c) }
        }
        for b in chunk.invalid() {
            out.push_str(&format!("\\x{b:02x}"));
        }
    }
    out
}

/// A file or directory in JSON. `path` is what can be given back to nearfs; a path that is not UTF-8 is shown
/// escaped, and exactly in `path_base64`.
#[derive(Debug, Serialize)]
pub(crate) struct JsonEntry {
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_base64: Option<String>,
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    modified: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    archived: bool,
}

impl JsonEntry {
    /// `path` is the whole URL or local path.
    pub(crate) fn new(path: &[u8], metadata: &Metadata) -> Self {
        let (text, base64) = json_path(path);
        let file = metadata.is_file();
        JsonEntry {
            path: text,
            path_base64: base64,
            kind: kind_word(metadata.kind),
            size: file.then_some(metadata.size),
            modified: metadata.modified.map(time),
            version: metadata.version.is_known().then(|| metadata.version.to_string()),
            mode: metadata.mode.map(|m| format!("{m:04o}")),
            archived: metadata.archived,
        }
    }
}

/// `path` for JSON: as text, and exactly if the text cannot say it.
pub(crate) fn json_path(path: &[u8]) -> (String, Option<String>) {
    use base64::Engine;
    match str::from_utf8(path) {
        Ok(text) => (text.to_owned(), None),
        Err(_) => (escaped(path), Some(base64::engine::general_purpose::STANDARD.encode(path))),
    }
}

/// `file` or `dir`.
pub(crate) fn kind_word(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "file",
        FileKind::Dir => "dir",
    }
}

/// RFC 3339 in UTC, to the second; times before 1970 as 1970.
pub(crate) fn time(t: SystemTime) -> String {
    humantime::format_rfc3339_seconds(t.max(SystemTime::UNIX_EPOCH)).to_string()
}

/// Bytes for people: `17 B`, `1.2 KiB`, `40 GiB`.
pub(crate) fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    // 1023.95 would print as `1024.0`.
    while value >= 1023.95 {
        value /= 1024.0;
        unit += 1;
    }
    if value < 9.995 { format!("{value:.1} {}", UNITS[unit]) } else { format!("{value:.0} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_for_people() {
        assert_eq!(escaped(b"a\nb\xff\x1b[31m"), "a\\nb\\xff\\u{1b}[31m");
        assert_eq!(escaped("é🙂 x".as_bytes()), "é🙂 x");
        assert_eq!(json_path(b"a\xff"), ("a\\xff".into(), Some("Yf8=".into())));
        assert_eq!(json_path(b"a\n"), ("a\n".into(), None));
        for (n, text) in
            [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1 << 20, "1.0 MiB"), (20 << 30, "20 GiB")]
        {
            assert_eq!(human_bytes(n), text);
        }
        assert_eq!(human_bytes(u64::MAX), "16 EiB");
        assert_eq!(time(SystemTime::UNIX_EPOCH), "1970-01-01T00:00:00Z");
    }
}
