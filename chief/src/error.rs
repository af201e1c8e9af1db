//! The errors that prevent a job from completing.

use pushpull_messages::id::{GlobalStep, ShardId, TaskId, Version};
use pushpull_messages::job::JobError;
use pushpull_messages::message::{RefusalCode, ShardCounters};
use pushpull_messages::out_of_range::OutOfRange;
use pushpull_messages::sync::SyncSpec;
use pushpull_storage::StoreError;
use pushpull_transport::{CallError, DialError};

use crate::checkpoint::RestoreError;
use crate::placement::PlaceError;

/// An error that ends a job early.
#[derive(Debug, thiserror::Error)]
pub enum ChiefError {
    /// The job cannot run with this number of workers.
    #[error(transparent)]
    Job(#[from] JobError),
    /// Some tasks were not reached, or did not register, within the start timeout.
    #[error("after {seconds} s these tasks are missing: {}", tasks.join(", "))]
    Missing {
        /// The start timeout, in seconds.
        seconds: u64,
        /// The missing tasks, each with its address.
        tasks: Vec<String>,
    },
    /// A connection to a ps task could not be opened.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// A request to a ps task failed.
    #[error(transparent)]
    Call(CallError),
    /// A ps task belongs to another chief, which leads this job. This chief has stopped no task.
    #[error("another chief leads this job: {reason}")]
    OtherChief {
        /// The ps task.
        task: TaskId,
        /// What the task says about the other chief.
        reason: String,
    },
    /// The ps tasks serve another job. This chief has stopped no task.
    #[error(
        "{shard} serves another job than this chief's: use the flags with which that job was started, or stop its ps tasks first"
    )]
    OtherJob {
        /// A shard of the other job.
        shard: ShardId,
    },
    /// The ps tasks serve this job, but one of them was started again without its variables.
    #[error("the job cannot go on, because {shard} has lost its variables: its ps task was started again")]
    VariablesLost {
        /// The shard that has no variables.
        shard: ShardId,
    },
    /// The variables cannot be placed.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// A shard would hold more bytes than fit in one frame.
    #[error(
        "{shard} would hold {bytes} bytes, but a ps task sends at most {max} bytes in one frame, and what the shard holds cannot be split: use a variable with smaller rows, or another optimizer than lamb"
    )]
    ShardTooLarge {
        /// The shard that would hold too much.
        shard: ShardId,
        /// The number of bytes that the shard would hold.
        bytes: u64,
        /// The largest frame of the task, in bytes.
        max: u64,
    },
    /// A shard could not create its variables.
    #[error("{shard} could not create its variables: {reason}")]
    NotCreated {
        /// The shard that could not create its variables.
        shard: ShardId,
        /// The reason that the shard gave.
        reason: String,
    },
    /// The shards took longer than the start timeout to create their variables.
    #[error("some shards did not create their variables within {0} s: check whether their storage is slow")]
    SlowStart(u64),
    /// The shards do not all begin with the same step. This is a bug.
    #[error(
        "{shard} begins with step {version}, expected step {first} as on the first shard; this is a bug, report it"
    )]
    BeganApart {
        /// The shard that differs from the first one.
        shard: ShardId,
        /// The step with which the shard begins.
        version: Version,
        /// The step with which the first shard begins.
        first: Version,
    },
    /// The checkpoint that the job should start from cannot be used.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// The store for checkpoints cannot be used.
    #[error("checkpoints cannot be made: {0}")]
    Store(#[from] StoreError),
    /// The store for checkpoints did not respond within the start timeout.
    #[error(
        "checkpoints cannot be made: {location} did not respond within {seconds} s; check whether it can be reached"
    )]
    SlowStore {
        /// The location of the store.
        location: String,
        /// The start timeout, in seconds.
        seconds: u64,
    },
    /// The shards of a job that was trained did not report their final counts.
    #[error(
        "the job was trained to step {step}, but some shards did not report their counts within {seconds} s{}",
        lost_tasks(.lost)
    )]
    Silent {
        /// The step to which the job was trained.
        step: GlobalStep,
        /// The time limit, in seconds.
        seconds: u64,
        /// The ps tasks that are lost.
        lost: Vec<TaskId>,
    },
    /// The connection to a ps task is lost, and the variables of the task are lost with it.
    #[error("lost {task} and its variables at step {step}: {reason}")]
    PsLost {
        /// The lost ps task.
        task: TaskId,
        /// The step that the job had reached.
        step: GlobalStep,
        /// The reason why the connection is lost.
        reason: String,
    },
    /// The job has rolled back to the same step too often, because a ps task was lost each time.
    #[error(
        "the job has rolled back to step {step} {rollbacks} times without another checkpoint, because a ps task was lost each time: see the log of the ps task"
    )]
    NoProgress {
        /// The number of rollbacks.
        rollbacks: u32,
        /// The step of the checkpoint.
        step: GlobalStep,
    },
    /// A worker reported that it failed.
    #[error("{worker} failed: {reason}")]
    WorkerFailed {
        /// The worker that failed.
        worker: TaskId,
        /// The reason that the worker gave.
        reason: String,
    },
    /// No worker is left to train or to evaluate.
    #[error("no worker is left at step {step} of {last_step}{}", why(gave_up.as_ref()))]
    NoWorkers {
        /// The step that the job had reached.
        step: GlobalStep,
        /// The last step of the job.
        last_step: GlobalStep,
        /// The worker that gave up last, with its reason; `None` if none gave up.
        gave_up: Option<(TaskId, String)>,
    },
    /// A signal ended the job.
    #[error("interrupted at step {step} of {last_step}")]
    Interrupted {
        /// The step that the job had reached.
        step: GlobalStep,
        /// The last step of the job.
        last_step: GlobalStep,
    },
    /// A task that the job needs was told to stop, and there is no checkpoint directory to save to.
    #[error(
        "{reason} at step {step}, and the training is lost because the job makes no checkpoints: use --checkpoint-dir"
    )]
    NotSaved {
        /// The name of the task, and what happened to it.
        reason: String,
        /// The step that the job had reached.
        step: GlobalStep,
    },
    /// A worker left, and the job is set to fail when a worker leaves.
    #[error(
        "{worker} left at step {step} of {last_step}: {reason}; the job fails because it has the setting when_worker_leaves: fail"
    )]
    WorkerLeft {
        /// The worker that left.
        worker: TaskId,
        /// The step that the job had reached.
        step: GlobalStep,
        /// The last step of the job.
        last_step: GlobalStep,
        /// The reason why the worker left.
        reason: String,
    },
    /// The push counts of a shard are not consistent. This is a bug.
    #[error(
        "{shard} received {} pushes ({} applied, {} held, {} stale, {} stopped, {} duplicate, {} refused) and went from version {began} to version {version}, expected version {last_step} and counts that agree with it under the policy {sync}; this is a bug, report it",
        pushes.received, pushes.applied, pushes.held, pushes.stale, pushes.stopped, pushes.duplicate, pushes.refused
    )]
    Miscount {
        /// The shard whose counts are inconsistent.
        shard: ShardId,
        /// The push counts of the shard.
        pushes: Box<ShardCounters>,
        /// The version of the shard at the end.
        version: Version,
        /// The version that the shard began with.
        began: Version,
        /// The job's synchronisation policy.
        sync: SyncSpec,
        /// The step at which the training ended.
        last_step: GlobalStep,
    },
    /// A shard let a worker fall further behind than the synchronisation policy allows. This is a bug.
    #[error(
        "{shard} accepted a push of a worker that was {steps} steps behind another worker, but {sync} allows {bound}; this is a bug, report it"
    )]
    TooFarBehind {
        /// The shard that let a worker fall behind.
        shard: ShardId,
        /// The largest number of steps by which a worker was behind another one when the shard accepted a
        /// push of the slower worker.
        steps: u64,
        /// The job's synchronisation policy.
        sync: SyncSpec,
        /// The number of steps by which the policy lets a worker be behind another one.
        bound: u32,
    },
    /// A setting is out of range.
    #[error(transparent)]
    OutOfRange(#[from] OutOfRange),
}

