//! Groups of variables with update rules of their own, and the rule that results for each variable.
//!
//! Wanted properties: (A) only the first group whose pattern matches a variable applies to it; (B) without
//! groups, every variable has the rule of the job; (C) a group that applies to no variable is refused.

use serde::{Deserialize, Serialize};

use super::{Numbers, OptimizerError, OptimizerSpec, UpdateSpec};
use crate::excerpt::excerpt;
use crate::pattern::matches;
use crate::variable::{VARIABLE_NAME_BYTES_MAX, VariableSpec};

/// The maximum number of groups in a job, and of entries in every other list of patterns.
pub const GROUPS_MAX: usize = 64;

/// A group: the variables whose names match a pattern, and the settings of their updates that differ from the
/// job's. Only the first group that matches a variable applies to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupSpec {
    /// The pattern for the names of the variables in the group. `*` matches any number of characters,
    /// including slashes, and `?` matches one character.
    pub variables: String,
    /// The factor by which the learning rate of the variables is multiplied; above 0.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub learning_rate_factor: f32,
    /// The weight decay of the group's variables, which replaces the job's. If their optimizer has a weight
    /// decay of its own, as AdamW has, this value replaces that decay, and nothing is added to the gradient.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight_decay: Option<f32>,
    /// Whether the variables keep their values: no update changes them, and workers compute no gradients for
    /// them.
    #[serde(default, skip_serializing_if = "is_false")]
    pub frozen: bool,
    /// The optimizer of the group's variables, which replaces the job's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optimizer: Option<OptimizerSpec>,
}

const fn one() -> f32 {
    1.0
}

fn is_one(factor: &f32) -> bool {
    *factor == 1.0
}

const fn is_false(is: &bool) -> bool {
    !*is
}

impl GroupSpec {
    /// Returns the group of the variables that match a pattern. Until it gets further settings, its
    /// variables are updated by the job's rule. Later groups never apply to them.
    pub fn new(variables: impl Into<String>) -> Self {
        let (variables, learning_rate_factor) = (variables.into(), 1.0);
        Self { variables, learning_rate_factor, weight_decay: None, frozen: false, optimizer: None }
    }

    /// Sets the factor by which the learning rate of the variables is multiplied.
    #[must_use]
    pub fn learning_rate_factor(self, factor: f32) -> Self {
        Self { learning_rate_factor: factor, ..self }
    }

    /// Sets the weight decay of the group.
    #[must_use]
    pub fn weight_decay(self, decay: f32) -> Self {
        Self { weight_decay: Some(decay), ..self }
    }

    /// Freezes the variables: they keep their initial or restored values.
    #[must_use]
    pub fn frozen(self) -> Self {
        Self { frozen: true, ..self }
    }

    /// Sets the optimizer of the group.
    #[must_use]
    pub fn optimizer(self, optimizer: OptimizerSpec) -> Self {
        Self { optimizer: Some(optimizer), ..self }
    }

    fn validate(&self, job: &OptimizerSpec) -> Result<(), GroupError> {
        check_pattern(&self.variables)?;
        let numbers = Numbers("group");
        let checked = || {
            let optimizer = self.optimizer.as_ref().unwrap_or(job);
            optimizer.validate()?;
            numbers.positive("learning_rate_factor", self.learning_rate_factor)?;
            let rate = optimizer.learning_rate() * self.learning_rate_factor;
            numbers.positive("learning_rate_factor · learning_rate", rate)?;
            self.weight_decay.map_or(Ok(()), |decay| numbers.not_negative("weight_decay", decay))
        };
        checked().map_err(|error| GroupError::Number { pattern: self.variables.clone(), error })
    }
}

/// The variables to which weight decay applies if no group says otherwise. The choice applies to the job's
/// weight decay and to an optimizer's own weight decay, such as AdamW's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecaySpec {
    /// All trained variables.
    #[default]
    All,
    /// Trained variables with two or more axes. Biases, and the scales and offsets of normalisations, have
    /// one axis and are not decayed.
    Matrices,
}

