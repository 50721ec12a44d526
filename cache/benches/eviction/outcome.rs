//! [`Outcome`]: what a policy made of a trace.

use super::traces::Request;

/// Hits, by objects and by bytes.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Outcome {
    pub(crate) requests: u64,
    pub(crate) hits: u64,
    pub(crate) bytes: u64,
    pub(crate) hit_bytes: u64,
}

impl Outcome {
    pub(crate) fn count(&mut self, request: &Request, hit: bool) {
        self.requests += 1;
        self.bytes += u64::from(request.size);
        self.hits += u64::from(hit);
        self.hit_bytes += if hit { u64::from(request.size) } else { 0 };
    }

    /// Share of the accesses that hit.
    pub(crate) fn objects(&self) -> f64 {
        self.hits as f64 / self.requests as f64
    }

    /// Share of the bytes that hit.
    pub(crate) fn bytes(&self) -> f64 {
        self.hit_bytes as f64 / self.bytes as f64
    }
}
