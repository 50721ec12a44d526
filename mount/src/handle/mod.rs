//! State of what is open: directories, files, and the cache's handles of files in use.

pub(crate) mod dir;
pub(crate) mod file;
pub(crate) mod open;
