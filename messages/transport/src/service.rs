//! The trait of services. A service decides which peers a server accepts, and answers their requests.

use pushpull_messages::id::{Incarnation, TaskId};
use pushpull_messages::message::{Message, Refusal};

use crate::buffer::Payload;
use crate::reply::Reply;

/// The task at the other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The id of the peer: its role and index.
    pub task: TaskId,
    /// The incarnation of the task. Each start of the task has a new one.
    pub incarnation: Incarnation,
    /// The number of the connection on this server. Each connection has a greater number than all earlier
    /// ones.
    pub connection: u64,
    /// The address from which the peer dialled.
    pub address: String,
    /// The address of the peer's HTTP server, as the peer reported it; `None` if it has none.
    pub http: Option<String>,
    /// A random number, which distinguishes two starts of the task that have the same incarnation because
    /// their clocks showed the same time. 0 if the task has no such number.
    pub nonce: u64,
}

/// A service that answers requests. The tokio task of a connection calls the methods, so each method must
/// hand long work to another thread or task and return at once.
pub trait Service: Send + Sync + 'static {
    /// Decides, at the end of a peer's handshake, whether to accept the peer. By then, the peer is known to
    /// belong to the cluster.
    ///
    /// # Errors
    /// If the service refuses the peer.
    fn admit(&self, peer: &Peer) -> Result<(), Refusal> {
        let _ = peer;
        Ok(())
    }

    /// Handles a request. The reply may be sent at any later time, from any thread.
    fn call(&self, peer: &Peer, message: Message, payload: Payload, reply: Reply);

    /// Handles the end of an admitted peer's connection.
    fn disconnected(&self, peer: &Peer) {
        let _ = peer;
    }
}
