//! [`LentFile`]: a cached file in somebody else's hands.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::lend::Lent;

/// The data file of one version of one file, whole and believed: exactly its bytes, open for reading only. Nothing of
/// it is evicted while this lives, in any process. It may be passed through, mapped, linked or read.
#[derive(Debug)]
pub struct LentFile(Kind);

#[derive(Debug)]
enum Kind {
    /// Of a small object, whose file is removed or left alone but never changed.
    Small(OwnedFd),
    Large(Lent),
}

impl LentFile {
    pub(crate) fn small(file: OwnedFd) -> Self {
        LentFile(Kind::Small(file))
    }

    pub(crate) fn large(lent: Lent) -> Self {
        LentFile(Kind::Large(lent))
    }
}

impl AsFd for LentFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.0 {
            Kind::Small(file) => file.as_fd(),
            Kind::Large(lent) => lent.as_fd(),
        }
    }
}
