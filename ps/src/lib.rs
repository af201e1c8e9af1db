//! The parameter server: the only code that changes a variable.
//! Knows nothing of losses, batches or devices, nor of how placement is decided.

#![forbid(unsafe_code)]

mod checkpoint;
mod config;
mod error;
mod ps;
mod shard;
mod sync;
mod view;

pub use config::PsConfig;
pub use error::PsError;
pub use ps::Ps;
pub use shard::{
    Answer, Cut, Measure, Order, Reader, Restored, ShardLimits, ShardState, SliceState, initial_slots,
};
pub use view::PsView;
