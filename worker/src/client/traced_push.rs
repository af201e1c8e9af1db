//! A push of a traced step, with the times at which it was sent and answered. This module must not depend on
//! spans.

use std::time::Instant;

use pushpull_messages::id::ShardId;
use pushpull_messages::message::PushId;
use pushpull_messages::observe::PushTimes;

/// The times of a push that was answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TracedPush {
    pub shard: ShardId,
    pub id: PushId,
    /// When sending began.
    pub sent: Instant,
    /// The earliest time at which the whole push could be sent. By then, its own gradients and those of all
    /// earlier pushes on the same connection were computed.
    pub complete: Instant,
    /// When the reply arrived.
    pub back: Instant,
    /// The times that the ps task reported, on the clock of that task.
    pub times: Option<PushTimes>,
}
