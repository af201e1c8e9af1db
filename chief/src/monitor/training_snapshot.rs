//! A training job as hooks see it about once a second: its progress, its shards, and the reports of its
//! workers since the previous snapshot. Reads no clock.
//!
//! Wanted properties of combined reports: (A) the number of steps is the sum over all reports of an
//! interval; (B) the loss is the mean over these steps, and `None` if there were no steps.

use std::collections::BTreeMap;
use std::time::Duration;

use pushpull_messages::id::{GlobalStep, LocalStep, ShardId};
use pushpull_messages::message::{Report, ShardSnapshot};

use crate::report::JobProgress;

/// A snapshot of a job that trains.
#[derive(Clone, Debug, Default)]
pub struct TrainingSnapshot {
    /// The time since the training began.
    pub at: Duration,
    /// The progress, according to what the workers have reported.
    pub progress: JobProgress,
    /// The snapshot of every shard that owns slices; empty if some shards did not reply in time.
    pub shards: Vec<(ShardId, ShardSnapshot)>,
    /// The reports of each worker since the previous snapshot, keyed by the worker's index.
    pub reports: BTreeMap<u32, WorkerReport>,
}

/// The combined reports of one worker between two snapshots.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WorkerReport {
    /// The number of steps that the worker's current incarnation has taken.
    pub local_step: LocalStep,
    /// The number of steps that the worker has taken since the previous snapshot.
    pub steps: u64,
    /// The mean loss over these steps, which can be NaN or infinite; `None` if there were no steps.
    pub loss: Option<f32>,
    /// The Euclidean norm of the gradients before clipping, as last measured since the previous snapshot;
    /// `None` if it was not measured.
    pub gradient_norm: Option<f32>,
}

impl TrainingSnapshot {
    /// Leaves out the shards that own no slices, because they count no steps. If the model has no variables,
    /// all shards stay.
    pub(crate) fn leave_out_empty_shards(&mut self) {
        if self.shards.iter().any(|(_, shard)| shard.slices > 0) {
            self.shards.retain(|(_, shard)| shard.slices > 0);
        }
    }

    /// Returns the number of updates on the most advanced shard, as far as it is known.
    pub fn step(&self) -> GlobalStep {
        let versions = self.shards.iter().map(|(_, shard)| GlobalStep(shard.version.0));
        versions.chain([self.progress.global_step]).max().unwrap_or_default()
    }

    /// Returns the factor by which hooks have multiplied the learning rate of the next update; `None` if no
    /// hook has changed it, or if the factor is not known.
    pub fn learning_rate_factor(&self) -> Option<f32> {
        let newest = self.shards.iter().max_by_key(|(_, shard)| shard.version);
        newest.and_then(|(_, shard)| shard.learning_rate_factor)
    }

    /// Returns the mean gradient norm of the workers that have measured it.
    pub fn gradient_norm(&self) -> Option<f32> {
        let norms: Vec<f32> = self.reports.values().filter_map(|report| report.gradient_norm).collect();
        (!norms.is_empty()).then(|| norms.iter().sum::<f32>() / norms.len() as f32)
    }
}

/// The combined reports of all workers since the last call of [`take`](Self::take).
#[derive(Debug, Default)]
pub(crate) struct IntervalReports(BTreeMap<u32, WorkerReport>);

impl IntervalReports {
    /// Adds a report of a worker that has taken `steps` steps since its previous report.
    pub(crate) fn add(&mut self, worker: u32, steps: u64, report: &Report) {
        let entry = self.0.entry(worker).or_default();
        let all = entry.steps.saturating_add(steps);
        if steps > 0 {
            let known = f64::from(entry.loss.unwrap_or(0.0)) * entry.steps as f64;
            entry.loss = Some(((known + f64::from(report.loss) * steps as f64) / all as f64) as f32);
        }
        (entry.steps, entry.local_step) = (all, report.local_step);
        entry.gradient_norm = report.gradient_norm.or(entry.gradient_norm);
    }

    /// Returns all reports and begins a new interval.
    pub(crate) fn take(&mut self) -> BTreeMap<u32, WorkerReport> {
        std::mem::take(&mut self.0)
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
        /// Checks that the combined reports of one worker have the sum of its steps (A) and the mean of
        /// their losses (B). The steps between two reports, the losses and the ends of the intervals are
        /// random.
        #[test]
        fn steps_add_up_and_the_loss_is_their_mean(
            reported in prop::collection::vec((prop::collection::vec(-4i8..4, 0..5), any::<bool>()), 1..40),
        ) {
            let mut reports = IntervalReports::default();
            let (mut local_step, mut losses) = (0, Vec::new());
            for (new, take) in reported {
                let steps = new.len() as u64;
                local_step += steps;
                let sum: f32 = new.iter().map(|&loss| f32::from(loss)).sum();
                reports.add(3, steps, &report(local_step, sum / new.len() as f32));
                losses.extend(new);
                if take {
                    let taken = reports.take()[&3];
                    prop_assert_eq!((taken.local_step.0, taken.steps), (local_step, losses.len() as u64), "(A)");
                    let mean = losses.iter().map(|&loss| f32::from(loss)).sum::<f32>() / losses.len() as f32;
                    match taken.loss {
                        None => prop_assert!(losses.is_empty(), "(B)"),
                        Some(loss) => prop_assert!((loss - mean).abs() < 1e-5, "(B) {} {}", loss, mean),
                    }
                    losses.clear();
                    prop_assert!(reports.take().is_empty());
                }
            }
        }
    }

    #[test]
    fn an_infinite_loss_is_kept_and_norms_are_averaged() {
        let mut reports = IntervalReports::default();
        reports.add(0, 5, &Report { gradient_norm: Some(1.0), ..report(5, f32::NAN) });
        reports.add(0, 1, &report(6, 1.0));
        reports.add(1, 2, &Report { gradient_norm: Some(3.0), ..report(2, 0.5) });
        reports.add(2, 0, &report(0, f32::NAN));
        let shard = |version| ShardSnapshot { version: Version(version), ..Default::default() };
        let shards = vec![(ShardId::new(0, 0), shard(7)), (ShardId::new(1, 0), shard(9))];
        let snapshot = TrainingSnapshot { reports: reports.take(), shards, ..Default::default() };
        assert!(snapshot.reports[&0].loss.unwrap().is_nan());
        assert_eq!(snapshot.reports[&2].loss, None);
        assert_eq!((snapshot.gradient_norm(), snapshot.step()), (Some(2.0), GlobalStep(9)));
    }
}
