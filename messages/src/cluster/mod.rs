//! The cluster: its tasks, their addresses, and the task of this process. This module does not open
//! connections or read the environment; the caller passes the user's settings.

mod address;
mod addresses;
mod config;
mod error;
mod flags;
mod quote;
mod spec;
mod tf_config;

#[cfg(test)]
mod tests;

pub use address::{ADDRESS_BYTES_MAX, Address, AddressError};
pub use config::ClusterConfig;
pub use error::ClusterError;
pub use flags::ClusterFlags;
pub use spec::ClusterSpec;

/// The maximum number of tasks in one job.
pub const TASKS_PER_JOB_MAX: usize = 4096;
