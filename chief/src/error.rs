//! Why a job did not train to its end.

use pushpull_messages::id::{GlobalStep, ShardId, TaskId, Version};
use pushpull_messages::message::ShardCounters;
use pushpull_messages::sync::SyncSpec;
use pushpull_storage::StoreError;
use pushpull_transport::{CallError, DialError, RetryError};

use crate::checkpoint::RestoreError;
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
    /// A setting of the connections out of range.
    #[error(transparent)]
    Retry(#[from] RetryError),
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
    /// A shard does not take its variables.
    #[error("{shard} has no variables: {reason}")]
    NotCreated {
        /// The shard.
        shard: ShardId,
        /// Its own words.
        reason: String,
    },
    /// Shards take too long to take their variables.
    #[error("after {0} s some shards have no variables yet: is what they read from very slow?")]
    SlowStart(u64),
    /// Shards do not begin with the same step: a bug of ours.
    #[error("{shard} begins with step {version}, and the first shard with {first}")]
    BeganApart {
        /// The shard.
        shard: ShardId,
        /// Its version.
        version: Version,
        /// The first one's.
        first: Version,
    },
    /// The checkpoint that the job was to begin with cannot be used.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// The place for checkpoints cannot be used.
    #[error("checkpoints cannot be made: {0}")]
    Store(#[from] StoreError),
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
    /// Some task was told to stop that the job cannot go on without.
    #[error("{reason} at step {step}, and no checkpoints are made to go on from (--checkpoint-dir)")]
    NotSaved {
        /// Which one.
        reason: String,
        /// How far the job was.
        step: GlobalStep,
    },
    /// The job asked to end when a worker leaves.
    #[error(
        "{worker} left at step {step} of {last_step}: {reason}; the job ends, as it says so (when_worker_leaves: fail)"
    )]
    WorkerLeft {
        /// Which one.
        worker: TaskId,
        /// How far the job was.
        step: GlobalStep,
        /// How far it should have gone.
        last_step: GlobalStep,
        /// Why it left.
        reason: String,
    },
    /// The shards' own counts do not add up: a bug of ours.
    #[error(
        "{shard} counts {} pushes ({} applied, {} held, {} stale, {} stopped, {} duplicate, {} refused) at version {version}, and under {sync} that does not make {last_step} updates since {began}",
        pushes.received, pushes.applied, pushes.held, pushes.stale, pushes.stopped, pushes.duplicate, pushes.refused
    )]
    Miscount {
        /// The shard.
        shard: ShardId,
        /// Its counts.
        pushes: Box<ShardCounters>,
        /// Its version.
        version: Version,
        /// The version that it began with.
        began: Version,
        /// The job's policy.
        sync: SyncSpec,
        /// The step at which the training ended.
        last_step: GlobalStep,
    },
    /// A shard let a worker further ahead than the policy does: a bug of ours.
    #[error(
        "{shard} took a push of a worker that was {steps} steps behind another, and {sync} allows {bound}"
    )]
    TooFarBehind {
        /// The shard.
        shard: ShardId,
        /// The greatest distance that it saw.
        steps: u64,
        /// The job's policy.
        sync: SyncSpec,
        /// What that allows.
        bound: u32,
    },
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
}

impl ChiefError {
    /// Whether it was a signal, and not a fault.
    pub const fn is_interrupt(&self) -> bool {
        matches!(self, Self::Interrupted { .. })
    }
}
