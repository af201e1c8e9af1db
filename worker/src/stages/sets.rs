//! Sets of values that lie on other stages. A set lives there for as long as the leader holds its own part of
//! it.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::client::{OtherStages, ValueSet};

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
    pub fn create(&self, others: Arc<dyn OtherStages>) -> Arc<ValueSet> {
        let mut sets = self.0.lock();
        sets.last += 1;
        let set = Arc::new(ValueSet::new(sets.last, others));
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
