//! Compiles and runs a graph: lowers it to kernels, differentiates and fuses the kernels, plans their memory
//! once, and executes them in one arena. This crate must not depend on input formats, parameter servers or
//! actors, and it starts no threads.

#![forbid(unsafe_code)]

mod arena;
mod attend;
mod autodiff;
mod columns;
mod cuda;
mod cut;
mod error;
mod execute;
mod executor;
mod extent;
mod feed;
mod fetch;
mod flops;
mod fuse;
mod gradients;
mod ir;
mod lower;
mod memory;
mod narrow;
mod op_time;
mod operation;
mod plan;
mod program;
mod split_arena;
mod target;
#[cfg(test)]
mod tests;
mod training;
mod values;

pub use columns::{ColumnRef, ColumnSource, Lost};
pub use cuda::{CudaDevice, CudaError, CudaExecutor, MemoryNeed, TooLittleMemory};
pub use cut::{Cut, CutGradient, Destination, Edge, Held, Origin, Part, Parts, Stage, Stages, Wanted};
pub use error::{CompileError, StepError, StepFault};
pub use executor::{Executor, Progress};
pub use feed::{Feed, NextBatch};
pub use fetch::{Fetch, Groups};
pub use gradients::GradientSink;
pub use op_time::OpTime;
pub use program::Program;
pub use target::Target;
pub use values::ValueSource;
