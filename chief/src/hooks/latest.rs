//! A map that keeps a bounded number of keys: the latest ones.
//!
//! Wanted properties: (A) the map has the latest `MAX` keys, each with its last value; (B) the map never has
//! more than `MAX` keys.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// A map of the `MAX` keys that were inserted last; older keys are dropped.
#[derive(Debug)]
pub(super) struct Latest<K, V, const MAX: usize> {
    values: HashMap<K, V>,
    /// The keys, the oldest first.
    order: VecDeque<K>,
}

impl<K: Copy + Eq + Hash, V, const MAX: usize> Latest<K, V, MAX> {
    pub(super) fn new() -> Self {
        Self { values: HashMap::new(), order: VecDeque::new() }
    }

    /// Inserts a key with its value, and replaces the earlier value of the same key.
    pub(super) fn remember(&mut self, key: K, value: V) {
        if self.values.insert(key, value).is_some() {
            self.order.retain(|&other| other != key);
        }
        self.order.push_back(key);
        if self.order.len() > MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.values.remove(&oldest);
        }
    }

    /// Returns the value of a key, or `None` if the map does not have the key.
    pub(super) fn get(&self, key: &K) -> Option<&V> {
        self.values.get(key)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Checks that the map has the latest keys (A) and no others (B): inserts random keys, and compares
        /// the map with a list of all keys so far.
        #[test]
        fn the_latest_keys_are_known(keys in prop::collection::vec(0u8..30, 0..200)) {
            let mut latest = Latest::<u8, usize, 7>::new();
            let mut all: Vec<(u8, usize)> = Vec::new();
            for (value, key) in keys.into_iter().enumerate() {
                latest.remember(key, value);
                all.retain(|&(other, _)| other != key);
                all.push((key, value));
                let (gone, kept) = all.split_at(all.len().saturating_sub(7));
                prop_assert!(kept.iter().all(|(key, value)| latest.get(key) == Some(value)), "(A)");
                prop_assert!(gone.iter().all(|(key, _)| latest.get(key).is_none()), "(B)");
                prop_assert_eq!((latest.values.len(), latest.order.len()), (kept.len(), kept.len()), "(B)");
            }
        }
    }
}
