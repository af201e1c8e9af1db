//! Decides which checkpoint is evaluated next. This module must not depend on stores or clocks.
//!
//! Wanted properties: (A) the next checkpoint is the newest one that was not skipped, and it is newer than
//! all evaluated checkpoints; (B) no checkpoint is evaluated twice; (C) a checkpoint that fails
//! [`ATTEMPTS_MAX`] times is skipped, so it delays no other checkpoint.

use std::collections::{BTreeMap, BTreeSet};

use pushpull_messages::checkpoint::CheckpointName;

/// The number of failures after which a checkpoint counts as broken. Several attempts are made because some
/// stores show the files of a new checkpoint only after a delay.
pub(super) const ATTEMPTS_MAX: u32 = 3;

/// The checkpoints that need no further attempt, and the number of failed attempts for each remaining
/// checkpoint.
#[derive(Debug, Default)]
pub(super) struct Course {
    /// The checkpoints that were evaluated or skipped, except those that the store has deleted since.
    done: BTreeSet<CheckpointName>,
    failed: BTreeMap<CheckpointName, u32>,
}

/// Returns a key that orders checkpoints from oldest to newest: first by the incarnation of the job, which
/// is taken from the clock, then by the step. The step alone does not suffice, because a later incarnation
/// may continue from an earlier step.
fn age(name: &CheckpointName) -> (u64, u64) {
    (name.life.0, name.step.0)
}

impl Course {
    /// Returns true if there is no record of an evaluated, skipped or failed checkpoint.
    pub(super) fn is_empty(&self) -> bool {
        self.done.is_empty() && self.failed.is_empty()
    }

    /// Returns those checkpoints of the store that may be evaluated, newest first. The parameter `there`
    /// lists the checkpoints that the store contains.
    pub(super) fn candidates(&self, there: &[CheckpointName]) -> Vec<CheckpointName> {
        let mut new: Vec<CheckpointName> =
            there.iter().filter(|name| !self.done.contains(name)).copied().collect();
        new.sort_unstable_by_key(|name| std::cmp::Reverse(age(name)));
        new
    }

    /// Records that a checkpoint was evaluated. All older checkpoints then count as done.
    pub(super) fn evaluated(&mut self, name: CheckpointName, there: &[CheckpointName]) {
        let older = there.iter().filter(|other| age(other) <= age(&name)).copied();
        self.done.extend(older);
        self.done.insert(name);
        self.forget(there);
    }

    /// Records that a checkpoint could not be read. Returns true if it is skipped from now on.
    pub(super) fn failed(&mut self, name: CheckpointName, there: &[CheckpointName]) -> bool {
        let attempts = self.failed.entry(name).or_default();
        *attempts += 1;
        let passed_over = *attempts >= ATTEMPTS_MAX;
        if passed_over {
            self.done.insert(name);
        }
        self.forget(there);
        passed_over
    }

    /// Removes the records of deleted checkpoints. These records are no longer needed, because a deleted
    /// checkpoint is never written again.
    fn forget(&mut self, there: &[CheckpointName]) {
        let there: BTreeSet<CheckpointName> = there.iter().copied().collect();
        self.done.retain(|name| there.contains(name));
        self.failed.retain(|name, _| there.contains(name));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use pushpull_messages::id::{GlobalStep, Incarnation};

    use super::*;

    fn name(life: u64, step: u64) -> CheckpointName {
        CheckpointName { step: GlobalStep(step), life: Incarnation(life) }
    }

    proptest! {
        /// Checks that the newest checkpoint is next (A), that none is evaluated twice (B), and that a
        /// broken one is skipped after [`ATTEMPTS_MAX`] failures (C). Checkpoints appear one after another,
        /// and some of them are deleted. All attempts to evaluate a broken checkpoint fail.
        #[test]
        fn the_newest_is_next_and_broken_ones_hold_up_none(
            script in prop::collection::vec((0u8..4, any::<prop::sample::Index>()), 1..60),
            broken in prop::collection::btree_set(0u64..60, 0..20),
        ) {
            let (mut there, mut made) = (Vec::new(), 0);
            let (mut course, mut evaluated, mut failures) = (Course::default(), Vec::new(), BTreeMap::new());
            for (what, index) in script {
                match what {
                    0 | 1 => {
                        // Every tenth checkpoint is the first one of a new run of the job, which starts at
                        // step 0 again.
                        there.push(name(made / 10, made % 10));
                        made += 1;
                    }
                    2 if !there.is_empty() => {
                        there.remove(index.index(there.len()));
                    }
                    _ => {}
                }
                let Some(&next) = course.candidates(&there).first() else { continue };
                // (A): `next` is the newest checkpoint that is not broken, and it is newer than all
                // evaluated checkpoints.
                let newest_done = evaluated.iter().map(age).max();
                let open = |other: &&CheckpointName| {
                    newest_done.is_none_or(|done| age(other) > done) && failures.get(*other) != Some(&ATTEMPTS_MAX)
                };
                prop_assert_eq!(Some(&next), there.iter().filter(open).max_by_key(|other| age(other)));
                if broken.contains(&(next.life.0 * 10 + next.step.0)) {
                    let count = failures.entry(next).or_insert(0);
                    *count += 1;
                    // (C): a checkpoint is skipped after its last attempt.
                    prop_assert_eq!(course.failed(next, &there), *count == ATTEMPTS_MAX);
                } else {
                    // (B): `next` has not been evaluated before.
                    prop_assert!(!evaluated.contains(&next));
                    evaluated.push(next);
                    course.evaluated(next, &there);
                }
            }
        }
    }
}
