//! What two pushpull tasks must agree on: what is said, its bytes, and how it travels.
//! Knows no policy, no arithmetic on tensors and no file.

#![forbid(unsafe_code)]

pub mod id;
pub mod tensor;
pub mod variable;
pub mod graph;
pub mod placement;
pub mod optimizer;
pub mod sync;
pub mod input;
pub mod job;
pub mod cluster;
pub mod buffer;
pub mod message;
pub mod wire;
pub mod transport;
