//! How long something took, each time: counts by bucket, from which quantiles can be told. Knows no clock.
//!
//! Wanted properties: (A) every time is counted once; (B) a quantile lies in the bucket of the time that it stands for;
//! (C) what was counted since an earlier moment is the difference of the two.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Counts of times, by upper bounds of 1, 2 and 5 times a power of ten, from 1 µs to 100 s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeHistogram {
    /// Bucket i counts what took longer than bound i − 1, and at most bound i; the last one all beyond.
    pub buckets: [u64; Self::BUCKETS],
    /// Of all, in microseconds.
    pub sum_us: u64,
}

impl TimeHistogram {
    /// How many buckets there are.
    pub const BUCKETS: usize = Self::BOUNDS_US.len() + 1;

    /// The greatest time of each bucket but the last, in microseconds.
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

    /// Its bucket, and in microseconds.
    fn place(took: Duration) -> (usize, u64) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        (Self::BOUNDS_US.partition_point(|&bound| bound < us), us)
    }

    /// Counts one.
    pub fn record(&mut self, took: Duration) {
        let (bucket, us) = Self::place(took);
        self.buckets[bucket] = self.buckets[bucket].saturating_add(1);
        self.sum_us = self.sum_us.saturating_add(us);
    }

    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, &count| sum.saturating_add(count))
    }

    /// The mean; `None` where nothing was counted.
    pub fn mean(&self) -> Option<Duration> {
        self.sum_us.checked_div(self.count()).map(Duration::from_micros)
    }

    /// The mean, but no more than what half of them have not exceeded, as far as the buckets tell: of a few that took far longer than
    /// all others, such as those that a standstill has held up, it knows nothing. `None` where nothing was counted.
    pub fn typical(&self) -> Option<Duration> {
        let half = self.count().div_ceil(2);
        let mut until = 0u64;
        let bucket = self.buckets.iter().position(|&inside| {
            until = until.saturating_add(inside);
            until >= half
        })?;
        let bound = Self::BOUNDS_US.get(bucket).copied().map(Duration::from_micros);
        self.mean().map(|mean| bound.map_or(mean, |bound| mean.min(bound)))
    }

    /// The time that a share `q` of all does not exceed, as far as the buckets tell: in between it is taken for even.
    /// `None` where nothing was counted.
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

    /// What was counted since it was like that.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut since = *self;
        for (now, before) in since.buckets.iter_mut().zip(&earlier.buckets) {
            *now = now.saturating_sub(*before);
        }
        since.sum_us = since.sum_us.saturating_sub(earlier.sum_us);
        since
    }

    /// Counts all that another one has counted.
    pub fn add(&mut self, other: &Self) {
        for (own, more) in self.buckets.iter_mut().zip(&other.buckets) {
            *own = own.saturating_add(*more);
        }
        self.sum_us = self.sum_us.saturating_add(other.sum_us);
    }
}

/// The same, counted by many threads at a time without a lock.
#[derive(Debug, Default)]
pub struct SharedTimes {
    buckets: [AtomicU64; TimeHistogram::BUCKETS],
    sum_us: AtomicU64,
}

impl SharedTimes {
    /// Counts one.
    pub fn record(&self, took: Duration) {
        let (bucket, us) = TimeHistogram::place(took);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_us.fetch_add(us, Ordering::Relaxed);
    }

    /// What is counted; a time that is recorded meanwhile may be in a bucket and not in the sum yet.
    pub fn snapshot(&self) -> TimeHistogram {
        TimeHistogram {
            buckets: self.buckets.each_ref().map(|count| count.load(Ordering::Relaxed)),
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
    fn bounds_are_1_2_5_and_cover_what_is_of_interest() {
        let bounds = TimeHistogram::BOUNDS_US;
        assert_eq!(bounds[..7], [1, 2, 5, 10, 20, 50, 100]);
        assert_eq!(bounds.last(), Some(&100_000_000));
        assert_eq!(of(&[]).quantile(0.5), None);
        assert_eq!(of(&[]).mean(), None);
    }

    proptest! {
        /// (A)–(C).
        #[test]
        fn quantiles_are_of_the_times_that_were_counted(
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
            let told = all.quantile(q).unwrap().as_micros() as u64;
            let bucket = |us: u64| TimeHistogram::BOUNDS_US.partition_point(|&bound| bound < us);
            let low = bucket(exact).checked_sub(1).map_or(0, |before| TimeHistogram::BOUNDS_US[before]);
            let high = TimeHistogram::BOUNDS_US.get(bucket(exact)).copied().unwrap_or(low);
            prop_assert!((low..=high).contains(&told), "(B): {exact} is told as {told}");
        }
    }

    #[test]
    fn what_is_typical_does_not_know_a_few_that_took_far_longer() {
        let mut times = TimeHistogram::default();
        assert_eq!(times.typical(), None);
        (0..100).for_each(|_| times.record(Duration::from_micros(3_500)));
        assert_eq!(times.typical(), Some(Duration::from_micros(3_500)));
        times.record(Duration::from_secs(15));
        assert_eq!(
            (times.typical(), times.mean() > Some(Duration::from_millis(150))),
            (Some(Duration::from_millis(5)), true)
        );
        // Where most take long, that is typical, also beyond all bounds.
        (0..102).for_each(|_| times.record(Duration::from_secs(1_000)));
        assert_eq!(times.typical(), times.mean());
    }
}
