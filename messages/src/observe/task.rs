//! The snapshot of a task of any job.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::actor::ActorSnapshot;
use super::chief::ChiefSnapshot;
use super::evaluator::EvaluatorSnapshot;
use super::ps::PsSnapshot;
use super::worker::WorkerSnapshot;
use crate::id::{Incarnation, TaskId};

/// A task of this process that can be observed. Observing never waits long and delays nothing, but takes some
/// work, so a caller that serves others must limit it to a few times a second.
#[async_trait]
pub trait Observed: Send + Sync + 'static {
    /// Returns the state of the task, now or shortly before; after the task has ended, its last state.
    async fn observe(&self) -> TaskSnapshot;
}

/// The state of a task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskSnapshot {
    /// The task.
    pub task: TaskId,
    /// The incarnation of the task.
    pub incarnation: Incarnation,
    /// The state of the task.
    pub state: TaskState,
    /// The actors of the task.
    pub actors: Vec<ActorSnapshot>,
    /// The part that only tasks of its job have.
    pub role: RoleSnapshot,
}

/// The state of a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    /// It is not yet able to serve.
    #[default]
    Starting,
    /// It serves: a ps has its variables, a worker is registered and prepared, a chief can be reached.
    Ready,
    /// It was told to stop, and completes its current work.
    Stopping,
    /// It has ended.
    Ended,
}

impl TaskState {
    /// All states, in order.
    pub const ALL: [Self; 4] = [Self::Starting, Self::Ready, Self::Stopping, Self::Ended];

    /// Returns the name in snapshots and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Stopping => "stopping",
            Self::Ended => "ended",
        }
    }
}

/// The part of a task's snapshot that depends on its job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoleSnapshot {
    /// The part of the chief.
    Chief(Box<ChiefSnapshot>),
    /// The part of a ps task.
    Ps(Box<PsSnapshot>),
    /// The part of a worker.
    Worker(Box<WorkerSnapshot>),
    /// The part of an evaluator.
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
        fn snapshots_round_trip_as_json(
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
    fn every_role_has_its_name_in_json() {
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
