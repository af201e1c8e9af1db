//! Optimizers and their hyperparameters. The shards apply the optimizers and create the slots that the
//! optimizers need.

use serde::{Deserialize, Serialize};

use super::{Numbers, OptimizerError};

/// An optimizer and its hyperparameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum OptimizerSpec {
    /// value ← value − learning_rate · gradient.
    Sgd {
        /// The learning rate.
        learning_rate: f32,
    },
    /// velocity ← momentum · velocity + gradient; value ← value − learning_rate · velocity.
    Momentum {
        /// The learning rate.
        learning_rate: f32,
        /// The fraction of the velocity that is kept in each update.
        momentum: f32,
        /// Whether to use Nesterov momentum, which looks ahead by one step of the velocity: Sutskever et al.,
        /// ICML 2013.
        #[serde(default)]
        nesterov: bool,
    },
    /// Adam: Kingma and Ba, ICLR 2015.
    Adam {
        /// The learning rate.
        learning_rate: f32,
        /// The decay of the first moment.
        beta1: f32,
        /// The decay of the second moment.
        beta2: f32,
        /// A small term in the denominator that avoids division by 0.
        epsilon: f32,
    },
    /// AdamW: Loshchilov and Hutter, ICLR 2019. In addition to Adam's update, value ← value · (1 −
    /// learning_rate · weight_decay).
    #[serde(rename = "adamw")]
    AdamW {
        /// The learning rate.
        learning_rate: f32,
        /// The decay of the first moment.
        beta1: f32,
        /// The decay of the second moment.
        beta2: f32,
        /// A small term in the denominator that avoids division by 0.
        epsilon: f32,
        /// The weight decay. Unlike the job's weight decay, it is not added to the gradient and so does not
        /// affect the moments.
        weight_decay: f32,
    },
    /// Adagrad: Duchi et al., JMLR 2011. accumulator ← accumulator + gradient²;
    /// value ← value − learning_rate · gradient / (√accumulator + epsilon).
    Adagrad {
        /// The learning rate.
        learning_rate: f32,
        /// The initial value of each element's sum of squared gradients.
        initial_accumulator: f32,
        /// A small term in the denominator that avoids division by 0.
        epsilon: f32,
    },
    /// RMSProp: Tieleman and Hinton, 2012. mean_square ← decay · mean_square + (1 − decay) · gradient²;
    /// velocity ← momentum · velocity + learning_rate · gradient / √(mean_square + epsilon); value ← value −
    /// velocity.
    #[serde(rename = "rmsprop")]
    RmsProp {
        /// The learning rate.
        learning_rate: f32,
        /// The fraction of the mean square that is kept in each update.
        decay: f32,
        /// The fraction of the velocity that is kept in each update.
        #[serde(default)]
        momentum: f32,
        /// A small term in the denominator that avoids division by 0.
        epsilon: f32,
    },
    /// FTRL-proximal: McMahan et al., KDD 2013. The learning rate of an element is divided by the square
    /// root of the sum of the element's squared gradients. FTRL is meant for linear models: its first update
    /// shrinks the initial values, and a deep network needs these values.
    Ftrl {
        /// The learning rate.
        learning_rate: f32,
        /// The initial value of each element's sum of squared gradients.
        initial_accumulator: f32,
        /// The strength of the L1 regularisation, which makes values exactly 0.
        #[serde(default)]
        l1: f32,
        /// The strength of the L2 regularisation, which makes values small.
        #[serde(default)]
        l2: f32,
    },
    /// LAMB: You et al., ICLR 2020, algorithm 2. r ← m̂ / (√v̂ + epsilon) + weight_decay · value, with Adam's
    /// moments after bias correction; value ← value − learning_rate · ‖value‖ / ‖r‖ · r. The trust ratio
    /// ‖value‖ / ‖r‖ is 1 if one of the norms is 0, and is not clipped. This is the variant of `optax.lamb`.
    ///
    /// The norms are those of whole variables, so the partitioner does not split a variable that is trained
    /// with LAMB.
    Lamb {
        /// The learning rate.
        learning_rate: f32,
        /// The decay of the first moment.
        beta1: f32,
        /// The decay of the second moment.
        beta2: f32,
        /// A small term in the denominator that avoids division by 0.
        epsilon: f32,
        /// The weight decay. It is part of r, and so of the trust ratio. Unlike the job's weight decay, it
        /// is not added to the gradient.
        weight_decay: f32,
    },
    /// Lion: Chen et al., NeurIPS 2023. c ← beta1 · m + (1 − beta1) · gradient; value ← value · (1 −
    /// learning_rate · weight_decay) − learning_rate · sign(c); m ← beta2 · m + (1 − beta2) · gradient.
    Lion {
        /// The learning rate, which is usually 3 to 10 times smaller than Adam's.
        learning_rate: f32,
        /// The weight of the momentum m in c, the direction of the update.
        beta1: f32,
        /// The decay of the momentum.
        beta2: f32,
        /// The weight decay. Unlike the job's weight decay, it is not added to the gradient.
        weight_decay: f32,
    },
}

