//! From a graph to something that runs: differentiated ahead of time, memory planned once, executed in one arena.

mod autodiff;
mod compile;
mod executor;
mod plan;
#[cfg(test)]
mod tests;

pub use autodiff::NoGradient;
pub use compile::{CompileError, FEATURES, LABELS, Program};
pub use executor::Executor;
