//! What is remembered of names: listings, single attributes and absence, each with its lifetime.
//!
//! [`names`]: how a lookup is answered · [`listing`]: the entries of one directory · [`lister`]: making listings ·
//! [`directory`], [`attributes`], [`negative`]: what is stored · [`expiry`]: how long · [`refresh`]: renewing ahead of
//! expiry · [`walk`]: listing ahead of a walk.

mod attributes;
mod chunks;
mod directory;
mod expiry;
mod lister;
mod listing;
mod names;
mod negative;
mod refresh;
mod walk;

pub use listing::{ListedEntries, ListedEntry, Listing, ListingPage};
pub(crate) use names::Names;
