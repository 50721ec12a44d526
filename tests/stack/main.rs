//! Whole-stack tests: the real binary mounts the lab's buckets, and real system calls and programs read them.
//!
//! Fault tests are named after what people saw in the field; each mounts a fresh bucket on a fresh directory, and
//! every byte read is checked against the stamps of its object, version and offset.

mod harness;

mod caching;
mod cost;
mod freshness;
mod integrity;
mod lifecycle;
mod names;
mod programs;
mod refusals;
mod stalls;
