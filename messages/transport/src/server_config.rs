//! The limits of a server: settings only.

use crate::wire::Limits;

/// The most that a server accepts.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// The number of shards that this task runs, as it tells its peers.
    pub shards: u32,
    /// The limits on a frame after the handshake.
    pub limits: Limits,
    /// The unanswered requests on one connection beyond which no more is read from it.
    pub requests_max: u32,
    /// The unanswered payload bytes of all connections together beyond which no more is read.
    pub in_flight_bytes_max: u64,
    /// The connections at a time; beyond that the next waits to be accepted.
    pub connections_max: u32,
    /// How long a handshake may take, in milliseconds.
    pub handshake_ms: u64,
    /// How long writing the last replies may take when the server stops, in milliseconds.
    pub drain_ms: u64,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            shards: 0,
            limits: Limits::default(),
            requests_max: 16,
            in_flight_bytes_max: 8 << 30,
            connections_max: 4096,
            handshake_ms: 10_000,
            drain_ms: 5_000,
        }
    }
}

impl ServerConfig {
    /// Returns the unanswered requests a connection may have: at least two for every shard, since a worker
    /// calls all of them at once, and the chief has more to send while it waits for a save of each.
    pub(crate) fn requests_max(&self) -> u32 {
        self.requests_max.max(self.shards.saturating_mul(2)).max(1)
    }
}
