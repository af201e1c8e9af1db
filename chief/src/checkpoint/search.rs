//! Searches for the checkpoint that a job begins with, from the newest to the oldest. Accesses no store.
//! Wanted properties: (A) `latest-valid` takes the newest valid checkpoint, and reports broken newer ones;
//! (B) if there is a checkpoint, valid or broken, only `none` lets a job begin with initial values; (C)
//! `latest` and a step number never take another checkpoint than the requested one; (D) of two checkpoints
//! with one name, the one in memory is examined first.

use pushpull_messages::checkpoint::{CheckpointName, Level};
use pushpull_messages::id::GlobalStep;
use pushpull_messages::job::JobSpec;
use pushpull_storage::ManifestSpec;

use super::config::RestoreChoice;
use super::error::{BrokenCheckpoint, RestoreError};

/// The largest number of steps that an error lists.
const NAMED_MAX: usize = 20;

/// A search for the checkpoint that a job begins with.
#[derive(Debug)]
pub(super) struct CheckpointSearch {
    restore: RestoreChoice,
    location: String,
    /// The checkpoints that have not been examined yet, the newest last.
    left: Vec<(CheckpointName, Level)>,
    broken: Vec<BrokenCheckpoint>,
    /// If a step was requested: the steps of all other checkpoints, for the error message.
    others: Vec<GlobalStep>,
}

impl CheckpointSearch {
    /// Begins a search among the checkpoints with these names; some of them may be unfinished.
    pub(super) fn new(
        restore: RestoreChoice,
        mut names: Vec<(CheckpointName, Level)>,
        location: &str,
    ) -> Self {
        names.sort_unstable_by_key(|&(name, level)| (name.life, name.step, level));
        let mut others = Vec::new();
        match restore {
            RestoreChoice::None => names.clear(),
            RestoreChoice::Step(step) => names.retain(|(name, _)| {
                let wanted = name.step == step;
                others.extend((!wanted).then_some(name.step));
                wanted
            }),
            RestoreChoice::LatestValid | RestoreChoice::Latest => {}
        }
        others.reverse();
        Self { restore, location: location.to_owned(), left: names, broken: Vec::new(), others }
    }

    /// Returns the next checkpoint to examine. The caller skips an unfinished one.
    pub(super) fn next(&mut self) -> Option<(CheckpointName, Level)> {
        self.left.pop()
    }

    /// Records that a checkpoint is broken.
    pub(super) fn reject(&mut self, name: CheckpointName, reason: String) {
        self.broken.push(BrokenCheckpoint { name, reason });
    }

    /// Accepts a valid checkpoint as the one to begin with.
    ///
    /// # Errors
    /// Returns an error if the job requested a newer checkpoint than `name`, and the newer checkpoint is
    /// broken.
    pub(super) fn accept(&self, name: CheckpointName) -> Result<(), RestoreError> {
        match self.broken.first() {
            Some(broken) if self.restore != RestoreChoice::LatestValid => {
                Err(RestoreError::Broken { broken: broken.clone(), earlier: Some(name) })
            }
            _ => Ok(()),
        }
    }

    /// Ends a search that found no valid checkpoint. Returns `Ok` if the job may begin with initial values.
    ///
    /// # Errors
    /// Returns an error if the job must not begin with initial values.
    pub(super) fn finish(self) -> Result<(), RestoreError> {
        let Self { restore, location, mut broken, mut others, .. } = self;
        match (restore, broken.is_empty()) {
            (RestoreChoice::Step(step), true) => {
                others.truncate(NAMED_MAX);
                Err(RestoreError::NoSuchStep { step, location, there: others })
            }
            (_, true) => Ok(()),
            (RestoreChoice::LatestValid, false) => Err(RestoreError::NoneWhole { location, broken }),
            (_, false) => Err(RestoreError::Broken { broken: broken.swap_remove(0), earlier: None }),
        }
    }

    /// Returns a warning if the job begins with `name` because newer checkpoints are broken.
    pub(super) fn warning(&self, name: CheckpointName) -> Option<String> {
        let broken: Vec<_> = self.broken.iter().map(ToString::to_string).collect();
        let whose = if broken.len() == 1 { "a newer checkpoint is" } else { "newer checkpoints are" };
        (!broken.is_empty()).then(|| format!("{whose} broken ({}); using {name}", broken.join("; ")))
    }
}

