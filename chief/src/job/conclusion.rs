//! Concludes a job that trained to its end: checks that the counts of every shard agree with the
//! synchronisation policy, and makes the report.

use std::time::Duration;

use pushpull_messages::id::{GlobalStep, ShardId};
use pushpull_messages::job::JobSpec;
use pushpull_messages::message::ShardSnapshot;
use pushpull_messages::sync::SyncSpec;

use crate::checkpoint::SaveStatus;
use crate::error::ChiefError;
use crate::job::TrainingOutcome;
use crate::report::JobReport;

/// Makes the report of a job from the final snapshots of its shards.
///
/// # Errors
/// Returns an error if the counts of a shard are not consistent with the job's policy and last step.
pub(crate) fn conclude(
    job: &JobSpec,
    shards: Vec<(ShardId, ShardSnapshot)>,
    outcome: TrainingOutcome,
    training: Duration,
    saves: SaveStatus,
) -> Result<JobReport, ChiefError> {
    shards.iter().try_for_each(|(shard, snapshot)| check(job, outcome.step, *shard, snapshot))?;
    let first = shards.first().map(|(_, snapshot)| snapshot);
    Ok(JobReport {
        training,
        steps: outcome.step,
        stopped: outcome.stopped,
        updates_applied: first.map_or(0, |first| first.version.0.saturating_sub(first.began.0)),
        updates_timed: outcome.step.0.saturating_sub(outcome.began.0),
        gradients: first.map_or(0, |first| first.pushes.applied + first.pushes.held),
        skipped: outcome.skipped,
        rollbacks: outcome.rollbacks,
        train_loss: outcome.train_loss,
        evaluation: outcome.evaluation,
        workers: outcome.workers,
        saves: saves.saves,
        saves_failed: saves.failed,
        last_checkpoint: saves.last,
        unsaved: None,
        shards,
    })
}

/// Checks one shard of a job that trained to `last_step`: every push is counted under exactly one verdict
/// (V2), the number of updates is exact (V3), and no worker fell further behind than the policy allows (S2).
/// The counts leave out the updates before the version with which the shard began.
fn check(
    job: &JobSpec,
    last_step: GlobalStep,
    shard: ShardId,
    snapshot: &ShardSnapshot,
) -> Result<(), ChiefError> {
    let ShardSnapshot { version, began, pushes, .. } = *snapshot;
    let made = version.0.checked_sub(began.0);
    let updates = match job.sync {
        SyncSpec::Async { .. } | SyncSpec::Bounded { .. } => made == Some(pushes.applied) && pushes.held == 0,
        // Every update is made of at least one held gradient.
        SyncSpec::Sync { .. } => pushes.applied == 0 && made.is_some_and(|made| pushes.held >= made),
    };
    if version.0 != last_step.0 || !updates || !pushes.add_up() {
        let (pushes, sync) = (Box::new(pushes), job.sync);
        return Err(ChiefError::Miscount { shard, pushes, version, began, sync, last_step });
    }
    match job.sync {
        SyncSpec::Bounded { staleness: bound } if snapshot.steps_behind.max > u64::from(bound) => {
            let (steps, sync) = (snapshot.steps_behind.max, job.sync);
            Err(ChiefError::TooFarBehind { shard, steps, sync, bound })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use pushpull_messages::id::Version;
    use pushpull_messages::message::{Evaluation, ShardCounters, StalenessHistogram};

    use super::*;
    use crate::job::tests::job;

    fn counted(sync: &str, pushes: ShardCounters, behind: u64) -> Result<JobReport, String> {
        counted_from(0, sync, pushes, behind)
    }

    /// Concludes a run of ten updates that began at step `began`. The only shard has the counters `pushes`,
    /// and has accepted a push of a worker that was `behind` steps behind the fastest worker.
    fn counted_from(began: u64, sync: &str, pushes: ShardCounters, behind: u64) -> Result<JobReport, String> {
        let job = JobSpec { sync: sync.parse().unwrap(), ..job() };
        let mut steps_behind = StalenessHistogram::default();
        steps_behind.record(behind);
        let (version, began) = (Version(began + 10), Version(began));
        let snapshot = ShardSnapshot { version, began, pushes, steps_behind, ..Default::default() };
        let evaluation = Evaluation { loss: 0.1, metrics: vec![], examples: 10, variables_crc32c: 1 };
        let (step, stopped) = (GlobalStep(version.0), None);
        let outcome = TrainingOutcome {
            train_loss: 0.5,
            evaluation,
            workers: 2,
            skipped: 3,
            rollbacks: 2,
            began: GlobalStep(began.0),
            step,
            stopped,
            settled: None,
        };
        let shards = vec![(ShardId::new(0, 0), snapshot)];
        conclude(&job, shards, outcome, Duration::from_secs(1), SaveStatus::default())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn each_policy_has_its_own_sum() {
        let one = ShardCounters { received: 13, applied: 10, stopped: 1, duplicate: 2, ..Default::default() };
        let several = ShardCounters { received: 23, held: 20, stale: 2, refused: 1, ..Default::default() };
        for (sync, right, wrong, gradients) in [
            ("async", one, several, 10),
            ("async:staleness-lr", one, several, 10),
            ("bounded:3", one, several, 10),
            ("sync", several, one, 20),
            ("sync:1", several, one, 20),
        ] {
            let report = counted(sync, right, 0).unwrap();
            assert_eq!((report.updates_applied, report.gradients, report.skipped), (10, gradients, 3));
            assert_eq!(report.rollbacks, 2);
            let error = counted(sync, wrong, 0).unwrap_err();
            assert!(
                error.contains(&format!(
                    "expected version 10 and counts that agree with it under the policy {sync}"
                )),
                "{error}"
            );
            let lost = ShardCounters { received: right.received + 1, ..right };
            assert!(counted(sync, lost, 0).unwrap_err().starts_with("ps/0"), "V2");
            let report = counted_from(90, sync, right, 0).unwrap();
            assert_eq!((report.updates_applied, report.steps), (10, GlobalStep(100)));
            assert!(counted_from(90, sync, wrong, 0).is_err());
        }
        let few = ShardCounters { received: 9, held: 9, ..Default::default() };
        assert!(counted("sync", few, 0).unwrap_err().contains("9 held"));
    }

    #[test]
    fn a_broken_bound_is_an_error() {
        let pushes = ShardCounters { received: 10, applied: 10, ..Default::default() };
        assert!(counted("bounded:3", pushes, 3).is_ok());
        assert!(counted("async", pushes, 4).is_ok());
        let error = counted("bounded:3", pushes, 4).unwrap_err();
        assert!(error.contains("4 steps behind another worker, but bounded:3 allows 3"), "{error}");
    }
}
