//! Estimates the offset of another task's clock from calls to that task. As in NTP (Mills, RFC 5905, 2010),
//! the offset is that of the call with the shortest round trip. This module must not depend on clocks or
//! connections. Wanted properties: (A) the error of the estimate is at most half of the shortest round trip
//! among the last [`CALLS_MAX`] calls, and 0 if both directions take equally long; (B) the times that
//! `place` returns lie within the call; (C) their order is preserved.

use std::collections::VecDeque;

use pushpull_messages::observe::{Micros, PushTimes};

/// The maximum number of calls whose estimates are stored. Older estimates are dropped because clocks drift.
const CALLS_MAX: usize = 8;

/// The estimated offset of another task's clock from this task's clock.
#[derive(Clone, Debug, Default)]
pub(crate) struct Alignment {
    calls: VecDeque<Estimate>,
}

/// The times of a call, on the clocks of both tasks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallTimes {
    /// When the whole request was sent, on this task's clock.
    pub sent: Micros,
    /// When the request was received, on the other task's clock.
    pub received: Micros,
    /// When the reply was sent, on the other task's clock.
    pub answered: Micros,
    /// When the reply arrived, on this task's clock.
    pub back: Micros,
}

/// The estimate from one call.
#[derive(Clone, Copy, Debug)]
struct Estimate {
    /// The total time that the request and the reply spent on the wire.
    round_trip: Micros,
    /// The time on the other task's clock minus the time on this task's clock.
    offset: Micros,
}

impl Alignment {
    /// Adds a call to the estimate. Ignores the call if its times are impossible.
    pub(crate) fn hear(&mut self, call: CallTimes) {
        let Some(estimate) = Estimate::of(call) else { return };
        if self.calls.len() == CALLS_MAX {
            self.calls.pop_front();
        }
        self.calls.push_back(estimate);
    }

    /// Returns the time on the other task's clock minus the time on this task's clock; `None` before the
    /// first call.
    pub(crate) fn offset(&self) -> Option<Micros> {
        self.calls.iter().min_by_key(|estimate| estimate.round_trip).map(|estimate| estimate.offset)
    }

    /// Converts the times of a push to this task's clock, and clamps them to the call. The call begins at
    /// `sent`, when the whole push was sent, and ends at `back`, when the reply arrived. Returns `None`
    /// before the first call.
    pub(crate) fn place(&self, times: PushTimes, sent: Micros, back: Micros) -> Option<PushTimes> {
        let offset = self.offset()?;
        let mut last = sent;
        let mut ours = |theirs: Micros| {
            last = theirs.saturating_sub(offset).min(back).max(last);
            last
        };
        Some(PushTimes {
            received_us: ours(times.received_us),
            taken_us: ours(times.taken_us),
            done_us: ours(times.done_us),
            answered_us: ours(times.answered_us),
        })
    }
}

impl Estimate {
    fn of(call: CallTimes) -> Option<Self> {
        let CallTimes { sent, received, answered, back } = call;
        let there = answered.checked_sub(received).filter(|&there| there >= 0)?;
        let round_trip = back.checked_sub(sent)?.checked_sub(there).filter(|&way| way >= 0)?;
        let (out, home) = (received.checked_sub(sent)?, answered.checked_sub(back)?);
        Some(Self { round_trip, offset: out.checked_add(home)?.div_euclid(2) })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the times of a call to a task whose clock is ahead of this task's clock by `ahead`. The call
    /// begins at `at` on this task's clock. The durations are `out` for the request, `there` for the work on
    /// the other task, and `home` for the reply.
    fn call(at: Micros, ahead: Micros, [out, there, home]: [Micros; 3]) -> CallTimes {
        let received = at + out + ahead;
        CallTimes { sent: at, received, answered: received + there, back: at + out + there + home }
    }

    #[test]
    fn nothing_is_placed_before_the_first_call() {
        let mut alignment = Alignment::default();
        let times = PushTimes { received_us: 1, taken_us: 2, done_us: 3, answered_us: 4 };
        assert_eq!(alignment.place(times, 0, 9), None);
        // Impossible times are ignored.
        alignment.hear(CallTimes { sent: 0, received: 9, answered: 5, back: 7 });
        alignment.hear(CallTimes { sent: 0, received: 0, answered: 8, back: 7 });
        alignment.hear(CallTimes { sent: 0, received: Micros::MIN, answered: Micros::MAX, back: 7 });
        assert_eq!(alignment.offset(), None);
        alignment.hear(call(5, 100, [2, 50, 2]));
        assert_eq!(alignment.offset(), Some(100));
    }

    proptest! {
        /// Checks that the error is at most half of the shortest round trip (A). In the call with that round
        /// trip, the request and the reply may take different times: the error must also be at most half of
        /// their difference.
        #[test]
        fn the_offset_is_off_by_half_of_the_ways_difference(
            ahead in -1_000_000_000i64..1_000_000_000,
            calls in prop::collection::vec((0i64..10_000, 0i64..1_000_000, 0i64..10_000), 1..30),
            even in any::<bool>(),
        ) {
            let mut alignment = Alignment::default();
            let (mut at, mut round_trips) = (0, Vec::new());
            for (out, there, home) in calls {
                let home = if even { out } else { home };
                alignment.hear(call(at, ahead, [out, there, home]));
                round_trips.push((out + home, out - home));
                at += out + there + home;
                let last = &round_trips[round_trips.len().saturating_sub(CALLS_MAX)..];
                let (least, difference) = *last.iter().min_by_key(|(round_trip, _)| *round_trip).unwrap();
                let off = alignment.offset().unwrap() - ahead;
                prop_assert!(2 * off.abs() <= difference.abs() + 1, "(A): {off}, {difference}");
                prop_assert!(2 * off.abs() <= least + 1, "(A)");
                prop_assert!(!even || off == 0, "(A)");
            }
        }

        /// Checks that the placed times lie within the call (B) and keep their order (C), for any times that
        /// the other task reports.
        #[test]
        fn placed_times_lie_within_their_call_in_order(
            ahead in any::<i64>(),
            ways in any::<[u16; 3]>(),
            times in any::<[i64; 4]>(),
            near in any::<bool>(),
            sent in -1_000_000i64..1_000_000,
            took in 0i64..1_000_000,
        ) {
            let mut alignment = Alignment::default();
            let ahead = if near { ahead % 1_000_000 } else { ahead / 4 };
            alignment.hear(call(sent, ahead, ways.map(i64::from)));
            let offset = alignment.offset().unwrap();
            let [received_us, taken_us, done_us, answered_us] =
                times.map(|time| if near { offset + sent + time % 2_000_000 } else { time });
            let times = PushTimes { received_us, taken_us, done_us, answered_us };
            let placed = alignment.place(times, sent, sent + took).unwrap();
            let all = [sent, placed.received_us, placed.taken_us, placed.done_us, placed.answered_us, sent + took];
            prop_assert!(all.is_sorted(), "(B), (C): {all:?}");
            let theirs = [received_us, taken_us, done_us, answered_us];
            if near && theirs.is_sorted() {
                let inside = theirs.iter().all(|&time| (sent..=sent + took).contains(&(time - offset)));
                prop_assert!(!inside || placed.received_us == received_us - offset);
            }
        }
    }
}
