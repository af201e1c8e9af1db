//! Which checkpoint a job begins with, as one after the other is looked at, the newest first. Knows no store. Wanted
//! properties: (A) `latest-valid` takes the newest that is whole, and says which newer ones are not; (B) no job begins
//! anew where there is a checkpoint, whole or not, unless it is told to; (C) `latest` and a step take that one or none.

use pushpull_messages::checkpoint::CheckpointName;
use pushpull_messages::id::GlobalStep;
use pushpull_messages::job::JobSpec;
use pushpull_storage::ManifestSpec;

use super::config::RestoreChoice;
use super::error::{BrokenCheckpoint, RestoreError};
use pushpull_storage::newest_first;

/// Most steps that an error names.
const NAMED_MAX: usize = 20;

/// A search for the checkpoint to begin with.
#[derive(Debug)]
pub(super) struct CheckpointSearch {
    restore: RestoreChoice,
    location: String,
    /// Those that have not been looked at, the newest last.
    left: Vec<CheckpointName>,
    broken: Vec<BrokenCheckpoint>,
    /// Steps of all that are there and could not have been taken.
    others: Vec<GlobalStep>,
}

impl CheckpointSearch {
    /// Among checkpoints of these names, finished or not.
    pub(super) fn new(restore: RestoreChoice, mut names: Vec<CheckpointName>, location: &str) -> Self {
        newest_first(&mut names);
        names.reverse();
        let mut others = Vec::new();
        match restore {
            RestoreChoice::None => names.clear(),
            RestoreChoice::Step(step) => names.retain(|name| {
                let wanted = name.step == step;
                others.extend((!wanted).then_some(name.step));
                wanted
            }),
            RestoreChoice::LatestValid | RestoreChoice::Latest => {}
        }
        others.reverse();
        Self { restore, location: location.to_owned(), left: names, broken: Vec::new(), others }
    }

    /// The next one to look at. One that is not finished needs no word.
    pub(super) fn next(&mut self) -> Option<CheckpointName> {
        self.left.pop()
    }

    /// That one cannot be used.
    pub(super) fn is_broken(&mut self, name: CheckpointName, reason: String) {
        self.broken.push(BrokenCheckpoint { name, reason });
    }

    /// That one is whole: whether the job begins with it.
    pub(super) fn is_whole(&self, name: CheckpointName) -> Result<(), RestoreError> {
        match self.broken.first() {
            Some(broken) if self.restore != RestoreChoice::LatestValid => {
                Err(RestoreError::Broken { broken: broken.clone(), earlier: Some(name) })
            }
            _ => Ok(()),
        }
    }

