//! The parameter server. Only this crate changes variables. Losses and batches belong to the workers. The
//! chief decides the placement.

#![forbid(unsafe_code)]

mod actor;
mod address;
mod board;
mod checkpoint;
mod claims;
mod config;
mod containers;
mod device;
mod drafts;
mod error;
mod files;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod lifecycle;
mod ps;
mod requests;
mod router;
mod serving;
mod shard;
mod shards;
mod sync;
mod threads;
mod traced_reply;
mod view;

pub use config::PsConfig;
pub use containers::{ClientVariable, ContainerError, ContainerLimits, Containers};
pub use device::{MakeDevice, PsDevice, PsDeviceError};
pub use error::PsError;
pub use files::PeerTransport;
pub use ps::Ps;
pub use shard::{
    Answer, Cut, FileRequest, Measure, Reader, Restored, ShardLimits, ShardState, SliceState, initial_slots,
};
pub use view::PsView;
