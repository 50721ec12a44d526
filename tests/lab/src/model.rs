//! The latency and bandwidth model, and the pacer that holds bodies to it.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::op::Op;
use crate::rng::Rng;

/// A stream that fell behind by no more than this catches up; what it lost beyond is lost.
const CATCH_UP: Duration = Duration::from_millis(20);

/// How slow the store is. All zero (the default): as fast as the machine.
///
/// Latency counts from the end of the request to the first byte of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Model {
    /// Milliseconds to the first byte of every answer. Default: 0.
    pub first_byte_ms: f64,
    /// Up to this many milliseconds more, evenly spread, for every answer. Default: 0.
    pub jitter_ms: f64,
    /// Milliseconds for listings instead of `first_byte_ms`. Default: none (the same).
    pub list_ms: Option<f64>,
    /// Milliseconds for HEAD instead of `first_byte_ms`. Default: none (the same).
    pub head_ms: Option<f64>,
    /// Bytes of body per microsecond (10^6 bytes a second) on each connection, each way. Default: 0 = no limit.
    pub connection_mbps: f64,
    /// The same over all connections, downwards. Default: 0 = no limit.
    pub total_mbps: f64,
    /// Share of GETs of objects, in percent, that take `slow_ms` instead. Default: 0.
    pub slow_percent: f64,
    /// Milliseconds to the first byte of a slow GET. Default: 0.
    pub slow_ms: f64,
    /// Nothing more is sent while this is true, as if the network were cut: connections stay open, and answers
    /// and bodies go on when it ends. Up to 1 MiB a connection may be on its way already. Default: false.
    pub frozen: bool,
}

/// How often what is frozen looks whether it may go on.
pub(crate) const THAW_TICK: Duration = Duration::from_millis(10);

impl Default for Model {
    fn default() -> Self {
        Self {
            first_byte_ms: 0.0,
            jitter_ms: 0.0,
            list_ms: None,
            head_ms: None,
            connection_mbps: 0.0,
            total_mbps: 0.0,
            slow_percent: 0.0,
            slow_ms: 0.0,
            frozen: false,
        }
    }
}

impl Model {
    /// `first_byte_ms` for everything and `connection_mbps` for each connection.
    #[must_use]
    pub fn network(first_byte_ms: f64, connection_mbps: f64) -> Self {
        Self { first_byte_ms, connection_mbps, ..Self::default() }
    }

    /// How long an answer to `op` waits before its first byte.
    pub(crate) fn wait(&self, op: Op, rng: &Rng) -> Duration {
        let base = match op {
            _ if op.is_list() => self.list_ms.unwrap_or(self.first_byte_ms),
            Op::HeadObject | Op::HeadBucket => self.head_ms.unwrap_or(self.first_byte_ms),
            Op::GetObject if self.slow_percent > 0.0 && rng.chance(self.slow_percent / 100.0) => self.slow_ms,
            _ => self.first_byte_ms,
        };
        let jitter = if self.jitter_ms > 0.0 { self.jitter_ms * rng.unit() } else { 0.0 };
        Duration::from_secs_f64((base + jitter).max(0.0) / 1000.0)
    }

    /// A chunk length worth about a millisecond at the slower of the two rates, or `max` with no limit.
    pub(crate) fn chunk(&self, max: usize) -> usize {
        let slowest =
            [self.connection_mbps, self.total_mbps].into_iter().filter(|r| *r > 0.0).fold(f64::MAX, f64::min);
        if slowest == f64::MAX { max } else { ((slowest * 1000.0) as usize).clamp(16 << 10, max) & !0xfff }
    }
}

/// Passes bytes at a rate: each call reserves the time that follows the previous reservation.
#[derive(Debug)]
pub(crate) struct Pacer(Mutex<Instant>);

impl Pacer {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Instant::now()))
    }

    /// Drops unused time: a new body starts at its own start.
    pub(crate) fn restart(&self) {
        let mut next = self.0.lock();
        *next = (*next).max(Instant::now());
    }

    /// When `bytes` more have passed at `mbps` (10^6 bytes a second, > 0).
    pub(crate) fn reserve(&self, bytes: usize, mbps: f64) -> Instant {
        let mut next = self.0.lock();
        let now = Instant::now();
        let earliest = now.checked_sub(CATCH_UP).unwrap_or(now);
        *next = (*next).max(earliest) + Duration::from_secs_f64(bytes as f64 / (mbps * 1e6));
        *next
    }
}