impl DecaySpec {
    /// Returns true if the field has its default value, `All`. A job file then omits the field.
    pub(crate) const fn is_all(&self) -> bool {
        matches!(self, Self::All)
    }
}

/// The rule by which one variable is updated.
#[derive(Clone, Debug, PartialEq)]
pub struct VariableRule {
    /// The optimizer with the settings of the variable: the learning rate and, if the optimizer has a weight
    /// decay of its own, that decay.
    pub optimizer: OptimizerSpec,
    /// The weight decay that is added to the gradient.
    pub weight_decay: f32,
    /// Whether the variable never changes.
    pub frozen: bool,
}

/// An error in the groups of a job, or in another list of patterns.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GroupError {
    /// A list is too long.
    #[error("{what} has {found} entries, expected at most {GROUPS_MAX}: combine patterns with '*'")]
    TooMany {
        /// The name of the list in the job file.
        what: &'static str,
        /// The number of entries.
        found: usize,
    },
    /// A pattern is empty, too long, or has characters that no name contains.
    #[error(
        "pattern '{0}' is not valid, expected 1 to {VARIABLE_NAME_BYTES_MAX} bytes of letters, digits, '_', '.', '-', '/', '*' and '?'"
    )]
    Pattern(String),
    /// A numeric setting of a group is out of range.
    #[error("group '{pattern}': {error}")]
    Number {
        /// The pattern of the group.
        pattern: String,
        /// The fault: the setting's name, value and range.
        error: OptimizerError,
    },
    /// A group applies to no variable.
    #[error(
        "groups: pattern '{pattern}' selects no variable: it matches no name, or earlier groups match the same names; the first variable of the graph is '{first}'"
    )]
    Idle {
        /// The pattern.
        pattern: String,
        /// The name of the first variable of the job.
        first: String,
    },
    /// A pattern in `average_variables` selects no variable that is trained and not frozen.
    #[error(
        "average_variables: pattern '{pattern}' selects no variable that is trained and not frozen; the first variable of the graph is '{first}'"
    )]
    NotAveraged {
        /// The pattern.
        pattern: String,
        /// The name of the first variable of the job.
        first: String,
    },
    /// The job selects variables for moving averages, but averages are disabled.
    #[error(
        "average_variables has the pattern '{pattern}', but average is not set; set it to a decay such as 0.999"
    )]
    NoAverages {
        /// The first pattern in `average_variables`.
        pattern: String,
    },
}

