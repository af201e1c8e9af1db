//! What a server needs from the task that it serves. Knows neither sessions nor frames.

use pushpull_messages::id::{Incarnation, TaskId};
use pushpull_messages::message::{Message, Refusal};

use crate::buffer::Payload;
use crate::reply::Reply;

/// The task at the other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The task.
    pub task: TaskId,
    /// The life of that task.
    pub incarnation: Incarnation,
    /// The number of this server's connection; later ones have greater numbers.
    pub connection: u64,
    /// The address it calls from.
    pub address: String,
    /// The address at which it says that it can be observed.
    pub http: Option<String>,
}

/// A service that answers requests. It is called on the connection's task, so it must hand work on and return
/// at once.
pub trait Service: Send + Sync + 'static {
    /// Decides about a peer that fits the cluster, before it is welcomed.
    ///
    /// # Errors
    /// Refuses the peer.
    fn admit(&self, peer: &Peer) -> Result<(), Refusal> {
        let _ = peer;
        Ok(())
    }

    /// Handles a request. The reply may be sent at any time, from anywhere.
    fn call(&self, peer: &Peer, message: Message, payload: Payload, reply: Reply);

    /// Notes that the connection of an admitted peer has ended.
    fn disconnected(&self, peer: &Peer) {
        let _ = peer;
    }
}