/// Returns the part of an error that says why a worker gave up.
fn why(gave_up: Option<&(TaskId, String)>) -> String {
    gave_up.map_or(String::new(), |(worker, reason)| format!(": {worker} gave up: {reason}"))
}

impl From<CallError> for ChiefError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Refused { peer, refusal } if refusal.code == RefusalCode::Term => {
                Self::OtherChief { task: peer, reason: refusal.reason }
            }
            other => Self::Call(other),
        }
    }
}

/// Returns the names of lost ps tasks, as the end of an error; empty if there are none.
fn lost_tasks(lost: &[TaskId]) -> String {
    let names: Vec<String> = lost.iter().map(ToString::to_string).collect();
    if names.is_empty() { String::new() } else { format!("; lost {}", names.join(", ")) }
}

impl ChiefError {
    /// Returns true if the ps tasks belong to another chief or serve another job. If so, this chief must not
    /// stop any task.
    pub const fn is_other_chief(&self) -> bool {
        matches!(self, Self::OtherChief { .. } | Self::OtherJob { .. })
    }

    /// Returns true if the store of the checkpoints could not be read, but may recover.
    pub(crate) fn is_store_trouble(&self) -> bool {
        if let Self::Call(CallError::Refused { refusal, .. }) = self {
            return refusal.code == RefusalCode::Overloaded;
        }
        matches!(
            self,
            Self::Restore(RestoreError::Store(_) | RestoreError::Unreadable { .. }) | Self::SlowStart(_)
        )
    }

    /// Returns true if a signal ended the job, and false if a fault did.
    pub const fn is_interrupt(&self) -> bool {
        matches!(self, Self::Interrupted { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_that_are_silent_are_told_with_their_lost_tasks() {
        let told = |lost| ChiefError::Silent { step: GlobalStep(9), seconds: 60, lost }.to_string();
        assert!(told(Vec::new()).ends_with("within 60 s"));
        assert!(told(vec![TaskId::ps(0), TaskId::ps(2)]).ends_with("within 60 s; lost ps/0, ps/2"));
    }
}
