//! The messages to a shard's actor from the rest of its task.

use pushpull_messages::message::Message;
use pushpull_messages::observe::Queued;
use pushpull_transport::Reply;
use pushpull_transport::buffer::Payload;

use crate::shard::Reader;

/// A message that ends a shard. The requests that wait in the shard's mailbox are refused.
#[derive(actix::Message)]
#[rtype(result = "()")]
pub(crate) struct StopShard;

/// A request for one shard, with the handle to answer it.
#[derive(actix::Message)]
#[rtype(result = "()")]
pub(crate) struct ShardRequest {
    /// The request.
    pub message: Message,
    /// The tensor bytes that came with the request.
    pub payload: Payload,
    /// The worker that sent the request; `None` if the sender is not a worker.
    pub reader: Option<Reader>,
    /// The number that this ps task gave to the connection on which the request arrived. Each connection has
    /// a greater number than all earlier ones.
    pub connection: u64,
    /// The handle to answer the request.
    pub reply: Reply,
    /// Measures how long the request waits in the mailbox.
    pub queued: Queued,
}
