//! Why a job did not train to its end.

use messages::id::{GlobalStep, ShardId, TaskId};
use messages::transport::{CallError, DialError};

use crate::placement::PlaceError;

/// Anything that ends a job early.
#[derive(Debug, thiserror::Error)]
pub enum ChiefError {
    /// Some tasks never came.
    #[error("after {seconds} s these tasks are missing: {}", tasks.join(", "))]
    Missing {
        /// How long was waited.
        seconds: u64,
        /// Each with its address.
        tasks: Vec<String>,
    },
    /// A ps task is not what it should be.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// A ps task did not do what it was told.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The variables cannot be placed.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// A shard would hold more than a frame may carry.
    #[error(
        "{shard} would hold {bytes} bytes, and a ps task sends at most {max} in one frame: use more ps tasks or shards, or a partitioner"
    )]
    ShardTooLarge {
        /// The shard.
        shard: ShardId,
        /// What it would hold.
        bytes: u64,
        /// What the task takes.
        max: u64,
    },
    /// A ps task is gone, and its variables with it.
    #[error("{task} is lost at step {step}, and its variables with it: {reason}")]
    PsLost {
        /// Which one.
        task: TaskId,
        /// How far the job was.
        step: GlobalStep,
        /// What the connection said.
        reason: String,
    },
    /// A worker says that it cannot go on.
    #[error("{worker} failed: {reason}")]
    WorkerFailed {
        /// Which one.
        worker: TaskId,
        /// Its own words.
        reason: String,
    },
    /// Nobody is left to train or to evaluate.
    #[error("no worker is left at step {step} of {last_step}")]
    NoWorkers {
        /// How far the job was.
        step: GlobalStep,
        /// How far it should have gone.
        last_step: GlobalStep,
    },
    /// A signal came.
    #[error("interrupted at step {step} of {last_step}")]
    Interrupted {
        /// How far the job was.
        step: GlobalStep,
        /// How far it should have gone.
        last_step: GlobalStep,
    },
    /// The shards' own counts do not add up: a bug of ours.
    #[error("{shard} counts {applied} applied updates at version {version}, and {last_step} were asked for")]
    Miscount {
        /// The shard.
        shard: ShardId,
        /// Its count.
        applied: u64,
        /// Its version.
        version: u64,
        /// The job's last step.
        last_step: GlobalStep,
    },
}

impl ChiefError {
    /// Whether it was a signal, and not a fault.
    pub const fn is_interrupt(&self) -> bool {
        matches!(self, Self::Interrupted { .. })
    }
}
