//! The reasons why a push, a pull or a connection to the shards fails.

use pushpull_messages::id::{ShardId, TaskId};
use pushpull_messages::message::RefusalCode;
use pushpull_transport::{CallError, DialError};

use super::values::ValuesError;
use crate::stages::{StageError, StageErrorKind};

/// An error of the push/pull client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// A ps task could not be reached.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// The cluster spec has no address for a ps task.
    #[error("the placement names {0}, which is not in the cluster spec")]
    NotInCluster(TaskId),
    /// A call to a ps task failed or was refused.
    #[error(transparent)]
    Call(#[from] CallError),
    /// A shard has variables of several stages of the graph.
    #[error("{0} has variables of several stages, expected a placement that keeps stages apart")]
    MixedShard(ShardId),
    /// Another stage of this worker's replica has failed.
    #[error(transparent)]
    Stage(#[from] StageError),
    /// A shard sent slices that do not match the placement.
    #[error(transparent)]
    Values(#[from] ValuesError),
}

impl ClientError {
    /// Returns true if this error says that a shard refused a push because its gradients are not finite.
    pub fn is_not_finite(&self) -> bool {
        match self {
            Self::Call(CallError::Refused { refusal, .. }) => refusal.code == RefusalCode::NotFinite,
            Self::Stage(error) => error.kind == StageErrorKind::NotFinite,
            _ => false,
        }
    }
}
