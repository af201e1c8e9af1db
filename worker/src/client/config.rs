//! The settings of the push/pull client. Independent of devices and hooks.

use std::time::Duration;

use pushpull_transport::RetryConfig;

/// The settings of a worker's connections to the shards.
#[derive(Clone, Copy, Debug)]
pub struct ClientConfig {
    /// How long the client waits for the ps tasks to start.
    pub start_timeout: Duration,
    /// How the client deals with broken connections.
    pub retry: RetryConfig,
    /// The maximum number of gradient bytes on their way to the ps tasks. A push that would exceed it waits.
    pub in_flight_bytes_max: u64,
}
