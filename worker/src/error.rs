//! Why a worker ended before the job's last step.

use pushpull_messages::message::RefusalCode;
use pushpull_messages::out_of_range::OutOfRange;
use pushpull_transport::{CallError, DialError};

use crate::hook::HookError;
use crate::replica::ReplicaError;
use crate::values::ValuesError;
use pushpull_input::InputError;

/// Anything that ends a worker early.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// A setting out of range.
    #[error("{key} must be {expected}, and is {got}")]
    Config {
        /// Which one.
        key: &'static str,
        /// What it may be.
        expected: String,
        /// What it is.
        got: String,
    },
    /// A setting of the connections out of range.
    #[error(transparent)]
    Retry(#[from] OutOfRange),
    /// A peer could not be reached.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// The cluster spec does not say where a peer is.
    #[error("the placement names {0}, which is not in the cluster spec")]
    NotInCluster(pushpull_messages::id::TaskId),
    /// A call failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The job did not begin in time.
    #[error(
        "the job did not begin within {0} s of this worker's registration: see the chief's log for what it waits for"
    )]
    NotStarted(u64),
    /// The data cannot be used.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The model cannot be computed.
    #[error(transparent)]
    Replica(#[from] ReplicaError),
    /// A shard sent something else than its slices.
    #[error(transparent)]
    Values(#[from] ValuesError),
    /// A bug of ours.
    #[error("the thread that computes gradients panicked: see above")]
    DevicePanicked,
    /// A bug of ours.
    #[error("the thread that prepares the training panicked: see above")]
    PreparationPanicked,
    /// A gradient cannot be clipped.
    #[error("the gradient of variable '{variable}' is not finite at step {local_step} of this worker")]
    NotFinite {
        /// Its name.
        variable: String,
        /// Steps before.
        local_step: pushpull_messages::id::LocalStep,
    },
    /// Dropping steps leads nowhere.
    #[error(
        "the gradients of {steps} steps in a row were not finite, the last time that of variable '{variable}': take a smaller step size, or clip them"
    )]
    NeverFinite {
        /// Its name.
        variable: String,
        /// How many.
        steps: u32,
    },
    /// A shard does not hold what the job's end should have left there.
    #[error("{shard} is at version {version} after the job's end, and should be at {last_step}")]
    WrongVersion {
        /// The shard.
        shard: pushpull_messages::id::ShardId,
        /// Its version.
        version: pushpull_messages::id::Version,
        /// The job's last step.
        last_step: pushpull_messages::id::GlobalStep,
    },
    /// A hook ends the worker.
    #[error("a hook ends the training: {0}")]
    Hook(#[from] HookError),
    /// The chief ends the job early.
    #[error("the chief ends the job: {0}")]
    Stopped(String),
    /// Nobody is left who could say that another worker is gone.
    #[error(
        "the chief is lost, and so, it seems, is a worker that this one has to wait for: no answer of the shards came for {0} s"
    )]
    Deserted(u64),
    /// A signal came.
    #[error("interrupted after {local_step} steps of this worker, before the job's last step")]
    Interrupted {
        /// How far it was.
        local_step: pushpull_messages::id::LocalStep,
    },
}

impl WorkerError {
    /// Whether it ended for gradients that are not finite.
    pub fn is_not_finite(&self) -> bool {
        match self {
            Self::NotFinite { .. } | Self::NeverFinite { .. } => true,
            Self::Call(CallError::Refused { refusal, .. }) => refusal.code == RefusalCode::NotFinite,
            _ => false,
        }
    }
}
