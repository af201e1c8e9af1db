//! The chief: decisions for the whole job. It carries no tensors and runs no kernels.

#![forbid(unsafe_code)]

mod chief;
mod conclude;
mod config;
mod desk;
mod error;
mod job;
pub mod placement;
mod ps_tasks;
mod report;

pub use chief::Chief;
pub use config::{ChiefConfig, RECONNECT_TIMEOUT_MAX};
pub use error::ChiefError;
pub use report::{JobProgress, JobReport};
