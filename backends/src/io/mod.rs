//! Local input and output: aligned buffers and the engines that fill them.

mod buffer;

pub use buffer::{ALIGNMENT, Buffer};
