//! Bridges to the `object_store` crate, both ways.
//!
//! * [`ObjectStoreFileSystem`]: any `object_store::ObjectStore` as a [`FileSystem`](crate::FileSystem), to read through
//!   nearfs what only that crate can reach.
//! * [`FileSystemObjectStore`]: any nearfs filesystem as an `object_store::ObjectStore`, so that DataFusion, Parquet,
//!   Lance and others get it (with its cache, retries and limits) in one line.

mod error;
mod foreign;
mod store;

pub use foreign::{ObjectStoreFileSystem, ObjectStoreOptions};
pub use store::FileSystemObjectStore;
