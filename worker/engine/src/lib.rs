//! From a graph to something that runs: lowered to kernels, differentiated ahead of time, fused, given its
//! memory once, and executed in one arena. Knows no input format, no parameter server, no thread of its own
//! and no actor.

#![forbid(unsafe_code)]

mod arena;
mod autodiff;
mod error;
mod execute;
mod executor;
mod extent;
mod feed;
mod fuse;
mod gradients;
mod ir;
mod lower;
mod memory;
mod plan;
mod program;
mod rest;
#[cfg(test)]
mod tests;
mod values;

pub use error::{CompileError, StepError, StepFault};
pub use executor::Executor;
pub use feed::Feed;
pub use gradients::GradientSink;
pub use program::Program;
pub use values::ValueSource;
