//! A histogram of durations, from which quantiles are estimated.
//!
//! Properties: (A) every duration is counted once; (B) an estimated quantile lies in the same bucket as the
//! exact quantile; (C) the counts since an earlier snapshot are the later counts minus the earlier ones.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::buckets::Buckets;

/// A histogram of durations. The upper bounds of its buckets are 1, 2 and 5 times a power of ten, from 1 µs
/// to 100 s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeHistogram {
    /// The counts. Bucket i counts durations above bound i − 1 and up to bound i; the last bucket counts all
    /// durations above the last bound.
    pub buckets: Buckets<{ TimeHistogram::BUCKETS }>,
    /// The sum of all durations, in microseconds.
    pub sum_us: u64,
}

impl TimeHistogram {
    /// The number of buckets.
    pub const BUCKETS: usize = Self::BOUNDS_US.len() + 1;

    /// The upper bounds of the buckets, in microseconds. The last bucket has no upper bound.
    pub const BOUNDS_US: [u64; 25] = {
        let mut bounds = [0; 25];
        let (mut at, mut decade) = (0, 1);
        while at < bounds.len() {
            bounds[at] = decade * [1, 2, 5][at % 3];
            at += 1;
            if at.is_multiple_of(3) {
                decade *= 10;
            }
        }
        bounds
    };

    /// Returns the index of the bucket that counts the duration, and the duration in microseconds.
    fn place(took: Duration) -> (usize, u64) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        (Self::BOUNDS_US.partition_point(|&bound| bound < us), us)
    }

    /// Counts one duration.
    pub fn record(&mut self, took: Duration) {
        let (bucket, us) = Self::place(took);
        self.buckets.record(bucket);
        self.sum_us = self.sum_us.saturating_add(us);
    }

    /// Returns the number of durations recorded.
    pub fn count(&self) -> u64 {
        self.buckets.count()
    }

    /// Returns the mean duration, or `None` if nothing was recorded.
    pub fn mean(&self) -> Option<Duration> {
        self.sum_us.checked_div(self.count()).map(Duration::from_micros)
    }

    /// Returns a typical duration, or `None` if nothing was recorded. The result is the mean, limited to the
    /// upper bound of the bucket that contains the median. With this limit, a few very long durations, such
    /// as those of a stalled job, do not distort the result.
    pub fn typical(&self) -> Option<Duration> {
        let bucket = self.buckets.bucket_of_rank(self.count().div_ceil(2))?;
        let bound = Self::BOUNDS_US.get(bucket).copied().map(Duration::from_micros);
        self.mean().map(|mean| bound.map_or(mean, |bound| mean.min(bound)))
    }

    /// Estimates the `q`-quantile by linear interpolation within the bucket that contains it. Returns `None`
    /// if nothing was recorded.
    pub fn quantile(&self, q: f64) -> Option<Duration> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        let rank = (q.clamp(0.0, 1.0) * count as f64).max(f64::MIN_POSITIVE);
        let mut below = 0.0;
        for (bucket, &inside) in self.buckets.iter().enumerate() {
            if inside > 0 && below + inside as f64 >= rank {
                let low = bucket.checked_sub(1).map_or(0, |before| Self::BOUNDS_US[before]);
                let high = Self::BOUNDS_US.get(bucket).copied().unwrap_or(low);
                let us = low as f64 + (high - low) as f64 * (rank - below) / inside as f64;
                return Some(Duration::from_micros(us as u64));
            }
            below += inside as f64;
        }
        Self::BOUNDS_US.last().copied().map(Duration::from_micros)
    }

    /// Returns the histogram of the durations recorded since `earlier`, a previous state of this histogram.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            buckets: self.buckets.since(&earlier.buckets),
            sum_us: self.sum_us.saturating_sub(earlier.sum_us),
        }
    }

    /// Adds the durations that another histogram has recorded.
    pub fn add(&mut self, other: &Self) {
        self.buckets.add(&other.buckets);
        self.sum_us = self.sum_us.saturating_add(other.sum_us);
    }
}

