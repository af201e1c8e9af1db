//! Formats histograms for people and for programs. A histogram counts gradients by their staleness, or by
//! the number of steps by which their worker was behind the worker that was furthest ahead. This module must
//! not depend on synchronisation policies.

use pushpull_messages::message::StalenessHistogram;
use serde::Serialize;

/// A bucket of a histogram: the number of gradients with a value in a range. The value is the gradient's
/// staleness, or the number of steps by which its worker was behind the worker that was furthest ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Bucket {
    /// The least value of the range.
    pub from: u64,
    /// The greatest value of the range.
    pub to: u64,
    /// The number of gradients in the bucket.
    pub count: u64,
}

/// Returns all buckets from the bucket of the value 0 to the highest bucket that is not empty. Returns no
/// buckets if nothing was counted.
pub(super) fn buckets(histogram: &StalenessHistogram) -> Vec<Bucket> {
    let used = histogram.buckets.iter().rposition(|&count| count > 0).map_or(0, |last| last + 1);
    let bucket = |(index, &count): (usize, &u64)| {
        let from = if index == 0 { 0 } else { 1 << (index - 1) };
        // The last bucket has no upper bound, so the greatest value that was counted is used instead.
        let to = if index == StalenessHistogram::BUCKETS - 1 { histogram.max } else { (1 << index) - 1 };
        Bucket { from, to, count }
    };
    histogram.buckets[..used].iter().enumerate().map(bucket).collect()
}

/// Returns the mean of all values, or 0 if nothing was counted.
pub(super) fn mean(histogram: &StalenessHistogram) -> f64 {
    histogram.sum as f64 / histogram.count().max(1) as f64
}

/// Adds up the buckets of all shards and returns the percentage of gradients in each bucket that is not
/// empty, for example `0: 12 %, 1: 80 %, 2-3: 8 %, max 3`. Returns `None` if nothing was counted.
pub(super) fn shares<'a>(shards: impl Iterator<Item = (&'a [Bucket], u64)>) -> Option<String> {
    let mut sum: Vec<Bucket> = Vec::new();
    let mut greatest = 0;
    for (buckets, max) in shards {
        greatest = greatest.max(max);
        for (index, &bucket) in buckets.iter().enumerate() {
            match sum.get_mut(index) {
                Some(known) => {
                    known.to = known.to.max(bucket.to);
                    known.count = known.count.saturating_add(bucket.count);
                }
                None => sum.push(bucket),
            }
        }
    }
    let all = sum.iter().fold(0u64, |all, bucket| all.saturating_add(bucket.count));
    if all == 0 {
        return None;
    }
    let share = |bucket: &Bucket| {
        let range = match *bucket {
            Bucket { from, to, .. } if from == to => from.to_string(),
            Bucket { from, to, .. } => format!("{from}-{to}"),
        };
        match bucket.count as f64 / all as f64 * 100.0 {
            few if few < 0.5 => format!("{range}: < 1 %"),
            share => format!("{range}: {share:.0} %"),
        }
    };
    let shares: Vec<String> = sum.iter().filter(|bucket| bucket.count > 0).map(share).collect();
    Some(format!("{}, max {greatest}", shares.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(all: &[u64]) -> StalenessHistogram {
        let mut histogram = StalenessHistogram::default();
        all.iter().for_each(|&staleness| histogram.record(staleness));
        histogram
    }

    #[test]
    fn buckets_count_their_ranges() {
        let all: Vec<u64> = (0..70).chain((0..64).map(|bit| 1 << bit)).chain([u64::MAX]).collect();
        // Each prefix of the values has a different greatest value.
        for some in (0..all.len()).map(|length| &all[..length]) {
            let buckets = buckets(&recorded(some));
            assert!(buckets.windows(2).all(|pair| pair[0].to + 1 == pair[1].from), "{buckets:?}");
            for bucket in &buckets {
                let within = some.iter().filter(|staleness| (bucket.from..=bucket.to).contains(staleness));
                assert_eq!(within.count() as u64, bucket.count, "{bucket:?} of {some:?}");
            }
            assert_eq!(buckets.iter().map(|bucket| bucket.count).sum::<u64>(), some.len() as u64);
        }
    }

    #[test]
    fn shares_are_short() {
        let one = buckets(&recorded(&[0, 0, 0, 1, 1, 1, 1, 1, 1, 1]));
        let other = buckets(&recorded(&[&[1; 9][..], &[3]].concat()));
        let line = |all: &[(&[Bucket], u64)]| shares(all.iter().copied());
        assert_eq!(line(&[(&one, 1), (&other, 3)]).unwrap(), "0: 15 %, 1: 80 %, 2-3: 5 %, max 3");
        let rare = buckets(&recorded(&[&[0; 999][..], &[100_000]].concat()));
        assert_eq!(line(&[(&rare, 100_000)]).unwrap(), "0: 100 %, 16384-100000: < 1 %, max 100000");
        assert_eq!(line(&[]), None);
        assert_eq!(line(&[(&[], 0)]), None);
    }
}
