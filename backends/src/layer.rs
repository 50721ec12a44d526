//! Layers: filesystems that wrap a filesystem and add one property.
//!
//! Every layer implements every method, so none loses what the filesystem underneath can do. Only one place in a
//! program should compose them; from the caller down to the store the order is
//!
//! ```text
//! TracingLayer            what was slow
//! MetricsLayer            what the caller got, retries included
//! ReadOnlyLayer           if so wanted
//! RetryLayer              tries again, resumes, slows down when the store says so
//! HedgeLayer              a second request for a slow read
//! ConcurrencyLimitLayer   so many requests at a time
//! TimeoutLayer            one attempt ends
//! FaultLayer              tests only: stands for a bad store
//! SpawnedLayer            any runtime above, ours below
//! PrefixLayer             a directory as the root
//! the store
//! ```
//!
//! `SpawnedLayer` goes to the very top instead where callers poll from a foreign runtime: the layers need a tokio
//! runtime with timers themselves.

mod concurrency_limit;
mod fault;
mod hedge;
mod limit;
mod metrics;
mod prefix;
mod read_only;
mod retry;
mod spawned;
mod timeout;
mod tracing;

pub use self::metrics::MetricsLayer;
pub use self::tracing::{TracingConfig, TracingLayer};
pub use concurrency_limit::{ConcurrencyLimitConfig, ConcurrencyLimitLayer};
pub use fault::{Fault, FaultAction, FaultLayer, Operation};
pub use hedge::{HedgeConfig, HedgeLayer, HedgeStats};
pub use prefix::PrefixLayer;
pub use read_only::ReadOnlyLayer;
pub use retry::RetryLayer;
pub use spawned::SpawnedLayer;
pub use timeout::{TimeoutConfig, TimeoutLayer};
