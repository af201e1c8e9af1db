//! Ends the training when the evaluations no longer improve. Wanted property: the hook requests a stop if and
//! only if the metric is on a plateau.

use pushpull_messages::id::GlobalStep;
use pushpull_messages::message::Evaluation;

use super::plateau::{Better, Plateau, value_of};
use crate::hook::{Hook, HookContext};

/// A hook that ends the training successfully when several evaluations in a row have not improved on the
/// best earlier one.
#[derive(Clone, Debug)]
pub struct EarlyStopping {
    metric: String,
    plateau: Plateau,
    /// The step of the last evaluation.
    last: Option<GlobalStep>,
    warned: bool,
}

impl EarlyStopping {
    /// Creates the hook for a metric of the graph, or for `loss`. An evaluation is better if it improves the
    /// metric by more than `min_delta`; NaN is never better. A patience of 0 counts as 1.
    pub fn new(metric: impl Into<String>, better: Better, patience: u32, min_delta: f32) -> Self {
        let plateau = Plateau::new(better, patience, min_delta);
        Self { metric: metric.into(), plateau, last: None, warned: false }
    }
}

impl Hook for EarlyStopping {
    fn evaluated(&mut self, step: GlobalStep, evaluation: &Evaluation, context: &mut HookContext) {
        if self.last.is_some_and(|last| step <= last) {
            return;
        }
        let Some(value) = value_of(&self.metric, evaluation) else {
            if !std::mem::replace(&mut self.warned, true) {
                tracing::warn!(metric = self.metric, "early stopping is off: the model has no such metric");
            }
            return;
        };
        self.last = Some(step);
        if self.plateau.judge(value) {
            let Self { metric, plateau: Plateau { since, best, .. }, .. } = self;
            let best = best.map_or("none".into(), |best| best.to_string());
            context.stop(format!(
                "{metric} is {value} at step {step}, and was not better than {best} for {since} evaluation(s)"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use pushpull_messages::message::MetricValue;

    use super::*;
    use crate::command::Command;

    fn evaluation(loss: f32, accuracy: f32) -> Evaluation {
        let metrics = vec![MetricValue { name: "accuracy".into(), value: accuracy }];
        Evaluation { loss, metrics, examples: 1, variables_crc32c: 0 }
    }

    /// Passes one evaluation for each value of the metric to the hook. Returns, for each evaluation, true if
    /// the hook then requests a stop.
    fn stops(hook: &mut EarlyStopping, values: &[f32], metric: &str) -> Vec<bool> {
        let mut stops = Vec::new();
        for (step, &value) in values.iter().enumerate() {
            let mut context = HookContext::default();
            let evaluation = if metric == "loss" { evaluation(value, 0.0) } else { evaluation(0.0, value) };
            hook.evaluated(GlobalStep(step as u64), &evaluation, &mut context);
            stops.push(matches!(context.into_commands().next(), Some(Command::Stop { .. })));
        }
        stops
    }

    proptest! {
        /// Computes from all values so far when the hook must request a stop, and checks that it does so
        /// then. This also checks the properties A and B of `plateau`. The metric should rise if `higher` is
        /// true, and fall otherwise.
        #[test]
        fn it_stops_when_nothing_improved_for_long_enough(
            values in prop::collection::vec(prop_oneof![9 => (0u8..8).prop_map(f32::from), 1 => Just(f32::NAN)], 1..30),
            patience in 1u32..5,
            min_delta in prop::sample::select(vec![0.0f32, 1.0, 2.5]),
            higher: bool,
        ) {
            let sign = if higher { -1.0 } else { 1.0 };
            let values: Vec<f32> = values.iter().map(|value| value * sign).collect();
            let (metric, better) = if higher { ("accuracy", Better::Higher) } else { ("loss", Better::Lower) };
            let mut hook = EarlyStopping::new(metric, better, patience, min_delta);
            let stops = stops(&mut hook, &values, metric);
            // Each new best value, with its position.
            let mut bests: Vec<(usize, f32)> = Vec::new();
            for (at, value) in values.iter().map(|value| value * sign).enumerate() {
                if bests.last().map_or(!value.is_nan(), |&(_, best)| value < best - min_delta) {
                    bests.push((at, value));
                }
                let since = bests.last().map_or(at + 1, |&(best, _)| at - best);
                prop_assert_eq!(stops[at], since >= patience as usize, "{:?} at {}", values, at);
            }
        }
    }

    #[test]
    fn a_step_counts_once_and_a_missing_metric_never() {
        let mut hook = EarlyStopping::new("loss", Better::Lower, 1, 0.0);
        let mut context = HookContext::default();
        for _ in 0..3 {
            hook.evaluated(GlobalStep(4), &evaluation(1.0, 0.0), &mut context);
        }
        let mut other = EarlyStopping::new("auc", Better::Higher, 1, 0.0);
        for step in 0..3 {
            other.evaluated(GlobalStep(step), &evaluation(1.0, 0.0), &mut context);
        }
        assert_eq!(context.into_commands().count(), 0);
        let mut context = HookContext::default();
        hook.evaluated(GlobalStep(5), &evaluation(1.5, 0.0), &mut context);
        let Some(Command::Stop { reason }) = context.into_commands().next() else {
            panic!("it does not stop")
        };
        assert_eq!(reason, "loss is 1.5 at step 5, and was not better than 1 for 1 evaluation(s)");
    }
}
