//! The snapshot of a task of any role: chief, ps, worker, evaluator or a server of sessions.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::actor::ActorSnapshot;
use super::chief::ChiefSnapshot;
use super::evaluator::EvaluatorSnapshot;
use super::ps::PsSnapshot;
use super::session::SessionSnapshot;
use super::worker::WorkerSnapshot;
use crate::id::{Incarnation, TaskId};

/// A task of this process that can be observed. An observation returns soon and does not delay the task, but
/// it uses some CPU time. A caller that serves clients, such as an HTTP endpoint, must therefore limit
/// observations to a few per second.
#[async_trait]
pub trait Observed: Send + Sync + 'static {
    /// Returns the current state of the task, which may be a moment old. After the task has ended, returns
    /// its last state.
    async fn observe(&self) -> TaskSnapshot;
}

/// The state of a task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskSnapshot {
    /// The id of the task.
    pub task: TaskId,
    /// The incarnation of the task.
    pub incarnation: Incarnation,
    /// Whether the task is starting, is serving, is stopping or has ended.
    pub state: TaskState,
    /// The states of the task's actors.
    pub actors: Vec<ActorSnapshot>,
    /// The part of the snapshot that depends on the task's role.
    pub role: RoleSnapshot,
}

/// The state of a task in its life cycle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    /// The task is not yet able to serve.
    #[default]
    Starting,
    /// The task serves. For a ps task, this means that its variables are initialised; for a worker, that it
    /// is registered and prepared; for the chief, that it can be reached.
    Ready,
    /// The task was told to stop and is completing its current work.
    Stopping,
    /// The task has ended.
    Ended,
}

impl TaskState {
    /// All states, in the order in which a task passes through them.
    pub const ALL: [Self; 4] = [Self::Starting, Self::Ready, Self::Stopping, Self::Ended];

    /// Returns the name that snapshots and metrics use.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Stopping => "stopping",
            Self::Ended => "ended",
        }
    }
}

/// The part of a task's snapshot that depends on the task's role.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoleSnapshot {
    /// The state of the job, if the task hosts the chief.
    Chief(Box<ChiefSnapshot>),
    /// The state of a ps task.
    Ps(Box<PsSnapshot>),
    /// The state of a worker.
    Worker(Box<WorkerSnapshot>),
    /// The state of an evaluator.
    Evaluator(Box<EvaluatorSnapshot>),
    /// The state of a server of sessions, whose job may have any name.
    Session(Box<SessionSnapshot>),
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
            (RoleSnapshot::Session(Box::default()), "session"),
        ];
        for (role, name) in roles {
            let json = serde_json::to_value(&role).unwrap();
            assert_eq!(json.as_object().unwrap().keys().collect::<Vec<_>>(), [name]);
            assert_eq!(serde_json::from_value::<RoleSnapshot>(json).unwrap(), role);
        }
    }
}
