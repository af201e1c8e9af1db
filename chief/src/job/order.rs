//! What the shards are told about the workers of a job. Data only.

use pushpull_messages::id::Incarnation;

/// An order to all shards about one incarnation of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MembershipOrder {
    /// This incarnation may join, and earlier ones have ended. The worker begins when all shards have
    /// confirmed this order.
    Appoint(u32, Incarnation),
    /// This incarnation has left, and the shards must not wait for it.
    Leave(u32, Incarnation),
}
