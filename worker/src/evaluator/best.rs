//! Compares evaluations by one metric, whose greatest or least value is the best. This module must not
//! depend on stores.
//!
//! Wanted properties: (A) the best evaluation is never worse than an earlier one, and the first of several
//! equal evaluations remains the best; (B) NaN is never the best.

use std::fmt;
use std::str::FromStr;

use pushpull_messages::graph::GraphSpec;
use pushpull_messages::message::Evaluation;

/// The name of the loss, which is a mean over the test set.
const LOSS: &str = "loss";
/// The default metric, if the model has it.
const ACCURACY: &str = "accuracy";

/// The direction in which a metric improves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// A greater value is better.
    Max,
    /// A smaller value is better.
    Min,
}

/// The metric by which the best evaluation is chosen, and its direction, such as `accuracy:max`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BestSpec {
    /// The name of a metric of the model; or `loss`.
    pub metric: String,
    /// The direction in which the metric improves.
    pub goal: Goal,
}

/// The reason why a metric cannot be used to choose the best evaluation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BestError {
    /// The text is not `METRIC`, `METRIC:max` or `METRIC:min`.
    #[error("'{0}' is not the name of a metric, expected METRIC, METRIC:max or METRIC:min")]
    Form(String),
    /// The model has no such metric.
    #[error("cannot choose the best checkpoint by '{metric}': the model has no such metric, only {}", known.join(", "))]
    Unknown {
        /// The metric that was requested.
        metric: String,
        /// The names of the model's metrics.
        known: Vec<String>,
    },
}

impl FromStr for BestSpec {
    type Err = BestError;

    /// Parses `METRIC`, `METRIC:max` or `METRIC:min`. Without a direction, `loss` is minimized and any other
    /// metric is maximized.
    ///
    /// # Errors
    /// If the text has none of these forms.
    fn from_str(text: &str) -> Result<Self, BestError> {
        let form = || BestError::Form(text.chars().filter(|letter| !letter.is_control()).take(64).collect());
        let (metric, goal) = match text.rsplit_once(':') {
            Some((metric, "max")) => (metric, Goal::Max),
            Some((metric, "min")) => (metric, Goal::Min),
            Some(_) => return Err(form()),
            None => (text, if text == LOSS { Goal::Min } else { Goal::Max }),
        };
        match metric {
            "" => Err(form()),
            metric => Ok(Self { metric: metric.to_owned(), goal }),
        }
    }
}

impl fmt::Display for BestSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let goal = if self.goal == Goal::Max { "max" } else { "min" };
        write!(f, "{}:{goal}", self.metric)
    }
}

impl BestSpec {
    /// Returns the default metric for a model: its accuracy, or its loss if the model has no accuracy.
    pub fn usual(graph: &GraphSpec) -> Self {
        match graph.metrics.iter().any(|metric| metric.name == ACCURACY) {
            true => Self { metric: ACCURACY.into(), goal: Goal::Max },
            false => Self { metric: LOSS.into(), goal: Goal::Min },
        }
    }

    /// Checks that the model has the metric.
    ///
    /// # Errors
    /// If the model does not have the metric.
    pub fn check(&self, graph: &GraphSpec) -> Result<(), BestError> {
        let known = std::iter::once(LOSS).chain(graph.metrics.iter().map(|metric| metric.name.as_str()));
        let known: Vec<String> = known.take(32).map(ToOwned::to_owned).collect();
        match self.metric == LOSS || graph.metrics.iter().any(|metric| metric.name == self.metric) {
            true => Ok(()),
            false => Err(BestError::Unknown { metric: self.metric.clone(), known }),
        }
    }

    /// Returns the value of the metric in an evaluation; `None` if it is missing or NaN.
    pub fn value(&self, evaluation: &Evaluation) -> Option<f32> {
        let metric = evaluation.metrics.iter().find(|metric| metric.name == self.metric);
        let value = match metric {
            Some(metric) => Some(metric.value),
            None if self.metric == LOSS => Some(evaluation.loss),
            None => None,
        };
        value.filter(|value| !value.is_nan())
    }

    /// Returns true if `new` is better than `best`, the best evaluation so far.
    pub fn is_better(&self, new: &Evaluation, best: Option<&Evaluation>) -> bool {
        let best = best.and_then(|best| self.value(best));
        match (self.value(new), best) {
            (None, _) => false,
            (Some(_), None) => true,
            (Some(new), Some(best)) if self.goal == Goal::Max => new > best,
            (Some(new), Some(best)) => new < best,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use pushpull_messages::message::MetricValue;

    use super::*;

    fn evaluation(loss: f32, accuracy: f32) -> Evaluation {
        let metrics = vec![MetricValue { name: ACCURACY.into(), value: accuracy }];
        Evaluation { loss, metrics, examples: 1, variables_crc32c: 0 }
    }

    #[test]
    fn a_spec_is_parsed_as_it_is_printed() {
        for (text, shown) in [
            ("accuracy", "accuracy:max"),
            ("loss", "loss:min"),
            ("loss:max", "loss:max"),
            ("auc:min", "auc:min"),
            ("a:b:max", "a:b:max"),
        ] {
            assert_eq!(text.parse::<BestSpec>().unwrap().to_string(), shown);
        }
        for text in ["", ":max", "accuracy:most", "loss:"] {
            assert!(text.parse::<BestSpec>().is_err(), "{text}");
        }
    }

    proptest! {
        /// Checks that the first of the best evaluations is kept (A), and that NaN is never the best (B).
        /// Some of the evaluations are NaN.
        #[test]
        fn the_first_of_the_best_is_kept(
            values in prop::collection::vec(prop_oneof![1 => Just(f32::NAN), 4 => (1i8..5).prop_map(f32::from)], 0..12),
            spec in prop::sample::select(vec!["accuracy:max", "accuracy:min", "loss:max", "loss"]),
        ) {
            let spec: BestSpec = spec.parse().unwrap();
            let mut best: Option<(usize, Evaluation)> = None;
            for (at, &value) in values.iter().enumerate() {
                let new = evaluation(value, value);
                if spec.is_better(&new, best.as_ref().map(|(_, best)| best)) {
                    best = Some((at, new));
                }
            }
            let order = |value: f32| if spec.goal == Goal::Max { -value } else { value };
            let numbers = values.iter().enumerate().filter(|(_, value)| !value.is_nan());
            let wanted = numbers.min_by(|a, b| order(*a.1).total_cmp(&order(*b.1)));
            prop_assert_eq!(best.map(|(at, _)| at), wanted.map(|(at, _)| at));
        }
    }
}
