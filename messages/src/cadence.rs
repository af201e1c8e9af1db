//! How often a model is evaluated while it trains, and the conversion between epochs and updates. This
//! module reads no data.
//!
//! Wanted property: (A) an epoch ends with the first update after which all examples of the epoch have been
//! used.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::id::GlobalStep;

/// How often the model is evaluated while it trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum EvalEverySpec {
    /// The model is evaluated whenever the number of updates reaches a multiple of this number.
    Steps(u64),
    /// The model is evaluated at the end of each epoch.
    Epoch,
}

impl FromStr for EvalEverySpec {
    type Err = String;

    /// Parses `epoch` or a number of updates.
    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.parse()) {
            ("epoch", _) => Ok(Self::Epoch),
            (_, Ok(steps @ 1..)) => Ok(Self::Steps(steps)),
            _ => Err("expected epoch or a number of updates of at least 1".to_owned()),
        }
    }
}

impl fmt::Display for EvalEverySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Steps(steps) => write!(f, "{steps}"),
            Self::Epoch => f.write_str("epoch"),
        }
    }
}

/// The epochs of a job. An epoch is one pass of all workers together over the training set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epochs {
    /// The number of examples in an epoch; at least 1.
    examples: u64,
    /// The number of examples in an update; at least 1.
    update: u64,
}

impl Epochs {
    /// Makes the epochs of a job with `examples` examples in an epoch and `update` examples in an update.
    /// Both numbers must be at least 1.
    pub(crate) const fn new(examples: u64, update: u64) -> Self {
        Self { examples, update }
    }

    /// Returns the number of epochs that have ended after `step` updates.
    pub fn ended(self, step: GlobalStep) -> u64 {
        let used = u128::from(step.0) * u128::from(self.update);
        u64::try_from(used / u128::from(self.examples)).unwrap_or(u64::MAX)
    }

    /// Returns the smallest number of updates after which `epochs` epochs have ended.
    pub fn updates(self, epochs: u64) -> u64 {
        let examples = u128::from(epochs) * u128::from(self.examples);
        u64::try_from(examples.div_ceil(u128::from(self.update))).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Checks that an epoch ends when its examples have been used (A), by counting the examples of each
        /// update.
        #[test]
        fn an_epoch_ends_when_its_examples_are_used(examples in 1u64..100, update in 1u64..40) {
            let epochs = Epochs::new(examples, update);
            let (mut used, mut ended) = (0, 0);
            for step in 1..60 {
                used += update;
                while used >= (ended + 1) * examples {
                    ended += 1;
                    prop_assert_eq!(epochs.updates(ended), step, "(A)");
                }
                prop_assert_eq!(epochs.ended(GlobalStep(step)), ended, "(A)");
            }
        }

        #[test]
        fn the_largest_numbers_do_not_overflow(examples in 1u64.., update in 1u64.., step: u64) {
            let epochs = Epochs::new(examples, update);
            let ended = epochs.ended(GlobalStep(step));
            prop_assert!(ended == u64::MAX || epochs.updates(ended) <= step);
        }
    }

    #[test]
    fn a_cadence_is_parsed_as_it_is_printed() {
        for text in ["epoch", "1", "500"] {
            let every: EvalEverySpec = text.parse().unwrap();
            assert_eq!(every.to_string(), text);
            let json = serde_json::to_string(&every).unwrap();
            assert_eq!(serde_json::from_str::<EvalEverySpec>(&json).unwrap(), every);
        }
        for text in ["", "0", "-1", "epochs", "1.5"] {
            assert!(text.parse::<EvalEverySpec>().is_err(), "{text}");
        }
    }
}
