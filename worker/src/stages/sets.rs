//! Sets of values that lie on other stages. A set lives there for as long as the leader holds its own part of it.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use pushpull_messages::id::VariableId;

use super::error::StageError;
use super::group::Group;

/// A set of values. The leader's part of the set carries it, and the parts of the other stages are kept under its
/// number.
#[derive(Debug)]
pub(crate) struct ValueSet {
    number: u64,
    group: Arc<Group>,
}

impl ValueSet {
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// Returns the checksums of the variables of all other stages.
    ///
    /// # Errors
    /// If a stage fails, or cannot be reached.
    pub async fn digests(&self) -> Result<BTreeMap<VariableId, u32>, StageError> {
        self.group.digests(self.number).await
    }
}

/// The sets of values of a leader.
#[derive(Debug, Default)]
pub(super) struct ValueSets(Mutex<Sets>);

#[derive(Debug, Default)]
struct Sets {
    last: u64,
    live: Vec<Weak<ValueSet>>,
}

impl ValueSets {
    /// Returns a new set, with a greater number than all others.
    pub fn create(&self, group: &Arc<Group>) -> Arc<ValueSet> {
        let mut sets = self.0.lock();
        sets.last += 1;
        let set = Arc::new(ValueSet { number: sets.last, group: Arc::clone(group) });
        sets.live.push(Arc::downgrade(&set));
        set
    }

    /// Returns the numbers of the sets before `number` that the leader still holds.
    pub fn kept_before(&self, number: u64) -> Vec<u64> {
        let mut sets = self.0.lock();
        sets.live.retain(|set| set.strong_count() > 0);
        let numbers = sets.live.iter().filter_map(Weak::upgrade).map(|set| set.number());
        numbers.filter(|&other| other < number).collect()
    }
}
