//! The cluster: its tasks, their addresses, and the task of this process. This module does not open
//! connections or read the environment; the caller passes the user's settings.

mod address;
mod addresses;
mod config;
mod error;
mod flags;
mod known_jobs;
mod quote;
mod spec;
mod tf_config;

#[cfg(test)]
mod tests;

pub use address::{ADDRESS_BYTES_MAX, Address, AddressError, on_one_host};
pub use config::ClusterConfig;
pub use error::ClusterError;
pub use flags::ClusterFlags;
pub use spec::ClusterSpec;

/// The maximum number of tasks in one job.
pub const TASKS_PER_JOB_MAX: usize = 4096;
/// The maximum number of tasks in all jobs together.
pub const TASKS_MAX: usize = 4 * TASKS_PER_JOB_MAX;
/// The maximum number of jobs in a cluster.
pub const JOBS_MAX: usize = 64;
