//! The cluster: which tasks there are, at which addresses, and which of them this process is.
//! Knows nothing of connections, and reads no environment: what a user wrote is handed in.

mod address;
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

/// Most tasks in one job.
pub const TASKS_PER_JOB_MAX: usize = 4096;
