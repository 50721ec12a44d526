//! Progress on standard error: bars on a terminal for what takes longer than a second, a line now and then otherwise.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::diagnostics::note;
use super::output::human_bytes;

/// Nothing is shown for what takes less.
const PATIENCE: Duration = Duration::from_secs(1);
/// Between two plain lines.
const LINE_EVERY: Duration = Duration::from_secs(10);
/// Between two looks at the clock.
const TICK: Duration = Duration::from_millis(100);

/// Counts bytes and files of one command. Cheap to update from many tasks.
#[derive(Debug, Clone)]
pub(crate) struct Progress(Option<Arc<Inner>>);

#[derive(Debug)]
struct Inner {
    verb: &'static str,
    noun: &'static str,
    bytes: AtomicU64,
    files: AtomicU64,
    expected: AtomicU64,
    finished: AtomicBool,
    started: Instant,
}

impl Progress {
    /// Starts counting; shows nothing if `quiet`. What is shown reads like `copied 12 files`.
    pub(crate) fn new(quiet: bool, verb: &'static str, noun: &'static str) -> Self {
        if quiet {
            return Progress(None);
        }
        let inner = Arc::new(Inner {
            verb,
            noun,
            bytes: AtomicU64::new(0),
            files: AtomicU64::new(0),
            expected: AtomicU64::new(0),
            finished: AtomicBool::new(false),
            started: Instant::now(),
        });
        let shown = inner.clone();
        tokio::spawn(async move {
            tokio::time::sleep(PATIENCE).await;
            if std::io::stderr().is_terminal() { shown.bar().await } else { shown.lines().await }
        });
        Progress(Some(inner))
    }

    /// `n` more bytes will come.
    pub(crate) fn expect(&self, n: u64) {
        self.with(|p| p.expected.fetch_add(n, Relaxed));
    }

    /// `n` bytes came.
    pub(crate) fn bytes(&self, n: u64) {
        self.with(|p| p.bytes.fetch_add(n, Relaxed));
    }

    /// `n` files are done.
    pub(crate) fn files(&self, n: u64) {
        self.with(|p| p.files.fetch_add(n, Relaxed));
    }

    /// Takes the bar away.
    pub(crate) fn finish(&self) {
        if let Some(inner) = &self.0
            && !inner.finished.swap(true, Relaxed)
            && inner.started.elapsed() > PATIENCE
            && std::io::stderr().is_terminal()
        {
            // The bar's task may be asleep when the process ends: the line it drew is cleared here.
            eprint!("\r\x1b[2K");
        }
    }

    fn with(&self, f: impl FnOnce(&Inner) -> u64) {
        if let Some(inner) = &self.0 {
            f(inner);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        // The last one held by the command; the other reference is the task's.
        if self.0.as_ref().is_some_and(|inner| Arc::strong_count(inner) <= 2) {
            self.finish();
        }
    }
}

impl Inner {
    fn count(&self, files: u64) -> String {
        if files > 0 { format!("{} {files} {}", self.verb, self.noun) } else { self.verb.to_owned() }
    }

    async fn bar(&self) {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        let (known, unknown) = (
            ProgressStyle::with_template("{msg} {bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta}"),
            ProgressStyle::with_template("{spinner} {msg}"),
        );
        let (Ok(known), Ok(unknown)) = (known, unknown) else { return };
        while !self.finished.load(Relaxed) {
            let (expected, files) = (self.expected.load(Relaxed), self.files.load(Relaxed));
            let files = self.count(files);
            if expected > 0 {
                bar.set_style(known.clone());
                bar.set_length(expected);
                bar.set_position(self.bytes.load(Relaxed));
            } else {
                bar.set_style(unknown.clone());
            }
            bar.set_message(files);
            bar.tick();
            tokio::time::sleep(TICK).await;
        }
        bar.finish_and_clear();
    }

    async fn lines(&self) {
        let mut last = Instant::now();
        while !self.finished.load(Relaxed) {
            tokio::time::sleep(TICK).await;
            if last.elapsed() < LINE_EVERY {
                continue;
            }
            last = Instant::now();
            let (bytes, expected) = (self.bytes.load(Relaxed), self.expected.load(Relaxed));
            let files = self.files.load(Relaxed);
            let mut line = self.count(files);
            if expected > 0 {
                line.push_str(&format!(", {} of {}", human_bytes(bytes), human_bytes(expected)));
            }
            note(line);
        }
    }
}
