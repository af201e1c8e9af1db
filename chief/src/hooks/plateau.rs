//! Decides whether a metric no longer improves.
//!
//! Wanted properties: (A) the metric is on a plateau when `patience` values in a row have not improved on
//! the best earlier value by more than `min_delta`; (B) it is not on a plateau before that; a NaN is never
//! an improvement.

use pushpull_messages::message::Evaluation;

/// The direction in which a metric improves: down or up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// Lower values are better, as for a loss.
    Lower,
    /// Higher values are better, as for an accuracy.
    Higher,
}

impl Better {
    /// Returns the usual direction of a metric: lower if its name contains `loss` or `error`, and higher
    /// otherwise.
    pub fn usual(metric: &str) -> Self {
        match ["loss", "error"].iter().any(|word| metric.contains(word)) {
            true => Self::Lower,
            false => Self::Higher,
        }
    }
}

/// A detector of plateaus. Remembers the best value of a metric, and counts the values after it.
#[derive(Clone, Debug)]
pub(super) struct Plateau {
    pub better: Better,
    /// The metric is on a plateau after this number of values without an improvement; at least 1.
    pub patience: u32,
    /// The amount that an improvement must exceed in order to count.
    pub min_delta: f32,
    pub best: Option<f32>,
    /// The number of values since the best one, or since the last plateau.
    pub since: u32,
}

impl Plateau {
    /// Makes a plateau detector that has seen no value. A patience of 0 counts as 1.
    pub(super) fn new(better: Better, patience: u32, min_delta: f32) -> Self {
        Self { better, patience: patience.max(1), min_delta, best: None, since: 0 }
    }

    /// Records a new value, and returns whether the metric is on a plateau.
    pub(super) fn judge(&mut self, value: f32) -> bool {
        let better = match (self.best, self.better) {
            (None, _) => !value.is_nan(),
            (Some(best), Better::Lower) => value < best - self.min_delta,
            (Some(best), Better::Higher) => value > best + self.min_delta,
        };
        if better {
            (self.best, self.since) = (Some(value), 0);
        } else {
            self.since += 1;
        }
        self.since >= self.patience
    }

    /// Begins to count anew: the next plateau is reached only after `patience` more values without an
    /// improvement.
    pub(super) const fn restart(&mut self) {
        self.since = 0;
    }
}

/// Returns a metric of an evaluation. If `metric` is `loss` and the graph has no metric of this name,
/// returns the evaluation's loss.
pub(super) fn value_of(metric: &str, evaluation: &Evaluation) -> Option<f32> {
    let named = evaluation.metrics.iter().find(|known| known.name == metric);
    named.map(|known| known.value).or_else(|| (metric == "loss").then_some(evaluation.loss))
}
