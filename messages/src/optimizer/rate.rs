//! The factor by which the chief's hooks have multiplied the learning rate. All shards change it at the same
//! version.
//!
//! Wanted properties: (A) a change applies to every update from its version on, and to none before; (B) for
//! version `v` and all later versions, the rate `at(v)` gives the same factors as the original rate.

use serde::{Deserialize, Serialize};

use super::{Numbers, OptimizerError};
use crate::id::Version;

/// A change of the factor of the learning rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateChange {
    /// The first version to which an update with the new factor is applied.
    pub from: Version,
    /// The new factor; finite and greater than 0.
    pub factor: f32,
}

/// The factor of the learning rate at one version, and its next change. The factor multiplies the learning
/// rates of the schedule and of all groups.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateSpec {
    /// The factor; finite and greater than 0.
    pub factor: f32,
    /// The next change, if one has been decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<RateChange>,
}

impl Default for RateSpec {
    /// Makes the rate of a job whose learning rate no hook has changed.
    fn default() -> Self {
        Self { factor: 1.0, next: None }
    }
}

impl RateChange {
    /// Checks that the factor is in range.
    ///
    /// # Errors
    /// If the factor is out of range.
    pub fn validate(&self) -> Result<(), OptimizerError> {
        check(self.factor)
    }
}

fn check(factor: f32) -> Result<(), OptimizerError> {
    Numbers("learning rate").positive("factor", factor)
}

impl RateSpec {
    /// Returns true if the factor is 1 and no change has been decided.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Checks that the factors are in range.
    ///
    /// # Errors
    /// Returns an error for the first factor that is out of range.
    pub fn validate(&self) -> Result<(), OptimizerError> {
        check(self.factor)?;
        self.next.map_or(Ok(()), |next| next.validate())
    }

    /// Returns the rate as it is at `version`.
    #[must_use]
    pub fn at(&self, version: Version) -> Self {
        match self.next {
            Some(RateChange { from, factor }) if from <= version => Self { factor, next: None },
            _ => *self,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_change_applies_from_its_version_on(
            [from, read, update] in any::<[u8; 3]>(),
            changes in any::<bool>(),
        ) {
            let next = changes.then_some(RateChange { from: Version(from.into()), factor: 0.5 });
            let rate = RateSpec { factor: 2.0, next };
            let (read, update) = (Version(read.min(update).into()), Version(update.into()));
            let expected = if changes && update.0 >= u64::from(from) { 0.5 } else { 2.0 };
            prop_assert_eq!(rate.at(update).factor, expected, "(A)");
            prop_assert_eq!(rate.at(read).at(update), rate.at(update), "(B)");
        }
    }

    #[test]
    fn an_unchanged_rate_is_not_written_down() {
        let rate = RateSpec { factor: 0.25, next: Some(RateChange { from: Version(7), factor: 0.5 }) };
        let text = serde_json::to_string(&rate).unwrap();
        assert_eq!(serde_json::from_str::<RateSpec>(&text).unwrap(), rate);
        assert!(!rate.is_default() && RateSpec::default().is_default());
        assert_eq!(serde_json::to_string(&RateSpec::default()).unwrap(), "{\"factor\":1.0}");
        for factor in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            let error = RateSpec { factor, next: None }.validate().unwrap_err().to_string();
            assert!(error.starts_with("learning rate: factor must be finite"), "{error}");
            assert!(
                RateSpec { factor: 1.0, next: Some(RateChange { from: Version(1), factor }) }
                    .validate()
                    .is_err()
            );
        }
    }
}
