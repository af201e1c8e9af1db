//! The variables that are sent in an encoding.
//!
//! Wanted properties: (A) only the first pattern that matches a variable decides; (B) a variable that is not
//! trained, or that a group freezes, is sent exactly; (C) a pattern that selects no variable is refused.

use serde::{Deserialize, Serialize};

use super::EncodingSpec;
use crate::optimizer::{GroupError, UpdateSpec, check_length, check_pattern};
use crate::pattern::matches;
use crate::variable::VariableSpec;

/// The encodings of the variables whose names match a pattern. Only the first entry that matches a variable
/// decides about it.
///
/// Variables that are not trained are always sent exactly. They are small, and a rough moving variance could
/// be negative.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompressionSpec {
    /// The pattern for the names of the variables. `*` matches any number of characters, including slashes,
    /// and `?` matches one character.
    pub variables: String,
    /// The encoding of the gradients that workers push; `None` if they are sent exactly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gradients: Option<EncodingSpec>,
    /// The encoding of the values in the replies to pushes; `None` if they are sent exactly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub values: Option<EncodingSpec>,
}

/// How one variable is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SentAs {
    /// The encoding of the gradients; `None` if they are sent exactly.
    pub gradients: Option<EncodingSpec>,
    /// The encoding of the values in the replies to pushes; `None` if they are sent exactly.
    pub values: Option<EncodingSpec>,
}

/// An error in the compression of a job.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CompressionError {
    /// There are too many entries, or the pattern of one is invalid.
    #[error("compression: {0}")]
    Patterns(#[from] GroupError),
    /// The values of variables have an encoding that is for gradients only.
    #[error(
        "compression: pattern '{pattern}' has the values as {encoding}, which is for gradients only; expected fp16, bf16 or int8"
    )]
    Values {
        /// The pattern.
        pattern: String,
        /// The encoding.
        encoding: EncodingSpec,
    },
    /// A fraction is out of range.
    #[error(
        "compression: pattern '{pattern}' has {encoding}, expected a fraction greater than 0 and less than 0.5"
    )]
    Fraction {
        /// The pattern.
        pattern: String,
        /// The encoding.
        encoding: EncodingSpec,
    },
    /// An entry decides about no variable.
    #[error(
        "compression: pattern '{pattern}' selects no variable that is trained and not frozen: it matches no such name, or earlier patterns match the same names; the first variable of the graph is '{first}'"
    )]
    Idle {
        /// The pattern.
        pattern: String,
        /// The name of the first variable of the job.
        first: String,
    },
}

impl CompressionSpec {
    /// Returns an entry for the variables that match a pattern. Until it gets encodings, these variables are
    /// sent exactly, whatever later entries say.
    pub fn new(variables: impl Into<String>) -> Self {
        Self { variables: variables.into(), gradients: None, values: None }
    }

    /// Sets the encoding of the gradients.
    #[must_use]
    pub fn gradients(self, encoding: EncodingSpec) -> Self {
        Self { gradients: Some(encoding), ..self }
    }

    /// Sets the encoding of the values in the replies to pushes.
    #[must_use]
    pub fn values(self, encoding: EncodingSpec) -> Self {
        Self { values: Some(encoding), ..self }
    }

