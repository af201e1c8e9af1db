//! The trait of services. A service decides which peers a server accepts, and answers their requests.

use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use pushpull_identity::ClientRole;
use pushpull_messages::id::{Incarnation, TaskId};
use pushpull_messages::message::{Message, Refusal};

use crate::ahead::Ahead;
use crate::buffer::Payload;
use crate::reply::Reply;
use crate::sink::Sink;

/// The task at the other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The id of the peer: its job and index.
    pub task: TaskId,
    /// What the peer may do if it is a guest: a client program, which is not a task of the cluster. `None`
    /// for a task. Only a server that admits guests has such peers.
    pub guest: Option<ClientRole>,
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

/// How long a large payload took to arrive.
#[derive(Clone, Copy, Debug)]
pub struct Arrived {
    /// The size of the payload in bytes.
    pub bytes: u64,
    /// The time from the service's decision where to put the payload until all of it had arrived.
    pub took: Duration,
}

/// A request whose payload begins to arrive.
#[derive(Clone, Copy, Debug)]
pub struct Arriving<'a> {
    /// The request.
    pub message: &'a Message,
    /// The lengths of the payload's segments in bytes.
    pub lengths: &'a [u64],
    /// The last two large payloads on this connection, the older one first; `None` if there were fewer.
    pub last: Option<[Arrived; 2]>,
    /// Sends a message ahead of the reply; `None` if an earlier request of the connection is unanswered,
    /// whose reply would have to wait.
    pub ahead: Option<&'a Ahead>,
}

/// A service that answers requests. The tokio task of a connection calls the methods, so each method must
/// hand long work to another thread or task and return at once.
pub trait Service: Send + Sync + 'static {
    /// Decides, at the end of a peer's handshake, whether to accept the peer. By then, the peer is known to
    /// belong to the cluster, or to be a guest.
    ///
    /// # Errors
    /// If the service refuses the peer.
    fn admit(&self, peer: &Peer) -> Result<(), Refusal> {
        let _ = peer;
        Ok(())
    }

    /// Returns the sink for a large payload that begins to arrive. The service may let the peer wait a short
    /// time. Once all of the payload is in the sink, [`call`](Self::call) is called with
    /// [`Payload::TAKEN`]. Without a sink, `call` gets the payload. The request has no
    /// effect before `call`.
    fn sink<'a>(&'a self, peer: &'a Peer, arriving: Arriving<'a>) -> BoxFuture<'a, Option<Box<dyn Sink>>> {
        let _ = (peer, arriving);
        std::future::ready(None).boxed()
    }

    /// Handles a request. The reply may be sent at any later time, from any thread.
    fn call(&self, peer: &Peer, message: Message, payload: Payload, reply: Reply);

    /// Handles the end of an admitted peer's connection.
    fn disconnected(&self, peer: &Peer) {
        let _ = peer;
    }
}
