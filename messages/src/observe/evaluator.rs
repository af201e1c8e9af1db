//! An evaluator as it is seen from outside.

use serde::{Deserialize, Serialize};

use super::times::TimeHistogram;
use crate::id::GlobalStep;
use crate::message::MetricValue;

/// The state of an evaluator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EvaluatorSnapshot {
    /// Checkpoints evaluated.
    pub evaluated: u64,
    /// Checkpoints that could not be.
    pub failed: u64,
    /// The step of the last one.
    pub step: Option<GlobalStep>,
    /// Its loss.
    pub loss: Option<f32>,
    /// Its metrics.
    pub metrics: Vec<MetricValue>,
    /// How long evaluations took.
    pub took: TimeHistogram,
}
