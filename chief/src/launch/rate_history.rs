//! The changes of the learning rate that the shards have made or will make. Sends no messages.
//!
//! Wanted properties: (A) the [`RateSpec`] of a version has the factor of the last change at or before this
//! version, and the next change; (B) at most [`CHANGES_MAX`] changes are remembered, which suffices for every
//! checkpoint that may still be written.

use std::collections::VecDeque;

use pushpull_messages::id::Version;
use pushpull_messages::optimizer::{RateChange, RateSpec};

/// The maximum number of changes that are remembered. A checkpoint that is being written needs the rate of
/// its own version, and is complete long before 256 later changes are made.
const CHANGES_MAX: usize = 256;

/// The changes of a job's learning rate, in the order of their versions.
#[derive(Debug)]
pub(crate) struct RateHistory {
    /// The factor before the first change.
    first: f32,
    changes: VecDeque<RateChange>,
}

impl Default for RateHistory {
    fn default() -> Self {
        Self::from(RateSpec::default())
    }
}

impl From<RateSpec> for RateHistory {
    fn from(rate: RateSpec) -> Self {
        Self { first: rate.factor, changes: rate.next.into_iter().collect() }
    }
}

impl RateHistory {
    /// Adds a change. The new change replaces all changes at the same version or later, as it does on the
    /// shards. A replaced change may come from the checkpoint that the job began with.
    pub(crate) fn push(&mut self, change: RateChange) {
        while self.changes.pop_back_if(|last| last.from >= change.from).is_some() {}
        self.changes.push_back(change);
        if self.changes.len() > CHANGES_MAX
            && let Some(oldest) = self.changes.pop_front()
        {
            self.first = oldest.factor;
        }
    }

    /// Returns the learning rate at a version.
    pub(crate) fn at(&self, version: Version) -> RateSpec {
        let made = self.changes.iter().take_while(|change| change.from <= version).count();
        let factor = made.checked_sub(1).map_or(self.first, |last| self.changes[last].factor);
        RateSpec { factor, next: self.changes.get(made).copied() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_last_change_up_to_a_version_counts(
            steps in prop::collection::vec((-1i64..5, 1u8..9), 0..300),
            version in 0u64..800,
        ) {
            let (mut history, mut from, mut all) = (RateHistory::default(), 0u64, Vec::<RateChange>::new());
            for (more, factor) in steps {
                from = from.saturating_add_signed(more);
                let change = RateChange { from: Version(from), factor: f32::from(factor) };
                history.push(change);
                all.retain(|earlier| earlier.from < change.from);
                all.push(change);
            }
            prop_assert!(history.changes.len() <= CHANGES_MAX, "(B)");
            let oldest = history.changes.front().map_or(0, |change| change.from.0);
            let version = Version(version.max(oldest));
            let last = all.iter().rev().find(|change| change.from <= version);
            let next = all.iter().find(|change| change.from > version).copied();
            let rate = history.at(version);
            prop_assert_eq!(rate, RateSpec { factor: last.map_or(1.0, |change| change.factor), next }, "(A)");
            prop_assert_eq!(RateHistory::from(rate).at(version), rate);
        }
    }
}
