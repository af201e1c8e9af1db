//! What an operator may set on the chief.

use std::time::Duration;

use messages::transport::ServerConfig;

/// The settings of the chief.
#[derive(Clone, Debug)]
pub struct ChiefConfig {
    /// So long it waits for every task to come up.
    pub start_timeout: Duration,
    /// So long workers may take to leave when the job ends early.
    pub leave_timeout: Duration,
    /// Whether the placement table is printed.
    pub log_placement: bool,
    /// What it takes from each connection.
    pub server: ServerConfig,
}

impl Default for ChiefConfig {
    fn default() -> Self {
        Self {
            start_timeout: Duration::from_secs(300),
            leave_timeout: Duration::from_secs(10),
            log_placement: false,
            server: ServerConfig::default(),
        }
    }
}
