//! The chief: decisions for the whole job. It carries no tensors and runs no kernels.

#![forbid(unsafe_code)]

mod chief;
mod config;
mod error;
mod job;
pub mod placement;
mod ps_tasks;
mod report;

pub use chief::Chief;
pub use config::ChiefConfig;
pub use error::ChiefError;
pub use report::{JobProgress, JobReport};
