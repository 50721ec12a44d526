//! What to fetch next: streams inside of files, and small files that are read one after the other.
//!
//! [`detector`]: how a file is read · [`window`]: how far ahead and in what parts · [`scheduler`]: when ·
//! [`connections`]: over how many connections · [`siblings`]: small files of one directory.

pub(crate) mod connections;
pub(crate) mod detector;
mod scheduler;
pub(crate) mod siblings;
pub(crate) mod window;
