//! The final evaluation, done by one worker for all.

use serde::{Deserialize, Serialize};

use super::{Content, Invalid, REASON_BYTES_MAX, no_payload, text_within};
use crate::graph::METRICS_MAX;

/// What the test examples say of the final variables.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// Mean over the test examples.
    #[serde(deserialize_with = "crate::float::or_nan")]
    pub loss: f32,
    /// The graph's metrics, means over the test examples.
    pub metrics: Vec<MetricValue>,
    /// How many test examples there were.
    pub examples: u64,
    /// crc32c over the final variables' bytes, in order of their names, whatever their placement.
    pub variables_crc32c: u32,
}

/// One metric and its value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MetricValue {
    /// The metric's name in the graph.
    pub name: String,
    /// Its mean.
    #[serde(deserialize_with = "crate::float::or_nan")]
    pub value: f32,
}

/// Worker to chief: the evaluation, or why there is none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evaluated {
    /// What came of it.
    pub result: Result<Evaluation, String>,
}

impl Evaluated {
    /// That it could not be done, for that reason, which is cut if it is very long.
    pub fn failed(reason: impl std::fmt::Display) -> Self {
        Self { result: Err(super::reason(reason)) }
    }
}

impl Content for Evaluated {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        match &self.result {
            Ok(evaluation) if evaluation.metrics.len() > METRICS_MAX => {
                return Err(Invalid(format!("at most {METRICS_MAX} metrics")));
            }
            Ok(evaluation) => {
                for metric in &evaluation.metrics {
                    text_within("metric name", &metric.name, crate::variable::VARIABLE_NAME_BYTES_MAX)?;
                }
            }
            Err(reason) => text_within("reason", reason, REASON_BYTES_MAX)?,
        }
        no_payload(segments)
    }
}
