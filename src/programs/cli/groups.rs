//! The text of a group of variables on a command line: a pattern for their names, and the settings in which
//! the group differs from the other variables. This module must not depend on models.

use clap::ValueEnum;
use pushpull_messages::optimizer::GroupSpec;

use super::optimizers::Optimizer;

/// The possible settings of a group, as listed in an error text.
const SETTINGS: &str =
    "learning-rate-factor=X, weight-decay=X, frozen, optimizer=NAME and, after that, learning-rate=X";

/// Parses a group, such as `embedding/*:optimizer=adagrad,learning-rate=0.1` or `conv*:frozen`. The pattern
/// and the ranges of the numbers are checked later, with the job.
///
/// # Errors
/// Returns an error that names the invalid setting or lists the valid ones.
pub(super) fn group(text: &str) -> Result<GroupSpec, String> {
    let Some((pattern, settings)) = text.split_once(':') else {
        return Err(format!("expected PATTERN:SETTINGS, with the settings {SETTINGS}"));
    };
    let (mut group, mut optimizer, mut rate) = (GroupSpec::new(pattern), None, None);
    let mut given: Vec<&str> = Vec::new();
    for setting in settings.split(',') {
        let (key, value) = setting.split_once('=').map_or((setting, None), |(key, value)| (key, Some(value)));
        let number = || {
            let number = value.and_then(|value| value.parse().ok()).filter(|number: &f32| number.is_finite());
            number.ok_or_else(|| format!("expected a number in '{setting}'"))
        };
        if given.contains(&key) {
            return Err(format!("'{key}' is given twice"));
        }
        given.push(key);
        match (key, value) {
            ("learning-rate-factor", _) => group.learning_rate_factor = number()?,
            ("weight-decay", _) => group.weight_decay = Some(number()?),
            ("frozen", None) => group.frozen = true,
            ("learning-rate", _) => rate = Some(number()?),
            ("optimizer", Some(name)) => {
                let known = Optimizer::from_str(name, false).map_err(|_| {
                    let names = Optimizer::ALL.map(Optimizer::name).join(", ");
                    format!("unknown optimizer '{name}', expected {names}")
                })?;
                optimizer = Some(known);
            }
            _ => return Err(format!("unknown setting '{setting}', expected {SETTINGS}")),
        }
    }
    match (optimizer, rate) {
        (Some(own), rate) => group.optimizer = Some(own.spec(rate.unwrap_or_else(|| own.learning_rate()))),
        (None, Some(_)) => {
            return Err("learning-rate needs optimizer=NAME; without it, use learning-rate-factor=X".into());
        }
        (None, None) => {}
    }
    Ok(group)
}

#[cfg(test)]
mod tests {
    use pushpull_messages::optimizer::OptimizerSpec;

    use super::*;

    #[test]
    fn a_group_is_a_pattern_and_its_settings() {
        let plain = |pattern: &str| GroupSpec::new(pattern);
        for (text, expected) in [
            ("conv*:frozen", plain("conv*").frozen()),
            ("a:learning-rate-factor=0.5", plain("a").learning_rate_factor(0.5)),
            (
                "*/bias:weight-decay=0,learning-rate-factor=2",
                plain("*/bias").weight_decay(0.0).learning_rate_factor(2.0),
            ),
            ("e/*:optimizer=adagrad", plain("e/*").optimizer(OptimizerSpec::adagrad(0.05))),
            ("e/*:learning-rate=0.1,optimizer=lamb", plain("e/*").optimizer(OptimizerSpec::lamb(0.1))),
        ] {
            assert_eq!(group(text).unwrap(), expected);
        }
    }

    #[test]
    fn a_group_that_says_nothing_known_is_refused() {
        for (text, words) in [
            ("conv*", "PATTERN:SETTINGS"),
            ("conv*:", "unknown setting ''"),
            ("conv*:frozen=yes", "unknown setting 'frozen=yes', expected learning-rate-factor=X"),
            ("conv*:weight-decay", "a number in 'weight-decay'"),
            ("conv*:weight-decay=nan", "a number in 'weight-decay=nan'"),
            ("conv*:frozen,frozen", "'frozen' is given twice"),
            ("conv*:optimizer=adamax", "unknown optimizer 'adamax', expected sgd, "),
            ("conv*:learning-rate=0.1", "use learning-rate-factor=X"),
        ] {
            let error = group(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