/// Checks that a job can continue from a checkpoint: both must have the same variables, and the checkpoint
/// must not be beyond the job's last step.
///
/// # Errors
/// Returns an error that names the first difference, or says that the checkpoint is beyond the last step.
pub(super) fn fits(name: CheckpointName, manifest: &ManifestSpec, job: &JobSpec) -> Result<(), RestoreError> {
    let misfit = |difference| Err(RestoreError::Misfit { name, difference });
    let (own, saved) = (&job.graph.variables, &manifest.job.graph.variables);
    for variable in own {
        let name = &variable.name;
        let Some(there) = saved.iter().find(|there| there.name == *name) else {
            return misfit(format!("the job has a variable '{name}', but the checkpoint does not"));
        };
        if there.shape != variable.shape {
            return misfit(format!(
                "'{name}' has shape {} in the checkpoint, but {} in the job",
                there.shape, variable.shape
            ));
        }
        if there.trainable != variable.trainable {
            let trained = if there.trainable { "trained" } else { "not trained" };
            return misfit(format!(
                "'{name}' was {trained} in the checkpoint's job, but this job has the opposite setting"
            ));
        }
    }
    if let Some(more) = saved.iter().find(|there| own.iter().all(|variable| variable.name != there.name)) {
        return misfit(format!("the checkpoint has a variable '{}', but the job does not", more.name));
    }
    if manifest.step > job.last_step {
        return Err(RestoreError::Beyond { name, last_step: job.last_step });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use pushpull_messages::id::Incarnation;
    use pushpull_messages::tensor::Shape;

    use super::*;
    use crate::checkpoint::tests::{manifest_of, named};
    use crate::job::tests::job;

    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Kind {
        Valid,
        Broken,
        Unfinished,
    }

    type Store = Vec<(CheckpointName, Kind)>;

    /// Draws a store: checkpoints of up to three incarnations, each valid, broken or unfinished.
    fn there() -> impl Strategy<Value = Store> {
        let made = prop_oneof![Just(Kind::Valid), Just(Kind::Broken), Just(Kind::Unfinished)];
        prop::collection::btree_map((1u64..4, 0u64..6), made, 0..8)
            .prop_map(|made| made.into_iter().map(|((life, step), made)| (named(step, life), made)).collect())
    }

    fn search(
        restore: RestoreChoice,
        there: &Store,
    ) -> Result<(Option<CheckpointName>, Option<String>), RestoreError> {
        let names = there.iter().map(|&(name, _)| (name, Level::Directory)).collect();
        let mut search = CheckpointSearch::new(restore, names, "here");
        while let Some((name, _)) = search.next() {
            match there.iter().find(|(other, _)| *other == name).unwrap().1 {
                Kind::Valid => return search.accept(name).map(|()| (Some(name), search.warning(name))),
                Kind::Broken => search.reject(name, "cut".into()),
                Kind::Unfinished => {}
            }
        }
        search.finish().map(|()| (None, None))
    }

    fn newest(
        there: &Store,
        wanted: impl Fn(CheckpointName, Kind) -> bool,
    ) -> Option<(CheckpointName, Kind)> {
        let fitting = there.iter().copied().filter(|&(name, made)| wanted(name, made));
        fitting.max_by_key(|(name, _)| (name.life, name.step))
    }

    proptest! {
        #[test]
        fn the_newest_valid_one_is_taken(there in there()) {
            let whole = newest(&there, |_, made| made == Kind::Valid);
            let committed = newest(&there, |_, made| made != Kind::Unfinished);
            match (search(RestoreChoice::LatestValid, &there), whole, committed) {
                (Ok((taken, warning)), whole, committed) => {
                    prop_assert_eq!(taken, whole.map(|(name, _)| name), "(A)");
                    prop_assert!(taken.is_some() || committed.is_none(), "(B)");
                    prop_assert_eq!(warning.is_some(), committed != whole, "(A)");
                }
                (Err(error), None, Some((name, _))) => prop_assert!(error.to_string().contains(&name.to_string()), "(B)"),
                other => prop_assert!(false, "{other:?}"),
            }
        }

        #[test]
        fn the_requested_one_is_taken_or_none(there in there(), step in prop::option::of(0u64..6)) {
            let restore = step.map_or(RestoreChoice::Latest, |step| RestoreChoice::Step(GlobalStep(step)));
            let among = |name: CheckpointName| step.is_none_or(|step| name.step == GlobalStep(step));
            let committed = newest(&there, |name, made| made != Kind::Unfinished && among(name));
            match (search(restore, &there), committed) {
                (Ok((taken, warning)), committed) => {
                    prop_assert_eq!(taken, committed.map(|(name, _)| name), "(C)");
                    prop_assert!(committed.is_none_or(|(_, made)| made == Kind::Valid) && warning.is_none(), "(C)");
                    prop_assert!(taken.is_some() || step.is_none(), "(B) and (C)");
                }
                (Err(RestoreError::Broken { broken, earlier }), Some((name, Kind::Broken))) => {
                    prop_assert_eq!(broken.name, name);
                    let whole = newest(&there, |name, made| made == Kind::Valid && among(name));
                    prop_assert_eq!(earlier, whole.map(|(name, _)| name));
                }
                (Err(RestoreError::NoSuchStep { .. }), None) => prop_assert!(step.is_some()),
                other => prop_assert!(false, "{other:?}"),
            }
        }

        /// Checks that all checkpoints of both levels are examined, the newest first, and those in memory
        /// before the others of their names (D).
        #[test]
        fn both_levels_are_searched_from_the_newest(
            names in prop::collection::btree_set((1u64..4, 0u64..6, any::<bool>()), 0..12),
        ) {
            let level = |memory| if memory { Level::Memory } else { Level::Directory };
            let all: Vec<_> = names.iter().map(|&(life, step, memory)| (named(step, life), level(memory))).collect();
            let mut search = CheckpointSearch::new(RestoreChoice::LatestValid, all.clone(), "here");
            let examined: Vec<_> = std::iter::from_fn(|| search.next()).collect();
            prop_assert_eq!(examined, all.into_iter().rev().collect::<Vec<_>>());
        }

        #[test]
        fn none_takes_none(there in there()) {
            prop_assert_eq!(search(RestoreChoice::None, &there).unwrap(), (None, None));
        }
    }

    #[test]
    fn broken_checkpoints_are_named() {
        let there = vec![
            (named(10, 1), Kind::Valid),
            (named(20, 1), Kind::Broken),
            (named(15, 2), Kind::Broken),
            (named(30, 2), Kind::Unfinished),
        ];
        let (_, warning) = search(RestoreChoice::LatestValid, &there).unwrap();
        let expected = format!(
            "newer checkpoints are broken ({}: cut; {}: cut); using {}",
            named(15, 2),
            named(20, 1),
            named(10, 1)
        );
        assert_eq!(warning.unwrap(), expected);
        let error = search(RestoreChoice::Latest, &there).unwrap_err().to_string();
        let expected = format!(
            "{}: cut; the newest valid checkpoint is {}: request step 10 or latest-valid",
            named(15, 2),
            named(10, 1)
        );
        assert_eq!(error, expected);
        let error = search(RestoreChoice::LatestValid, &there[1..3].to_vec()).unwrap_err().to_string();
        assert!(error.starts_with("no checkpoint in here is valid: "), "{error}");
        assert!(error.ends_with("; use --restore none to train from the start"), "{error}");
        let error = search(RestoreChoice::Step(GlobalStep(11)), &there).unwrap_err().to_string();
        assert_eq!(error, "no checkpoint of step 11 in here, which has checkpoints of steps 30, 15, 20, 10");
    }

    #[test]
    fn only_the_variables_have_to_be_the_same() {
        let name = CheckpointName { step: GlobalStep(4), life: Incarnation(1) };
        let checked = |change: fn(&mut JobSpec)| {
            let mut job = job();
            change(&mut job);
            fits(name, &manifest_of(crate::job::tests::job(), 4), &job).map_err(|error| error.to_string())
        };
        assert_eq!(checked(|job| job.batch_size = 9), Ok(()));
        assert_eq!(checked(|job| job.last_step = GlobalStep(4)), Ok(()));
        let error = checked(|job| job.graph.variables[0].shape = Shape::from([3, 5])).unwrap_err();
        assert!(
            error.contains("'kernel' has shape [3, 2] in the checkpoint, but [3, 5] in the job"),
            "{error}"
        );
        assert!(error.contains("--warm-start"));
        let error = checked(|job| job.graph.variables[0].name = "other".into()).unwrap_err();
        assert!(error.contains("the job has a variable 'other', but the checkpoint does not"), "{error}");
        assert!(
            checked(|job| job.graph.variables.clear())
                .unwrap_err()
                .contains("has a variable 'kernel', but the job does not")
        );
        assert!(
            checked(|job| job.graph.variables[0].trainable = false)
                .unwrap_err()
                .contains("'kernel' was trained in")
        );
        assert!(
            checked(|job| job.last_step = GlobalStep(3))
                .unwrap_err()
                .contains("beyond the job's last step, which is 3")
        );
    }
}
