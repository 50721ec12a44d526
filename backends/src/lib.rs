//! The vocabulary of nearfs and the stores it can show: one [`FileSystem`] trait over local disks, memory and object
//! storage, and the layers that make a store dependable.
//!
//! Programs use the root crate `nearfs`; this crate is what the others are built on.

mod capability;
pub mod config;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod errno;
mod error;
mod ext;
mod file;
mod fs;
pub mod interop;
pub mod io;
pub mod layer;
mod local;
mod memory;
mod metadata;
pub mod metrics;
mod object;
mod options;
mod path;
pub mod range;
mod reader;
mod registry;
mod spawner;
mod url;

pub use bytes::Bytes;
pub use capability::Capabilities;
pub use error::{Error, ErrorKind, Result, Retry};
pub use ext::{FileExt, FileSystemExt, TreeCopied, TreeCopyOptions};
pub use file::{ByteStream, File, FileWriter};
pub use fs::{EntryStream, FileSystem, Identity};
pub use local::LocalFileSystem;
pub use memory::MemoryFileSystem;
pub use metadata::{DirEntry, FileKind, Metadata, Version};
pub use object::{CredentialInfo, Credentials, S3FileSystem};
pub use options::{Condition, CopyOptions, CreateOptions, ListOptions, OpenOptions};
pub use path::{FsPath, NAME_MAX};
pub use reader::{BlockingReader, FileReader};
pub use registry::{Factory, Registry, StoreOptions};
pub use spawner::Spawner;
pub use url::StoreUrl;
