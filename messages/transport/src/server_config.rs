//! The settings of a server.

use crate::wire::Limits;

/// The settings of a server. Most of them are limits on what the server accepts.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// The number of shards that this task runs. Peers learn it in the handshake.
    pub shards: u32,
    /// Whether the server admits guests: client programs, which are not tasks of the cluster.
    pub guests: bool,
    /// The limits on the size of a frame after the handshake, and on the time in which it must arrive.
    pub limits: Limits,
    /// The largest number of unanswered requests on one connection. When the limit is reached, nothing more
    /// is read from the connection.
    pub requests_max: u32,
    /// The largest number of bytes that the unanswered requests of all connections may take together.
    /// Payloads count, and so do headers of more than a few KiB. When the limit is reached, no more payloads
    /// and no more large headers are read. Connections that wait go on in the order in which they began to
    /// wait.
    pub in_flight_bytes_max: u64,
    /// The largest number of bytes that the unanswered requests of one connection may take, counted as for
    /// [`in_flight_bytes_max`](Self::in_flight_bytes_max). A single larger request is read once no other
    /// request of the connection takes any of these bytes.
    pub connection_bytes_max: u64,
    /// The largest number of connections at a time. When the limit is reached, the next connection waits to
    /// be accepted.
    pub connections_max: u32,
    /// The time limit for a handshake, in milliseconds.
    pub handshake_ms: u64,
    /// The time limit for writing the last replies when the server stops, in milliseconds.
    pub drain_ms: u64,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            shards: 0,
            guests: false,
            limits: Limits::default(),
            requests_max: 16,
            in_flight_bytes_max: 8 << 30,
            connection_bytes_max: 4 << 30,
            connections_max: 4096,
            handshake_ms: 10_000,
            drain_ms: 5_000,
        }
    }
}

impl ServerConfig {
    /// Returns the largest number of unanswered requests on one connection. It is at least two for each
    /// shard: a worker calls all shards at once, and the chief sends a shard other requests while a request
    /// to save is still unanswered.
    pub(crate) fn requests_max(&self) -> u32 {
        self.requests_max.max(self.shards.saturating_mul(2)).max(1)
    }
}
