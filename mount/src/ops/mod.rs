//! What the calls mean: one file for each family. They know no kernel and no protocol.
//!
//! A call that may have to wait comes in two parts: one that answers without waiting or says what must be asked for,
//! and one that asks. What a reply makes the kernel remember is entered into the inode table by a third, when it is
//! certain that the reply goes out.

pub(crate) mod attr;
mod control;
pub(crate) mod dir;
pub(crate) mod lookup;
pub(crate) mod open;
mod read;
mod statfs;
mod xattr;

#[cfg(test)]
mod tests;
