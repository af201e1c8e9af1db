//! The settings of the push/pull client. This module must not depend on devices or hooks.

use std::time::Duration;

use pushpull_transport::RetryConfig;

/// The settings of a worker's connections to the shards.
#[derive(Clone, Copy, Debug)]
pub struct ClientConfig {
    /// How long the client waits for the ps tasks to start.
    pub start_timeout: Duration,
    /// How the client handles broken connections.
    pub retry: RetryConfig,
    /// The maximum number of gradient bytes in flight to the ps tasks. A push that would exceed this limit
    /// waits for the replies to earlier pushes.
    pub in_flight_bytes_max: u64,
}
