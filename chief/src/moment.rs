//! A job as hooks see it about once a second: its progress, its shards, and what its workers have reported since the last
//! time. Knows neither connection nor clock.
//!
//! Wanted properties of what is taken from reports: (A) steps add up to what the worker has taken, in each of its lives; (B) a loss
//! is the mean over those steps, and not there where there were none.

use std::collections::BTreeMap;
use std::time::Duration;

use pushpull_messages::id::{GlobalStep, Incarnation, LocalStep, ShardId};
use pushpull_messages::message::{Report, ShardSnapshot};

use crate::report::JobProgress;

/// A job at one moment of its training.
#[derive(Clone, Debug, Default)]
pub struct Moment {
    /// Since the training began.
    pub at: Duration,
    /// As far as the workers have told.
    pub progress: JobProgress,
    /// Every shard; none where they did not answer in time.
    pub shards: Vec<(ShardId, ShardSnapshot)>,
    /// Of each worker that has reported since the moment before, by its index.
    pub reports: BTreeMap<u32, WorkerReport>,
}

/// What one worker has reported between two moments.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WorkerReport {
    /// Steps that it has taken in this life.
    pub local_step: LocalStep,
    /// Of these, so many since the moment before.
    pub steps: u64,
    /// The mean over those steps, finite or not; `None` where there were none.
    pub loss: Option<f32>,
    /// The euclidean norm of its gradients before they were clipped, where it was measured.
    pub gradient_norm: Option<f32>,
}

impl Moment {
    /// How many updates there are on the shard that is furthest, as far as is known.
    pub fn step(&self) -> GlobalStep {
        let versions = self.shards.iter().map(|(_, shard)| GlobalStep(shard.version.0));
        versions.chain([self.progress.global_step]).max().unwrap_or_default()
    }

    /// The mean over the workers that have measured it.
    pub fn gradient_norm(&self) -> Option<f32> {
        let norms: Vec<f32> = self.reports.values().filter_map(|report| report.gradient_norm).collect();
        (!norms.is_empty()).then(|| norms.iter().sum::<f32>() / norms.len() as f32)
    }
}

/// What has been reported since the last moment.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    since: BTreeMap<u32, WorkerReport>,
    /// Of each worker, its life, and the steps that it had taken when it reported last.
    local_steps: BTreeMap<u32, (Incarnation, LocalStep)>,
}

impl Reports {
    /// Of that life of a worker.
    pub(crate) fn add(&mut self, worker: u32, life: Incarnation, report: &Report) {
        let before = self.local_steps.insert(worker, (life, report.local_step));
        let before = before.filter(|&(other, _)| other == life).map_or(0, |(_, before)| before.0);
        let steps = report.local_step.0.saturating_sub(before);
        let entry = self.since.entry(worker).or_default();
        let all = entry.steps.saturating_add(steps);
        if steps > 0 {
            let known = f64::from(entry.loss.unwrap_or(0.0)) * entry.steps as f64;
            entry.loss = Some(((known + f64::from(report.loss) * steps as f64) / all as f64) as f32);
        }
        (entry.steps, entry.local_step) = (all, report.local_step);
        entry.gradient_norm = report.gradient_norm.or(entry.gradient_norm);
    }

    /// All of it; from now on it is counted anew.
    pub(crate) fn take(&mut self) -> BTreeMap<u32, WorkerReport> {
        std::mem::take(&mut self.since)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use pushpull_messages::id::Version;

    use super::*;

    fn report(local_step: u64, loss: f32) -> Report {
        let (global_step, local_step) = (GlobalStep(0), LocalStep(local_step));
        Report { global_step, local_step, loss, ..Report::default() }
    }

    proptest! {
        /// (A) and (B): of a worker that takes steps of any loss, reports at any time, and is started again.
        #[test]
        fn steps_add_up_and_a_loss_is_their_mean(
            reported in prop::collection::vec((prop::collection::vec(-4i8..4, 0..5), any::<bool>(), 0u8..10), 1..40),
        ) {
            let mut reports = Reports::default();
            let (mut local_step, mut life, mut losses) = (0, 0, Vec::new());
            for (new, take, again) in reported {
                if again == 0 {
                    (local_step, life) = (0, life + 1);
                }
                local_step += new.len() as u64;
                let sum: f32 = new.iter().map(|&loss| f32::from(loss)).sum();
                reports.add(3, Incarnation(life), &report(local_step, sum / new.len() as f32));
                losses.extend(new);
                if take {
                    let taken = reports.take()[&3];
                    prop_assert_eq!((taken.local_step.0, taken.steps), (local_step, losses.len() as u64));
                    let mean = losses.iter().map(|&loss| f32::from(loss)).sum::<f32>() / losses.len() as f32;
                    match taken.loss {
                        None => prop_assert!(losses.is_empty()),
                        Some(loss) => prop_assert!((loss - mean).abs() < 1e-5, "{} {}", loss, mean),
                    }
                    losses.clear();
                    prop_assert!(reports.take().is_empty());
                }
            }
        }
    }

    #[test]
    fn a_loss_that_is_not_finite_is_told_and_a_norm_is_the_mean_of_the_workers() {
        let mut reports = Reports::default();
        reports.add(0, Incarnation(1), &Report { gradient_norm: Some(1.0), ..report(5, f32::NAN) });
        reports.add(0, Incarnation(1), &report(6, 1.0));
        reports.add(1, Incarnation(1), &Report { gradient_norm: Some(3.0), ..report(2, 0.5) });
        reports.add(2, Incarnation(1), &report(0, f32::NAN));
        let shard = |version| ShardSnapshot { version: Version(version), ..Default::default() };
        let shards = vec![(ShardId::new(0, 0), shard(7)), (ShardId::new(1, 0), shard(9))];
        let moment = Moment { reports: reports.take(), shards, ..Default::default() };
        assert!(moment.reports[&0].loss.unwrap().is_nan());
        assert_eq!(moment.reports[&2].loss, None);
        assert_eq!((moment.gradient_norm(), moment.step()), (Some(2.0), GlobalStep(9)));
    }
}