impl OptimizerSpec {
    /// Returns plain gradient descent.
    pub const fn sgd(learning_rate: f32) -> Self {
        Self::Sgd { learning_rate }
    }

    /// Returns momentum without Nesterov's look-ahead.
    pub const fn momentum(learning_rate: f32, momentum: f32) -> Self {
        Self::Momentum { learning_rate, momentum, nesterov: false }
    }

    /// Returns Adam with the decays that the paper recommends.
    pub const fn adam(learning_rate: f32) -> Self {
        Self::Adam { learning_rate, beta1: 0.9, beta2: 0.999, epsilon: 1e-8 }
    }

    /// Returns AdamW with Adam's decays and a weight decay of 0.01.
    pub const fn adamw(learning_rate: f32) -> Self {
        Self::AdamW { learning_rate, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01 }
    }

    /// Returns Adagrad with TensorFlow's defaults.
    pub const fn adagrad(learning_rate: f32) -> Self {
        Self::Adagrad { learning_rate, initial_accumulator: 0.1, epsilon: 1e-7 }
    }

    /// Returns RMSProp with TensorFlow's defaults, without momentum.
    pub const fn rmsprop(learning_rate: f32) -> Self {
        Self::RmsProp { learning_rate, decay: 0.9, momentum: 0.0, epsilon: 1e-7 }
    }

    /// Returns FTRL with TensorFlow's defaults, without regularisation.
    pub const fn ftrl(learning_rate: f32) -> Self {
        Self::Ftrl { learning_rate, initial_accumulator: 0.1, l1: 0.0, l2: 0.0 }
    }

    /// Returns LAMB with the decays and the weight decay of the paper, and the epsilon of `optax.lamb`.
    pub const fn lamb(learning_rate: f32) -> Self {
        Self::Lamb { learning_rate, beta1: 0.9, beta2: 0.999, epsilon: 1e-6, weight_decay: 0.01 }
    }

    /// Returns Lion with the paper's default decays and a weight decay of 0.01.
    pub const fn lion(learning_rate: f32) -> Self {
        Self::Lion { learning_rate, beta1: 0.9, beta2: 0.99, weight_decay: 0.01 }
    }

