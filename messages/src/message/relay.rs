//! The messages between workers whose gradients travel to a shard together: a worker passes on the pushes of
//! others with its own.

use serde::{Deserialize, Serialize};

use super::{Content, Invalid, Push, no_payload};
use crate::id::Version;

/// A request from a worker that has joined the job to the worker that shall pass its pushes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinRoute {
    /// The version from which the sender takes its first step.
    pub first: Version,
}

impl Content for JoinRoute {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        no_payload(segments)
    }
}

/// The reply to [`JoinRoute`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteJoined {
    /// The version from which on the worker waits for the other worker's pushes and passes them on. Pushes of
    /// earlier versions go to the shards directly.
    pub from: Version,
}

impl Content for RouteJoined {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        no_payload(segments)
    }
}

/// A push that the receiving worker adds to its own, and passes on. The reply is
/// [`Pushed`](super::Pushed).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RelayPush {
    /// The ps task that runs the shard.
    pub ps: u32,
    /// The push. The receiver must get the same if it is sent to the shard.
    pub push: Push,
}

impl Content for RelayPush {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        self.push.validate(segments)
    }
}
