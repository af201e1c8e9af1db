//! Which checkpoint is evaluated next. Knows no store and no clock.
//!
//! (A) What is next is the newest of those that are neither done with nor older than one that has been evaluated.
//! (B) Nothing is evaluated twice. (C) What fails [`ATTEMPTS_MAX`] times is given up, and holds nothing up.

use std::collections::{BTreeMap, BTreeSet};

use pushpull_messages::checkpoint::CheckpointName;

/// A file that was just written may not be seen everywhere at once: only what fails so often is broken.
pub(super) const ATTEMPTS_MAX: u32 = 3;

/// What has become of the checkpoints so far.
#[derive(Debug, Default)]
pub(super) struct Course {
    /// Evaluated, passed over, or given up; of those that were there last.
    done: BTreeSet<CheckpointName>,
    failed: BTreeMap<CheckpointName, u32>,
}

/// Lives are numbered by the clock, and a later one may go on from an earlier step.
fn age(name: &CheckpointName) -> (u64, u64) {
    (name.life.0, name.step.0)
}

impl Course {
    /// What may be evaluated of the checkpoints that are there, newest first.
    pub(super) fn candidates(&self, there: &[CheckpointName]) -> Vec<CheckpointName> {
        let mut new: Vec<CheckpointName> =
            there.iter().filter(|name| !self.done.contains(name)).copied().collect();
        new.sort_unstable_by_key(|name| std::cmp::Reverse(age(name)));
        new
    }

    /// That one is evaluated, and with it all older ones that are there are done.
    pub(super) fn evaluated(&mut self, name: CheckpointName, there: &[CheckpointName]) {
        let older = there.iter().filter(|other| age(other) <= age(&name)).copied();
        self.done.extend(older);
        self.done.insert(name);
        self.forget(there);
    }

    /// That one could not be read. Whether it is given up.
    pub(super) fn failed(&mut self, name: CheckpointName, there: &[CheckpointName]) -> bool {
        let attempts = self.failed.entry(name).or_default();
        *attempts += 1;
        let given_up = *attempts >= ATTEMPTS_MAX;
        if given_up {
            self.done.insert(name);
        }
        self.forget(there);
        given_up
    }

    /// What is gone does not come back: nothing is ever written again.
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
        /// Checkpoints appear in the order of their age, some go again, some are broken.
        #[test]
        fn the_newest_is_next_nothing_comes_twice_and_what_is_broken_holds_nothing_up(
            script in prop::collection::vec((0u8..4, any::<prop::sample::Index>()), 1..60),
            broken in prop::collection::btree_set(0u64..60, 0..20),
        ) {
            let (mut there, mut made) = (Vec::new(), 0);
            let (mut course, mut evaluated, mut failures) = (Course::default(), Vec::new(), BTreeMap::new());
            for (what, index) in script {
                match what {
                    0 | 1 => {
                        // Every tenth one is made by a new life, which begins with a smaller step.
                        there.push(name(made / 10, made % 10));
                        made += 1;
                    }
                    2 if !there.is_empty() => {
                        there.remove(index.index(there.len()));
                    }
                    _ => {}
                }
                let Some(&next) = course.candidates(&there).first() else { continue };
                // (A)
                let newest_done = evaluated.iter().map(age).max();
                let open = |other: &&CheckpointName| {
                    newest_done.is_none_or(|done| age(other) > done) && failures.get(*other) != Some(&ATTEMPTS_MAX)
                };
                prop_assert_eq!(Some(&next), there.iter().filter(open).max_by_key(|other| age(other)));
                if broken.contains(&(next.life.0 * 10 + next.step.0)) {
                    let count = failures.entry(next).or_insert(0);
                    *count += 1;
                    // (C)
                    prop_assert_eq!(course.failed(next, &there), *count == ATTEMPTS_MAX);
                } else {
                    // (B)
                    prop_assert!(!evaluated.contains(&next));
                    evaluated.push(next);
                    course.evaluated(next, &there);
                }
            }
        }
    }
}
