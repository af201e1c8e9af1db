//! Schedules of the learning rate over the global step.
//!
//! A schedule multiplies the optimizer's learning rate by a factor that begins at 1 and never rises. A
//! schedule is written in the same way on a command line and in a job file: `constant`, `cosine`, `linear`,
//! `step:100:0.5` or `exponential:100:0.5`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{Numbers, OptimizerError};

/// A schedule of the learning rate over the global step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum ScheduleSpec {
    /// Leaves the learning rate unchanged.
    #[default]
    Constant,
    /// Decreases the learning rate to 0 at the job's last step, along half a cosine: Loshchilov and Hutter,
    /// ICLR 2017, without restarts.
    Cosine,
    /// Decreases the learning rate linearly to 0 at the job's last step.
    Linear,
    /// Multiplies the learning rate by `factor` each time that `every` steps have passed.
    Step {
        /// The number of steps of the job between two changes; at least 1.
        every: u64,
        /// The factor; above 0 and at most 1.
        factor: f32,
    },
    /// Multiplies the learning rate by factor^(step / every), with a fractional exponent.
    Exponential {
        /// The number of steps of the job over which the learning rate is multiplied by `factor` once; at
        /// least 1.
        every: u64,
        /// The factor; above 0 and at most 1.
        factor: f32,
    },
}

impl ScheduleSpec {
    /// Returns the factor of the learning rate for the update that follows the first `applied` updates, in a
    /// job of `last_step` updates. The factor is from 0 to 1.
    pub fn factor(self, applied: u64, last_step: u64) -> f32 {
        let share = (applied as f64 / last_step.max(1) as f64).min(1.0);
        let factor = match self {
            Self::Constant => 1.0,
            Self::Cosine => 0.5 + 0.5 * (std::f64::consts::PI * share).cos(),
            Self::Linear => 1.0 - share,
            Self::Step { every, factor } => f64::from(factor).powf((applied / every.max(1)) as f64),
            Self::Exponential { every, factor } => {
                f64::from(factor).powf(applied as f64 / every.max(1) as f64)
            }
        };
        factor as f32
    }

    /// Checks that every number is in range.
    ///
    /// # Errors
    /// Returns an error for the first number that is out of range.
    pub fn validate(self) -> Result<(), OptimizerError> {
        let (of, every, factor) = match self {
            Self::Constant | Self::Cosine | Self::Linear => return Ok(()),
            Self::Step { every, factor } => ("step", every, factor),
            Self::Exponential { every, factor } => ("exponential", every, factor),
        };
        let numbers = Numbers(of);
        numbers.check("every", every as f32, "at least 1", every > 0)?;
        numbers.check("factor", factor, "greater than 0 and at most 1", factor > 0.0 && factor <= 1.0)
    }
}

impl fmt::Display for ScheduleSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Constant => f.write_str("constant"),
            Self::Cosine => f.write_str("cosine"),
            Self::Linear => f.write_str("linear"),
            Self::Step { every, factor } => write!(f, "step:{every}:{factor}"),
            Self::Exponential { every, factor } => write!(f, "exponential:{every}:{factor}"),
        }
    }
}

/// The error for a text that is not a schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown schedule '{0}': expected constant, cosine, linear, step:EVERY:FACTOR or exponential:EVERY:FACTOR, where EVERY is at least 1, and FACTOR is above 0 and at most 1"
)]
pub struct UnknownSchedule(pub String);

impl FromStr for ScheduleSpec {
    type Err = UnknownSchedule;

    fn from_str(text: &str) -> Result<Self, UnknownSchedule> {
        let mut parts = text.split(':');
        let (name, numbers) = (parts.next(), (parts.next(), parts.next()));
        let schedule = match (name, numbers, parts.next()) {
            (Some("constant"), (None, None), None) => Some(Self::Constant),
            (Some("cosine"), (None, None), None) => Some(Self::Cosine),
            (Some("linear"), (None, None), None) => Some(Self::Linear),
            (Some(name), (Some(every), Some(factor)), None) => {
                // `parse` also accepts signs and words such as `inf`, which are not part of the format.
                let plain =
                    |text: &&str| text.starts_with(|first: char| first.is_ascii_digit() || first == '.');
                let every = Some(every).filter(plain).and_then(|text| text.parse().ok());
                let factor = Some(factor).filter(plain).and_then(|text| text.parse().ok());
                every.zip(factor).and_then(|(every, factor)| match name {
                    "step" => Some(Self::Step { every, factor }),
                    "exponential" => Some(Self::Exponential { every, factor }),
                    _ => None,
                })
            }
            _ => None,
        };
        let schedule = schedule.filter(|schedule| schedule.validate().is_ok());
        schedule.ok_or_else(|| UnknownSchedule(text.chars().take(100).collect()))
    }
}

