//! The evaluations of a job: the final one, and those that a worker makes while it trains.

use serde::{Deserialize, Serialize};

use super::{Content, Invalid, REASON_BYTES_MAX, no_payload, text_within};
use crate::graph::METRICS_MAX;
use crate::id::GlobalStep;

/// The result of evaluating the variables on the test set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// The mean loss over the test examples.
    #[serde(deserialize_with = "crate::float::or_nan")]
    pub loss: f32,
    /// The values of the graph's metrics over the test examples.
    pub metrics: Vec<MetricValue>,
    /// The number of test examples.
    pub examples: u64,
    /// The crc32c of all variables' bytes. The variables are in the order of their names, so that the
    /// checksum does not depend on the placement.
    pub variables_crc32c: u32,
}

/// An evaluation that a worker has made while it trained.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepEvaluation {
    /// The highest version that any of the evaluated values had.
    pub step: GlobalStep,
    /// The result.
    pub evaluation: Evaluation,
}

impl Evaluation {
    /// Returns how many values the evaluation has: the loss and the metrics.
    pub fn numbers(&self) -> usize {
        1 + self.metrics.len()
    }

    pub(super) fn validate(&self) -> Result<(), Invalid> {
        if self.metrics.len() > METRICS_MAX {
            let metrics = self.metrics.len();
            return Err(Invalid(format!("got {metrics} metrics, expected at most {METRICS_MAX}")));
        }
        let names = self.metrics.iter().map(|metric| &metric.name);
        let bytes_max = crate::variable::VARIABLE_NAME_BYTES_MAX;
        names.into_iter().try_for_each(|name| text_within("the name of a metric", name, bytes_max))
    }
}

/// A metric and its value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MetricValue {
    /// The metric's name in the graph.
    pub name: String,
    /// The metric's value.
    #[serde(deserialize_with = "crate::float::or_nan")]
    pub value: f32,
}

/// A message from a worker to the chief: the result of the final evaluation, or the reason why it failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evaluated {
    /// The evaluation, or the reason why it failed.
    pub result: Result<Evaluation, String>,
}

impl Evaluated {
    /// Makes the message for a failed evaluation. A very long reason is truncated.
    pub fn failed(reason: impl std::fmt::Display) -> Self {
        Self { result: Err(super::reason(reason)) }
    }
}

impl Content for Evaluated {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        match &self.result {
            Ok(evaluation) => evaluation.validate()?,
            Err(reason) => text_within("the reason", reason, REASON_BYTES_MAX)?,
        }
        no_payload(segments)
    }
}
