//! A task as it is seen from outside, whatever it is for.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::actor::ActorSnapshot;
use super::chief::ChiefSnapshot;
use super::evaluator::EvaluatorSnapshot;
use super::ps::PsSnapshot;
use super::worker::WorkerSnapshot;
use crate::id::{Incarnation, TaskId};

/// Something that can be observed: a task of this process. It never waits for long, and holds nothing up; each look is some
/// work all the same, and whoever asks on behalf of others sees to it that these are but a few a second.
#[async_trait]
pub trait Observed: Send + Sync + 'static {
    /// Its state now, or as it was a moment ago. After the task has ended, its last one.
    async fn observe(&self) -> TaskSnapshot;
}

/// The state of a task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskSnapshot {
    /// Which task.
    pub task: TaskId,
    /// Which life of it.
    pub incarnation: Incarnation,
    /// Where it is in that life.
    pub state: TaskState,
    /// Its actors.
    pub actors: Vec<ActorSnapshot>,
    /// What only tasks of its job have.
    pub role: RoleSnapshot,
}

/// Where a task is in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    /// It cannot do yet what it is for.
    #[default]
    Starting,
    /// It does what it is for: a ps has its variables, a worker is registered and prepared, a chief can be reached.
    Ready,
    /// It was told to stop, and brings to an end what it is at.
    Stopping,
    /// It has ended.
    Ended,
}

impl TaskState {
    /// All of them, in the order of a life.
    pub const ALL: [Self; 4] = [Self::Starting, Self::Ready, Self::Stopping, Self::Ended];

    /// The word that stands for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Stopping => "stopping",
            Self::Ended => "ended",
        }
    }
}

/// What only tasks of one job have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoleSnapshot {
    /// The chief's.
    Chief(Box<ChiefSnapshot>),
    /// A ps task's.
    Ps(Box<PsSnapshot>),
    /// A worker's.
    Worker(Box<WorkerSnapshot>),
    /// An evaluator's.
    Evaluator(Box<EvaluatorSnapshot>),
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fixtures::any_message::{any_actor, any_shard};
    use crate::id::ShardId;
    use crate::observe::{ServerSnapshot, Traffic};

    proptest! {
        #[test]
        fn what_is_told_as_json_is_read_again(
            actors in prop::collection::vec(any_actor(), 0..3),
            shards in prop::collection::vec(any_shard(), 0..3),
            state in 0..TaskState::ALL.len(),
            messages in any::<u64>(),
        ) {
            let received = Traffic { messages, payload_bytes: messages / 2 };
            let closed = [("refused".to_owned(), messages)].into();
            let server = ServerSnapshot { received, closed, ..ServerSnapshot::default() };
            let shards = shards.into_iter().zip(0..).map(|(shard, index)| (ShardId::new(0, index), shard));
            let snapshot = TaskSnapshot {
                task: TaskId::ps(0),
                incarnation: Incarnation(messages),
                state: TaskState::ALL[state],
                actors,
                role: RoleSnapshot::Ps(Box::new(PsSnapshot { server, shards: shards.collect(), pool_bytes: 1, chief_connected: true })),
            };
            let json = serde_json::to_value(&snapshot).unwrap();
            prop_assert_eq!(json["state"].as_str(), Some(TaskState::ALL[state].as_str()));
            prop_assert_eq!(json["role"]["ps"]["pool_bytes"].as_u64(), Some(1));
            prop_assert_eq!(serde_json::from_value::<TaskSnapshot>(json).unwrap(), snapshot);
        }
    }

    #[test]
    fn every_role_is_known_by_its_name() {
        let roles = [
            (RoleSnapshot::Chief(Box::default()), "chief"),
            (RoleSnapshot::Ps(Box::default()), "ps"),
            (RoleSnapshot::Worker(Box::default()), "worker"),
            (RoleSnapshot::Evaluator(Box::default()), "evaluator"),
        ];
        for (role, name) in roles {
            let json = serde_json::to_value(&role).unwrap();
            assert_eq!(json.as_object().unwrap().keys().collect::<Vec<_>>(), [name]);
            assert_eq!(serde_json::from_value::<RoleSnapshot>(json).unwrap(), role);
        }
    }
}