impl From<ScheduleSpec> for String {
    fn from(schedule: ScheduleSpec) -> Self {
        schedule.to_string()
    }
}

impl TryFrom<String> for ScheduleSpec {
    type Error = UnknownSchedule;

    fn try_from(text: String) -> Result<Self, UnknownSchedule> {
        text.parse()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn any_schedule() -> impl Strategy<Value = ScheduleSpec> {
        let factor = prop_oneof![Just(1.0f32), Just(f32::MIN_POSITIVE), 1e-6f32..1.0];
        let numbers = (1u64.., factor.clone());
        let small = (1u64..100, factor);
        prop_oneof![
            Just(ScheduleSpec::Constant),
            Just(ScheduleSpec::Cosine),
            Just(ScheduleSpec::Linear),
            small.clone().prop_map(|(every, factor)| ScheduleSpec::Step { every, factor }),
            small.prop_map(|(every, factor)| ScheduleSpec::Exponential { every, factor }),
            numbers.prop_map(|(every, factor)| ScheduleSpec::Step { every, factor }),
        ]
    }

    proptest! {
        #[test]
        fn schedules_round_trip(schedule in any_schedule()) {
            prop_assert_eq!(schedule.to_string().parse(), Ok(schedule));
            let json = serde_json::to_string(&schedule).unwrap();
            prop_assert_eq!(serde_json::from_str::<ScheduleSpec>(&json).unwrap(), schedule);
        }

        #[test]
        fn a_factor_begins_at_one_and_never_rises(schedule in any_schedule(), last_step in 1u64..400) {
            prop_assert_eq!(schedule.factor(0, last_step), 1.0);
            for applied in 0..last_step {
                let (now, next) = (schedule.factor(applied, last_step), schedule.factor(applied + 1, last_step));
                prop_assert!(next <= now && next >= 0.0, "{now} then {next}");
            }
        }

        /// Checks that, from one step to the next, a cosine or linear schedule falls by at most the steepest
        /// slope of its curve, and an exponential schedule falls by a fixed ratio.
        #[test]
        fn continuous_schedules_have_no_jumps(last_step in 1u64..1000, every in 1u64..100, factor in 0.01f32..1.0) {
            let slopes = [(ScheduleSpec::Cosine, std::f32::consts::FRAC_PI_2), (ScheduleSpec::Linear, 1.0)];
            let exponential = ScheduleSpec::Exponential { every, factor };
            let ratio = f64::from(factor).powf(1.0 / every as f64) as f32;
            for applied in 0..last_step {
                for (schedule, slope) in slopes {
                    let fall = schedule.factor(applied, last_step) - schedule.factor(applied + 1, last_step);
                    prop_assert!(fall <= slope / last_step as f32 + 1e-6);
                }
                let [now, next] = [applied, applied + 1].map(|applied| exponential.factor(applied, last_step));
                prop_assert!((next - now * ratio).abs() <= 1e-6 * now + f32::MIN_POSITIVE);
            }
        }
    }

    #[test]
    fn factors_match_known_values() {
        let at = |text: &str, applied: [u64; 5]| {
            let schedule: ScheduleSpec = text.parse().unwrap();
            applied.map(|applied| schedule.factor(applied, 100))
        };
        assert_eq!(at("cosine", [0, 50, 100, 200, 0]), [1.0, 0.5, 0.0, 0.0, 1.0]);
        assert_eq!(at("linear", [0, 25, 75, 100, 200]), [1.0, 0.75, 0.25, 0.0, 0.0]);
        assert_eq!(at("step:10:0.5", [0, 9, 10, 29, 200]), [1.0, 1.0, 0.5, 0.25, 0.5f32.powi(20)]);
        assert_eq!(at("exponential:10:0.25", [0, 5, 10, 15, 20]), [1.0, 0.5, 0.25, 0.125, 0.0625]);
        assert_eq!(at("constant", [0, 1, 99, 100, 200]), [1.0; 5]);
    }

    #[test]
    fn an_unknown_schedule_is_refused_with_the_valid_ones() {
        for words in [
            "",
            "Cosine",
            "cosine:",
            "linear:5",
            "step",
            "step:10",
            "step:0:0.5",
            "step:10:0",
            "step:10:1.5",
            "step:10:nan",
            "step:10:-0.5",
            "step:+10:0.5",
            "step:10:0.5:1",
            "exponential:1.5:0.5",
            "exponential:10:inf",
            "exponential::0.5",
            "stairs:10:0.5",
        ] {
            let error = words.parse::<ScheduleSpec>().unwrap_err().to_string();
            assert!(error.contains("step:EVERY:FACTOR") && error.contains(&format!("'{words}'")), "{error}");
        }
    }
}
