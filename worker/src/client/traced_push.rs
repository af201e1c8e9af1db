//! A push of a traced step, with the times at which it left and was answered. Knows no span.

use std::time::Instant;

use pushpull_messages::id::ShardId;
use pushpull_messages::message::PushId;
use pushpull_messages::observe::PushTimes;

/// A push that was answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TracedPush {
    pub shard: ShardId,
    pub id: PushId,
    /// When sending began.
    pub sent: Instant,
    /// When all of it could have left: its gradients, and those sent before it, were computed.
    pub complete: Instant,
    /// When the reply arrived.
    pub back: Instant,
    /// The times that the ps task reported, on its own clock.
    pub times: Option<PushTimes>,
}
