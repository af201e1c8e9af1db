//! The errors that end a worker before the job's last step. Wraps the errors of other modules and does not
//! interpret them.

use pushpull_input::InputError;
use pushpull_messages::id::{GlobalStep, LocalStep, ShardId, TaskId, Version};
use pushpull_messages::message::{Refusal, RefusalCode};
use pushpull_messages::out_of_range::OutOfRange;
use pushpull_transport::{CallError, DialError, TransportError};

use crate::client::ClientError;
use crate::devices::{DeviceError, ReplicaError};
use crate::fetches::FetchError;
use crate::hooks::HookError;
use crate::stages::StageErrorKind;

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
    /// Reading the data and compiling the graph took longer than this number of seconds.
    #[error(
        "reading the data and compiling the graph took longer than {0} s: the input hangs, or start_timeout is too small for it"
    )]
    NotPrepared(u64),
    /// The data cannot be used.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The model cannot be computed.
    #[error(transparent)]
    Replica(#[from] ReplicaError),
    /// The thread of a device panicked, which is a bug in pushpull.
    #[error("the thread that computes gradients panicked: see the panic message earlier in this log")]
    DevicePanicked,
    /// A thread that reads data or prepares the training panicked, which is a bug in pushpull or in a custom
    /// data set.
    #[error(
        "a thread that reads data or prepares the training panicked: see the panic message earlier in this log"
    )]
    PreparationPanicked,
    /// The input or a device takes much longer than ever before.
    #[error("{what} has taken longer than {seconds} s: it hangs, or hung_after is too small for it")]
    Hung {
        /// What has exceeded the limit.
        what: &'static str,
        /// The limit in seconds.
        seconds: f32,
    },
    /// A gradient is not finite, and the job's settings say that this ends the worker.
    #[error(
        "the gradient of variable '{variable}' is not finite, or is too large, at step {local_step} of this worker"
    )]
    NotFinite {
        /// The variable's name.
        variable: String,
        /// The number of steps that this worker had taken before this step.
        local_step: LocalStep,
    },
    /// Too many consecutive steps were dropped because their gradients were not finite.
    #[error(
        "the gradients of {steps} steps in a row were not finite, most recently the gradient of variable '{variable}': \
         use a smaller learning rate, or clip the gradients"
    )]
    NeverFinite {
        /// The name of a variable whose gradient was not finite in the last of these steps.
        variable: String,
        /// The number of consecutive steps that were dropped.
        steps: u32,
    },
    /// The job has ended, but a shard is not at the job's last step.
    #[error("{shard} is at version {version} after the end of the job, expected version {last_step}")]
    WrongVersion {
        /// The shard with the wrong version.
        shard: ShardId,
        /// The shard's version.
        version: Version,
        /// The job's last step.
        last_step: GlobalStep,
    },
    /// This task cannot listen, which a stage of a replica needs.
    #[error("cannot listen for the other tasks of this replica: {0}")]
    Listen(#[from] TransportError),
    /// The chief was started again with another job, in which this task has another role.
    #[error(
        "the chief has given this task another role: the job was started again with other stages or workers"
    )]
    OtherRole,
    /// A stage of a replica runs without threads of its own.
    #[error("a stage of a replica needs threads of its own: set own_threads")]
    StageThreads,
    /// A hook needs what a replica with stages does not have.
    #[error("the graph has stages, and {0}: remove the hook, or the devices of worker tasks from the graph")]
    StageHook(&'static str),
    /// A hook ended the worker with an error.
    #[error("a hook ended the training: {0}")]
    Hook(#[from] HookError),
    /// The tensors that a hook requests cannot be fetched.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// The chief ended the job early, for this reason.
    #[error("the chief ended the job: {0}")]
    Stopped(String),
    /// The chief is lost, and no shard has replied for this number of seconds. The shards probably wait for
    /// another worker that is lost too.
    #[error(
        "lost the chief, and no shard has replied for {0} s: the shards probably wait for another worker that is lost too"
    )]
    Deserted(u64),
    /// The chief was lost while it told the shards at which step to stop, and the shards stop at different
    /// steps.
    #[error("lost the chief while it stopped the job, and the shards stop at different steps")]
    StopUnfinished,
    /// A signal stopped the worker.
    #[error("interrupted after {local_step} steps of this worker, before the job's last step")]
    Interrupted {
        /// The number of steps that this worker has taken.
        local_step: LocalStep,
    },
}

impl WorkerError {
    /// Returns true if the worker ended because gradients were not finite.
    pub fn is_not_finite(&self) -> bool {
        match self {
            Self::NotFinite { .. } | Self::NeverFinite { .. } => true,
            Self::Client(error) => error.is_not_finite(),
            _ => false,
        }
    }

    /// Returns true if a task refused the worker because the job has rolled back to a checkpoint since the
    /// worker registered.
    pub(crate) const fn is_rolled_back(&self) -> bool {
        match self {
            Self::Dial(error) | Self::Client(ClientError::Dial(error)) => {
                matches!(error, DialError::Refused { refusal, .. } if says_rolled_back(refusal))
            }
            Self::Call(error) | Self::Client(ClientError::Call(error)) => is_rolled_back(error),
            Self::Client(ClientError::Stage(error)) | Self::Replica(ReplicaError::Stage(error)) => {
                matches!(error.kind, StageErrorKind::RolledBack)
            }
            _ => false,
        }
    }

    /// Returns true if another stage of this worker's replica is lost, or has lost a ps task.
    pub(crate) const fn is_lost_stage(&self) -> bool {
        match self {
            Self::Client(ClientError::Stage(error)) | Self::Replica(ReplicaError::Stage(error)) => {
                matches!(error.kind, StageErrorKind::Lost)
            }
            _ => false,
        }
    }

    /// Returns true if another stage of this worker's replica could not be reached in time.
    pub(crate) const fn is_missing_stage(&self) -> bool {
        match self {
            Self::Client(ClientError::Stage(error)) | Self::Replica(ReplicaError::Stage(error)) => {
                matches!(error.kind, StageErrorKind::Missing)
            }
            _ => false,
        }
    }

    /// Returns true if a ps task is lost: it was restarted, or the worker could not reach it within the time
    /// for redialling.
    pub(crate) const fn is_lost_ps(&self) -> bool {
        matches!(self, Self::Client(ClientError::Call(CallError::Lost { .. })))
    }
}

/// Returns true if a request was refused because the job has rolled back to a checkpoint since the worker
/// registered.
pub(crate) const fn is_rolled_back(error: &CallError) -> bool {
    matches!(error, CallError::Refused { refusal, .. } if says_rolled_back(refusal))
}

const fn says_rolled_back(refusal: &Refusal) -> bool {
    matches!(refusal.code, RefusalCode::RolledBack)
}

impl From<DeviceError> for WorkerError {
    fn from(error: DeviceError) -> Self {
        match error {
            DeviceError::Replica(error) => Self::Replica(error),
            DeviceError::Panicked(_) => Self::DevicePanicked,
        }
    }
}
