//! Local input and output: aligned buffers and the engines that fill them.

mod buffer;
mod completion;
mod engine;
mod lent;
mod pool;
mod psync;
mod source;
mod threads;
mod uring;

pub use buffer::{ALIGNMENT, Buffer};
pub use engine::{Engine, EngineChoice, EngineConfig, EngineReport};
pub use pool::{BufferPool, BufferPoolConfig};
pub use source::{Medium, Source};
pub use threads::{Beat, BlockingPool, BlockingPoolConfig};
