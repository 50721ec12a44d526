//! What the server counts: requests by operation, status and key, bytes, connections; and the request log.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::Serialize;

use crate::op::Op;

/// Keys counted one by one; requests for more keys than this count in the totals only.
const MAX_KEYS: usize = 1 << 21;

/// Totals since the start or the last reset.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Counters {
    /// Requests by operation.
    pub requests: BTreeMap<Op, u64>,
    /// Answers by HTTP status.
    pub statuses: BTreeMap<u16, u64>,
    /// Bytes of object bodies handed to connections by GetObject.
    pub body_bytes: u64,
    /// Bytes of request bodies received.
    pub received_bytes: u64,
    /// Connections open now.
    pub connections_open: u64,
    /// Connections accepted.
    pub connections_total: u64,
    /// Most connections open at once.
    pub connections_max: u64,
    /// Requests being answered now.
    pub in_flight: u64,
    /// Most requests being answered at once.
    pub in_flight_max: u64,
}

impl Counters {
    /// Requests of one kind.
    #[must_use]
    pub fn of(&self, op: Op) -> u64 {
        self.requests.get(&op).copied().unwrap_or(0)
    }

    /// Requests of every kind.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.requests.values().sum()
    }

    /// Both kinds of object listings.
    #[must_use]
    pub fn lists(&self) -> u64 {
        self.of(Op::ListObjects) + self.of(Op::ListObjectsV2)
    }
}

/// What was asked of one key.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct KeyCounters {
    /// Requests by operation; listings count under their `prefix` parameter.
    pub requests: BTreeMap<Op, u64>,
    /// Bytes of its body handed to connections by GetObject.
    pub body_bytes: u64,
}

impl KeyCounters {
    /// Requests of one kind.
    #[must_use]
    pub fn of(&self, op: Op) -> u64 {
        self.requests.get(&op).copied().unwrap_or(0)
    }
}

/// One request in the log.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LogEntry {
    /// Number of the request, from 1.
    pub seq: u64,
    /// When it arrived, in seconds since the server started.
    pub at: f64,
    /// Which connection it came on, from 1.
    pub connection: u64,
    /// HTTP method.
    pub method: String,
    /// The path as received, still percent-encoded.
    pub path: String,
    /// The query as received, without the question mark.
    pub query: String,
    /// The operation.
    pub op: Op,
    /// The bucket.
    pub bucket: String,
    /// The key (lossily shown if it is not UTF-8).
    pub key: String,
    /// The `Range` header.
    pub range: Option<String>,
    /// The `If-Match` header.
    pub if_match: Option<String>,
    /// The `User-Agent` header.
    pub user_agent: Option<String>,
    /// Whether it carried a signature, in the header or in the query.
    pub signed: bool,
    /// The HTTP status answered; 0 while none has been.
    pub status: u16,
}

/// Requests by operation.
#[derive(Debug, Default)]
struct ByOp([AtomicU64; Op::ALL.len()]);

impl ByOp {
    fn add(&self, op: Op) {
        self.0[op as usize].fetch_add(1, Relaxed);
    }

    fn snapshot(&self) -> BTreeMap<Op, u64> {
        let counts = Op::ALL.into_iter().zip(&self.0).map(|(op, count)| (op, count.load(Relaxed)));
        counts.filter(|(_, count)| *count > 0).collect()
    }

    fn reset(&self) {
        for count in &self.0 {
            count.store(0, Relaxed);
        }
    }
}

/// Counters of one key, shared with the bodies being sent.
#[derive(Debug, Default)]
pub(crate) struct KeyCounter {
    requests: ByOp,
    bytes: AtomicU64,
}

impl KeyCounter {
    fn snapshot(&self) -> KeyCounters {
        KeyCounters { requests: self.requests.snapshot(), body_bytes: self.bytes.load(Relaxed) }
    }
}

/// The counters of keys, by bucket.
#[derive(Debug, Default)]
struct Keys {
    buckets: HashMap<String, HashMap<Vec<u8>, Arc<KeyCounter>>>,
    count: usize,
}

impl Keys {
    fn find(&self, bucket: &str, key: &[u8]) -> Option<&Arc<KeyCounter>> {
        self.buckets.get(bucket)?.get(key)
    }

    /// None when there are too many already.
    fn find_or_add(&mut self, bucket: &str, key: &[u8]) -> Option<Arc<KeyCounter>> {
        if let Some(found) = self.find(bucket, key) {
            return Some(found.clone());
        }
        if self.count >= MAX_KEYS {
            return None;
        }
        self.count += 1;
        Some(self.buckets.entry(bucket.to_owned()).or_default().entry(key.to_owned()).or_default().clone())
    }
}

#[derive(Debug)]
pub(crate) struct Tally {
    started: Instant,
    requests: ByOp,
    statuses: Mutex<BTreeMap<u16, u64>>,
    keys: Mutex<Keys>,
    body_bytes: AtomicU64,
    received_bytes: AtomicU64,
    connections: Gauge,
    connections_total: AtomicU64,
    in_flight: Gauge,
    seq: AtomicU64,
    log: Mutex<VecDeque<LogEntry>>,
    log_limit: usize,
}