/// A histogram of durations into which many threads can record without a lock.
#[derive(Debug, Default)]
pub struct SharedTimes {
    buckets: [AtomicU64; TimeHistogram::BUCKETS],
    sum_us: AtomicU64,
}

impl SharedTimes {
    /// Counts one duration.
    pub fn record(&self, took: Duration) {
        let (bucket, us) = TimeHistogram::place(took);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_us.fetch_add(us, Ordering::Relaxed);
    }

    /// Returns a copy of the counts and of the sum. If another thread records a duration during the copy, the
    /// duration may be in only one of the two.
    pub fn snapshot(&self) -> TimeHistogram {
        TimeHistogram {
            buckets: self.buckets.each_ref().map(|count| count.load(Ordering::Relaxed)).into(),
            sum_us: self.sum_us.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(times: &[u64]) -> TimeHistogram {
        let mut histogram = TimeHistogram::default();
        times.iter().for_each(|&us| histogram.record(Duration::from_micros(us)));
        histogram
    }

    #[test]
    fn bounds_are_1_2_5_times_powers_of_ten() {
        let bounds = TimeHistogram::BOUNDS_US;
        assert_eq!(bounds[..7], [1, 2, 5, 10, 20, 50, 100]);
        assert_eq!(bounds.last(), Some(&100_000_000));
        assert_eq!(of(&[]).quantile(0.5), None);
        assert_eq!(of(&[]).mean(), None);
    }

    proptest! {
        /// Checks that every duration is counted once, even if several threads record at the same time (A);
        /// that an estimated quantile lies in the bucket of the exact one, which is taken from the sorted
        /// durations (B); and that the counts since a snapshot are those of the later durations (C).
        #[test]
        fn quantiles_lie_in_the_bucket_of_the_exact_ones(
            mut before in prop::collection::vec(0u64..300_000_000, 0..50),
            after in prop::collection::vec(0u64..300_000_000, 1..50),
            q in 0.0f64..1.0,
        ) {
            let earlier = of(&before);
            let own = of(&after);
            before.extend(&after);
            let all = of(&before);
            let shared = SharedTimes::default();
            std::thread::scope(|scope| {
                for times in before.chunks(20) {
                    scope.spawn(|| times.iter().for_each(|&us| shared.record(Duration::from_micros(us))));
                }
            });
            prop_assert_eq!(shared.snapshot(), all, "(A)");
            prop_assert_eq!(all.count(), before.len() as u64, "(A)");
            prop_assert_eq!(all.since(&earlier), own, "(C)");
            let mut sum = earlier;
            sum.add(&own);
            prop_assert_eq!(sum, all);
            prop_assert_eq!(all.sum_us, before.iter().sum::<u64>());
            before.sort_unstable();
            let rank = ((q * before.len() as f64).ceil() as usize).max(1);
            let exact = before[rank - 1];
            let estimate = all.quantile(q).unwrap().as_micros() as u64;
            let bucket = |us: u64| TimeHistogram::BOUNDS_US.partition_point(|&bound| bound < us);
            let low = bucket(exact).checked_sub(1).map_or(0, |before| TimeHistogram::BOUNDS_US[before]);
            let high = TimeHistogram::BOUNDS_US.get(bucket(exact)).copied().unwrap_or(low);
            prop_assert!((low..=high).contains(&estimate), "(B): {estimate} for {exact}");
        }
    }

    #[test]
    fn the_typical_time_ignores_a_few_outliers() {
        let mut times = TimeHistogram::default();
        assert_eq!(times.typical(), None);
        (0..100).for_each(|_| times.record(Duration::from_micros(3_500)));
        assert_eq!(times.typical(), Some(Duration::from_micros(3_500)));
        times.record(Duration::from_secs(15));
        assert_eq!(
            (times.typical(), times.mean() > Some(Duration::from_millis(150))),
            (Some(Duration::from_millis(5)), true)
        );
        // If most durations are long, even beyond all bounds, the typical duration is long, too.
        (0..102).for_each(|_| times.record(Duration::from_secs(1_000)));
        assert_eq!(times.typical(), times.mean());
    }
}
