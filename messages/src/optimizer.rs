//! How the ps tasks turn a gradient into an update, as data.

use serde::{Deserialize, Serialize};

/// An optimizer and its numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum OptimizerSpec {
    /// value ← value − learning_rate · gradient.
    Sgd {
        /// The step size.
        learning_rate: f32,
    },
    /// velocity ← momentum · velocity + gradient; value ← value − learning_rate · velocity.
    Momentum {
        /// The step size.
        learning_rate: f32,
        /// How much of the velocity stays.
        momentum: f32,
        /// Look ahead by one step of the velocity: Sutskever et al., ICML 2013.
        #[serde(default)]
        nesterov: bool,
    },
    /// Adam: Kingma and Ba, ICLR 2015.
    Adam {
        /// The step size.
        learning_rate: f32,
        /// Decay of the first moment.
        beta1: f32,
        /// Decay of the second moment.
        beta2: f32,
        /// Keeps the division away from 0.
        epsilon: f32,
    },
}

/// How the step size follows the global step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleSpec {
    /// It stays as it is.
    #[default]
    Constant,
    /// Down to 0 along half a cosine, at the job's last step: Loshchilov and Hutter, ICLR 2017, without restarts.
    Cosine,
}

impl ScheduleSpec {
    /// What the step size is multiplied with for the update after `applied` of `last_step`; from 1 down to 0.
    pub fn factor(self, applied: u64, last_step: u64) -> f32 {
        match self {
            Self::Constant => 1.0,
            Self::Cosine => {
                let share = (applied as f64 / last_step.max(1) as f64).min(1.0);
                (0.5 + 0.5 * (std::f64::consts::PI * share).cos()) as f32
            }
        }
    }
}

/// A number that an optimizer cannot work with.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{optimizer}: {key} must be {expected}, and is {value}")]
pub struct OptimizerError {
    optimizer: &'static str,
    key: &'static str,
    expected: &'static str,
    value: f32,
}

impl OptimizerSpec {
    /// Plain gradient descent.
    pub const fn sgd(learning_rate: f32) -> Self {
        Self::Sgd { learning_rate }
    }

    /// Momentum without looking ahead.
    pub const fn momentum(learning_rate: f32, momentum: f32) -> Self {
        Self::Momentum { learning_rate, momentum, nesterov: false }
    }

    /// Adam with the paper's decays.
    pub const fn adam(learning_rate: f32) -> Self {
        Self::Adam { learning_rate, beta1: 0.9, beta2: 0.999, epsilon: 1e-8 }
    }

    /// The word that stands for it on a command line.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Sgd { .. } => "sgd",
            Self::Momentum { .. } => "momentum",
            Self::Adam { .. } => "adam",
        }
    }

    /// The same with another step size.
    #[must_use]
    pub fn with_learning_rate_times(&self, factor: f32) -> Self {
        let mut scaled = self.clone();
        match &mut scaled {
            Self::Sgd { learning_rate }
            | Self::Momentum { learning_rate, .. }
            | Self::Adam { learning_rate, .. } => *learning_rate *= factor,
        }
        scaled
    }

    /// Checks every number.
    ///
    /// # Errors
    /// Names the first that is out of range.
    pub fn validate(&self) -> Result<(), OptimizerError> {
        let optimizer = self.name();
        let positive = |key, value: f32| {
            let error = OptimizerError { optimizer, key, expected: "finite and greater than 0", value };
            if value.is_finite() && value > 0.0 { Ok(()) } else { Err(error) }
        };
        let decay = |key, value: f32| {
            let error = OptimizerError { optimizer, key, expected: "at least 0 and less than 1", value };
            if (0.0..1.0).contains(&value) { Ok(()) } else { Err(error) }
        };
        match *self {
            Self::Sgd { learning_rate } => positive("learning_rate", learning_rate),
            Self::Momentum { learning_rate, momentum, nesterov: _ } => {
                positive("learning_rate", learning_rate)?;
                decay("momentum", momentum)
            }
            Self::Adam { learning_rate, beta1, beta2, epsilon } => {
                positive("learning_rate", learning_rate)?;
                decay("beta1", beta1)?;
                decay("beta2", beta2)?;
                positive("epsilon", epsilon)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cosine_goes_from_one_to_nothing() {
        let at = |applied| ScheduleSpec::Cosine.factor(applied, 100);
        assert_eq!((at(0), at(50), at(100), at(200)), (1.0, 0.5, 0.0, 0.0));
        assert!((0..100).all(|step| at(step) >= at(step + 1)));
        assert_eq!(ScheduleSpec::Constant.factor(99, 100), 1.0);
        assert_eq!(OptimizerSpec::sgd(0.2).with_learning_rate_times(0.5), OptimizerSpec::sgd(0.1));
    }

    #[test]
    fn numbers_out_of_range_are_named() {
        OptimizerSpec::sgd(0.1).validate().unwrap();
        OptimizerSpec::momentum(0.1, 0.0).validate().unwrap();
        OptimizerSpec::adam(1e-3).validate().unwrap();
        for (bad, key) in [
            (OptimizerSpec::sgd(0.0), "learning_rate"),
            (OptimizerSpec::sgd(f32::NAN), "learning_rate"),
            (OptimizerSpec::momentum(0.1, 1.0), "momentum"),
            (OptimizerSpec::Adam { learning_rate: 0.1, beta1: -0.1, beta2: 0.9, epsilon: 1e-8 }, "beta1"),
            (OptimizerSpec::Adam { learning_rate: 0.1, beta1: 0.1, beta2: 0.9, epsilon: 0.0 }, "epsilon"),
        ] {
            assert!(bad.validate().unwrap_err().to_string().contains(key));
        }
    }
}
