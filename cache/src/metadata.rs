//! What is remembered of names: listings, single attributes and absence, each with its lifetime.

mod listing;

pub(crate) use listing::name_in;
pub use listing::{ListedEntries, ListedEntry, Listing, ListingPage};
