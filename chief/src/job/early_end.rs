//! Decides which checkpoint is saved after the training, and the result of a job that was not trained to its
//! end. Accesses no store and no clock. Wanted properties: (A) a job ends as `Saved` only with a last
//! checkpoint, and at the step of that checkpoint; (B) a job that was told to stop and has a last checkpoint
//! ends as `Saved`; (C) any other job keeps its error; (D) nothing is saved if the shards may be at fault;
//! (E) the last save always has a time limit, which is that of the drain if the job drains.

use pushpull_messages::checkpoint::CheckpointName;
use pushpull_messages::id::GlobalStep;

use super::TrainingEnd;
use crate::error::ChiefError;
use crate::report::JobEnd;

/// The choice of the checkpoint that is saved when the training has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LastSave {
    /// No checkpoint is saved.
    Nothing,
    /// The checkpoint of this step is saved.
    At(GlobalStep),
    /// The checkpoint of the step that all shards have reached is saved. The save fails if the shards are at
    /// different steps.
    Current,
}

impl LastSave {
    /// Returns which checkpoint to save after the training has ended with this result.
    pub(crate) fn after(ended: Result<&TrainingEnd, &ChiefError>) -> Self {
        match ended {
            Ok(TrainingEnd::Evaluated(outcome)) => Self::At(outcome.step),
            Ok(TrainingEnd::Drained { .. }) => Self::Current,
            Err(
                ChiefError::Interrupted { .. } | ChiefError::NoWorkers { .. } | ChiefError::WorkerLeft { .. },
            ) => Self::Current,
            // The shards' values may be wrong, so they are not saved.
            Err(_) => Self::Nothing,
        }
    }
}

/// The time limit of the last save.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SaveLimit {
    /// The save has the same deadline as the drain.
    Drain,
    /// The save may take one drain timeout, counted from now.
    DrainTimeout,
    /// The save may take the time that `--last-save-timeout-s` allows, counted from the evaluation.
    LastSaveTimeout,
}

impl SaveLimit {
    /// Returns the limit. `draining` says whether the job was draining, and `ended_well` whether its
    /// training ended without an error.
    pub(crate) const fn new(draining: bool, ended_well: bool) -> Self {
        match (draining, ended_well) {
            (true, _) => Self::Drain,
            (false, true) => Self::LastSaveTimeout,
            (false, false) => Self::DrainTimeout,
        }
    }

    /// Returns the flag that sets the limit.
    pub(crate) const fn flag(self) -> &'static str {
        match self {
            Self::Drain | Self::DrainTimeout => "--drain-timeout-s",
            Self::LastSaveTimeout => "--last-save-timeout-s",
        }
    }
}

