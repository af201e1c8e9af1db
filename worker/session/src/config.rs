//! The settings of a server of sessions.

use std::time::Duration;

use pushpull_transport::ServerConfig;

use crate::device::CPUS_MAX;

/// The settings of a server.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// The number of CPU devices, from 1 to 64. Operations on different devices run at the same time.
    pub cpus: u32,
    /// The bytes that the open graphs of one client may take together with the values of its runs in
    /// progress.
    pub client_bytes_max: u64,
    /// The bytes that the graphs and the values of runs of all clients may take together.
    pub bytes_max: u64,
    /// The number of threads that run parts. A run needs two threads for each of its parts on this
    /// task.
    pub threads_max: u32,
    /// How long runs in progress may take when the server is drained.
    pub drain: Duration,
    /// The settings of the network server.
    pub server: ServerConfig,
}

impl Default for SessionConfig {
    fn default() -> Self {
        Self {
            cpus: 1,
            client_bytes_max: 4 << 30,
            bytes_max: 16 << 30,
            threads_max: 256,
            drain: Duration::from_secs(10),
            // A run takes a place in the queue of its connection for as long as it lasts, and so does a
            // value that waits for its run.
            server: ServerConfig { guests: true, requests_max: 1024, ..ServerConfig::default() },
        }
    }
}

/// The error for settings of a server that are out of range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionConfigError {
    /// The number of CPU devices.
    #[error("a server has from 1 to {CPUS_MAX} CPU devices, but is to have {0}")]
    Cpus(u32),
    /// The server's task is not in its cluster.
    #[error("the cluster '{0}' does not have the server's task")]
    Task(String),
}
