//! The chief: decisions for the whole job. It carries no tensors and runs no kernels.

#![forbid(unsafe_code)]

mod agree;
pub mod checkpoint;
mod chief;
mod conclude;
mod config;
mod desk;
mod error;
mod heard;
mod hook;
pub mod hooks;
mod job;
mod lead;
mod lookout;
mod moment;
mod overview;
mod pace;
pub mod placement;
mod ps_tasks;
mod report;
mod show;
pub mod summary;
mod view;
mod watch;
mod wish;

pub use chief::Chief;
pub use config::{ChiefConfig, RECONNECT_TIMEOUT_MAX};
pub use error::ChiefError;
pub use hook::{Asks, Hook, MakeHook};
pub use moment::{Moment, WorkerReport};
pub use report::{JobEnd, JobProgress, JobReport};
pub use view::ChiefView;
pub use wish::Wish;