    /// Nothing is left to look at: whether the job begins with initial values.
    pub(super) fn none_is_whole(self) -> Result<(), RestoreError> {
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

    /// What to warn of when the job begins with that one.
    pub(super) fn warning(&self, name: CheckpointName) -> Option<String> {
        let broken: Vec<_> = self.broken.iter().map(ToString::to_string).collect();
        let whose = if broken.len() == 1 { "a newer checkpoint is" } else { "newer checkpoints are" };
        (!broken.is_empty()).then(|| format!("{whose} not whole ({}): {name} is used", broken.join("; ")))
    }
}

/// Whether a job can go on from that checkpoint: only its variables have to be the same. The first difference, if not.
pub(super) fn fits(name: CheckpointName, manifest: &ManifestSpec, job: &JobSpec) -> Result<(), RestoreError> {
    let misfit = |difference| Err(RestoreError::Misfit { name, difference });
    let (own, saved) = (&job.graph.variables, &manifest.job.graph.variables);
    for variable in own {
        let name = &variable.name;
        let Some(there) = saved.iter().find(|there| there.name == *name) else {
            return misfit(format!("the job has a variable '{name}', and the checkpoint has none"));
        };
        if there.shape != variable.shape {
            return misfit(format!(
                "'{name}' has shape {} in the checkpoint, and {} in the job",
                there.shape, variable.shape
            ));
        }
        if there.trainable != variable.trainable {
            let trained = if there.trainable { "trained" } else { "not trained" };
            return misfit(format!(
                "'{name}' was {trained} in the checkpoint's job, and differs in this one"
            ));
        }
    }
    if let Some(more) = saved.iter().find(|there| own.iter().all(|variable| variable.name != there.name)) {
        return misfit(format!("the checkpoint has a variable '{}', and the job has none", more.name));
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
    enum Made {
        Whole,
        Broken,
        Unfinished,
    }

    type There = Vec<(CheckpointName, Made)>;

    /// Several lives, each of which saved some steps; not in order.
    fn there() -> impl Strategy<Value = There> {
        let made = prop_oneof![Just(Made::Whole), Just(Made::Broken), Just(Made::Unfinished)];
        prop::collection::btree_map((1u64..4, 0u64..6), made, 0..8)
            .prop_map(|made| made.into_iter().map(|((life, step), made)| (named(step, life), made)).collect())
    }

    fn search(
        restore: RestoreChoice,
        there: &There,
    ) -> Result<(Option<CheckpointName>, Option<String>), RestoreError> {
        let names = there.iter().map(|&(name, _)| name).collect();
        let mut search = CheckpointSearch::new(restore, names, "here");
        while let Some(name) = search.next() {
            match there.iter().find(|(other, _)| *other == name).unwrap().1 {
                Made::Whole => return search.is_whole(name).map(|()| (Some(name), search.warning(name))),
                Made::Broken => search.is_broken(name, "cut".into()),
                Made::Unfinished => {}
            }
        }
        search.none_is_whole().map(|()| (None, None))
    }

    fn newest(
        there: &There,
        wanted: impl Fn(CheckpointName, Made) -> bool,
    ) -> Option<(CheckpointName, Made)> {
        let fitting = there.iter().copied().filter(|&(name, made)| wanted(name, made));
        fitting.max_by_key(|(name, _)| (name.life, name.step))
    }

    proptest! {
        #[test]
        fn the_newest_that_is_whole_is_taken(there in there()) {
            let whole = newest(&there, |_, made| made == Made::Whole);
            let committed = newest(&there, |_, made| made != Made::Unfinished);
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
        fn the_one_that_is_asked_for_is_taken_or_none(there in there(), step in prop::option::of(0u64..6)) {
            let restore = step.map_or(RestoreChoice::Latest, |step| RestoreChoice::Step(GlobalStep(step)));
            let among = |name: CheckpointName| step.is_none_or(|step| name.step == GlobalStep(step));
            let committed = newest(&there, |name, made| made != Made::Unfinished && among(name));
            match (search(restore, &there), committed) {
                (Ok((taken, warning)), committed) => {
                    prop_assert_eq!(taken, committed.map(|(name, _)| name), "(C)");
                    prop_assert!(committed.is_none_or(|(_, made)| made == Made::Whole) && warning.is_none(), "(C)");
                    prop_assert!(taken.is_some() || step.is_none(), "(B) and (C)");
                }
                (Err(RestoreError::Broken { broken, earlier }), Some((name, Made::Broken))) => {
                    prop_assert_eq!(broken.name, name);
                    let whole = newest(&there, |name, made| made == Made::Whole && among(name));
                    prop_assert_eq!(earlier, whole.map(|(name, _)| name));
                }
                (Err(RestoreError::NoSuchStep { .. }), None) => prop_assert!(step.is_some()),
                other => prop_assert!(false, "{other:?}"),
            }
        }

        #[test]
        fn none_is_none(there in there()) {
            prop_assert_eq!(search(RestoreChoice::None, &there).unwrap(), (None, None));
        }
    }

    #[test]
    fn what_is_wrong_is_told_with_what_is_whole() {
        let there = vec![
            (named(10, 1), Made::Whole),
            (named(20, 1), Made::Broken),
            (named(15, 2), Made::Broken),
            (named(30, 2), Made::Unfinished),
        ];
        let (_, warning) = search(RestoreChoice::LatestValid, &there).unwrap();
        let expected = format!(
            "newer checkpoints are not whole ({}: cut; {}: cut): {} is used",
            named(15, 2),
            named(20, 1),
            named(10, 1)
        );
        assert_eq!(warning.unwrap(), expected);
        let error = search(RestoreChoice::Latest, &there).unwrap_err().to_string();
        let expected = format!(
            "{}: cut; the newest that is whole is {}: restore 10, or latest-valid",
            named(15, 2),
            named(10, 1)
        );
        assert_eq!(error, expected);
        let error = search(RestoreChoice::LatestValid, &there[1..3].to_vec()).unwrap_err().to_string();
        assert!(
            error.starts_with("no checkpoint in here is whole, and the job does not begin anew"),
            "{error}"
        );
        let error = search(RestoreChoice::Step(GlobalStep(11)), &there).unwrap_err().to_string();
        assert_eq!(error, "there is no checkpoint of step 11 in here; there are 30, 15, 20, 10");
    }

    #[test]
    fn only_the_variables_have_to_be_the_same() {
        let name = CheckpointName { step: GlobalStep(4), life: Incarnation(1) };
        let told = |change: fn(&mut JobSpec)| {
            let mut job = job();
            change(&mut job);
            fits(name, &manifest_of(crate::job::tests::job(), 4), &job).map_err(|error| error.to_string())
        };
        assert_eq!(told(|job| job.batch_size = 9), Ok(()));
        assert_eq!(told(|job| job.last_step = GlobalStep(4)), Ok(()));
        let error = told(|job| job.graph.variables[0].shape = Shape::from([3, 5])).unwrap_err();
        assert!(
            error.contains("'kernel' has shape [3, 2] in the checkpoint, and [3, 5] in the job"),
            "{error}"
        );
        assert!(error.contains("--warm-start"));
        let error = told(|job| job.graph.variables[0].name = "other".into()).unwrap_err();
        assert!(error.contains("the job has a variable 'other', and the checkpoint has none"), "{error}");
        assert!(
            told(|job| job.graph.variables.clear())
                .unwrap_err()
                .contains("has a variable 'kernel', and the job")
        );
        assert!(
            told(|job| job.graph.variables[0].trainable = false)
                .unwrap_err()
                .contains("'kernel' was trained in")
        );
        assert!(
            told(|job| job.last_step = GlobalStep(3))
                .unwrap_err()
                .contains("beyond the job's last step, which is 3")
        );
    }
}
