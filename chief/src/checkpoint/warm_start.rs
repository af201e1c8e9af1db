//! Selects the variables of a new job that take their values from another job's checkpoint, and finds the
//! source of each. Accesses no store. Wanted properties of a pattern: (A) a pattern without `*` matches only
//! the text that equals the pattern; (B) if parts of a text are replaced with `*`, the result is a pattern
//! that matches the original text.

use std::collections::BTreeMap;

use pushpull_messages::checkpoint::SourceSpec;
use pushpull_messages::id::{GlobalStep, VariableId};
use pushpull_messages::job::JobSpec;
use pushpull_messages::out_of_range::OutOfRange;
use pushpull_storage::ManifestSpec;
use tracing::info;

use super::error::RestoreError;

/// The settings of a warm start. If a job has no checkpoint of its own, it takes initial values from the
/// checkpoint described here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WarmStartConfig {
    /// The location of the store that has the checkpoint.
    pub location: String,
    /// The step of the checkpoint. If `None`, the newest valid checkpoint is taken.
    pub checkpoint: Option<GlobalStep>,
    /// A pattern for the names of the job's variables, such as `conv*/kernel`; `*` stands for any number of
    /// characters. If `None`, every variable that has the same name and shape in the checkpoint is selected.
    pub variables: Option<String>,
    /// The variables that have another name in the checkpoint. Each pair is the name in the job and the name
    /// in the checkpoint.
    pub rename: Vec<(String, String)>,
}

impl WarmStartConfig {
    /// Checks the settings as far as possible without the job.
    ///
    /// # Errors
    /// Returns an error that names the first setting that is out of range.
    pub fn validate(&self) -> Result<(), OutOfRange> {
        let wrong = |key, expected: &str, got: &str| Err(OutOfRange::new(key, expected, got));
        if self.location.is_empty() {
            return wrong("warm_start.location", "a directory or a bucket", "empty");
        }
        if self.variables.as_deref() == Some("") {
            return wrong("warm_start.variables", "a pattern such as 'conv*/kernel'", "empty");
        }
        let mut names: Vec<_> = self.rename.iter().map(|(name, _)| name).collect();
        names.sort_unstable();
        match names.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(twice) => {
                wrong("warm_start.rename", "one source for each variable", &format!("two for '{}'", twice[0]))
            }
            None => Ok(()),
        }
    }

    /// Returns the source of each variable that takes its value from the checkpoint, in the job's order of
    /// variables.
    pub(crate) fn sources(
        &self,
        job: &JobSpec,
        manifest: &ManifestSpec,
    ) -> Result<Vec<SourceSpec>, RestoreError> {
        let mut renamed: BTreeMap<&str, &str> =
            self.rename.iter().map(|(name, source)| (name.as_str(), source.as_str())).collect();
        let mut sources = Vec::new();
        for (variable, id) in job.graph.variables.iter().zip(0u32..) {
            let other = renamed.remove(variable.name.as_str());
            let named = self.variables.as_deref().is_some_and(|pattern| matches(pattern, &variable.name));
            if self.variables.is_some() && !named && other.is_none() {
                continue;
            }
            let source = other.unwrap_or(&variable.name);
            let found = manifest.variable(source).map(|id| &manifest.job.graph.variables[id.index()]);
            match found {
                Some(found) if found.shape == variable.shape => {
                    sources.push(SourceSpec { variable: VariableId(id), source: source.to_owned() });
                }
                // The settings do not name this variable, so it keeps its initial value.
                _ if !named && other.is_none() => {
                    let variable = &variable.name;
                    info!(
                        variable,
                        "warm start: checkpoint has no variable of this name and shape; using initial values"
                    );
                }
                found => {
                    return Err(RestoreError::NoSource {
                        variable: variable.name.clone(),
                        shape: variable.shape.clone(),
                        source_name: source.to_owned(),
                        found: found.map(|found| found.shape.clone()),
                    });
                }
            }
        }
        if let Some(unknown) = renamed.keys().next() {
            return Err(RestoreError::UnknownVariable((*unknown).to_owned()));
        }
        if sources.is_empty() {
            return Err(RestoreError::NothingToTake { pattern: self.variables.clone() });
        }
        Ok(sources)
    }
}