    /// Returns the entry of the list that decides about a variable of a job with the settings `update`.
    fn find<'a>(list: &'a [Self], update: &UpdateSpec, variable: &VariableSpec) -> Option<&'a Self> {
        let trained = variable.trainable && !update.freezes(variable);
        list.iter().find(|entry| trained && matches(&entry.variables, &variable.name))
    }

    /// Returns how a variable is sent in a job with the compression `list` and the settings `update`.
    pub fn sent_as(list: &[Self], update: &UpdateSpec, variable: &VariableSpec) -> SentAs {
        let found = Self::find(list, update, variable);
        found.map_or_else(SentAs::default, |&Self { gradients, values, .. }| SentAs { gradients, values })
    }

    /// Checks the compression `list` of a job with these settings and variables.
    ///
    /// # Errors
    /// Returns the first fault found: too many entries, an invalid pattern, an encoding that values cannot
    /// have, a fraction out of range, or an entry that decides about no variable.
    pub fn validate(
        list: &[Self],
        update: &UpdateSpec,
        variables: &[VariableSpec],
    ) -> Result<(), CompressionError> {
        check_length("the list", list.len())?;
        for Self { variables: pattern, gradients, values } in list {
            check_pattern(pattern)?;
            let pattern = || pattern.clone();
            if let Some(encoding) = values.filter(|values| !values.is_dense()) {
                return Err(CompressionError::Values { pattern: pattern(), encoding });
            }
            if let Some(encoding) = gradients.filter(|gradients| !gradients.is_valid()) {
                return Err(CompressionError::Fraction { pattern: pattern(), encoding });
            }
        }
        let mut idle: Vec<&Self> = list.iter().collect();
        for variable in variables {
            if idle.is_empty() {
                break;
            }
            if let Some(found) = Self::find(list, update, variable) {
                idle.retain(|other| !std::ptr::eq(*other, found));
            }
        }
        idle.first().map_or(Ok(()), |entry| {
            let first = variables.first().map(|variable| variable.name.clone()).unwrap_or_default();
            Err(CompressionError::Idle { pattern: entry.variables.clone(), first })
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::optimizer::{GroupSpec, OptimizerSpec};
    use crate::variable::InitializerSpec;

    const TOP: EncodingSpec = EncodingSpec::TopK { fraction: 0.1 };

    fn variable(name: &str, trainable: bool) -> VariableSpec {
        let (shape, initializer) = ([2, 2].into(), InitializerSpec::Zeros);
        VariableSpec {
            name: name.into(),
            shape,
            dtype: crate::tensor::DType::F32,
            initializer,
            trainable,
            device: None,
        }
    }

    fn update() -> UpdateSpec {
        UpdateSpec { groups: vec![GroupSpec::new("f*").frozen()], ..OptimizerSpec::sgd(0.1).into() }
    }

    proptest! {
        /// Checks which entry decides about a variable (A), and that some variables are exact (B).
        #[test]
        fn the_first_match_decides(
            list in prop::collection::vec(("[fab*]{1,3}", any::<bool>(), any::<bool>()), 0..5),
            name in "[fab]{1,3}",
            trainable in any::<bool>(),
        ) {
            let entry = |(pattern, pushes, pulls): (String, bool, bool)| CompressionSpec {
                variables: pattern,
                gradients: pushes.then_some(TOP),
                values: pulls.then_some(EncodingSpec::Int8),
            };
            let list: Vec<_> = list.into_iter().map(entry).collect();
            let sent = CompressionSpec::sent_as(&list, &update(), &variable(&name, trainable));
            let first = list.iter().find(|entry| matches(&entry.variables, &name));
            match first.filter(|_| trainable && !name.starts_with('f')) {
                None => prop_assert_eq!(sent, SentAs::default()),
                Some(first) => prop_assert_eq!((sent.gradients, sent.values), (first.gradients, first.values)),
            }
        }
    }

    #[test]
    fn a_bad_entry_is_refused_by_name() {
        let variables = [variable("a", true), variable("moving", false), variable("f", true)];
        let check = |list: &[CompressionSpec]| {
            let checked = CompressionSpec::validate(list, &update(), &variables);
            checked.map_err(|error| error.to_string())
        };
        let new = CompressionSpec::new;
        check(&[]).unwrap();
        check(&[new("a")]).unwrap();
        check(&[new("*").gradients(TOP).values(EncodingSpec::Bf16)]).unwrap();
        for (list, words) in [
            (vec![new("x")], "compression: pattern 'x' selects no variable that is trained"),
            (vec![new("*"), new("a")], "pattern 'a' selects no variable"),
            (vec![new("moving")], "pattern 'moving' selects no variable"),
            (vec![new("f")], "the first variable of the graph is 'a'"),
            (vec![new("")], "compression: pattern '' is not valid"),
            (
                vec![new("*").values(TOP)],
                "pattern '*' has the values as top-k:0.1, which is for gradients only",
            ),
            (
                vec![new("*").gradients(EncodingSpec::TopK { fraction: f64::NAN })],
                "pattern '*' has top-k:NaN",
            ),
            (vec![new("*"); 65], "compression: the list has 65 entries, expected at most 64"),
        ] {
            let error = check(&list).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
