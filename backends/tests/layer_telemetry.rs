//! What the metrics and tracing layers tell.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt;
use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};
use nearfs_backends::config::RetryConfig;
use nearfs_backends::layer::{
    Fault, FaultAction, FaultLayer, MetricsLayer, Operation, RetryLayer, TracingConfig, TracingLayer,
};
use nearfs_backends::metrics::METRICS;
use nearfs_backends::{ErrorKind, FileSystem, FileSystemExt, FsPath, MemoryFileSystem};

fn path(text: &str) -> FsPath {
    FsPath::parse(text).unwrap()
}

/// Keeps every value under `name{label=value}`.
#[derive(Default, Clone)]
struct Book(Arc<Mutex<BTreeMap<String, f64>>>);

struct Line(Book, String);

impl Line {
    fn change(&self, by: f64) {
        *self.0.0.lock().unwrap().entry(self.1.clone()).or_default() += by;
    }
}

impl CounterFn for Line {
    fn increment(&self, value: u64) {
        self.change(value as f64);
    }
    fn absolute(&self, _: u64) {}
}

impl GaugeFn for Line {
    fn increment(&self, value: f64) {
        self.change(value);
    }
    fn decrement(&self, value: f64) {
        self.change(-value);
    }
    fn set(&self, _: f64) {}
}

impl HistogramFn for Line {
    fn record(&self, _: f64) {
        self.change(1.0);
    }
}

impl Book {
    fn line(&self, key: &Key) -> Arc<Line> {
        let labels: Vec<_> = key.labels().map(|l| format!("{}={}", l.key(), l.value())).collect();
        Arc::new(Line(self.clone(), format!("{}{{{}}}", key.name(), labels.join(","))))
    }

    fn get(&self, line: &str) -> f64 {
        self.0.lock().unwrap().get(line).copied().unwrap_or_default()
    }
}

impl Recorder for Book {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.line(key))
    }
    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.line(key))
    }
    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.line(key))
    }
}

#[test]
fn calls_bytes_and_outcomes_are_counted_under_names_of_the_table() {
    let book = Book::default();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    metrics::with_local_recorder(&book, || {
        runtime.block_on(async {
            let fault = FaultLayer::new(Arc::new(MemoryFileSystem::new()));
            let retry = RetryLayer::new(Arc::new(fault.clone()), RetryConfig::default()).unwrap();
            let fs = MetricsLayer::new(Arc::new(retry));
            let (f, d) = (path("d/f"), path("d"));
            fs.write(&f, vec![0; 1_000].into()).await.unwrap();
            fs.read(&f, 1_000).await.unwrap();
            let file = fs.open(&f, Default::default()).await.unwrap();
            file.read_stream(0..500).collect::<Vec<_>>().await;
            fs.stat(&path("missing")).await.unwrap_err();
            fs.list_all(&d, Default::default(), 10).await.unwrap();
            fault.inject(Fault::on(Operation::Stat, FaultAction::Fail(ErrorKind::Unavailable)).times(2));
            fs.stat(&f).await.unwrap();
            fault.inject(Fault::on(Operation::Stat, FaultAction::Fail(ErrorKind::TimedOut)));
            fs.stat(&f).await.unwrap_err();
            fault.heal();
            fault.inject(Fault::on(Operation::Stat, FaultAction::Stall(0)));
            assert!(tokio::time::timeout(Duration::from_secs(1), fs.stat(&f)).await.is_err());
        });
    });
    for (line, value) in [
        ("nearfs_store_calls_total{operation=create,outcome=ok}", 1.0),
        ("nearfs_store_calls_total{operation=write,outcome=ok}", 1.0),
        ("nearfs_store_calls_total{operation=finish,outcome=ok}", 1.0),
        ("nearfs_store_calls_total{operation=open,outcome=ok}", 2.0),
        ("nearfs_store_calls_total{operation=read,outcome=ok}", 2.0),
        ("nearfs_store_calls_total{operation=list,outcome=ok}", 1.0),
        ("nearfs_store_calls_total{operation=stat,outcome=ok}", 1.0),
        ("nearfs_store_calls_total{operation=stat,outcome=not_found}", 1.0),
        ("nearfs_store_calls_total{operation=stat,outcome=timed_out}", 1.0),
        ("nearfs_store_calls_total{operation=stat,outcome=cancelled}", 1.0),
        ("nearfs_store_bytes_total{direction=written}", 1_000.0),
        ("nearfs_store_bytes_total{direction=read}", 1_500.0),
        ("nearfs_store_entries_total{}", 1.0),
        ("nearfs_store_first_item_seconds{operation=read}", 1.0),
        ("nearfs_store_call_seconds{operation=stat,outcome=ok}", 1.0),
        ("nearfs_store_calls_running{operation=stat}", 0.0),
        ("nearfs_retries_total{operation=stat,kind=unavailable}", 2.0),
        ("nearfs_retries_total{operation=stat,kind=timed_out}", 8.0),
        ("nearfs_retries_exhausted_total{operation=stat,kind=timed_out}", 1.0),
    ] {
        assert_eq!(book.get(line), value, "{line} in {:#?}", book.0.lock().unwrap());
    }
    for line in book.0.lock().unwrap().keys() {
        let name = line.split('{').next().unwrap();
        assert!(METRICS.iter().any(|m| m.name == name), "{name} is not in the table");
    }
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, data: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(data);
        Ok(data.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn lines_with(&self, word: &str) -> usize {
        String::from_utf8(self.0.lock().unwrap().clone())
            .unwrap()
            .lines()
            .filter(|l| l.contains(word))
            .count()
    }
}

#[test]
fn slow_calls_are_reported_once_in_a_while_and_failures_only_at_debug_level() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::DEBUG)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tracing::subscriber::with_default(subscriber, || {
        runtime.block_on(async {
            let fault = FaultLayer::new(Arc::new(MemoryFileSystem::new()));
            let config =
                TracingConfig { slow: Duration::from_millis(20), warn_every: Duration::from_millis(400) };
            let fs = TracingLayer::new(Arc::new(fault.clone()), config);
            fault.inject(Fault::on(Operation::Stat, FaultAction::Delay(Duration::from_millis(25))));
            for _ in 0..5 {
                fs.stat(&path("")).await.unwrap();
            }
            assert_eq!((log.lines_with("slow call"), log.lines_with("WARN")), (1, 1));
            tokio::time::sleep(Duration::from_millis(500)).await;
            fs.stat(&path("")).await.unwrap();
            assert_eq!(log.lines_with("left_out=4"), 1);
            fs.stat(&path("missing")).await.unwrap_err();
            assert_eq!(log.lines_with("missing"), log.lines_with("DEBUG"));
            assert!(log.lines_with("failed") == 1 && log.lines_with("ERROR") == 0);
            // A stream that keeps its reader waiting.
            fs.write(&path("f"), "x".into()).await.unwrap();
            tokio::time::sleep(Duration::from_millis(500)).await;
            fault.inject(Fault::on(Operation::Read, FaultAction::Delay(Duration::from_millis(30))));
            let file = fs.open(&path("f"), Default::default()).await.unwrap();
            file.read_stream(0..1).collect::<Vec<_>>().await;
            assert_eq!(log.lines_with("operation=\"read\" path=f"), 1);
        });
    });
}
