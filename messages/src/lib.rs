//! What two pushpull tasks must agree on: what is said, its bytes, and how it travels.
//! Knows no policy, no arithmetic on tensors and no file.

#![forbid(unsafe_code)]

pub mod buffer;
pub mod cluster;
pub mod device;
pub mod gradient;
pub mod graph;
pub mod id;
pub mod input;
pub mod job;
pub mod message;
pub mod optimizer;
pub mod placement;
pub mod sync;
pub mod tensor;
pub mod transport;
pub mod variable;
pub mod wire;
