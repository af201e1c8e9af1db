//! The snapshot of an evaluator: the checkpoints that it has evaluated.

use serde::{Deserialize, Serialize};

use super::times::TimeHistogram;
use crate::id::GlobalStep;
use crate::message::MetricValue;

/// The state of an evaluator task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EvaluatorSnapshot {
    /// The number of checkpoints evaluated.
    pub evaluated: u64,
    /// The number of checkpoints that could not be evaluated.
    pub failed: u64,
    /// The step of the last evaluated checkpoint.
    pub step: Option<GlobalStep>,
    /// The loss of the last evaluated checkpoint.
    pub loss: Option<f32>,
    /// The metrics of the last evaluated checkpoint.
    pub metrics: Vec<MetricValue>,
    /// The durations of evaluations.
    pub took: TimeHistogram,
}
