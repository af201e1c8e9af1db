//! What a worker does with the gradients of one step before it pushes them, as data.

use serde::{Deserialize, Serialize};

/// Changes to the gradients of one worker, all its devices together, in this order: checked, clipped by value, clipped
/// by norm. They are changed before they meet those of other workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GradientSpec {
    /// No element is further from 0 than this.
    #[serde(default)]
    pub clip_value: Option<f32>,
    /// All gradients together are scaled down to this euclidean norm, where theirs is greater: Pascanu et al., ICML
    /// 2013.
    #[serde(default)]
    pub clip_global_norm: Option<f32>,
    /// What becomes of a gradient with NaN or infinite elements.
    #[serde(default)]
    pub not_finite: NotFiniteSpec,
}

/// What becomes of a gradient with NaN or infinite elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NotFiniteSpec {
    /// The job ends, and the variable is named.
    #[default]
    Stop,
    /// The worker counts it, drops all gradients of that step, and goes on with the next batch.
    Skip,
}

/// A number that gradients cannot be clipped to.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{key} must be finite and greater than 0, and is {value}")]
pub struct GradientError {
    key: &'static str,
    value: f32,
}

impl GradientSpec {
    /// Checks every number.
    ///
    /// # Errors
    /// Names the first that is out of range.
    pub fn validate(&self) -> Result<(), GradientError> {
        for (key, value) in [("clip_value", self.clip_value), ("clip_global_norm", self.clip_global_norm)] {
            if let Some(value) = value
                && !(value.is_finite() && value > 0.0)
            {
                return Err(GradientError { key, value });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_that_is_no_bound_is_refused_by_name() {
        for value in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            let clip = GradientSpec { clip_global_norm: Some(value), ..Default::default() };
            assert!(clip.validate().unwrap_err().to_string().starts_with("clip_global_norm must be finite"));
        }
        let clip = GradientSpec { clip_value: Some(0.5), ..Default::default() };
        assert!(clip.validate().is_ok());
    }
}
