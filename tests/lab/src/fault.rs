//! Faults and the rules that say when they happen.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};

use crate::op::Op;
use crate::rng::Rng;

/// What goes wrong.
///
/// Faults with an `after` send the head with the full `Content-Length` and that many body bytes first; where
/// the answer has no body beyond `after` (a HEAD, an error, a short object), [`Fault::Cut`] and
/// [`Fault::Reset`] end the connection without any answer if the body is empty and do nothing otherwise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Fault {
    /// Answer with this status and an S3 error body.
    Status {
        /// The HTTP status, 300 to 599.
        status: u16,
        /// The S3 error code, such as `SlowDown`; empty = the usual one of that status.
        #[serde(default)]
        code: String,
        /// Seconds for a `Retry-After` header.
        #[serde(default)]
        retry_after: Option<u64>,
    },
    /// Wait so long before the first byte, on top of the model.
    Delay {
        /// Milliseconds.
        ms: u64,
    },
    /// Send `after` body bytes, then nothing more; the connection stays open.
    Stall {
        /// Body bytes sent first.
        after: u64,
    },
    /// Send `after` body bytes, then close the connection.
    Cut {
        /// Body bytes sent first.
        after: u64,
    },
    /// Send `after` body bytes, then reset the connection (RST).
    Reset {
        /// Body bytes sent first.
        after: u64,
    },
    /// Send the body at this rate, in small pieces at most 50 ms apart (or byte by byte below 20 a second).
    Drip {
        /// Bytes a second, at least 1.
        bytes_per_second: u64,
    },
    /// Never answer; the connection stays open.
    Drop,
    /// Close the connection without an answer.
    Hangup,
    /// Put another object in place of the one asked for, then serve.
    Swap {
        /// What to put there.
        with: Replacement,
    },
    /// Answer a ranged GET with the bytes `shift` further on (or back), and say so in `Content-Range`.
    WrongRange {
        /// Bytes; the range is kept inside the object.
        shift: i64,
    },
    /// Answer a ranged GET with 200 and the whole object.
    IgnoreRange,
    /// Show an ETag that is not the object's in GET and HEAD.
    WrongEtag,
    /// Change one byte of the body, at this offset of the object, when it is in the range sent.
    FlipByte {
        /// Offset from the start of the object.
        offset: u64,
    },
    /// Answer a GET with 200 and no bytes.
    EmptyBody,
    /// Send the body with chunked transfer encoding and close before the last chunk.
    TruncatedChunked {
        /// Body bytes sent first.
        after: u64,
    },
    /// A truncated listing without a token or marker.
    ListDropMarker,
    /// A listing page with nothing in it and more to come.
    ListEmptyPage,
    /// A listing page that returns the token it was asked with.
    ListRepeatToken,
    /// Listing pages of at most so many entries.
    ListPageSize {
        /// Entries, 1 to 1000.
        keys: usize,
    },
    /// Refuse requests that are not signed for this region: 301 `PermanentRedirect` with `redirect`, else 400
    /// `AuthorizationHeaderMalformed`; both name the region.
    Region {
        /// The region that would be right.
        region: String,
        /// 301 instead of 400.
        redirect: bool,
    },
    /// Refuse what is more than a token bucket holds.
    Throttle {
        /// Tokens added a second.
        per_second: f64,
        /// Tokens the bucket holds, full at first.
        burst: f64,
        /// 503 (`SlowDown`) or 429.
        status: u16,
        /// Seconds for a `Retry-After` header.
        #[serde(default)]
        retry_after: Option<u64>,
    },
}

impl Fault {
    /// [`Fault::Status`] with the usual S3 code of that status.
    #[must_use]
    pub fn status(status: u16) -> Self {
        Self::Status { status, code: String::new(), retry_after: None }
    }
}

/// What [`Fault::Swap`] puts in the object's place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Replacement {
    /// A synthetic object of the next version.
    Synthetic {
        /// Bytes.
        size: u64,
        /// The key id of its stamps.
        key_id: u32,
    },
    /// These bytes.
    Data(Vec<u8>),
    /// Nothing: the object is deleted.
    Delete,
}

/// When a fault happens. A request must match every condition; all rules that fire act on it together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rule {
    /// Operations; empty = any.
    pub ops: Vec<Op>,
    /// Only this bucket.
    pub bucket: Option<String>,
    /// Only this key (for listings: this `prefix` parameter).
    pub key: Option<String>,
    /// Only keys (listings: `prefix` parameters) that begin so.
    pub prefix: Option<String>,
    /// Let so many matching requests pass first.
    pub skip: u64,
    /// Then fire so many times; none = for ever.
    pub times: Option<u64>,
    /// Fire with this probability (0 to 1) once past `skip`.
    pub probability: f64,
    /// Seed of that chance.
    pub seed: u64,
    /// What happens.
    pub fault: Fault,
}

impl Default for Rule {
    fn default() -> Self {
        Self {
            ops: Vec::new(),
            bucket: None,
            key: None,
            prefix: None,
            skip: 0,
            times: None,
            probability: 1.0,
            seed: 1,
            fault: Fault::status(503),
        }
    }
}

impl Rule {
    /// `fault` on every request of any kind, for ever; narrow it with the other methods.
    #[must_use]
    pub fn any(fault: Fault) -> Self {
        Self { fault, ..Self::default() }
    }

