//! The parameter server: the only code that changes a variable.
//! Knows nothing of losses, batches or devices, nor of how placement is decided.

#![forbid(unsafe_code)]

mod config;
mod error;
mod ps;
mod shard;
mod sync;

pub use config::PsConfig;
pub use error::PsError;
pub use ps::Ps;
pub use shard::{Answer, Reader, SHARD_REQUESTS_MAX, Shard, ShardLimits, ShardRequest, ShardState};
