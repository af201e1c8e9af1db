//! Evaluations that a worker has made while it trained, stored until the next report. This module must not
//! depend on how a model is evaluated.
//!
//! Wanted properties: (A) one call of `take` never returns more than a report can contain; (B) each
//! evaluation is taken once, in order, or counted as lost.

use std::sync::Arc;

use parking_lot::Mutex;
use pushpull_messages::message::{REPORT_NUMBERS_MAX, StepEvaluation};

/// Evaluations that wait for the next report. Their size is limited to what a report can contain. Clones
/// share the same evaluations.
#[derive(Clone, Debug, Default)]
pub(crate) struct Evaluations(Arc<Mutex<Waiting>>);

#[derive(Debug, Default)]
struct Waiting {
    evaluations: Vec<StepEvaluation>,
    /// The number of losses and metrics in `evaluations`.
    numbers: usize,
    lost: u64,
}

impl Evaluations {
    /// Adds an evaluation to the worker's next report. The evaluation is lost if the report is full, which
    /// happens only if hundreds of evaluations are made in one interval. Only the first lost evaluation is
    /// logged.
    pub(crate) fn add(&self, new: StepEvaluation) {
        let mut waiting = self.0.lock();
        let numbers = waiting.numbers + new.evaluation.numbers();
        if numbers <= REPORT_NUMBERS_MAX {
            waiting.numbers = numbers;
            waiting.evaluations.push(new);
            return;
        }
        waiting.lost += 1;
        if waiting.lost == 1 {
            tracing::warn!("lost an evaluation: evaluations are made faster than they can be reported");
        }
    }

    /// Returns the number of evaluations that are waiting.
    pub(crate) fn len(&self) -> usize {
        self.0.lock().evaluations.len()
    }

    /// Removes and returns all evaluations that are waiting.
    pub(crate) fn take(&self) -> Vec<StepEvaluation> {
        let mut waiting = self.0.lock();
        waiting.numbers = 0;
        std::mem::take(&mut waiting.evaluations)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use pushpull_messages::id::GlobalStep;
    use pushpull_messages::message::{Evaluation, MetricValue};

    use super::*;

    proptest! {
        /// (A) and (B)
        #[test]
        fn what_is_taken_fits_in_a_report(made in prop::collection::vec((0usize..1000, 0u8..4), 1..40)) {
            let evaluations = Evaluations::default();
            let (mut taken, mut last) = (0, None);
            for (step, &(metrics, take)) in made.iter().enumerate() {
                let metric = MetricValue { name: "a".into(), value: 0.5 };
                let metrics = vec![metric; metrics];
                let evaluation = Evaluation { loss: 0.5, metrics, examples: 1, variables_crc32c: 0 };
                evaluations.add(StepEvaluation { step: GlobalStep(step as u64), evaluation });
                if take == 0 || step + 1 == made.len() {
                    let some = evaluations.take();
                    let numbers: usize = some.iter().map(|own| own.evaluation.numbers()).sum();
                    prop_assert!(numbers <= REPORT_NUMBERS_MAX, "(A)");
                    for own in &some {
                        prop_assert!(last < Some(own.step), "(B)");
                        last = Some(own.step);
                    }
                    taken += some.len();
                    prop_assert_eq!(evaluations.len(), 0);
                }
            }
            prop_assert_eq!(taken as u64 + evaluations.0.lock().lost, made.len() as u64, "(B)");
        }
    }
}
