//! The reasons why a worker ends before the job's last step. Knows no cause in detail.

use pushpull_input::InputError;
use pushpull_messages::id::{GlobalStep, LocalStep, ShardId, TaskId, Version};
use pushpull_messages::out_of_range::OutOfRange;
use pushpull_transport::{CallError, DialError};

use crate::client::ClientError;
use crate::devices::{DeviceError, ReplicaError};
use crate::hooks::HookError;

/// An error that ends a worker early.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// A setting is out of range.
    #[error(transparent)]
    Config(#[from] OutOfRange),
    /// The chief could not be reached.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// The cluster spec has no address for the chief.
    #[error("{0} is not in the cluster spec")]
    NotInCluster(TaskId),
    /// A call to the chief failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// A push, a pull or a connection to the shards failed.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The job did not begin in time.
    #[error(
        "the job did not begin within {0} s of this worker's registration: see the chief's log for the missing tasks"
    )]
    NotStarted(u64),
    /// The data cannot be used.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The model cannot be computed.
    #[error(transparent)]
    Replica(#[from] ReplicaError),
    /// A bug of ours.
    #[error("the thread that computes gradients panicked: see above")]
    DevicePanicked,
    /// A bug of ours.
    #[error("the thread that prepares the training panicked: see above")]
    PreparationPanicked,
    /// A gradient is not finite, and the job says that this ends it.
    #[error("the gradient of variable '{variable}' is not finite at step {local_step} of this worker")]
    NotFinite {
        /// The variable's name.
        variable: String,
        /// The steps that this worker has taken before.
        local_step: LocalStep,
    },
    /// Too many steps in a row were dropped.
    #[error(
        "the gradients of {steps} steps in a row were not finite, the last time that of variable '{variable}': use a \
         smaller learning rate, or clip the gradients"
    )]
    NeverFinite {
        /// The variable's name.
        variable: String,
        /// The number of steps.
        steps: u32,
    },
    /// A shard is not at the job's last step after its end.
    #[error("{shard} is at version {version} after the job's end, expected {last_step}")]
    WrongVersion {
        /// The shard.
        shard: ShardId,
        /// The shard's version.
        version: Version,
        /// The job's last step.
        last_step: GlobalStep,
    },
    /// A hook ends the worker.
    #[error("a hook ends the training: {0}")]
    Hook(#[from] HookError),
    /// The chief ends the job early.
    #[error("the chief ends the job: {0}")]
    Stopped(String),
    /// The chief is lost, and a step waits for another worker that may be gone too.
    #[error("lost the chief; no shard replied for {0} s, so another worker is probably lost too")]
    Deserted(u64),
    /// A signal told the worker to stop.
    #[error("interrupted after {local_step} steps of this worker, before the job's last step")]
    Interrupted {
        /// The steps that this worker has taken.
        local_step: LocalStep,
    },
}

impl WorkerError {
    /// Returns true if gradients that are not finite ended the worker.
    pub fn is_not_finite(&self) -> bool {
        match self {
            Self::NotFinite { .. } | Self::NeverFinite { .. } => true,
            Self::Client(error) => error.is_not_finite(),
            _ => false,
        }
    }
}

impl From<DeviceError> for WorkerError {
    fn from(error: DeviceError) -> Self {
        match error {
            DeviceError::Replica(error) => Self::Replica(error),
            DeviceError::Panicked(_) => Self::DevicePanicked,
        }
    }
}
