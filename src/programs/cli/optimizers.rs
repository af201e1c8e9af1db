//! The optimizers that a flag can select, and their usual learning rates.

use clap::ValueEnum;
use pushpull_messages::optimizer::OptimizerSpec;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "lower")]
pub(super) enum Optimizer {
    Sgd,
    Momentum,
    Adam,
    AdamW,
    Adagrad,
    RmsProp,
    Ftrl,
    Lamb,
    Lion,
}

impl Optimizer {
    pub(super) const ALL: [Self; 9] = [
        Self::Sgd,
        Self::Momentum,
        Self::Adam,
        Self::AdamW,
        Self::Adagrad,
        Self::RmsProp,
        Self::Ftrl,
        Self::Lamb,
        Self::Lion,
    ];

    /// Returns the optimizer's name as the flag spells it.
    pub(super) const fn name(self) -> &'static str {
        self.spec(self.learning_rate()).name()
    }

    /// Returns the optimizer's usual learning rate.
    pub(super) const fn learning_rate(self) -> f32 {
        match self {
            Self::Sgd => 0.3,
            Self::Momentum => 0.03,
            Self::Adam | Self::AdamW | Self::RmsProp => 0.001,
            Self::Adagrad | Self::Ftrl => 0.05,
            Self::Lamb => 0.01,
            Self::Lion => 0.0001,
        }
    }

    pub(super) const fn spec(self, learning_rate: f32) -> OptimizerSpec {
        match self {
            Self::Sgd => OptimizerSpec::sgd(learning_rate),
            Self::Momentum => OptimizerSpec::momentum(learning_rate, 0.9),
            Self::Adam => OptimizerSpec::adam(learning_rate),
            Self::AdamW => OptimizerSpec::adamw(learning_rate),
            Self::Adagrad => OptimizerSpec::adagrad(learning_rate),
            Self::RmsProp => OptimizerSpec::rmsprop(learning_rate),
            Self::Ftrl => OptimizerSpec::ftrl(learning_rate),
            Self::Lamb => OptimizerSpec::lamb(learning_rate),
            Self::Lion => OptimizerSpec::lion(learning_rate),
        }
    }
}
