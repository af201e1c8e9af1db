//! Logs the metrics of the training.

use std::fmt::Write;
use std::time::Duration;

use pushpull_messages::id::GlobalStep;
use pushpull_messages::job::JobSpec;
use pushpull_messages::optimizer::UpdateSpec;

use super::cadence::Cadence;
use crate::hook::{Hook, HookContext};
use crate::monitor::TrainingSnapshot;

/// A hook that logs the loss, the metrics, the learning rate and the gradient norm, if they are available.
/// It logs each time a number of steps has been taken or an interval has passed, whichever comes first.
#[derive(Clone, Debug)]
pub struct LogEvery {
    cadence: Cadence,
    job: Option<(UpdateSpec, u64)>,
    /// The last known factor by which hooks have multiplied the learning rate.
    factor: f32,
}

impl LogEvery {
    /// Creates a hook that logs each time `every_steps` steps have been taken or the time `every` has
    /// passed, whichever comes first. If both arguments are `None`, it logs once.
    pub const fn new(every_steps: Option<u64>, every: Option<Duration>) -> Self {
        Self { cadence: Cadence::new(every_steps, every), job: None, factor: 1.0 }
    }

    fn line(&self, snapshot: &TrainingSnapshot) -> String {
        let step = snapshot.step().0;
        let mut line = format!("step {step}");
        let mut add = |name: &str, value: Option<f32>| {
            if let Some(value) = value {
                write!(line, ", {name} {value:.4}").expect("a string takes all");
            }
        };
        add("loss", snapshot.progress.loss);
        snapshot.progress.metrics.iter().for_each(|metric| add(&metric.name, Some(metric.value)));
        let rate =
            |(update, last_step): &(UpdateSpec, u64)| update.learning_rate(step, *last_step) * self.factor;
        add("learning rate", self.job.as_ref().map(rate));
        add("gradient norm", snapshot.gradient_norm());
        line
    }
}

impl Hook for LogEvery {
    fn begin(&mut self, job: &JobSpec, _: GlobalStep) {
        self.job = Some((job.update(), job.last_step.0));
    }

    fn progress(&mut self, snapshot: &TrainingSnapshot, _: &mut HookContext) {
        self.factor = snapshot.learning_rate_factor().unwrap_or(self.factor);
        if self.cadence.is_due(snapshot.step().0, snapshot.at) {
            tracing::info!("{}", self.line(snapshot));
        }
    }
}

#[cfg(test)]
mod tests {
    use pushpull_messages::id::ShardId;
    use pushpull_messages::message::{MetricValue, ShardSnapshot};

    use super::*;
    use crate::job::tests::job;
    use crate::monitor::WorkerReport;
    use crate::report::JobProgress;

    #[test]
    fn a_line_contains_what_is_known() {
        let mut hook = LogEvery::new(None, None);
        assert_eq!(hook.line(&TrainingSnapshot::default()), "step 0");
        hook.begin(&job(), GlobalStep(0));
        let metrics = vec![MetricValue { name: "accuracy".into(), value: 0.75 }];
        let progress =
            JobProgress { global_step: GlobalStep(7), loss: Some(0.5), metrics, ..Default::default() };
        let report = WorkerReport { gradient_norm: Some(2.0), ..Default::default() };
        let snapshot = TrainingSnapshot { progress, reports: [(0, report)].into(), ..Default::default() };
        let line = "step 7, loss 0.5000, accuracy 0.7500, learning rate 0.1000, gradient norm 2.0000";
        assert_eq!(hook.line(&snapshot), line);
        let shard = ShardSnapshot { learning_rate_factor: Some(0.5), ..Default::default() };
        let shards = vec![(ShardId::new(0, 0), shard)];
        hook.progress(&TrainingSnapshot { shards, ..Default::default() }, &mut HookContext::default());
        assert!(hook.line(&snapshot).contains("learning rate 0.0500"), "the last factor is remembered");
    }
}
