//! The parameter server: the only code that changes a variable. Losses, batches and devices are the workers'
//! matter, and the chief decides on the placement.

#![forbid(unsafe_code)]

mod actor;
mod checkpoint;
mod config;
mod error;
mod lifecycle;
mod ps;
mod router;
mod shard;
mod sync;
mod traced_reply;
mod view;

pub use config::PsConfig;
pub use error::PsError;
pub use ps::Ps;
pub use shard::{
    Answer, Cut, FileRequest, Measure, Reader, Restored, ShardLimits, ShardState, SliceState, initial_slots,
};
pub use view::PsView;
