//! Turns a graph into a program that runs: lowers it to kernels, differentiates and fuses them, plans their
//! memory once, and executes them in one arena. It must not depend on input formats, parameter servers,
//! actors or threads of its own.

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