/// Returns the result of a job whose training ended early; `error` is the cause. `drain` is the reason why
/// the job was told to stop, or `None` if the job was not told to stop. `last` is the last checkpoint, or an
/// error with the reason why it was not saved; `None` if no checkpoint was to be saved.
pub(crate) fn early_end(
    error: ChiefError,
    drain: Option<String>,
    last: Option<&Result<CheckpointName, String>>,
) -> Result<JobEnd, ChiefError> {
    let saved =
        |checkpoint: CheckpointName, reason| Ok(JobEnd::Saved { step: checkpoint.step, checkpoint, reason });
    match (last, drain) {
        (Some(&Ok(checkpoint)), Some(reason)) => saved(checkpoint, reason),
        (Some(&Ok(checkpoint)), None) if error.is_interrupt() => {
            saved(checkpoint, "all workers were told to stop".to_owned())
        }
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use pushpull_messages::id::{Incarnation, ShardId, TaskId};
    use pushpull_messages::message::Evaluation;

    use super::*;
    use crate::job::TrainingOutcome;

    fn any_error() -> impl Strategy<Value = ChiefError> {
        (0u8..7, any::<u64>()).prop_map(|(kind, step)| {
            let (step, last_step) = (GlobalStep(step), GlobalStep(u64::MAX));
            let (worker, reason) = (TaskId::worker(1), "gone".to_owned());
            match kind {
                0 => ChiefError::Interrupted { step, last_step },
                1 => ChiefError::NoWorkers { step, last_step, gave_up: None },
                2 => ChiefError::WorkerLeft { worker, step, last_step, reason },
                3 => ChiefError::WorkerFailed { worker, reason },
                4 => ChiefError::PsLost { task: TaskId::ps(0), step, reason },
                5 => ChiefError::OtherChief { task: TaskId::ps(0), reason },
                _ => ChiefError::NotCreated { shard: ShardId::new(0, 0), reason },
            }
        })
    }

    fn any_last() -> impl Strategy<Value = Option<Result<CheckpointName, String>>> {
        let name = any::<(u64, u64)>()
            .prop_map(|(step, life)| CheckpointName { step: GlobalStep(step), life: Incarnation(life) });
        prop::option::of(prop_oneof![name.prop_map(Ok), Just(Err("disk full".to_owned()))])
    }

    proptest! {
        /// Checks that a job ends as `Saved` only with a last checkpoint (A), that it does so if it was told
        /// to stop (B), and that it keeps its error otherwise (C). The errors are random, with and without a
        /// drain; the last save succeeded, failed or was not made.
        #[test]
        fn an_early_end_is_good_only_if_it_was_wanted_and_saved(
            error in any_error(),
            drain in prop::option::of(Just("evicted".to_owned())),
            last in any_last(),
        ) {
            let (text, interrupted) = (error.to_string(), error.is_interrupt());
            let told = drain.is_some() || interrupted;
            match (early_end(error, drain.clone(), last.as_ref()), &last) {
                (Ok(JobEnd::Saved { step, checkpoint, reason }), Some(Ok(name))) => {
                    prop_assert!(told && checkpoint == *name && step == name.step, "(A)");
                    prop_assert!(drain.is_none_or(|drain| drain == reason));
                }
                (Err(error), last) => {
                    prop_assert!(!told || !matches!(last, Some(Ok(_))), "(B)");
                    prop_assert_eq!(error.to_string(), text, "(C)");
                }
                other => prop_assert!(false, "(A) {other:?}"),
            }
        }

        /// Checks that nothing is saved after an error for which the shards may be at fault (D).
        #[test]
        fn nothing_is_saved_where_the_shards_may_be_at_fault(error in any_error()) {
            let harmless = matches!(
                error,
                ChiefError::Interrupted { .. } | ChiefError::NoWorkers { .. } | ChiefError::WorkerLeft { .. }
            );
            let wanted = if harmless { LastSave::Current } else { LastSave::Nothing };
            prop_assert_eq!(LastSave::after(Err(&error)), wanted, "(D)");
        }

        /// Checks that the last save has a time limit, which is that of the drain if the job drains (E).
        #[test]
        fn a_trained_job_saves_its_last_step(step in any::<u64>(), draining in any::<bool>()) {
            let step = GlobalStep(step);
            let evaluation = Evaluation { loss: 0.1, metrics: vec![], examples: 1, variables_crc32c: 0 };
            let (workers, skipped, stopped) = (1, 0, None);
            let began = GlobalStep(0);
            let (rollbacks, settled) = (0, None);
            let outcome = TrainingOutcome {
                train_loss: 0.5, evaluation, workers, skipped, rollbacks, began, step, stopped, settled,
            };
            prop_assert_eq!(LastSave::after(Ok(&TrainingEnd::Evaluated(outcome))), LastSave::At(step));
            prop_assert_eq!(LastSave::after(Ok(&TrainingEnd::Drained { step })), LastSave::Current);
            prop_assert_eq!(SaveLimit::new(false, true), SaveLimit::LastSaveTimeout, "(E)");
            prop_assert_eq!(SaveLimit::new(true, draining), SaveLimit::Drain, "(E)");
            prop_assert_eq!(SaveLimit::new(false, false), SaveLimit::DrainTimeout, "(E)");
        }
    }
}
