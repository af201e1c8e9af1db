//! The recent values of a count, and its rate of increase over the last seconds. Reads no clock.
//!
//! Wanted properties: (A) the stored counts cover the last seconds or, if the increments are seconds apart,
//! the last few increments; the number of stored counts is bounded; (B) every stored count was added at the
//! time that is stored with it; (C) if no count was added for [`SPAN`], `ends` returns `None` and the rate
//! is 0.

use std::collections::VecDeque;
use std::time::Duration;

/// The shortest time that a window covers.
pub(crate) const SPAN: Duration = Duration::from_secs(5);
/// The longest time that a window covers, for a count that rarely increases.
const LONG: Duration = Duration::from_secs(60);
/// The number of increments that a window should cover. If they are rare, the window covers up to [`LONG`].
const FEW: u32 = 4;
/// The largest number of counts that are stored.
const COUNTS_MAX: usize = 64;
/// The longest time between two counts of a source that replies. If no count was added for longer, the time
/// since the last count is treated as time without increments.
const GAP: Duration = Duration::from_secs(2);

/// A value that includes a count.
pub(crate) trait Counted {
    /// Returns the count that shows progress, in steps or updates.
    fn count(&self) -> u64;
}

impl Counted for u64 {
    fn count(&self) -> u64 {
        *self
    }
}

/// A window with the counts of the last seconds.
#[derive(Clone, Debug)]
pub(crate) struct Window<T> {
    counts: VecDeque<(Duration, T)>,
    /// The time of the last increment; before the first increment, the time of the first count.
    increased: Duration,
    /// The average time per increment, computed at the last increment.
    pace: Option<Duration>,
}

impl<T> Default for Window<T> {
    fn default() -> Self {
        Self { counts: VecDeque::new(), increased: Duration::ZERO, pace: None }
    }
}

impl<T: Counted> Window<T> {
    /// Adds a count, which was read at the time `at`. This time must not be earlier than that of the last
    /// call.
    pub(crate) fn add(&mut self, at: Duration, count: T) {
        match self.counts.back().map(|(_, last)| count.count().saturating_sub(last.count())) {
            None => self.increased = at,
            Some(0) => {}
            Some(more) => {
                let more = u32::try_from(more).unwrap_or(u32::MAX);
                (self.increased, self.pace) = (at, Some(at.saturating_sub(self.increased) / more));
            }
        }
        let full = self.counts.len() == COUNTS_MAX;
        match self.counts.back_mut() {
            Some(last) if last.0 >= at || full => *last = (at, count),
            _ => self.counts.push_back((at, count)),
        }
        let span = self.span();
        while self.counts.get(1).is_some_and(|&(second, _)| second + span <= at) {
            self.counts.pop_front();
        }
    }

    /// Returns the length of time that the window covers now.
    fn span(&self) -> Duration {
        self.pace.map_or(LONG, |pace| pace.saturating_mul(FEW).clamp(SPAN, LONG))
    }

    /// Returns the time of the last increment or, before the first increment, of the first count.
    pub(crate) const fn increased(&self) -> Duration {
        self.increased
    }

    /// Returns the last count, and its time.
    pub(crate) fn last(&self) -> Option<&(Duration, T)> {
        self.counts.back()
    }

    /// Returns the first and the last value in the window, and the time between them. If the source has been
    /// silent for longer than [`GAP`], the time extends to `now`. Returns `None` if the last value is at
    /// least [`SPAN`] old, or if there is only one value.
    pub(crate) fn ends(&self, now: Duration) -> Option<(&T, &T, Duration)> {
        let ((first, before), (last, after)) = (self.counts.front()?, self.counts.back()?);
        let silent = now.saturating_sub(*last);
        let until = if silent > GAP { now } else { *last };
        let took = until.saturating_sub(*first);
        (silent < SPAN && last > first).then_some((before, after, took))
    }
}

impl Window<u64> {
    /// Returns the increase per second, over the window as seen at the time `now`.
    pub(crate) fn rate(&self, now: Duration) -> f64 {
        self.ends(now).map_or(0.0, |(&before, &after, took)| rate(before, after, took))
    }
}

/// Returns the increase per second from `before` to `after`.
pub(crate) fn rate(before: u64, after: u64, took: Duration) -> f64 {
    after.saturating_sub(before) as f64 / took.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Checks that the stored counts are few and cover the last seconds (A), that each is stored with
        /// its own time (B), and that the rate is 0 without new counts (C). Adds counts at random times, and
        /// reads the rate up to 8 s after the last of them.
        #[test]
        fn it_covers_the_last_seconds(
            counts in prop::collection::vec((0u64..4000, 0u64..1000), 1..200),
            quick in prop_oneof![1u64..100, 1u64..4000],
            often in 1u64..1000,
            later in 0u64..8000,
        ) {
            let ms = Duration::from_millis;
            let mut window = Window::default();
            let (mut at, mut count, mut all) = (0, 0u64, Vec::new());
            for (wait, more) in counts {
                (at, count) = (at + wait % quick, count + more / often);
                window.add(ms(at), count);
                all.push((ms(at), count));
                prop_assert!(window.counts.len() <= COUNTS_MAX, "(A)");
                let covers = ms(at) - window.counts[0].0;
                let span = window.span();
                prop_assert!((SPAN..=LONG).contains(&span), "(A)");
                prop_assert!(window.counts.len() < 3 || ms(at) - window.counts[1].0 < span, "(A) and not much more");
                prop_assert!(covers >= SPAN || window.counts[0].0 == all[0].0 || window.counts.len() == COUNTS_MAX, "(A)");
                prop_assert!(window.counts.iter().all(|count| all.contains(count)), "(B)");
                prop_assert_eq!(window.last(), all.last());
            }
            let now = ms(at + later);
            match window.ends(now) {
                Some((before, after, took)) => {
                    prop_assert!(after >= before && !took.is_zero() && ms(later) < SPAN);
                    prop_assert!(window.rate(now) >= 0.0);
                }
                None => {
                    prop_assert!(ms(later) >= SPAN || window.counts.len() == 1, "(C)");
                    prop_assert_eq!(window.rate(now), 0.0);
                }
            }
        }
    }

    #[test]
    fn a_slow_count_has_a_rate() {
        let mut window = Window::default();
        for second in 0..300 {
            let at = Duration::from_secs(second);
            window.add(at, second / 12);
            let rate = window.rate(at);
            assert!(second < 12 || (0.04..0.13).contains(&rate), "{rate} in second {second}");
            assert!(window.counts.len() <= COUNTS_MAX);
        }
        // If a fast count stops, the rate soon becomes zero.
        let mut window = Window::default();
        for second in 0..50u64 {
            window.add(Duration::from_secs(second), second.min(20) * 20);
        }
        assert_eq!(
            (window.rate(Duration::from_secs(49)), window.increased()),
            (0.0, Duration::from_secs(20))
        );
    }
}
