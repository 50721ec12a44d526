//! The table of metrics. Code names a metric by its constant here and in no other way.

use metrics::{Counter, Gauge, Histogram, Label, Unit};

/// What a metric is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// A distribution.
    Histogram,
}

impl MetricKind {
    /// `counter`, `gauge` or `histogram`.
    pub fn as_str(self) -> &'static str {
        match self {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        }
    }
}

/// Whether dashboards may rely on a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stability {
    /// Name, unit and labels stay within a major version.
    Stable,
    /// May change with any version.
    Experimental,
}

impl Stability {
    /// `stable` or `experimental`.
    pub fn as_str(self) -> &'static str {
        match self {
            Stability::Stable => "stable",
            Stability::Experimental => "experimental",
        }
    }
}

/// One metric: everything that documentation and dashboards need.
#[derive(Debug)]
pub struct MetricDef {
    /// Name, as exported.
    pub name: &'static str,
    /// Kind.
    pub kind: MetricKind,
    /// Unit of its values.
    pub unit: Unit,
    /// Names of its labels.
    pub labels: &'static [&'static str],
    /// Promise.
    pub stability: Stability,
    /// Meaning, one sentence.
    pub help: &'static str,
}

impl MetricDef {
    /// Tells the installed recorder unit and meaning.
    pub fn describe(&self) {
        match self.kind {
            MetricKind::Counter => metrics::describe_counter!(self.name, self.unit, self.help),
            MetricKind::Gauge => metrics::describe_gauge!(self.name, self.unit, self.help),
            MetricKind::Histogram => metrics::describe_histogram!(self.name, self.unit, self.help),
        }
    }

    fn labels<const N: usize>(&self, values: [&'static str; N]) -> Vec<Label> {
        debug_assert_eq!(self.labels.len(), N, "labels of {}", self.name);
        self.labels.iter().zip(values).map(|(k, v)| Label::from_static_parts(k, v)).collect()
    }

    /// The counter with these label values, in the order of the table.
    pub fn counter<const N: usize>(&self, values: [&'static str; N]) -> Counter {
        debug_assert_eq!(self.kind, MetricKind::Counter, "{}", self.name);
        metrics::counter!(self.name, self.labels(values))
    }

    /// The gauge with these label values, in the order of the table.
    pub fn gauge<const N: usize>(&self, values: [&'static str; N]) -> Gauge {
        debug_assert_eq!(self.kind, MetricKind::Gauge, "{}", self.name);
        metrics::gauge!(self.name, self.labels(values))
    }

    /// The histogram with these label values, in the order of the table.
    pub fn histogram<const N: usize>(&self, values: [&'static str; N]) -> Histogram {
        debug_assert_eq!(self.kind, MetricKind::Histogram, "{}", self.name);
        metrics::histogram!(self.name, self.labels(values))
    }
}

macro_rules! metrics {
    ($($constant:ident = $kind:ident $name:literal $unit:ident [$($label:literal),*] $stability:ident $help:literal;)*) => {
        $(
            #[doc = $help]
            pub(crate) const $constant: &MetricDef = &MetricDef {
                name: $name,
                kind: MetricKind::$kind,
                unit: Unit::$unit,
                labels: &[$($label),*],
                stability: Stability::$stability,
                help: $help,
            };
        )*
        /// Every metric of this crate.
        pub const METRICS: &[&MetricDef] = &[$($constant),*];
    };
}

metrics! {
    STORE_CALLS = Counter "nearfs_store_calls_total" Count ["operation", "outcome"] Stable
        "Calls to a store as their caller saw them end; outcome is ok, cancelled or the kind of error.";
    STORE_CALL_SECONDS = Histogram "nearfs_store_call_seconds" Seconds ["operation", "outcome"] Stable
        "Time of a call from start to end; of streams to their last item, the reader's own pauses included.";
    STORE_FIRST_SECONDS = Histogram "nearfs_store_first_item_seconds" Seconds ["operation"] Stable
        "Time from the first poll of a stream to its first item.";
    STORE_BYTES = Counter "nearfs_store_bytes_total" Bytes ["direction"] Stable
        "Bytes of file contents moved; direction is read or written.";
    STORE_ENTRIES = Counter "nearfs_store_entries_total" Count [] Stable
        "Entries that listings delivered.";
    STORE_RUNNING = Gauge "nearfs_store_calls_running" Count ["operation"] Stable
        "Calls and streams under way.";
    LIST_SKIPPED = Counter "nearfs_list_skipped_total" Count ["backend", "reason"] Stable
        "Keys in listings that no path can name, or that a directory of the same name hides.";
    LOCAL_TIMEOUTS = Counter "nearfs_local_timeouts_total" Count [] Stable
        "Local calls given up because the disk did not answer in time.";
    LOCAL_BLOCKED = Gauge "nearfs_local_blocked_threads" Count [] Stable
        "Threads left behind in local calls that hang.";
    RETRIES = Counter "nearfs_retries_total" Count ["operation", "kind"] Stable
        "Attempts made again after a failure of this kind.";
    RETRIES_EXHAUSTED = Counter "nearfs_retries_exhausted_total" Count ["operation", "kind"] Stable
        "Calls that failed with their retries used up.";
    THROTTLED_SECONDS = Histogram "nearfs_throttled_wait_seconds" Seconds [] Experimental
        "Time that attempts waited because the store had asked to be called less often.";
    HEDGES = Counter "nearfs_hedges_total" Count ["reason"] Experimental
        "Second requests for slow reads; reason is first_byte (nothing had come) or body (the rest came too slowly).";
    HEDGES_WON = Counter "nearfs_hedges_won_total" Count [] Experimental
        "Second requests that were faster than the first.";
    HEDGES_REFUSED = Counter "nearfs_hedges_refused_total" Count ["reason"] Experimental
        "Slow reads without a second request; reason is budget (too many are slow) or throttled (the store asks for fewer).";
    LIMIT_WAIT_SECONDS = Histogram "nearfs_limit_wait_seconds" Seconds ["class"] Experimental
        "Time that requests waited for a place among those in flight; class is data or metadata.";
    LIMIT_RUNNING = Gauge "nearfs_limit_running" Count ["class"] Experimental
        "Requests that hold a place among those in flight.";
    LIMIT_STALLED = Gauge "nearfs_limit_stalled" Count ["class"] Experimental
        "Requests that lost their place because the store had fallen silent.";
}