/// Returns whether the text matches the pattern. In a pattern, `*` stands for any number of characters.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().expect("there is one part at least");
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        // The first occurrence leaves the most text for the parts that follow.
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use pushpull_messages::graph::GraphBuilder;
    use pushpull_messages::input::{DatasetSpec, InputSpec};
    use pushpull_messages::variable::InitializerSpec;

    use super::*;
    use crate::checkpoint::tests::manifest_of;

    proptest! {
        #[test]
        fn a_pattern_matches_what_it_was_made_of(text in "[ab/]{0,12}", holes in prop::collection::vec((0usize..13, 0usize..4), 0..4)) {
            prop_assert!(matches(&text, &text), "(A)");
            let mut pattern = text.clone();
            for (at, length) in holes {
                let at = at.min(pattern.len());
                let end = (at + length).min(pattern.len());
                pattern.replace_range(at..end, "*");
            }
            prop_assert!(matches(&pattern, &text), "(B) {pattern} and {text}");
        }

        #[test]
        fn a_pattern_without_stars_is_one_text(pattern in "[ab]{0,4}", text in "[ab]{0,4}") {
            prop_assert_eq!(matches(&pattern, &text), pattern == text, "(A)");
        }

        /// Checks that `matches` returns the same result as a plain recursive implementation.
        #[test]
        fn matching_follows_the_definition(pattern in "[ab*]{0,6}", text in "[ab]{0,7}") {
            fn defined(pattern: &[u8], text: &[u8]) -> bool {
                match (pattern.split_first(), text.split_first()) {
                    (None, None) => true,
                    (Some((b'*', after)), Some((_, rest))) => defined(after, text) || defined(pattern, rest),
                    (Some((b'*', after)), None) => defined(after, text),
                    (Some((letter, after)), Some((first, rest))) => letter == first && defined(after, rest),
                    _ => false,
                }
            }
            prop_assert_eq!(matches(&pattern, &text), defined(pattern.as_bytes(), text.as_bytes()));
        }
    }

    /// Returns a job whose variables have these names and numbers of rows.
    fn job(variables: &[(&str, usize)]) -> JobSpec {
        let mut g = GraphBuilder::new("plane");
        let mut sum = None;
        for (name, rows) in variables {
            let kernel = g.variable(name, [*rows, 2], InitializerSpec::Zeros);
            let part = g.l2_loss(kernel);
            sum = Some(match sum {
                None => part,
                Some(sum) => g.add(sum, part),
            });
        }
        let digits = |seed| DatasetSpec::Digits { seed, examples: 10 };
        let graph = g.finish(sum.unwrap(), &[]).unwrap();
        JobSpec { batch_size: 1, ..JobSpec::new(graph, InputSpec::new(digits(1), digits(2)), 10) }
    }

    fn taken(config: WarmStartConfig) -> Result<String, String> {
        let manifest = manifest_of(
            job(&[("conv1/kernel", 3), ("conv2/kernel", 4), ("old/kernel", 5), ("conv1/bias", 1)]),
            40,
        );
        let new = job(&[("conv1/kernel", 3), ("conv2/kernel", 9), ("head/kernel", 5), ("conv1/bias", 1)]);
        let sources = config.sources(&new, &manifest).map_err(|error| error.to_string())?;
        let shown = |source: &SourceSpec| format!("{}:{}", source.variable, source.source);
        Ok(sources.iter().map(shown).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn requested_variables_are_found_or_named() {
        let with = |pattern: Option<&str>, rename: &[(&str, &str)]| WarmStartConfig {
            location: "there".into(),
            variables: pattern.map(Into::into),
            rename: rename.iter().map(|&(name, source)| (name.into(), source.into())).collect(),
            ..Default::default()
        };
        assert_eq!(taken(with(None, &[])).unwrap(), "0:conv1/kernel 3:conv1/bias");
        assert_eq!(
            taken(with(Some("*/bias"), &[("head/kernel", "old/kernel")])).unwrap(),
            "2:old/kernel 3:conv1/bias"
        );
        let error = taken(with(Some("conv*/kernel"), &[])).unwrap_err();
        assert_eq!(
            error,
            "warm start: 'conv2/kernel' has shape [9, 2], but 'conv2/kernel' in the checkpoint has shape [4, 2]"
        );
        let error = taken(with(None, &[("head/kernel", "lost")])).unwrap_err();
        assert!(
            error.contains("'head/kernel' should take the value of 'lost', but the checkpoint has no such"),
            "{error}"
        );
        assert!(
            taken(with(None, &[("tail", "old/kernel")]))
                .unwrap_err()
                .contains("the job has no variable 'tail'")
        );
        assert!(taken(with(Some("none*"), &[])).unwrap_err().contains("'none*' matches no variable"));
        let twice = with(None, &[("a", "b"), ("a", "c")]).validate().unwrap_err().to_string();
        assert_eq!(twice, "warm_start.rename must be one source for each variable, but is two for 'a'");
    }
}