    /// `fault` on every request of this kind, for ever.
    #[must_use]
    pub fn on(op: Op, fault: Fault) -> Self {
        Self { ops: vec![op], fault, ..Self::default() }
    }

    /// Also on requests of this kind.
    #[must_use]
    pub fn or(mut self, op: Op) -> Self {
        self.ops.push(op);
        self
    }

    /// Only for this key (for listings: this `prefix` parameter).
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Only for keys (for listings: `prefix` parameters) that begin so.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = Some(prefix.into());
        self
    }

    /// Only in this bucket.
    #[must_use]
    pub fn bucket(mut self, bucket: impl Into<String>) -> Self {
        self.bucket = Some(bucket.into());
        self
    }

    /// Let the first `n` matching requests pass.
    #[must_use]
    pub fn skip(mut self, n: u64) -> Self {
        self.skip = n;
        self
    }

    /// Fire at most `n` times. Default: for ever.
    #[must_use]
    pub fn times(mut self, n: u64) -> Self {
        self.times = Some(n);
        self
    }

    /// Fire at most once.
    #[must_use]
    pub fn once(self) -> Self {
        self.times(1)
    }

    /// Fire with probability `p` (0 to 1), drawn from `seed`. Default: always.
    #[must_use]
    pub fn probability(mut self, p: f64, seed: u64) -> Self {
        (self.probability, self.seed) = (p, seed);
        self
    }

    fn matches(&self, op: Op, bucket: &str, key: &[u8]) -> bool {
        (self.ops.is_empty() || self.ops.contains(&op))
            && self.bucket.as_ref().is_none_or(|b| b == bucket)
            && self.key.as_ref().is_none_or(|k| k.as_bytes() == key)
            && self.prefix.as_ref().is_none_or(|p| key.starts_with(p.as_bytes()))
    }
}

/// Names a rule in the list of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FaultId(pub u64);

/// A rule in the list, and how often it fired.
#[derive(Clone, Debug, Serialize)]
pub struct RuleState {
    /// Its name.
    pub id: FaultId,
    /// Requests that matched.
    pub matched: u64,
    /// Requests that it acted on.
    pub fired: u64,
    /// The rule.
    pub rule: Rule,
}

/// One installed rule.
#[derive(Debug)]
struct Active {
    id: FaultId,
    rule: Rule,
    rng: Rng,
    matched: AtomicU64,
    fired: AtomicU64,
    bucket: Mutex<Option<(f64, Instant)>>,
}

impl Active {
    /// Whether this matching request is one that the rule acts on.
    fn fires(&self) -> bool {
        if self.matched.fetch_add(1, Relaxed) < self.rule.skip || !self.rng.chance(self.rule.probability) {
            return false;
        }
        if let Fault::Throttle { per_second, burst, .. } = self.rule.fault
            && self.take_token(per_second, burst)
        {
            return false;
        }
        let limit = self.rule.times.unwrap_or(u64::MAX);
        self.fired.fetch_update(Relaxed, Relaxed, |n| (n < limit).then_some(n + 1)).is_ok()
    }

    fn take_token(&self, per_second: f64, burst: f64) -> bool {
        let mut bucket = self.bucket.lock();
        let now = Instant::now();
        let (tokens, since) = bucket.unwrap_or((burst, now));
        let tokens = (tokens + now.duration_since(since).as_secs_f64() * per_second).min(burst);
        let (left, got) = if tokens >= 1.0 { (tokens - 1.0, true) } else { (tokens, false) };
        *bucket = Some((left, now));
        got
    }
}

/// The list of rules.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    rules: RwLock<Vec<Arc<Active>>>,
    next: AtomicU64,
}

impl Faults {
    pub(crate) fn add(&self, rule: Rule) -> FaultId {
        let id = FaultId(self.next.fetch_add(1, Relaxed) + 1);
        let rng = Rng::new(rule.seed);
        self.rules.write().push(Arc::new(Active {
            id,
            rule,
            rng,
            matched: AtomicU64::new(0),
            fired: AtomicU64::new(0),
            bucket: Mutex::new(None),
        }));
        id
    }

    /// False when there is no such rule (any more).
    pub(crate) fn remove(&self, id: FaultId) -> bool {
        let mut rules = self.rules.write();
        let before = rules.len();
        rules.retain(|r| r.id != id);
        rules.len() < before
    }

    pub(crate) fn clear(&self) {
        self.rules.write().clear();
    }

    pub(crate) fn states(&self) -> Vec<RuleState> {
        let state = |r: &Arc<Active>| RuleState {
            id: r.id,
            matched: r.matched.load(Relaxed),
            fired: r.fired.load(Relaxed),
            rule: r.rule.clone(),
        };
        self.rules.read().iter().map(state).collect()
    }

    /// The faults that act on this request, in the order of their rules.
    pub(crate) fn fire(&self, op: Op, bucket: &str, key: &[u8]) -> Vec<Fault> {
        let rules = self.rules.read();
        let fires = |r: &&Arc<Active>| r.rule.matches(op, bucket, key) && r.fires();
        rules.iter().filter(fires).map(|r| r.rule.fault.clone()).collect()
    }
}