    /// Returns the optimizer's name on a command line.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Sgd { .. } => "sgd",
            Self::Momentum { .. } => "momentum",
            Self::Adam { .. } => "adam",
            Self::AdamW { .. } => "adamw",
            Self::Adagrad { .. } => "adagrad",
            Self::RmsProp { .. } => "rmsprop",
            Self::Ftrl { .. } => "ftrl",
            Self::Lamb { .. } => "lamb",
            Self::Lion { .. } => "lion",
        }
    }

    /// Returns the learning rate.
    pub const fn learning_rate(&self) -> f32 {
        match *self {
            Self::Sgd { learning_rate }
            | Self::Momentum { learning_rate, .. }
            | Self::Adam { learning_rate, .. }
            | Self::AdamW { learning_rate, .. }
            | Self::Adagrad { learning_rate, .. }
            | Self::RmsProp { learning_rate, .. }
            | Self::Ftrl { learning_rate, .. }
            | Self::Lamb { learning_rate, .. }
            | Self::Lion { learning_rate, .. } => learning_rate,
        }
    }

    pub(super) const fn learning_rate_mut(&mut self) -> &mut f32 {
        match self {
            Self::Sgd { learning_rate }
            | Self::Momentum { learning_rate, .. }
            | Self::Adam { learning_rate, .. }
            | Self::AdamW { learning_rate, .. }
            | Self::Adagrad { learning_rate, .. }
            | Self::RmsProp { learning_rate, .. }
            | Self::Ftrl { learning_rate, .. }
            | Self::Lamb { learning_rate, .. }
            | Self::Lion { learning_rate, .. } => learning_rate,
        }
    }

    /// Returns the optimizer's own weight decay, which is not added to the gradient; `None` if it has none.
    pub const fn weight_decay_mut(&mut self) -> Option<&mut f32> {
        match self {
            Self::AdamW { weight_decay, .. }
            | Self::Lamb { weight_decay, .. }
            | Self::Lion { weight_decay, .. } => Some(weight_decay),
            _ => None,
        }
    }

    /// Returns whether the optimizer needs a variable in one slice, because its update depends on all
    /// elements of the variable.
    pub const fn needs_whole_variables(&self) -> bool {
        matches!(self, Self::Lamb { .. })
    }

    /// Checks that every hyperparameter is in range.
    ///
    /// # Errors
    /// Returns an error for the first hyperparameter that is out of range.
    pub fn validate(&self) -> Result<(), OptimizerError> {
        let numbers = Numbers(self.name());
        numbers.positive("learning_rate", self.learning_rate())?;
        match *self {
            Self::Sgd { .. } => Ok(()),
            Self::Momentum { momentum, .. } => numbers.decay("momentum", momentum),
            Self::Adam { beta1, beta2, epsilon, .. } => {
                numbers.decay("beta1", beta1)?;
                numbers.decay("beta2", beta2)?;
                numbers.positive("epsilon", epsilon)
            }
            Self::AdamW { beta1, beta2, epsilon, weight_decay, .. }
            | Self::Lamb { beta1, beta2, epsilon, weight_decay, .. } => {
                numbers.decay("beta1", beta1)?;
                numbers.decay("beta2", beta2)?;
                numbers.positive("epsilon", epsilon)?;
                numbers.not_negative("weight_decay", weight_decay)
            }
            Self::Adagrad { initial_accumulator, epsilon, .. } => {
                numbers.not_negative("initial_accumulator", initial_accumulator)?;
                numbers.positive("epsilon", epsilon)
            }
            Self::RmsProp { decay, momentum, epsilon, .. } => {
                numbers.decay("decay", decay)?;
                numbers.decay("momentum", momentum)?;
                numbers.positive("epsilon", epsilon)
            }
            Self::Ftrl { initial_accumulator, l1, l2, .. } => {
                numbers.positive("initial_accumulator", initial_accumulator)?;
                numbers.not_negative("l1", l1)?;
                numbers.not_negative("l2", l2)
            }
            Self::Lion { beta1, beta2, weight_decay, .. } => {
                numbers.decay("beta1", beta1)?;
                numbers.decay("beta2", beta2)?;
                numbers.not_negative("weight_decay", weight_decay)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usual() -> [OptimizerSpec; 9] {
        [
            OptimizerSpec::sgd(0.1),
            OptimizerSpec::momentum(0.1, 0.0),
            OptimizerSpec::adam(1e-3),
            OptimizerSpec::adamw(1e-3),
            OptimizerSpec::adagrad(0.1),
            OptimizerSpec::rmsprop(1e-3),
            OptimizerSpec::ftrl(0.05),
            OptimizerSpec::lamb(1e-3),
            OptimizerSpec::lion(1e-4),
        ]
    }

    #[test]
    fn defaults_are_valid_and_round_trip_under_the_name() {
        for optimizer in usual() {
            optimizer.validate().unwrap();
            let json = serde_json::to_value(&optimizer).unwrap();
            assert!(json[optimizer.name()]["learning_rate"].is_number(), "{json}");
            assert_eq!(serde_json::from_value::<OptimizerSpec>(json).unwrap(), optimizer);
        }
    }

    /// Checks that an error about a hyperparameter that is out of range contains its key in the job file.
    #[test]
    fn an_error_names_the_number_out_of_range() {
        for optimizer in usual() {
            let name = optimizer.name();
            let json = serde_json::to_value(&optimizer).unwrap();
            for (key, _) in json[name].as_object().unwrap().iter().filter(|(_, value)| value.is_number()) {
                let mut bad = json.clone();
                bad[name][key] = (-1).into();
                let error = serde_json::from_value::<OptimizerSpec>(bad).unwrap().validate().unwrap_err();
                assert!(error.to_string().starts_with(&format!("{name}: {key} must be ")), "{error}");
            }
        }
        for (bad, key) in [
            (OptimizerSpec::sgd(0.0), "learning_rate"),
            (OptimizerSpec::ftrl(f32::NAN), "learning_rate"),
            (OptimizerSpec::momentum(0.1, 1.0), "momentum"),
            (OptimizerSpec::Adam { learning_rate: 0.1, beta1: 0.1, beta2: 0.9, epsilon: 0.0 }, "epsilon"),
        ] {
            assert!(bad.validate().unwrap_err().to_string().contains(key));
        }
    }
}
