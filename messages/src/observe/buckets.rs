//! The counts in the buckets of a histogram. The histogram type that contains the counts defines the
//! buckets' bounds and units.
//!
//! Properties: (A) the sum of the counts is the number of values recorded; (B) `since` undoes `add`.

use std::ops::{Deref, DerefMut};

use serde::{Deserialize, Serialize};

/// The counts of a histogram's `N` buckets. All sums saturate instead of overflowing, because a peer may send
/// any counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
#[serde(bound(serialize = "[u64; N]: Serialize", deserialize = "[u64; N]: Deserialize<'de>"))]
pub struct Buckets<const N: usize>([u64; N]);

impl<const N: usize> Buckets<N> {
    /// Counts one value in the bucket with index `bucket`.
    ///
    /// # Panics
    /// If `bucket` is not below `N`.
    pub fn record(&mut self, bucket: usize) {
        self.0[bucket] = self.0[bucket].saturating_add(1);
    }

    /// Returns the number of values in all buckets.
    pub fn count(&self) -> u64 {
        self.0.iter().fold(0, |sum, &count| sum.saturating_add(count))
    }

    /// Returns the index of the bucket that contains the value of this rank. The smallest value has the rank
    /// 1. The result is `None` if the rank exceeds the number of values.
    pub fn bucket_of_rank(&self, rank: u64) -> Option<usize> {
        let mut until = 0u64;
        self.0.iter().position(|&inside| {
            until = until.saturating_add(inside);
            inside > 0 && until >= rank
        })
    }

    /// Adds the counts of another histogram.
    pub fn add(&mut self, other: &Self) {
        for (own, more) in self.0.iter_mut().zip(&other.0) {
            *own = own.saturating_add(*more);
        }
    }

    /// Returns the counts of the values recorded since `earlier`, a previous state of this histogram.
    #[must_use]
    pub fn since(mut self, earlier: &Self) -> Self {
        for (now, before) in self.0.iter_mut().zip(&earlier.0) {
            *now = now.saturating_sub(*before);
        }
        self
    }
}

impl<const N: usize> Default for Buckets<N> {
    fn default() -> Self {
        Self([0; N])
    }
}

impl<const N: usize> From<[u64; N]> for Buckets<N> {
    fn from(counts: [u64; N]) -> Self {
        Self(counts)
    }
}

impl<const N: usize> Deref for Buckets<N> {
    type Target = [u64; N];

    fn deref(&self) -> &[u64; N] {
        &self.0
    }
}

impl<const N: usize> DerefMut for Buckets<N> {
    fn deref_mut(&mut self) -> &mut [u64; N] {
        &mut self.0
    }
}

impl<'a, const N: usize> IntoIterator for &'a Buckets<N> {
    type Item = &'a u64;
    type IntoIter = std::slice::Iter<'a, u64>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl<const N: usize> IntoIterator for Buckets<N> {
    type Item = u64;
    type IntoIter = std::array::IntoIter<u64, N>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn counted(values: &[usize]) -> Buckets<8> {
        let mut buckets = Buckets::default();
        values.iter().for_each(|&value| buckets.record(value));
        buckets
    }

    proptest! {
        /// (A), (B).
        #[test]
        fn counts_add_up_and_since_undoes_add(
            mut first in prop::collection::vec(0usize..8, 0..40),
            second in prop::collection::vec(0usize..8, 0..40),
        ) {
            let mut both = counted(&first);
            both.add(&counted(&second));
            prop_assert_eq!(both.count(), (first.len() + second.len()) as u64, "(A)");
            prop_assert_eq!(both.since(&counted(&first)), counted(&second), "(B)");
            first.extend(&second);
            first.sort_unstable();
            for (index, bucket) in first.iter().enumerate() {
                prop_assert_eq!(both.bucket_of_rank(index as u64 + 1), Some(*bucket));
            }
            prop_assert_eq!(both.bucket_of_rank(first.len() as u64 + 1), None);
        }
    }

    #[test]
    fn counts_of_a_peer_never_overflow() {
        let mut full = Buckets::from([u64::MAX; 3]);
        full.record(0);
        full.add(&full.clone());
        assert_eq!((full.count(), full.bucket_of_rank(u64::MAX)), (u64::MAX, Some(0)));
    }
}
