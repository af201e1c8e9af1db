//! What two pushpull tasks must agree on: what is said, its bytes, and how it travels.
//! Knows no policy, no arithmetic on tensors, and of files only the store that checkpoints are passed on through.

#![forbid(unsafe_code)]

#[cfg(test)]
extern crate self as pushpull_messages; // The fixtures are shared with the crates above.

pub mod checkpoint;
pub mod cluster;
pub mod device;
#[cfg(test)]
#[path = "../tests/fixtures/mod.rs"]
mod fixtures;
mod float;
pub mod gradient;
pub mod graph;
pub mod id;
pub mod input;
pub mod job;
pub mod message;
pub mod observe;
pub mod optimizer;
pub mod out_of_range;
pub mod placement;
pub mod summary;
pub mod sync;
pub mod tensor;
pub mod variable;
