//! The vocabulary of nearfs and the stores it can show: one [`FileSystem`] trait over local disks, memory and object
//! storage, and the layers that make a store dependable.
//!
//! Programs use the root crate `nearfs`; this crate is what the others are built on.

mod capability;
mod errno;
mod error;
mod file;
mod fs;
pub mod io;
mod metadata;
mod options;
mod path;
pub mod range;
mod spawner;

pub use bytes::Bytes;
pub use capability::Capabilities;
pub use error::{Error, ErrorKind, Result, Retry};
pub use file::{ByteStream, File, FileWriter};
pub use fs::{EntryStream, FileSystem, Identity};
pub use metadata::{DirEntry, FileKind, Metadata, Version};
pub use options::{Condition, CopyOptions, CreateOptions, ListOptions, OpenOptions};
pub use path::{FsPath, NAME_MAX};
pub use spawner::Spawner;