pub(crate) fn check_pattern(pattern: &str) -> Result<(), GroupError> {
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-/*?".contains(&byte);
    let valid = (1..=VARIABLE_NAME_BYTES_MAX).contains(&pattern.len()) && pattern.bytes().all(letter);
    if valid { Ok(()) } else { Err(GroupError::Pattern(excerpt(pattern, 64))) }
}

pub(crate) fn check_length(what: &'static str, found: usize) -> Result<(), GroupError> {
    if found > GROUPS_MAX { Err(GroupError::TooMany { what, found }) } else { Ok(()) }
}

impl UpdateSpec {
    /// Returns the group that applies to a variable: the first whose pattern matches its name.
    pub fn group(&self, variable: &VariableSpec) -> Option<&GroupSpec> {
        self.groups.iter().find(|group| matches(&group.variables, &variable.name))
    }

    /// Returns the rule by which a trained variable is updated. For an untrained variable, only the field
    /// `frozen` of the result has a meaning.
    pub fn rule(&self, variable: &VariableSpec) -> VariableRule {
        let group = self.group(variable);
        let mut optimizer =
            group.and_then(|group| group.optimizer.as_ref()).unwrap_or(&self.optimizer).clone();
        let mut weight_decay = self.weight_decay;
        let exempt = self.weight_decay_on == DecaySpec::Matrices && variable.shape.rank() < 2;
        let decay = group.and_then(|group| group.weight_decay).or_else(|| exempt.then_some(0.0));
        if let Some(decay) = decay {
            weight_decay = match optimizer.weight_decay_mut() {
                Some(own) => {
                    *own = decay;
                    0.0
                }
                None => decay,
            };
        }
        if let Some(group) = group {
            *optimizer.learning_rate_mut() *= group.learning_rate_factor;
        }
        VariableRule { optimizer, weight_decay, frozen: group.is_some_and(|group| group.frozen) }
    }

    /// Returns the rule of a variable to which no group applies, and which `weight_decay_on` does not exempt
    /// from weight decay.
    pub fn usual_rule(&self) -> VariableRule {
        let (optimizer, weight_decay) = (self.optimizer.clone(), self.weight_decay);
        VariableRule { optimizer, weight_decay, frozen: false }
    }

    /// Returns whether the shards keep a moving average of the variable. This requires that averages are
    /// enabled, that the variable is trained and not frozen, and that `average_variables` is empty or
    /// selects the variable.
    pub fn averages(&self, variable: &VariableSpec) -> bool {
        let patterns = &self.average_variables;
        let chosen =
            || patterns.is_empty() || patterns.iter().any(|pattern| matches(pattern, &variable.name));
        self.average.is_some() && variable.trainable && chosen() && !self.freezes(variable)
    }

    /// Returns whether a group freezes the variable.
    pub fn freezes(&self, variable: &VariableSpec) -> bool {
        self.group(variable).is_some_and(|group| group.frozen)
    }

    /// Returns whether the variable must not be split, because its optimizer needs it whole.
    pub fn needs_whole(&self, variable: &VariableSpec) -> bool {
        let group = self.group(variable).and_then(|group| group.optimizer.as_ref());
        group.unwrap_or(&self.optimizer).needs_whole_variables()
    }

    /// Checks the groups of a job with these variables, and the job's patterns in `average_variables`.
    ///
    /// # Errors
    /// Returns the first fault found: too many groups or patterns, an invalid pattern, a number out of
    /// range, a group that applies to no variable, a pattern in `average_variables` that selects no variable
    /// or only untrained and frozen ones, or any pattern in `average_variables` if the job has no averages.
    pub fn validate_groups(&self, variables: &[VariableSpec]) -> Result<(), GroupError> {
        self.validate_averages(variables)?;
        check_length("groups", self.groups.len())?;
        self.groups.iter().try_for_each(|group| group.validate(&self.optimizer))?;
        let mut idle: Vec<&GroupSpec> = self.groups.iter().collect();
        for variable in variables {
            if idle.is_empty() {
                break;
            }
            if let Some(group) = self.group(variable) {
                idle.retain(|other| !std::ptr::eq(*other, group));
            }
        }
        idle.first().map_or(Ok(()), |group| {
            let first = variables.first().map(|variable| variable.name.clone()).unwrap_or_default();
            Err(GroupError::Idle { pattern: group.variables.clone(), first })
        })
    }

    fn validate_averages(&self, variables: &[VariableSpec]) -> Result<(), GroupError> {
        let (what, patterns) = ("average_variables", &self.average_variables);
        check_length(what, patterns.len())?;
        if let (None, Some(pattern)) = (self.average, patterns.first()) {
            return Err(GroupError::NoAverages { pattern: pattern.clone() });
        }
        for pattern in patterns {
            check_pattern(pattern)?;
            let selects = |variable: &VariableSpec| {
                variable.trainable && matches(pattern, &variable.name) && !self.freezes(variable)
            };
            if !variables.iter().any(selects) {
                let first = variables.first().map(|variable| variable.name.clone()).unwrap_or_default();
                return Err(GroupError::NotAveraged { pattern: pattern.clone(), first });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::variable::InitializerSpec;

    fn variable(name: &str, shape: &[usize]) -> VariableSpec {
        let (shape, initializer) = (crate::tensor::Shape(shape.to_vec()), InitializerSpec::Zeros);
        VariableSpec {
            name: name.into(),
            shape,
            dtype: crate::tensor::DType::F32,
            initializer,
            trainable: true,
            device: None,
        }
    }

    fn update(optimizer: OptimizerSpec, groups: Vec<GroupSpec>) -> UpdateSpec {
        UpdateSpec { groups, weight_decay: 0.5, average: Some(0.9), ..optimizer.into() }
    }

    fn any_group() -> impl Strategy<Value = GroupSpec> {
        let decay = prop::option::of(0.0f32..1.0);
        let optimizer = prop::option::of(Just(OptimizerSpec::lion(0.25)));
        ("[ab*]{1,3}", 0.1f32..2.0, decay, any::<bool>(), optimizer).prop_map(
            |(variables, learning_rate_factor, weight_decay, frozen, optimizer)| GroupSpec {
                variables,
                learning_rate_factor,
                weight_decay,
                frozen,
                optimizer,
            },
        )
    }

    proptest! {
        /// Checks that only the first group that matches a variable applies to it (A), and that a variable
        /// that no group matches has the rule of the job, as it has without groups (B).
        #[test]
        fn the_first_match_decides(groups in prop::collection::vec(any_group(), 0..5), name in "[ab]{1,3}") {
            let all = update(OptimizerSpec::adamw(0.1), groups.clone());
            let variable = variable(&name, &[2, 2]);
            let first = groups.into_iter().find(|group| matches(&group.variables, &name));
            let rule = all.rule(&variable);
            prop_assert_eq!(all.averages(&variable), !rule.frozen);
            prop_assert_eq!(all.freezes(&variable), rule.frozen);
            prop_assert_eq!(all.needs_whole(&variable), rule.optimizer.needs_whole_variables());
            match first {
                None => prop_assert_eq!(rule, all.usual_rule()),
                Some(group) => {
                    let optimizer = group.optimizer.clone().unwrap_or(OptimizerSpec::adamw(0.1));
                    let expected = optimizer.learning_rate() * group.learning_rate_factor;
                    prop_assert_eq!(rule.optimizer.learning_rate(), expected);
                    prop_assert_eq!(rule.frozen, group.frozen);
                    prop_assert_eq!(rule.clone(), update(OptimizerSpec::adamw(0.1), vec![group]).rule(&variable));
                }
            }
        }

        #[test]
        fn groups_round_trip(groups in prop::collection::vec(any_group(), 0..5)) {
            let update = update(OptimizerSpec::sgd(0.1), groups);
            let json = serde_json::to_string(&update).unwrap();
            prop_assert_eq!(serde_json::from_str::<UpdateSpec>(&json).unwrap(), update);
        }
    }

    #[test]
    fn a_decay_of_a_group_replaces_all_others() {
        let decays = |optimizer: OptimizerSpec, on, group: Option<f32>, shape: &[usize]| {
            let group = GroupSpec { weight_decay: group, ..GroupSpec::new("v") };
            let update = UpdateSpec { weight_decay_on: on, ..update(optimizer, vec![group]) };
            let mut rule = update.rule(&variable("v", shape));
            (rule.optimizer.weight_decay_mut().copied(), rule.weight_decay)
        };
        let (sgd, adamw) = (|| OptimizerSpec::sgd(0.1), || OptimizerSpec::adamw(0.1));
        let (all, matrices) = (DecaySpec::All, DecaySpec::Matrices);
        assert_eq!(decays(sgd(), all, None, &[3]), (None, 0.5));
        assert_eq!(decays(sgd(), all, Some(0.25), &[3]), (None, 0.25));
        assert_eq!(decays(sgd(), matrices, None, &[3]), (None, 0.0));
        assert_eq!(decays(sgd(), matrices, None, &[3, 1]), (None, 0.5));
        assert_eq!(decays(adamw(), all, None, &[3]), (Some(0.01), 0.5));
        assert_eq!(decays(adamw(), all, Some(0.25), &[3, 2]), (Some(0.25), 0.0));
        assert_eq!(decays(adamw(), matrices, None, &[3]), (Some(0.0), 0.0));
        assert_eq!(decays(adamw(), matrices, Some(0.25), &[]), (Some(0.25), 0.0));
    }

    #[test]
    fn a_group_says_only_what_differs() {
        let group = GroupSpec::new("*/bias").weight_decay(0.0);
        assert_eq!(serde_json::to_string(&group).unwrap(), r#"{"variables":"*/bias","weight_decay":0.0}"#);
        let plain: UpdateSpec = OptimizerSpec::sgd(0.5).into();
        let json = serde_json::to_string(&plain).unwrap();
        assert!(json.ends_with(r#""weight_decay":0.0,"average":null}"#), "{json}");
    }

    #[test]
    fn averages_are_kept_of_chosen_variables() {
        let untrained = VariableSpec { trainable: false, ..variable("dense/mean", &[2]) };
        let variables = [variable("dense/kernel", &[2, 2]), variable("dense/bias", &[2]), untrained];
        let of = |patterns: &[&str], groups: Vec<GroupSpec>| UpdateSpec {
            average_variables: patterns.iter().map(|&pattern| pattern.into()).collect(),
            ..update(OptimizerSpec::sgd(0.1), groups)
        };
        let kept = |update: &UpdateSpec| {
            update.validate_groups(&variables).unwrap();
            [0, 1, 2].map(|variable| update.averages(&variables[variable]))
        };
        assert_eq!(kept(&of(&[], vec![])), [true, true, false]);
        assert_eq!(kept(&of(&["*/bias"], vec![])), [false, true, false]);
        assert_eq!(kept(&of(&["*/bias", "*kernel"], vec![])), [true, true, false]);
        assert_eq!(kept(&of(&["dense/*"], vec![GroupSpec::new("*/bias").frozen()])), [true, false, false]);
        let refused = |update: UpdateSpec| update.validate_groups(&variables).unwrap_err().to_string();
        for update in [
            of(&["conv*"], vec![]),
            of(&["dense/mean"], vec![]),
            of(&["*/bias"], vec![GroupSpec::new("*/bias").frozen()]),
        ] {
            assert!(refused(update).contains("selects no variable that is trained and not frozen"));
        }
        assert!(refused(of(&["a b"], vec![])).contains("pattern 'a b' is not valid"));
        assert!(refused(of(&["*"; GROUPS_MAX + 1], vec![])).contains("average_variables has 65 entries"));
        let none = UpdateSpec { average: None, ..of(&["*"], vec![]) };
        assert!(refused(none).contains("average_variables has the pattern '*', but average is not set"));
    }

    #[test]
    fn what_a_group_cannot_be_is_named() {
        let variables = [variable("dense/kernel", &[2, 2]), variable("dense/bias", &[2])];
        let refused = |groups: Vec<GroupSpec>| {
            update(OptimizerSpec::sgd(0.1), groups).validate_groups(&variables).unwrap_err().to_string()
        };
        update(OptimizerSpec::sgd(0.1), vec![GroupSpec::new("*/bias"), GroupSpec::new("dense/*")])
            .validate_groups(&variables)
            .unwrap();
        let reason = refused(vec![GroupSpec::new("conv*")]);
        assert!(
            reason.contains("'conv*' selects no variable") && reason.ends_with("is 'dense/kernel'"),
            "{reason}"
        );
        let reason = refused(vec![GroupSpec::new("dense/*"), GroupSpec::new("*/bias")]);
        assert!(reason.contains("'*/bias' selects no variable"), "{reason}");
        for pattern in ["", "a b", "ä", &"a".repeat(VARIABLE_NAME_BYTES_MAX + 1)] {
            assert!(refused(vec![GroupSpec::new(pattern)]).contains("is not valid, expected 1 to 256 bytes"));
        }
        for pattern in ["a\x1b[31mb", "a\nb"] {
            assert!(!refused(vec![GroupSpec::new(pattern)]).contains(char::is_control), "{pattern:?}");
        }
        let reason = refused(vec![GroupSpec::new("*"); GROUPS_MAX + 1]);
        assert!(reason.contains("groups has 65 entries, expected at most 64"), "{reason}");
        let star = || GroupSpec::new("*");
        for (group, words) in [
            (star().learning_rate_factor(0.0), "group '*': group: learning_rate_factor must be finite"),
            (star().learning_rate_factor(1e-45), "learning_rate_factor · learning_rate must be finite"),
            (star().weight_decay(-1.0), "group '*': group: weight_decay must be finite and at least 0"),
            (star().optimizer(OptimizerSpec::adam(-1.0)), "group '*': adam: learning_rate must be finite"),
        ] {
            let reason = refused(vec![group]);
            assert!(reason.contains(words), "{reason}");
        }
    }
}
