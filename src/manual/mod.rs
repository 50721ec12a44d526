#![doc = include_str!("index.md")]

#[doc = include_str!("getting_started.md")]
pub mod getting_started {}

#[doc = include_str!("mounting.md")]
pub mod mounting {}

#[doc = include_str!("configuration.md")]
pub mod configuration {}

#[doc = include_str!("cache.md")]
pub mod cache {}

#[doc = include_str!("command_line.md")]
pub mod command_line {}

#[doc = include_str!("semantics.md")]
pub mod semantics {}

#[doc = include_str!("troubleshooting.md")]
pub mod troubleshooting {}

#[doc = include_str!("rust.md")]
pub mod rust {}
