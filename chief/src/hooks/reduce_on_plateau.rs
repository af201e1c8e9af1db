//! Reduces the learning rate when a metric no longer improves.
//!
//! Wanted properties: (A) the hook reduces the factor of the learning rate when the metric is on a plateau,
//! and then waits for `patience` further values; (B) the factor never falls below the minimum, and the hook
//! never requests the factor that is already set; (C) the training loss is judged at most once in
//! [`TRAIN_LOSS_UPDATES`] updates.

use pushpull_messages::id::GlobalStep;
use pushpull_messages::message::Evaluation;

use super::loss_sum::LossSum;
use super::plateau::{Better, Plateau, value_of};
use crate::hook::{Hook, HookContext};
use crate::monitor::TrainingSnapshot;

/// The name of a metric that is not taken from evaluations: the workers' mean training loss since this
/// metric was last judged.
pub const TRAIN_LOSS: &str = "train_loss";
/// The number of updates after which the training loss is judged again.
pub const TRAIN_LOSS_UPDATES: u64 = 100;

/// A hook that multiplies the learning rate by a factor when several consecutive values of a metric are not
/// better than the best earlier value. The job's learning-rate schedule applies as well.
#[derive(Clone, Debug)]
pub struct ReduceOnPlateau {
    metric: String,
    plateau: Plateau,
    factor: f32,
    minimum: f32,
    /// The step at which the metric was last judged.
    last: Option<GlobalStep>,
    /// The training losses since the metric was last judged.
    losses: LossSum,
    warned: bool,
}

impl ReduceOnPlateau {
    /// Creates the hook for a metric of the graph, for `loss`, or for [`TRAIN_LOSS`]. Without further
    /// settings, it divides the learning rate by 10 after every `patience` consecutive values without an
    /// improvement. A patience of 0 counts as 1.
    pub fn new(metric: impl Into<String>, better: Better, patience: u32) -> Self {
        let plateau = Plateau::new(better, patience, 0.0);
        let (metric, losses) = (metric.into(), LossSum::default());
        Self { metric, plateau, factor: 0.1, minimum: 0.0, last: None, losses, warned: false }
    }

    /// Sets the factor by which the learning rate is multiplied; above 0 and below 1.
    #[must_use]
    pub const fn factor(mut self, factor: f32) -> Self {
        self.factor = factor;
        self
    }

    /// Sets the lower bound of the product of all factors: the learning rate is never multiplied by less
    /// than this number.
    #[must_use]
    pub const fn minimum(mut self, minimum: f32) -> Self {
        self.minimum = minimum;
        self
    }

    /// Sets the amount that an improvement on the best earlier value must exceed in order to count.
    #[must_use]
    pub const fn min_delta(mut self, min_delta: f32) -> Self {
        self.plateau.min_delta = min_delta;
        self
    }

    fn judge(&mut self, step: GlobalStep, value: f32, context: &mut HookContext) {
        self.last = Some(step);
        if !self.plateau.judge(value) {
            return;
        }
        self.plateau.restart();
        let now = context.learning_rate_factor();
        let next = (now * self.factor).max(self.minimum);
        if next < now {
            let Self { metric, plateau, .. } = self;
            tracing::info!(metric, value, best = plateau.best, step = step.0, "reduced the learning rate");
            context.set_learning_rate_factor(next);
        }
    }
}

impl Hook for ReduceOnPlateau {
    fn progress(&mut self, snapshot: &TrainingSnapshot, context: &mut HookContext) {
        if self.metric != TRAIN_LOSS {
            return;
        }
        self.losses.add(snapshot);
        let step = snapshot.step();
        let due = self.last.is_none_or(|last| step.0.saturating_sub(last.0) >= TRAIN_LOSS_UPDATES);
        if due && let Some(loss) = self.losses.take() {
            self.judge(step, loss, context);
        }
    }

    fn evaluated(&mut self, step: GlobalStep, evaluation: &Evaluation, context: &mut HookContext) {
        if self.metric == TRAIN_LOSS || self.last.is_some_and(|last| step <= last) {
            return;
        }
        match value_of(&self.metric, evaluation) {
            Some(value) => self.judge(step, value, context),
            None if std::mem::replace(&mut self.warned, true) => {}
            None => {
                let metric = &self.metric;
                tracing::warn!(metric, "the learning rate is not reduced: the model has no such metric");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use pushpull_messages::message::MetricValue;

    use super::*;
    use crate::command::Command;
    use crate::monitor::WorkerReport;

    fn requested(context: HookContext) -> Option<f32> {
        context.into_commands().find_map(|command| match command {
            Command::LearningRate { factor } => Some(factor),
            _ => None,
        })
    }

    proptest! {
        /// Checks that the factor is reduced on each plateau (A), and never below the minimum (B): after
        /// each random value, the hook must request the factor that the test computes, or nothing if the
        /// factor stays.
        #[test]
        fn the_rate_is_reduced_at_every_plateau(
            values in prop::collection::vec((0u8..8).prop_map(f32::from), 1..40),
            patience in 1u32..5,
            higher: bool,
        ) {
            let sign = if higher { -1.0 } else { 1.0 };
            let better = if higher { Better::Higher } else { Better::Lower };
            let mut hook = ReduceOnPlateau::new("accuracy", better, patience).factor(0.5).minimum(0.1);
            let (mut factor, mut best, mut since) = (1.0f32, f32::INFINITY, 0);
            for (step, value) in (1..).zip(values) {
                let metrics = vec![MetricValue { name: "accuracy".into(), value: value * sign }];
                let evaluation = Evaluation { loss: 0.0, metrics, examples: 1, variables_crc32c: 0 };
                let mut context = HookContext::new(Some(factor));
                hook.evaluated(GlobalStep(step), &evaluation, &mut context);
                // The same evaluation counts once.
                hook.evaluated(GlobalStep(step), &evaluation, &mut context);
                since = if value < best { 0 } else { since + 1 };
                best = best.min(value);
                let reduced = since == patience && factor > 0.1;
                since = if since == patience { 0 } else { since };
                let expected = reduced.then(|| (factor * 0.5).max(0.1));
                prop_assert_eq!(requested(context), expected);
                factor = expected.unwrap_or(factor);
            }
        }
    }

    #[test]
    fn the_training_loss_is_a_mean_over_updates() {
        let mut hook = ReduceOnPlateau::new(TRAIN_LOSS, Better::Lower, 1);
        let mut at = |step: u64, loss: f32| {
            let report = WorkerReport { steps: 10, loss: Some(loss), ..Default::default() };
            let mut snapshot = TrainingSnapshot { reports: [(0, report)].into(), ..Default::default() };
            snapshot.progress.global_step = GlobalStep(step);
            let mut context = HookContext::new(None);
            hook.progress(&snapshot, &mut context);
            requested(context)
        };
        assert_eq!(at(10, 1.0), None, "the first value is the best");
        assert_eq!([at(50, 9.0), at(109, 9.0)], [None; 2], "(C)");
        // The mean of the last three intervals is above 1.
        assert_eq!(at(110, 0.0), Some(0.1));
        assert_eq!(at(210, 0.5), None);
    }
}
