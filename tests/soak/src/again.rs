//! Decides which tasks are started again after one of them has ended. The rest of the soak does not know.

use pushpull_messages::id::JobName;

/// The tasks that are started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    /// Only the task itself. The others go on meanwhile.
    Itself,
    /// All tasks of the job, when the others have ended, too.
    All,
}

/// Returns which tasks are started again after a task of this kind has ended before its job. `killed` is true
/// if a signal ended its process, and `saves` if the job makes checkpoints.
pub const fn started_again(ended: JobName, killed: bool, saves: bool) -> Again {
    match ended {
        JobName::Worker | JobName::Evaluator | JobName::Other(_) => Again::Itself,
        // The others wait for a chief that was killed. One that ends by itself ends its job.
        JobName::Chief if killed => Again::Itself,
        // The variables of a ps are gone, but the job can roll back to its latest checkpoint. A ps that ends
        // by itself was told to, or is without a chief.
        JobName::Ps if killed && saves => Again::Itself,
        JobName::Ps | JobName::Chief => Again::All,
    }
}