#[derive(Debug, Default)]
struct Gauge {
    now: AtomicU64,
    max: AtomicU64,
}

impl Gauge {
    fn enter(&self) {
        let now = self.now.fetch_add(1, Relaxed) + 1;
        self.max.fetch_max(now, Relaxed);
    }
}

impl Tally {
    pub(crate) fn new(log_limit: usize) -> Self {
        Self {
            started: Instant::now(),
            requests: ByOp::default(),
            statuses: Mutex::default(),
            keys: Mutex::default(),
            body_bytes: AtomicU64::new(0),
            received_bytes: AtomicU64::new(0),
            connections: Gauge::default(),
            connections_total: AtomicU64::new(0),
            in_flight: Gauge::default(),
            seq: AtomicU64::new(0),
            log: Mutex::default(),
            log_limit,
        }
    }

    pub(crate) fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// Counts a request; the counter of its key, if that key is counted.
    pub(crate) fn request(&self, op: Op, bucket: &str, key: &[u8]) -> Option<Arc<KeyCounter>> {
        self.requests.add(op);
        let counter = self.keys.lock().find_or_add(bucket, key)?;
        counter.requests.add(op);
        Some(counter)
    }

    /// Appends to the log; the number of the entry.
    pub(crate) fn record(&self, entry: impl FnOnce(u64) -> LogEntry) -> u64 {
        if self.log_limit == 0 {
            return self.seq.fetch_add(1, Relaxed) + 1;
        }
        let mut log = self.log.lock();
        let seq = self.seq.fetch_add(1, Relaxed) + 1;
        if log.len() >= self.log_limit {
            log.pop_front();
        }
        log.push_back(entry(seq));
        seq
    }

    pub(crate) fn answered(&self, seq: u64, status: u16) {
        *self.statuses.lock().entry(status).or_default() += 1;
        let mut log = self.log.lock();
        let first = log.front().map_or(u64::MAX, |e| e.seq);
        if let Some(i) = seq.checked_sub(first)
            && let Some(entry) = log.get_mut(i as usize)
            && entry.seq == seq
        {
            entry.status = status;
        }
    }

    pub(crate) fn sent(&self, key: &KeyCounter, bytes: usize) {
        key.bytes.fetch_add(bytes as u64, Relaxed);
        self.body_bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn received(&self, bytes: usize) {
        self.received_bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn snapshot(&self) -> Counters {
        Counters {
            requests: self.requests.snapshot(),
            statuses: self.statuses.lock().clone(),
            body_bytes: self.body_bytes.load(Relaxed),
            received_bytes: self.received_bytes.load(Relaxed),
            connections_open: self.connections.now.load(Relaxed),
            connections_total: self.connections_total.load(Relaxed),
            connections_max: self.connections.max.load(Relaxed),
            in_flight: self.in_flight.now.load(Relaxed),
            in_flight_max: self.in_flight.max.load(Relaxed),
        }
    }

    pub(crate) fn key(&self, bucket: &str, key: &[u8]) -> KeyCounters {
        self.keys.lock().find(bucket, key).map_or_else(KeyCounters::default, |c| c.snapshot())
    }

    /// All keys that were asked for, with their counters.
    pub(crate) fn all_keys(&self) -> Vec<(String, Vec<u8>, KeyCounters)> {
        let keys = self.keys.lock();
        let buckets = keys.buckets.iter();
        buckets.flat_map(|(b, keys)| keys.iter().map(|(k, c)| (b.clone(), k.clone(), c.snapshot()))).collect()
    }

    pub(crate) fn log(&self) -> Vec<LogEntry> {
        self.log.lock().iter().cloned().collect()
    }

    /// Zeroes everything but what is going on now.
    pub(crate) fn reset(&self) {
        self.requests.reset();
        self.statuses.lock().clear();
        *self.keys.lock() = Keys::default();
        self.log.lock().clear();
        for counter in [&self.body_bytes, &self.received_bytes, &self.connections_total] {
            counter.store(0, Relaxed);
        }
        for gauge in [&self.connections, &self.in_flight] {
            gauge.max.store(gauge.now.load(Relaxed), Relaxed);
        }
    }
}

/// A connection while it is open.
#[derive(Debug)]
pub(crate) struct OpenConnection(Arc<Tally>);

impl OpenConnection {
    pub(crate) fn new(tally: &Arc<Tally>) -> Self {
        tally.connections_total.fetch_add(1, Relaxed);
        tally.connections.enter();
        Self(tally.clone())
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.connections.now.fetch_sub(1, Relaxed);
    }
}

/// A request from its arrival to the last byte of its answer.
#[derive(Debug)]
pub(crate) struct InFlight(Arc<Tally>);

impl InFlight {
    pub(crate) fn new(tally: &Arc<Tally>) -> Self {
        tally.in_flight.enter();
        Self(tally.clone())
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.now.fetch_sub(1, Relaxed);
    }
}
