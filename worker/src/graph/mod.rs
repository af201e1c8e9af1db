//! From a graph to something that runs: lowered to kernels, differentiated ahead of time, fused, given its memory once,
//! and executed in one arena.

mod autodiff;
mod error;
mod execute;
mod executor;
mod extent;
mod fuse;
mod ir;
mod lower;
mod memory;
mod plan;
mod program;
#[cfg(test)]
mod tests;

pub use error::{CompileError, StepError, StepFault};
pub use executor::{Executor, Feed};
pub use program::Program;
