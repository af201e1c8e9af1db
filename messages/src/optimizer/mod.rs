//! The settings with which the ps tasks turn a gradient into an update: optimizer, schedule and decays. The
//! arithmetic on tensors is in the crate `pushpull-kernels`.

mod group;
mod rate;
mod schedule;
mod spec;

pub use group::{DecaySpec, GROUPS_MAX, GroupError, GroupSpec, VariableRule};
pub(crate) use group::{check_length, check_pattern};
pub use rate::{RateChange, RateSpec};
pub use schedule::{ScheduleSpec, UnknownSchedule};
pub use spec::OptimizerSpec;

use serde::{Deserialize, Serialize};

/// The settings with which the ps tasks update variables.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpdateSpec {
    /// The optimizer that turns gradients into updates.
    pub optimizer: OptimizerSpec,
    /// The schedule of the learning rate over the global step.
    #[serde(default)]
    pub schedule: ScheduleSpec,
    /// The number of steps at the start of the job over which the learning rate rises linearly to the
    /// schedule's value.
    #[serde(default)]
    pub warm_up: u64,
    /// The weight decay: each variable's value, multiplied by this factor, is added to its gradient.
    #[serde(default)]
    pub weight_decay: f32,
    /// The decay of the exponential moving averages of trained variables; `None` disables averages.
    #[serde(default)]
    pub average: Option<f32>,
    /// The variables to which weight decay applies, if no group says otherwise.
    #[serde(default, skip_serializing_if = "DecaySpec::is_all")]
    pub weight_decay_on: DecaySpec,
    /// Groups of variables with rules of their own. Only the first group that matches a variable applies to
    /// it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupSpec>,
    /// The patterns for the names of the trained variables that have averages. Without patterns, all trained
    /// variables have averages. Patterns require that `average` is set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub average_variables: Vec<String>,
}

/// The error for an optimizer setting that is out of range.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{of}: {key} must be {expected}, but is {value}")]
pub struct OptimizerError {
    /// The name of the part of the settings to which the number belongs, such as the optimizer's name.
    of: &'static str,
    key: &'static str,
    expected: &'static str,
    value: f32,
}

/// A checker of the numbers in one part of an update's settings. It holds the name of that part, which its
/// errors contain.
#[derive(Clone, Copy)]
struct Numbers(&'static str);

impl Numbers {
    fn check(
        self,
        key: &'static str,
        value: f32,
        expected: &'static str,
        holds: bool,
    ) -> Result<(), OptimizerError> {
        if holds { Ok(()) } else { Err(OptimizerError { of: self.0, key, expected, value }) }
    }

    fn positive(self, key: &'static str, value: f32) -> Result<(), OptimizerError> {
        self.check(key, value, "finite and greater than 0", value.is_finite() && value > 0.0)
    }

    fn not_negative(self, key: &'static str, value: f32) -> Result<(), OptimizerError> {
        self.check(key, value, "finite and at least 0", value.is_finite() && value >= 0.0)
    }

    fn decay(self, key: &'static str, value: f32) -> Result<(), OptimizerError> {
        self.check(key, value, "at least 0 and less than 1", (0.0..1.0).contains(&value))
    }
}

impl From<OptimizerSpec> for UpdateSpec {
    /// Makes the spec of an update with this optimizer and a constant learning rate, without weight decay,
    /// averages and groups.
    fn from(optimizer: OptimizerSpec) -> Self {
        Self {
            optimizer,
            schedule: ScheduleSpec::default(),
            warm_up: 0,
            weight_decay: 0.0,
            average: None,
            weight_decay_on: DecaySpec::All,
            groups: Vec::new(),
            average_variables: Vec::new(),
        }
    }
}

impl UpdateSpec {
    /// Returns the factor of the learning rate for the update that follows the first `applied` updates, in a
    /// job of `last_step` updates. It is the schedule's factor, from 0 to 1. For each of the first `warm_up`
    /// updates, this factor is multiplied by (applied + 1) / warm_up.
    pub fn learning_rate_factor(&self, applied: u64, last_step: u64) -> f32 {
        let schedule = self.schedule.factor(applied, last_step);
        if applied >= self.warm_up {
            return schedule;
        }
        schedule * ((applied + 1) as f64 / self.warm_up as f64) as f32
    }

    /// Returns the learning rate for the update that follows the first `applied` updates, in a job of
    /// `last_step` updates.
    pub fn learning_rate(&self, applied: u64, last_step: u64) -> f32 {
        self.optimizer.learning_rate() * self.learning_rate_factor(applied, last_step)
    }

    /// Checks that every number is in range.
    ///
    /// # Errors
    /// Returns an error for the first number that is out of range.
    pub fn validate(&self) -> Result<(), OptimizerError> {
        self.optimizer.validate()?;
        self.schedule.validate()?;
        let numbers = Numbers("update");
        numbers.not_negative("weight_decay", self.weight_decay)?;
        self.average.map_or(Ok(()), |average| {
            let holds = average > 0.0 && average < 1.0;
            numbers.check("average", average, "greater than 0 and less than 1", holds)
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::schedule::tests::any_schedule;
    use super::*;

    fn update(schedule: ScheduleSpec, warm_up: u64) -> UpdateSpec {
        UpdateSpec { schedule, warm_up, ..OptimizerSpec::sgd(0.1).into() }
    }

    proptest! {
        #[test]
        fn warming_up_stays_below_the_schedule_and_ends_at_it(
            schedule in any_schedule(),
            warm_up in 0u64..300,
            last_step in 1u64..500,
        ) {
            let update = update(schedule, warm_up);
            for applied in 0..=last_step {
                let (factor, unwarmed) =
                    (update.learning_rate_factor(applied, last_step), schedule.factor(applied, last_step));
                prop_assert!((0.0..=1.0).contains(&factor));
                prop_assert!(factor <= unwarmed);
                if applied + 1 >= warm_up {
                    prop_assert_eq!(factor, unwarmed);
                }
            }
        }
    }

    #[test]
    fn warming_up_is_linear() {
        let update = update(ScheduleSpec::Constant, 4);
        let factors = [0, 1, 2, 3, 4, 9].map(|applied| update.learning_rate_factor(applied, 10));
        assert_eq!(factors, [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]);
        let endless = UpdateSpec { warm_up: u64::MAX, ..update };
        assert!(endless.learning_rate_factor(0, 10) < 1e-18);
    }

    #[test]
    fn an_error_names_the_number_out_of_range() {
        let good = update(ScheduleSpec::Cosine, 0);
        for bad in [-0.1, f32::NAN, f32::INFINITY] {
            let error = UpdateSpec { weight_decay: bad, ..good.clone() }.validate().unwrap_err();
            assert!(error.to_string().starts_with("update: weight_decay must be finite"), "{error}");
        }
        for bad in [0.0, 1.0, -0.5, f32::NAN] {
            let error = UpdateSpec { average: Some(bad), ..good.clone() }.validate().unwrap_err();
            assert!(error.to_string().contains("average must be greater than 0 and less than 1"), "{error}");
        }
        let schedule = ScheduleSpec::Step { every: 0, factor: 0.5 };
        assert!(UpdateSpec { schedule, ..good.clone() }.validate().is_err());
        UpdateSpec { weight_decay: 0.01, average: Some(0.999), ..good }.validate().unwrap();
    }
}
