//! Real mounts, made by this process and used through the kernel. They need root.

#[path = "real/basics.rs"]
mod basics;
#[path = "real/child.rs"]
mod child;
#[path = "real/fallbacks.rs"]
mod fallbacks;
#[path = "real/killed.rs"]
mod killed;
#[path = "real/lifecycle.rs"]
mod lifecycle;
#[path = "real/lifetimes.rs"]
mod lifetimes;
#[path = "real/listing.rs"]
mod listing;
#[path = "real/local.rs"]
mod local;
#[path = "real/map.rs"]
mod map;
#[path = "real/modes.rs"]
mod modes;
#[path = "real/passthrough.rs"]
mod passthrough;
#[path = "real/readonly.rs"]
mod readonly;
#[path = "real/stalls.rs"]
mod stalls;
#[path = "real/stateless.rs"]
mod stateless;
#[path = "real/support.rs"]
mod support;
#[path = "real/versions.rs"]
mod versions;
