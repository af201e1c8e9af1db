//! The settings for the checks and the clipping of gradients before a push. The code that uses these
//! settings is in the worker.

use serde::{Deserialize, Serialize};

use crate::out_of_range::OutOfRange;

/// The magnitude from which an element of a gradient counts as not finite: 2⁶³, about 9.2e18. An element of a
/// smaller magnitude has a finite square, and the sum of all gradients of an update is finite, too. Applying
/// such gradients to finite values therefore cannot overflow, unless the learning rate is absurdly large.
pub const GRADIENT_LIMIT: f32 = 9_223_372_036_854_775_808.0;

/// The checks and the clipping of one worker's gradients. They apply to the sum of the gradients of the
/// worker's devices, before this sum is combined with other workers' gradients. The check for NaN and
/// infinite elements comes first, then clipping by value, then clipping by norm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GradientSpec {
    /// The largest absolute value that an element may have. Elements beyond this bound are clipped to it.
    /// `None` disables clipping by value.
    #[serde(default)]
    pub clip_value: Option<f32>,
    /// The largest Euclidean norm that all gradients together may have. If their norm is greater, all
    /// gradients are scaled down so that the norm equals this bound (Pascanu et al., ICML 2013). `None`
    /// disables clipping by norm.
    #[serde(default)]
    pub clip_global_norm: Option<f32>,
    /// What happens if a gradient has NaN or infinite elements, or, after clipping, elements of magnitude
    /// [`GRADIENT_LIMIT`] or more.
    #[serde(default)]
    pub not_finite: NotFiniteSpec,
}

/// What happens if a gradient has NaN or infinite elements, or elements beyond [`GRADIENT_LIMIT`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NotFiniteSpec {
    /// Ends the job with an error that names the variable.
    #[default]
    Stop,
    /// Drops all gradients of this step, counts the step as skipped, and continues with the next batch.
    Skip,
}

impl GradientSpec {
    /// Checks that every bound is in range.
    ///
    /// # Errors
    /// Returns the first bound that is out of range.
    pub fn validate(&self) -> Result<(), OutOfRange> {
        for (key, value) in [("clip_value", self.clip_value), ("clip_global_norm", self.clip_global_norm)] {
            if let Some(value) = value
                && !(value.is_finite() && value > 0.0)
            {
                return Err(OutOfRange::new(key, "finite and greater than 0", value));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_bound_out_of_range() {
        for value in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            let clip = GradientSpec { clip_global_norm: Some(value), ..Default::default() };
            assert!(clip.validate().unwrap_err().to_string().starts_with("clip_global_norm must be finite"));
        }
        let clip = GradientSpec { clip_value: Some(0.5), ..Default::default() };
        assert!(clip.validate().is_ok());
    }
}
